//! What can break, as lines of a scenario.

use serde::{Deserialize, Serialize};

/// On which side of a write a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Nothing was written.
    Before,
    /// It is on disk, and nobody has heard of it.
    After,
}

/// One fault. Exactly one of the kinds is named; the rest says when, for how long, how much.
///
/// A fault without `for_ms` lasts until the world is healed: then nodes are started again, links are up, disks have room.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultLine {
    /// When it begins.
    pub at_ms: u64,
    /// How long it lasts. Of a crash: after this the node starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Of a crash, a power cut or a leave: the node does not even come back when the world is healed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_good: Option<bool>,

    /// Kind: the process is killed. Its kernel tells the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<String>,
    /// Kind: the machine loses power: silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<String>,
    /// Kind: the node leaves as a user would have it leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave: Option<String>,
    /// Kind: the process is stopped (SIGSTOP) and goes on later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<String>,
    /// Kind: the machine sleeps: as a freeze, and it hears nothing meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<String>,
    /// Kind: computing takes `factor` times as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<String>,
    /// Kind: reading weights takes `factor` times as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_disk: Option<String>,
    /// Kind: nothing can be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_disk: Option<String>,
    /// Kind: the clock jumps ahead by `jump_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
    /// Kind: the node dies at the next record that it writes, `side` it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_on_save: Option<String>,
    /// Kind: the node leaves and comes back after `for_ms` with another `protocol`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<String>,
    /// Kind: nobody in one group hears anybody in another. Nodes that no group names are a group of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Vec<Vec<String>>>,
    /// Kind: what the first sends to the second is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way: Option<[String; 2]>,
    /// Kind: the node hears nobody; what it says is heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaf: Option<String>,
    /// Kind: every link between two nodes is cut, or the one that `link` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<[String; 2]>,
    /// Kind: the links between two nodes are cut and mended every `period_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flap: Option<[String; 2]>,
    /// Kind: the links between two nodes get worse: `delay_us` and `loss` are added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worsen: Option<[String; 2]>,
    /// Kind: lanes between two nodes fail. With `for_ms`, new ones cannot be made over the same link meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_error: Option<[String; 2]>,
    /// Kind: queue pairs of a node are in error: its RDMA lanes fail and none can be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qp_error: Option<String>,
    /// Kind: tensor messages between two nodes are dropped, doubled, reordered, delayed, damaged with these probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensors: Option<[String; 2]>,

    /// How many times as slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// How far the clock jumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump_ms: Option<u64>,
    /// On which side of the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// The protocol version after an upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Which of a pair's links, counted from 0 in the order of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<usize>,
    /// From cut to cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u64>,
    /// Added one way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<f64>,
    /// Added to the probability that a packet is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Probability that a tensor message is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop: Option<f64>,
    /// Probability that it comes twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<f64>,
    /// Probability that it is overtaken by the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<f64>,
    /// Probability that a bit of it is flipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupt: Option<f64>,
    /// The lane does not repair or notice such damage: what happens to a message, happens to the stage. Bits are flipped in
    /// the header and the table of rows only, since values bear no mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<bool>,
}

impl FaultLine {
    /// The kind, and the nodes that it is about.
    #[must_use]
    pub fn kinds(&self) -> Vec<(&'static str, Vec<String>)> {
        let single = [
            ("crash", &self.crash),
            ("power", &self.power),
            ("leave", &self.leave),
            ("freeze", &self.freeze),
            ("sleep", &self.sleep),
            ("slow", &self.slow),
            ("slow_disk", &self.slow_disk),
            ("full_disk", &self.full_disk),
            ("clock", &self.clock),
            ("crash_on_save", &self.crash_on_save),
            ("upgrade", &self.upgrade),
            ("deaf", &self.deaf),
            ("qp_error", &self.qp_error),
        ];
        let pairs = [
            ("one_way", &self.one_way),
            ("cut", &self.cut),
            ("flap", &self.flap),
            ("worsen", &self.worsen),
            ("lane_error", &self.lane_error),
            ("tensors", &self.tensors),
        ];
        let single = single.into_iter().filter_map(|(kind, node)| Some((kind, vec![node.clone()?])));
        let pairs = pairs.into_iter().filter_map(|(kind, pair)| Some((kind, pair.clone()?.to_vec())));
        let groups = self.partition.iter().map(|groups| ("partition", groups.concat()));
        single.chain(pairs).chain(groups).collect()
    }

