//! Whether a scenario makes sense, in words that say what would.

use std::collections::BTreeSet;

use super::{EngineKind, FaultLine, NODES_MAX, Scenario, WORLD_MS_MAX};
use crate::outcome::Demand;

/// Questions of one world at most, so that a typing error costs no memory.
const QUESTIONS_MAX: f64 = 1e6;

impl Scenario {
    pub(super) fn check(&self) -> Result<(), String> {
        let machines = self.machines_checked()?;
        if self.world.engine == EngineKind::Story && !crate::story::IS_HERE {
            return Err("engine = \"story\" needs a program that was built with the feature `story`".to_owned());
        }
        self.check_numbers()?;
        let known = |name: &String| -> Result<(), String> {
            let all: Vec<&str> = machines.iter().map(String::as_str).collect();
            if machines.contains(name) { Ok(()) } else { Err(format!("there is no node {name:?}: there are {}", all.join(", "))) }
        };
        self.world.seeds.iter().try_for_each(known)?;
        self.traffic.ask.iter().try_for_each(known)?;
        self.nodes.iter().filter_map(|node| node.clone_of.as_ref()).try_for_each(known)?;
        self.deployments.iter().filter_map(|line| line.on.as_ref()).try_for_each(known)?;
        for cable in &self.cables {
            cable.between.iter().try_for_each(known)?;
            if cable.between[0] == cable.between[1] {
                return Err(format!("a cable from {} to itself", cable.between[0]));
            }
            positive("delay_us of a cable", cable.delay_us, 0.0)?;
            positive("mbit_s of a cable", cable.mbit_s, 1e-3)?;
            probability("loss of a cable", cable.loss)?;
        }
        for fault in &self.faults {
            fault.check().map_err(|why| format!("the fault at {} ms: {why}", fault.at_ms))?;
            fault.kinds().iter().flat_map(|(_, nodes)| nodes).try_for_each(known)?;
        }
        if let Some(random) = &self.random_faults {
            random.spare.iter().try_for_each(known)?;
        }
        self.asserts.iter().try_for_each(|text| text.parse::<Demand>().map(drop))
    }

    fn machines_checked(&self) -> Result<BTreeSet<String>, String> {
        let count: u64 = self.nodes.iter().map(|node| u64::from(node.count)).sum();
        if count == 0 || count > NODES_MAX as u64 {
            return Err(format!("a world has 1 to {NODES_MAX} nodes, not {count}"));
        }
        let machines = self.machines();
        let mut names = BTreeSet::new();
        for machine in &machines {
            let plain = machine.name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
            if machine.name.is_empty() || machine.name.len() > 64 || !plain {
                return Err(format!("a node's name has up to 64 letters, digits, '-', '_' and '.': not {:?}", machine.name));
            }
            if !names.insert(machine.name.clone()) {
                return Err(format!("two nodes are called {}", machine.name));
            }
        }
        Ok(names)
    }

    fn check_numbers(&self) -> Result<(), String> {
        positive("run_s", self.world.run_s, 0.0)?;
        positive("heal_s", self.world.heal_s, 0.0)?;
        if self.run_ms().saturating_add(self.heal_ms()) > WORLD_MS_MAX {
            return Err("a world lasts a week at most".to_owned());
        }
        if self.world.credit_ms == 0 || self.world.token_ms <= self.world.credit_ms {
            return Err(
                "credit_ms has to be positive and below token_ms: a stage that is stuck is named before its owner gives up".to_owned()
            );
        }
        if self.world.lease_ms <= self.world.token_ms {
            return Err("lease_ms has to be above token_ms: a stream that may still go on is not dropped".to_owned());
        }
        if self.world.look_ms == 0 {
            return Err("look_ms has to be positive".to_owned());
        }
        let model = &self.model;
        if model.layers == 0 || model.layers > 1_000 || !(4..=1 << 16).contains(&model.width) || !(8..=1 << 20).contains(&model.context) {
            return Err("a model has 1 to 1000 layers, 4 to 65536 values a position and a context of 8 to 1048576".to_owned());
        }
        positive("layer_mb", model.layer_mb, 0.0)?;
        positive("layer_mflop", model.layer_mflop, 0.0)?;
        for node in &self.nodes {
            positive("memory_gb", node.memory_gb, 0.0)?;
            positive("bandwidth_gb_s", node.bandwidth_gb_s, 1e-3)?;
            positive("gflops", node.gflops, 1e-3)?;
            positive("disk_mb_s", node.disk_mb_s, 1e-3)?;
        }
        positive("delay_us", self.links.delay_us, 0.0)?;
        positive("jitter_us", self.links.jitter_us, 0.0)?;
        positive("mbit_s", self.links.mbit_s, 1e-3)?;
        probability("loss", self.links.loss)?;
        let traffic = &self.traffic;
        positive("per_s", traffic.per_s, 0.0)?;
        probability("hang_up", traffic.hang_up)?;
        if traffic.per_s * self.world.run_s > QUESTIONS_MAX {
            return Err(format!("more than {QUESTIONS_MAX} questions"));
        }
        let ranges = [("prompt", traffic.prompt), ("answer", traffic.answer)];
        for (name, [least, most]) in ranges {
            if least == 0 || least > most {
                return Err(format!("{name} = [least, most], at least one token"));
            }
        }
        if traffic.prompt[1].saturating_add(traffic.answer[1]) > model.context {
            return Err(format!("the longest prompt and answer do not fit the model's context of {}", model.context));
        }
        Ok(())
    }
}

impl FaultLine {
    fn check(&self) -> Result<(), String> {
        let kinds: Vec<&str> = self.kinds().iter().map(|(kind, _)| *kind).collect();
        let [kind] = kinds[..] else {
            return Err(match kinds.len() {
                0 => "no kind: write for instance `crash = \"a\"`".to_owned(),
                _ => format!("one kind each, not {}", kinds.join(" and ")),
            });
        };
        if self.kinds().iter().any(|(kind, nodes)| *kind != "partition" && nodes.len() == 2 && nodes[0] == nodes[1]) {
            return Err("two different nodes".to_owned());
        }
        let needs = |there: bool, what: &str| if there { Ok(()) } else { Err(format!("{kind} needs {what}")) };
        match kind {
            "slow" | "slow_disk" => {
                needs(self.factor.is_some_and(|factor| (1.0..=1e6).contains(&factor)), "factor, how many times as slow, from 1")
            }
            "clock" => needs(self.jump_ms.is_some(), "jump_ms"),
            "upgrade" => needs(self.protocol.is_some() && self.for_ms.is_some(), "protocol and for_ms"),
            "flap" => needs(self.period_ms.is_some_and(|ms| ms >= 2), "period_ms, at least 2"),
            "crash_on_save" => needs(self.side.is_some(), "side, before or after"),
            _ => Ok(()),
        }?;
        for (name, value) in
            [("loss", self.loss), ("drop", self.drop), ("duplicate", self.duplicate), ("reorder", self.reorder), ("corrupt", self.corrupt)]
        {
            probability(name, value.unwrap_or(0.0))?;
        }
        positive("delay_us", self.delay_us.unwrap_or(0.0), 0.0)
    }
}

fn positive(name: &str, value: f64, least: f64) -> Result<(), String> {
    if value.is_finite() && value >= least && value <= 1e12 {
        Ok(())
    } else {
        Err(format!("{name} has to be at least {least}, not {value}"))
    }
}

fn probability(name: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(format!("{name} is a probability, from 0 to 1, not {value}")) }
}
