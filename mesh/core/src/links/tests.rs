//! Two nodes and what connects them, on virtual time: both ends agree on the link that works best, whatever its name.

use proptest::prelude::*;

use super::*;
use crate::ids::{DeploymentId, PlanHash};
use crate::wire::LaneId;

fn id(byte: u8) -> NodeId {
    NodeId([byte; 32])
}

fn interface(name: &str, kind: InterfaceKind, addresses: &[&str]) -> Interface {
    let address = |text: &&str| {
        let (ip, prefix) = text.split_once('/').expect("ADDRESS/PREFIX");
        NetAddress { ip: ip.parse().expect("an address"), prefix: prefix.parse().expect("a number") }
    };
    Interface { name: name.into(), kind, speed_mbps: 0, addresses: addresses.iter().map(address).collect(), index: 0 }
}

fn wire(name: &str, address: &str) -> Interface {
    interface(name, InterfaceKind::Ethernet, &[address])
}

fn offer() -> LaneOffer {
    let lane = LaneId { deployment: DeploymentId(0), plan: PlanHash(0), boundary: 0 };
    LaneOffer { lane, generation: 1, endpoints: Vec::new(), secret: [0; 32], slot_bytes: 1, slots: 1 }
}

/// Low node 1 and high node 2. `cables`: pairs of local addresses that reach each other, with their delay.
struct World {
    now: Time,
    nodes: [Links; 2],
    interfaces: [Vec<Interface>; 2],
    cables: Vec<(&'static str, &'static str, u32)>,
    preferred: [Vec<Way>; 2],
    notices: Vec<String>,
    paths: Vec<Path>,
    /// (link, rate too) of every measurement.
    measured: Vec<(String, bool)>,
    /// Messages between the two are lost.
    cut: bool,
    /// A measurement never ends.
    stuck: bool,
}

impl World {
    fn new(low: Vec<Interface>, high: Vec<Interface>, cables: &[(&'static str, &'static str, u32)]) -> Self {
        let now = Time::default().plus_ms(1_000);
        let mut world = Self {
            now,
            nodes: [Links::new(now, id(1), 7), Links::new(now, id(2), 9)],
            interfaces: [low, high],
            cables: cables.to_vec(),
            preferred: [Vec::new(), Vec::new()],
            notices: Vec::new(),
            paths: Vec::new(),
            measured: Vec::new(),
            cut: false,
            stuck: false,
        };
        world.tell_interfaces();
        world
    }

    fn tell_interfaces(&mut self) {
        for me in 0..2 {
            let (mine, theirs) = (self.interfaces[me].clone(), self.interfaces[1 - me].clone());
            self.feed(me, Input::Mine(mine));
            self.feed(me, Input::Met { node: id(2 - me as u8), boot: BootId(1), interfaces: theirs });
        }
    }

    fn feed(&mut self, at: usize, input: Input) {
        let mut queue = vec![(at, input)];
        while !queue.is_empty() {
            let (at, input) = queue.remove(0);
            let mut effects = Vec::new();
            self.nodes[at].step(self.now, input, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Send { to, message } if !self.cut => {
                        let bytes = crate::wire::encode(&crate::wire::Message::Links(message.clone())).expect("short");
                        assert!(bytes.len() < 4_096, "a message about links is short");
                        queue.push((usize::from(to.0[0]) - 1, Input::Heard { from: id(at as u8 + 1), message }));
                    }
                    Effect::Send { .. } => {}
                    Effect::Echo { to, ticket, .. } => {
                        let message = LinkMessage::Answer { ticket, offer: Ok(offer()) };
                        queue.push((usize::from(to.0[0]) - 1, Input::Heard { from: id(at as u8 + 1), message }));
                    }
                    Effect::Measure { .. } if self.stuck => {}
                    Effect::Measure { ticket, ways, rate, .. } => {
                        let outcome = self.measure(&ways, rate);
                        queue.push((at, Input::Measured { ticket, outcome }));
                    }
                    Effect::Prefer { ways, .. } => self.preferred[at] = ways,
                    Effect::Tell(paths) => self.paths = paths,
                    Effect::Notice(notice) => self.notices.push(notice),
                }
            }
        }
    }

    fn measure(&mut self, ways: &[Way], rate: bool) -> Result<Measured, String> {
        self.measured.push((ways.first().map(|way| way.link.to_string()).unwrap_or_default(), rate));
        let joins = |way: &Way, cable: &(&str, &str, u32)| {
            (way.local.to_string(), way.remote.to_string()) == (cable.0.to_owned(), cable.1.to_owned())
        };
        let cable = ways.iter().find_map(|way| self.cables.iter().find(|cable| joins(way, cable)));
        let rate = if rate { 1_000_000_000 } else { 0 };
        cable.map(|cable| Measured { delay_us: cable.2, bytes_per_s: rate }).ok_or_else(|| "no answer in time".into())
    }

    fn run(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        for _ in 0..10_000 {
            let due = self.nodes.iter().filter_map(Links::wake_at).min().unwrap_or(end).max(self.now);
            if due > end {
                break;
            }
            self.now = due.max(Time(self.now.0 + 1));
            (0..2).for_each(|at| self.feed(at, Input::Elapsed));
        }
        self.now = self.now.max(end);
    }

    /// The link that each end would use.
    fn used(&self) -> [String; 2] {
        [0, 1].map(|at| self.preferred[at].first().map(|way| way.link.to_string()).unwrap_or_default())
    }
}