    /// In a few words, for the trace: `crash b for 3000 ms`.
    #[must_use]
    pub fn in_words(&self) -> String {
        let what = match (&self.partition, self.kinds().first()) {
            (Some(groups), _) => {
                let groups: Vec<String> = groups.iter().map(|group| group.join(" ")).collect();
                format!("partition {}", groups.join(" | "))
            }
            (None, Some((kind, nodes))) => format!("{kind} {}", nodes.join(" ")),
            (None, None) => "nothing".to_owned(),
        };
        match self.for_ms {
            Some(ms) => format!("{what} for {ms} ms"),
            None => what,
        }
    }
}

/// What breaks by chance, each as often as said. Zero, the default, is never.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RandomFaults {
    /// None before this.
    pub from_ms: u64,
    /// Nodes that are never killed, frozen or stopped.
    pub spare: Vec<String>,
    /// So many nodes at least are left running at any time.
    pub running_min: usize,
    /// Processes killed.
    pub crashes_per_min: f64,
    /// Machines without power.
    pub powers_per_min: f64,
    /// How long until a killed node starts again, least and most.
    pub away_ms: [u64; 2],
    /// Processes stopped.
    pub freezes_per_min: f64,
    /// For how long.
    pub freeze_ms: [u64; 2],
    /// Planned leaves.
    pub leaves_per_min: f64,
    /// Slow nodes: ten times.
    pub slows_per_min: f64,
    /// For how long, disks included.
    pub slow_ms: [u64; 2],
    /// Full disks.
    pub full_disks_per_min: f64,
    /// Jumps of a clock.
    pub clock_jumps_per_min: f64,
    /// How far.
    pub jump_ms: [u64; 2],
    /// Deaths in the middle of a write.
    pub crashes_on_save_per_min: f64,
    /// Partitions into two groups.
    pub partitions_per_min: f64,
    /// Deaf nodes.
    pub deafs_per_min: f64,
    /// Pairs with one way cut.
    pub one_ways_per_min: f64,
    /// Links cut.
    pub cuts_per_min: f64,
    /// For how long, each of these four.
    pub cut_ms: [u64; 2],
    /// Links with 20 ms more delay and 5 % loss.
    pub worsens_per_min: f64,
    /// For how long.
    pub worsen_ms: [u64; 2],
    /// Lanes broken.
    pub lane_errors_per_min: f64,
    /// Spells in which one tensor message in ten is lost, doubled, reordered or damaged.
    pub tensor_spells_per_min: f64,
    /// For how long.
    pub spell_ms: [u64; 2],
    /// Whether in those spells the lane lets the damage through to the stage.
    pub raw_spells: bool,
}

impl Default for RandomFaults {
    fn default() -> Self {
        Self {
            from_ms: 0,
            spare: Vec::new(),
            running_min: 1,
            crashes_per_min: 0.0,
            powers_per_min: 0.0,
            away_ms: [200, 8_000],
            freezes_per_min: 0.0,
            freeze_ms: [200, 6_000],
            leaves_per_min: 0.0,
            slows_per_min: 0.0,
            slow_ms: [1_000, 10_000],
            full_disks_per_min: 0.0,
            clock_jumps_per_min: 0.0,
            jump_ms: [100, 60_000],
            crashes_on_save_per_min: 0.0,
            partitions_per_min: 0.0,
            deafs_per_min: 0.0,
            one_ways_per_min: 0.0,
            cuts_per_min: 0.0,
            cut_ms: [100, 8_000],
            worsens_per_min: 0.0,
            worsen_ms: [1_000, 10_000],
            lane_errors_per_min: 0.0,
            tensor_spells_per_min: 0.0,
            spell_ms: [1_000, 8_000],
            raw_spells: false,
        }
    }
}