/// A LAN and a direct cable with addresses of its own choosing; `names` are what the systems call them.
fn lan_and_cable(low: [&str; 2], high: [&str; 2]) -> World {
    World::new(
        vec![wire(low[0], "192.168.1.10/24"), wire(low[1], "169.254.3.1/16")],
        vec![wire(high[0], "192.168.1.20/24"), wire(high[1], "169.254.9.9/16")],
        &[("192.168.1.10", "192.168.1.20", 5_000), ("169.254.3.1", "169.254.9.9", 50)],
    )
}

/// F3, F4: whatever the two ends call their interfaces, both take the one that was measured to be quicker.
#[test]
fn both_ends_take_the_quicker_link_under_every_naming() {
    for low in [["a", "b"], ["b", "a"]] {
        for high in [["a", "b"], ["b", "a"]] {
            let mut world = lan_and_cable(low, high);
            world.run(2_000);
            let cable = format!("{}-{}", low[1], high[1]);
            assert_eq!(world.used(), [cable.clone(), cable], "{low:?} {high:?}");
            let ends: Vec<_> = world.preferred.iter().map(|ways| (ways[0].local.to_string(), ways[0].remote.to_string())).collect();
            assert_eq!(ends[0], ("169.254.3.1".into(), "169.254.9.9".into()));
            assert_eq!(ends[1], ("169.254.9.9".into(), "169.254.3.1".into()), "the other end's view is the mirror");
        }
    }
}

/// F18: two cables between the same nodes, names crossed, all four pairs look direct; two of them are.
#[test]
fn crossed_cables_are_told_from_pairs_that_only_look_direct() {
    let cables = [("169.254.1.6", "169.254.2.7", 40), ("169.254.1.7", "169.254.2.6", 150)];
    let mut world = World::new(
        vec![wire("if6", "169.254.1.6/16"), wire("if7", "169.254.1.7/16")],
        vec![wire("if6", "169.254.2.6/16"), wire("if7", "169.254.2.7/16")],
        &cables,
    );
    world.run(5_000);
    assert_eq!(world.used(), ["if6-if7", "if6-if7"]);
    for at in 0..2 {
        let seen = world.nodes[at].seen(world.now);
        let up: Vec<String> = seen.iter().filter(|link| link.state == LinkState::Up).map(|link| link.link.to_string()).collect();
        assert_eq!(up, ["if6-if7", "if7-if6"], "at node {at}");
        assert!(seen.iter().filter(|link| link.state != LinkState::Up).all(|link| link.note.contains("no answer")), "{seen:?}");
    }
    // F15: the better one is pulled; a lane breaks at the high end.
    world.cables.remove(0);
    world.feed(1, Input::Broke { peer: id(1), link: LinkName { low: "if6".into(), high: "if7".into() } });
    world.run(1_000);
    assert_eq!(world.used(), ["if7-if6", "if7-if6"]);
    // It comes back, and is the better one again.
    world.cables.push(cables[0]);
    world.run(PAUSE_LAST_MS * 2);
    assert_eq!(world.used(), ["if6-if7", "if6-if7"]);
}

/// F4: a better link that appears later is used within 10 s (2 s of which its node needs to see it).
#[test]
fn a_better_link_that_appears_later_is_used() {
    let mut world = World::new(
        vec![wire("lan", "10.0.0.1/24")],
        vec![wire("lan", "10.0.0.2/24")],
        &[("10.0.0.1", "10.0.0.2", 10_000), ("169.254.1.1", "169.254.1.2", 100)],
    );
    world.run(30_000);
    assert_eq!(world.used(), ["lan-lan", "lan-lan"]);
    world.interfaces[0].push(wire("tb0", "169.254.1.1/16"));
    world.tell_interfaces();
    world.run(1_000);
    assert_eq!(world.used(), ["lan-lan", "lan-lan"]);
    world.interfaces[1].push(wire("tb1", "169.254.1.2/16"));
    world.tell_interfaces();
    world.run(1_000);
    assert_eq!(world.used(), ["tb0-tb1", "tb0-tb1"]);
    // And when its interface goes, the other one is.
    world.interfaces[0].pop();
    world.tell_interfaces();
    assert_eq!(world.used(), ["lan-lan", "lan-lan"]);
}

/// F1: the same container bridge on every machine is no link at all, and a VPN is tried only when nothing else is left.
#[test]
fn a_vpn_is_used_only_if_nothing_else_connects_the_two() {
    let vpn = |name: &str, address: &str| interface(name, InterfaceKind::Virtual, &[address]);
    let mut world = World::new(
        vec![vpn("docker0", "172.17.0.1/16"), wire("eth0", "10.0.0.1/24"), vpn("tun0", "100.64.0.1/32")],
        vec![vpn("docker0", "172.17.0.1/16"), wire("eth0", "10.0.0.2/24"), vpn("tun0", "100.64.0.2/32")],
        &[("10.0.0.1", "10.0.0.2", 900), ("100.64.0.1", "100.64.0.2", 100)],
    );
    world.run(120_000);
    assert_eq!(world.used(), ["eth0-eth0", "eth0-eth0"]);
    assert!(world.measured.iter().all(|(link, _)| link == "eth0-eth0"), "nothing else was even tried: {:?}", world.measured);
    assert!(world.preferred[0].iter().all(|way| way.link.low == "eth0"), "nor offered");
    assert_eq!(world.notices, Vec::<String>::new());
    world.cables.remove(0);
    world.run(AGAIN_MS * 2);
    assert_eq!(world.used(), ["tun0-tun0", "tun0-tun0"]);
    assert_eq!(world.notices.len(), 2, "said once at each end: {:?}", world.notices);
    world.cables.push(("10.0.0.1", "10.0.0.2", 900));
    world.run(PAUSE_LAST_MS * 2);
    assert_eq!(world.used(), ["eth0-eth0", "eth0-eth0"]);
}

/// F5, F8: networks are told by their prefix; interfaces without a network in common may be routed.
#[test]
fn networks_of_four_addresses_and_routers() {
    let hub = vec![wire("a", "10.9.0.1/30"), wire("b", "10.9.0.5/30")];
    let one = pairs(&hub, &[wire("x", "10.9.0.6/30")]);
    assert_eq!(one.iter().map(|pair| (pair.name.to_string(), pair.reach)).collect::<Vec<_>>(), [("b-x".to_owned(), Reach::Direct)]);
    let two = pairs(&[wire("a", "10.1.0.2/24")], &[wire("x", "10.2.0.2/24")]);
    assert_eq!(two.iter().map(|pair| (pair.name.to_string(), pair.reach)).collect::<Vec<_>>(), [("a-x".to_owned(), Reach::Routed)]);
    assert_eq!(pairs(&[wire("a", "169.254.1.1/16")], &[wire("x", "10.2.0.2/24")]), [], "a cable's own address is not routed");
}

/// Two processes on one machine meet on loopback, two machines do not.
#[test]
fn loopback_is_a_link_within_one_machine_only() {
    let names = |low: &[Interface], high: &[Interface]| pairs(low, high).iter().map(|pair| pair.name.to_string()).collect::<Vec<_>>();
    let lo = Interface::loopback;
    assert_eq!(names(&[lo()], &[lo()]), ["lo-lo"]);
    assert_eq!(names(&[lo(), wire("a", "10.0.0.1/24")], &[lo(), wire("a", "10.0.0.1/24")]), ["lo-lo"]);
    assert_eq!(names(&[lo(), wire("a", "10.0.0.1/24")], &[lo(), wire("a", "10.0.0.2/24")]), ["a-a"]);
}

/// Nobody flaps between two links that are as good as each other, and no table travels for noise.
#[test]
fn noise_changes_nothing() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.cables[0].2 = 55;
    world.run(2_000);
    let used = world.used();
    for delay in [60, 45, 52, 61, 44] {
        world.cables[0].2 = delay;
        world.run(AGAIN_MS * 2);
        assert_eq!(world.used(), used);
    }
    assert!(world.measured.iter().filter(|(_, rate)| *rate).count() <= 4, "rates cost bytes: {:?}", world.measured.len());
}

/// Streams run: only short probes.
#[test]
fn a_busy_node_measures_no_rates() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.nodes[1].busy = true; // the far end refuses
    world.run(60_000);
    assert_eq!(world.used(), ["b-b", "b-b"], "delays alone decide");
    let seen = world.nodes[0].seen(world.now);
    assert!(seen.iter().all(|link| link.measured.is_some_and(|measured| measured.bytes_per_s == 0)), "{seen:?}");
    world.feed(1, Input::Busy(false));
    world.run(30_000); // soon, not at the next round
    assert!(world.nodes[0].seen(world.now).iter().all(|link| link.measured.is_some_and(|measured| measured.bytes_per_s > 0)));
    assert_eq!(world.paths.len(), 1);
    assert_eq!(world.paths[0].measured, Measured { delay_us: 50, bytes_per_s: 1_000_000_000 });
}

/// P4: nothing that the other end or the carrier does not do holds the core up.
#[test]
fn silence_costs_time_and_no_link() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.cut = true;
    world.run(20_000);
    assert!(world.nodes[0].seen(world.now).iter().all(|link| link.state == LinkState::Untried), "an ask without answer says nothing");
    world.cut = false;
    world.stuck = true;
    world.run(300_000);
    let seen = world.nodes[0].seen(world.now);
    assert!(seen.iter().any(|link| matches!(&link.state, LinkState::Down(why) if why.contains("did not end"))), "{seen:?}");
    world.stuck = false;
    world.run(300_000);
    assert_eq!(world.used(), ["b-b", "b-b"]);
}

/// What a liar says costs nothing: tickets are used once, tables are believed from the low end about known links only.
#[test]
fn lies_are_ignored() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.run(2_000);
    let before = (world.nodes[0].seen(world.now), world.measured.len());
    let said = LinkSaid { link: LinkName { low: "b".into(), high: "b".into() }, state: LinkState::Down("ha".into()), measured: None };
    world.feed(0, Input::Heard { from: id(2), message: LinkMessage::Table(vec![said.clone(); 1_000]) });
    for ticket in 0..40 {
        world.feed(0, Input::Heard { from: id(2), message: LinkMessage::Answer { ticket, offer: Ok(offer()) } });
        world.feed(0, Input::Measured { ticket, outcome: Err("late".into()) });
    }
    world.feed(0, Input::Heard { from: id(9), message: LinkMessage::Ask { ticket: 1, link: said.link.clone(), rate: true } });
    world.feed(0, Input::Heard { from: id(2), message: LinkMessage::Ask { ticket: 1, link: said.link.clone(), rate: true } });
    assert_eq!((world.nodes[0].seen(world.now), world.measured.len()), before);
    let odd = LinkSaid { link: LinkName { low: "x".repeat(9_999), high: String::new() }, ..said };
    world.feed(1, Input::Heard { from: id(1), message: LinkMessage::Table(vec![odd; 100_000]) });
    assert_eq!(world.nodes[1].seen(world.now).len(), 2);
    assert!(world.preferred[1].len() <= PREFERRED_MAX);
}

/// A flapping interface is not measured at each of its lives.
#[test]
fn a_link_that_comes_and_goes_waits() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.run(1_000);
    let before = world.measured.len();
    for _ in 0..50 {
        let gone = world.interfaces[0].pop().expect("the cable");
        world.tell_interfaces();
        world.run(100);
        world.interfaces[0].push(gone);
        world.tell_interfaces();
        world.run(100);
    }
    assert!(world.measured.len() - before <= 4, "{:?}", &world.measured[before..]);
    assert_eq!(world.used(), ["a-a", "a-a"]);
    world.run(PAUSE_LAST_MS * 2);
    assert_eq!(world.used(), ["b-b", "b-b"], "in the end it is trusted again");
}

/// A restarted or departed peer leaves nothing behind.
#[test]
fn a_peer_that_goes_is_forgotten() {
    let mut world = lan_and_cable(["a", "b"], ["a", "b"]);
    world.run(2_000);
    world.feed(0, Input::Gone(id(2)));
    assert_eq!((world.preferred[0].len(), world.nodes[0].seen(world.now).len()), (0, 0));
    assert_eq!(world.nodes[0].wake_at(), Some(world.nodes[0].paths_at), "only the record is due: no path any more");
}

fn any_interfaces(net: u8) -> impl Strategy<Value = Vec<Interface>> {
    let kinds = prop::sample::select(vec![
        InterfaceKind::Thunderbolt,
        InterfaceKind::Ethernet,
        InterfaceKind::Wifi,
        InterfaceKind::Loopback,
        InterfaceKind::Virtual,
    ]);
    let one = (0..6_u8, kinds, 0..3_u8, 0..4_u8, prop::sample::select(vec![8_u8, 24, 30, 32, 200]), 0..3_u32);
    prop::collection::vec(one, 0..6).prop_map(move |all| {
        let make = |(name, kind, subnet, host, prefix, speed): (u8, InterfaceKind, u8, u8, u8, u32)| Interface {
            speed_mbps: speed * 1_000,
            ..interface(&format!("if{name}"), kind, &[&format!("10.0.{subnet}.{}/{prefix}", host + net), &format!("fe80::{name}:{net}/64")])
        };
        all.into_iter().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever interfaces there are and whichever pairs of them are connected: the two ends use one and the same link,
    /// it is one that works if any does, and names in another order change nothing.
    #[test]
    fn both_ends_agree(low in any_interfaces(1), high in any_interfaces(101), works in prop::collection::vec(any::<bool>(), 16)) {
        let mut world = World::new(low, high, &[]);
        let candidates: Vec<Way> = world.nodes[0].seen(world.now).iter().zip(&works).filter(|(_, works)| **works).filter_map(|(link, _)| {
            world.nodes[0].peers[&id(2)].link(&link.link).and_then(|link| peer::ways_of(&link.pair, true, &world.nodes[0].mine, false).first().cloned())
        }).collect();
        for (index, way) in candidates.iter().enumerate() {
            let leak = |ip: std::net::IpAddr| -> &'static str { Box::leak(ip.to_string().into_boxed_str()) };
            world.cables.push((leak(way.local), leak(way.remote), 100 + 100 * u32::try_from(index).expect("few")));
        }
        world.run(20_000);
        let used = world.used();
        prop_assert_eq!(&used[0], &used[1]);
        let up = |at: usize| world.nodes[at].seen(world.now).into_iter().filter(|link| link.state == LinkState::Up).map(|link| link.link.to_string()).collect::<Vec<_>>();
        prop_assert_eq!(up(0), up(1));
        if !candidates.is_empty() {
            prop_assert!(up(0).contains(&used[0]), "{} is not up; {:?} are", used[0], up(0));
        }
    }

    /// Any history: no panic, and everything stays bounded.
    #[test]
    fn any_history_is_survived(events in prop::collection::vec((0..9_u8, 0..4_u8, any::<u64>()), 0..60)) {
        let mut links = Links::new(Time::default(), id(2), 3);
        let mut now = Time::default();
        let name = |bits: u64| LinkName { low: format!("if{}", bits % 3), high: format!("if{}", bits / 3 % 3) };
        for (what, who, bits) in events {
            now = now.plus_ms(bits % 40_000);
            let node = id(who);
            let interfaces = || (0..bits % 4).map(|i| wire(&format!("if{i}"), &format!("10.0.{i}.{}/24", u64::from(who) + 1))).collect();
            let message = match bits % 4 {
                0 => LinkMessage::Ask { ticket: bits, link: name(bits), rate: bits % 2 == 0 },
                1 => LinkMessage::Answer { ticket: links.ticket, offer: if bits % 8 < 4 { Ok(offer()) } else { Err(NotNow::Unknown) } },
                2 => LinkMessage::Table(vec![LinkSaid { link: name(bits), state: LinkState::Up, measured: None }]),
                _ => LinkMessage::Doubt(name(bits)),
            };
            let outcome = if bits % 2 == 0 { Ok(Measured { delay_us: bits as u32, bytes_per_s: bits }) } else { Err("no".into()) };
            let input = match what {
                0 => Input::Mine(interfaces()),
                1 | 2 => Input::Met { node, boot: BootId(u128::from(bits % 2)), interfaces: interfaces() },
                3 => Input::Gone(node),
                4 => Input::Heard { from: node, message },
                5 => Input::Measured { ticket: links.ticket, outcome },
                6 => Input::Broke { peer: node, link: name(bits) },
                7 => Input::Busy(bits % 2 == 0),
                _ => Input::Elapsed,
            };
            let mut effects = Vec::new();
            links.step(now, input, &mut effects);
            prop_assert!(effects.len() < 100);
            prop_assert!(links.peers.len() <= 4 && links.peers.values().all(|peer| peer.links.len() <= PAIRS_MAX));
            prop_assert!(!links.seen(now).iter().any(|link| link.note.len() > 2 * WHY_BYTES_MAX));
        }
    }
}
