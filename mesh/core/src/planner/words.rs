//! What the planner says: reasons, who was left out, and why nothing fits, with numbers.

use crate::ids::NodeId;
use crate::model::{Layers, ModelSheet};

use super::costs;
use super::memory::{lends_at_least, net_budget};
use super::{BASE_BYTES, Chosen, Desk, HEADROOM_PERCENT, PlanInput, PlanLink, PlanNode};

/// Hops whose links are all named.
const HOPS_SAID_MAX: usize = 4;

/// Bytes for people: three significant digits, binary units.
pub(super) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

pub(super) fn no_files(node: &PlanNode, sheet: &ModelSheet) -> String {
    format!("{} has no files of {}: copy them to one of its model directories", node.name, sheet.name)
}

/// Nobody can take part.
pub(super) fn nobody(input: &PlanInput<'_>, left_out: &[(NodeId, String)]) -> String {
    if input.nodes.is_empty() {
        return format!("no node is there to hold {}", input.sheet.name);
    }
    format!("no node can hold layers of {}: {}", input.sheet.name, joined(input, left_out))
}

pub(super) fn too_few_nodes(input: &PlanInput<'_>, split: u16, there: usize, left_out: &[(NodeId, String)]) -> String {
    let others = if left_out.is_empty() { String::new() } else { format!(" ({})", joined(input, left_out)) };
    format!("{split} stages were asked for, but only {there} {} can take part{others}: ask for fewer", plural(there, "node"))
}

fn joined(input: &PlanInput<'_>, left_out: &[(NodeId, String)]) -> String {
    let mut said: Vec<String> = left_out.iter().take(8).map(|(id, why)| said_of(input, *id, why)).collect();
    if left_out.len() > said.len() {
        said.push(format!("and {} more", left_out.len() - said.len()));
    }
    said.join("; ")
}

/// A reason with its node's name in front, unless it is there already.
fn said_of(input: &PlanInput<'_>, id: NodeId, why: &str) -> String {
    let name = input.nodes.iter().find(|node| node.node == id).map_or("", |node| node.name.as_str());
    if why.starts_with(name) { why.to_owned() } else { format!("{name} {why}") }
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// What bound the choice.
pub(super) fn reasons(desk: &Desk<'_>, chosen: &Chosen, parts: &[(&PlanNode, Layers)]) -> Vec<String> {
    let (input, name) = (desk.input, &desk.input.sheet.name);
    let mut reasons = Vec::new();
    let as_placed = !input.wish.place.is_empty() && chosen.stages == input.wish.place;
    if as_placed {
        reasons.push("placed as asked for".into());
    } else if let (false, Err(no)) = (input.wish.place.is_empty(), desk.as_placed()) {
        reasons.push(format!("placed otherwise than asked for, so that it keeps answering: {}", no.why));
    } else if chosen.one_node_by_rule {
        let spread =
            if desk.nodes.len() > 1 { ": spreading it would add hops to every token; ask for a split to do it anyway" } else { "" };
        reasons.push(format!("{name} fits on {} alone and stays there{spread}", parts[0].0.name));
    } else if parts.len() > 1 && input.wish.split.is_none() {
        reasons.push(format!("no single node holds {name} well enough: {} nodes share it", parts.len()));
    }
    match (input.wish.split, chosen.split) {
        (Some(wished), Some(used)) if wished == used => reasons.push(format!("{used} {} as asked for", plural(used.into(), "stage"))),
        (Some(wished), Some(used)) => reasons.push(format!("{used} instead of the {wished} stages asked for, so that it keeps answering")),
        _ => {}
    }
    if input.wish.context.is_none() && chosen.context < input.sheet.context_max {
        let (most, streams) = (input.sheet.context_max, input.wish.streams);
        let each = if streams == 1 { String::new() } else { format!(" for each of {streams} streams") };
        let why = if input.keep.is_some_and(|keep| keep.context() == chosen.context) { "as before" } else { "more does not fit" };
        reasons.push(format!("the context is {} tokens{each}, not {most}: {why}", chosen.context));
    }
    if chosen.mixed_classes {
        reasons.push("these nodes round differently (two numerics classes): no one class holds the model".into());
    }
    if input.keep.is_some() {
        reasons.push(kept(desk, parts));
    } else if parts.len() > 1 {
        reasons.push(pace(desk, chosen, parts));
    }
    reasons.extend(links(desk, parts));
    if parts.len() > 1 && costs::any_levelled(desk, parts) {
        reasons.push("speeds within a fifth of each other count as equal: measurements differ by that much".into());
    }
    reasons
}

/// The measured links that the plan uses, the slowest of many.
fn links(desk: &Desk<'_>, parts: &[(&PlanNode, Layers)]) -> Option<String> {
    let unmeasured = (PlanLink::DEFAULT_DELAY_US, PlanLink::DEFAULT_BYTES_PER_S);
    let hops = parts.windows(2).map(|pair| (desk.hops.link(pair[0].0.node, pair[1].0.node), pair[0].0, pair[1].0));
    let mut measured: Vec<_> = hops.filter_map(|(link, a, b)| Some((link.filter(|link| *link != unmeasured)?, a, b))).collect();
    let all = measured.len();
    if all > HOPS_SAID_MAX {
        measured.sort_by_key(|((delay_us, _), a, b)| (std::cmp::Reverse(*delay_us), a.node, b.node));
        measured.truncate(1);
    }
    let said: Vec<String> = measured
        .iter()
        .map(|((delay_us, rate), a, b)| format!("{} to {} {} and {}/s", a.name, b.name, micros(*delay_us), bytes(*rate)))
        .collect();
    let which = if all > said.len() { format!("the slowest of {all} links, as measured: ") } else { "links as measured: ".to_owned() };
    (!said.is_empty()).then(|| which + &said.join(", "))
}

/// Microseconds for people.
fn micros(us: u32) -> String {
    if us < 1_000 { format!("{us} µs") } else { format!("{:.1} ms", f64::from(us) / 1_000.0) }
}

/// How the layers were shared out: which stage the others wait for, and whose memory is in the way of less.
fn pace(desk: &Desk<'_>, chosen: &Chosen, parts: &[(&PlanNode, Layers)]) -> String {
    let times: Vec<u64> = parts.iter().map(|(node, layers)| costs::token_ps(desk, node, *layers)).collect();
    let (all, slowest) = (times.iter().map(|&ps| u128::from(ps)).sum::<u128>().max(1), times.iter().copied().max().unwrap_or(0));
    let at = times.iter().position(|&ps| ps == slowest).unwrap_or(0);
    let percent = (u128::from(slowest) * 100 + all / 2) / all;
    let full: Vec<&str> = (0..parts.len())
        .filter(|&index| index != at && !has_room(desk, chosen, parts, index))
        .map(|index| parts[index].0.name.as_str())
        .collect();
    let brim = match full.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} has no room for more"),
        many => format!("; {} have no room for more", many.join(", ")),
    };
    format!("prompts and further streams wait for the slowest stage: {}, with {percent} % of the time of a token{brim}", parts[at].0.name)
}

/// Whether a stage's node could hold one layer more, at either side.
fn has_room(desk: &Desk<'_>, chosen: &Chosen, parts: &[(&PlanNode, Layers)], index: usize) -> bool {
    let (node, layers) = parts[index];
    let (first, end) = (usize::from(layers.first), usize::from(layers.end));
    let holds = |first: usize, end: usize| desk.sizes.net_bytes(first, end, chosen.context) <= net_budget(node);
    (first > 0 && holds(first - 1, end)) || (end < desk.sizes.layers && holds(first, end + 1))
}

/// How much of a repair stays where it is.
fn kept(desk: &Desk<'_>, parts: &[(&PlanNode, Layers)]) -> String {
    let held = |node: &PlanNode, layers: Layers| {
        layers.indices().filter(|&layer| node.shard.is_some_and(|shard| shard.indices().contains(&layer))).count()
    };
    let stay: usize = parts.iter().map(|(node, layers)| held(node, *layers)).sum();
    format!("{stay} of {} layers stay where they are loaded", desk.sizes.layers)
}

/// Everyone who holds no stage, and why.
pub(super) fn left_out(desk: &Desk<'_>, chosen: &Chosen) -> Vec<(NodeId, String)> {
    let mut left_out = desk.left_out.clone();
    let class_of = |id: NodeId| desk.nodes.iter().find(|node| node.node == id).map(|node| node.numerics_class);
    let class = class_of(chosen.stages[0].node);
    for node in desk.nodes.iter().filter(|node| chosen.stages.iter().all(|stage| stage.node != node.node)) {
        let why = if !holds_any(desk, node, chosen.context) {
            cannot_hold(desk, node, chosen.context)
        } else if chosen.stages == desk.input.wish.place {
            "not named in the placement asked for".into()
        } else if chosen.one_node_by_rule {
            "not needed: the model fits on one node".into()
        } else if !chosen.mixed_classes && Some(node.numerics_class) != class {
            "of another numerics class than the chosen nodes".into()
        } else if chosen.stages.len() == desk.sizes.layers {
            "not needed: every layer has a node of its own".into()
        } else {
            "not needed: it would not make answers faster".into()
        };
        left_out.push((node.node, why));
    }
    left_out
}

/// Whether the node could hold any one layer.
fn holds_any(desk: &Desk<'_>, node: &PlanNode, context: u32) -> bool {
    let files = node.files.unwrap_or(Layers::new(0, 0));
    files
        .indices()
        .take_while(|&layer| layer < desk.sizes.layers)
        .any(|layer| desk.sizes.net_bytes(layer, layer + 1, context) <= net_budget(node))
}

fn cannot_hold(desk: &Desk<'_>, node: &PlanNode, context: u32) -> String {
    let smallest = (0..desk.sizes.layers).map(|layer| desk.sizes.net_bytes(layer, layer + 1, context)).min().unwrap_or(0);
    let free = node.capacity.memory_bytes.saturating_sub(node.taken_bytes);
    format!("has {} for models, one layer takes {}", bytes(free), bytes(lends_at_least(smallest)))
}

/// Who cannot hold even one layer, when nothing fits.
pub(super) fn too_small(desk: &Desk<'_>, context: u32) -> Vec<(NodeId, String)> {
    let small = desk.nodes.iter().filter(|node| !holds_any(desk, node, context));
    desk.left_out.iter().cloned().chain(small.map(|node| (node.node, cannot_hold(desk, node, context)))).collect()
}

/// Bytes, headroom included, that find no place when the largest nodes take what they can. At least 1: nothing fits.
pub(super) fn what_stays_unplaced(desk: &Desk<'_>, context: u32) -> u64 {
    let (sizes, most) = (&desk.sizes, desk.input.wish.split.map_or(usize::MAX, usize::from));
    let mut budgets: Vec<u64> = desk.nodes.iter().map(|node| net_budget(node)).collect();
    budgets.sort_unstable_by(|a, b| b.cmp(a));
    let (mut covered, mut used) = (0, 0);
    for budget in budgets.into_iter().take(most) {
        let end = (covered + 1..=sizes.layers).take_while(|&end| sizes.net_bytes(covered, end, context) <= budget).last();
        match end {
            Some(end) => (covered, used) = (end, used + 1),
            None => break,
        }
    }
    if covered == sizes.layers {
        return 0; // room enough: files, links or the number of stages are in the way
    }
    lends_at_least(sizes.net_bytes(covered, sizes.layers, context)).saturating_sub(if used > 0 { BASE_BYTES } else { 0 }).max(1)
}

/// Need, have per node, and the largest that would fit (F59).
pub(super) fn does_not_fit(desk: &Desk<'_>, context: u32, missing: u64, smaller: Option<u32>) -> String {
    let (input, sheet, sizes) = (desk.input, desk.input.sheet, &desk.sizes);
    let able = desk.nodes.iter().filter(|node| holds_any(desk, node, context)).count();
    if let Some(split) = input.wish.split.filter(|&split| usize::from(split) > able) {
        let nodes = plural(able, "node");
        return format!("{split} stages were asked for, but only {able} {nodes} can hold a layer of {}: {}", sheet.name, have(desk));
    }
    if missing == 0 {
        return format!("{} would fit by size, but not with the files, links and number of stages there are: {}", sheet.name, have(desk));
    }
    let weights = sizes.weight_bytes(0, sizes.layers);
    let rest = sizes.net_bytes(0, sizes.layers, context) - weights;
    let mut why = format!(
        "{} needs {}: {} of weights and {} for {} {} of {context} tokens, {HEADROOM_PERCENT} % headroom and {} a node. There is: {}. {} are missing.",
        sheet.name,
        bytes(lends_at_least(weights.saturating_add(rest))),
        bytes(weights),
        bytes(rest),
        input.wish.streams,
        plural(input.wish.streams.into(), "stream"),
        bytes(BASE_BYTES),
        have(desk),
        bytes(missing),
    );
    let together: u64 = desk.nodes.iter().map(|node| net_budget(node)).fold(0, u64::saturating_add);
    why += &format!(" Together these nodes hold at most {} of weights and caches.", bytes(together));
    if let Some(smaller) = smaller {
        why += &format!(" A context of {smaller} tokens would fit.");
    }
    if !desk.left_out.is_empty() {
        why += &format!(" Not counted: {}.", joined(input, &desk.left_out));
    }
    why
}

fn have(desk: &Desk<'_>) -> String {
    let one = |node: &&PlanNode| {
        let taken = if node.taken_bytes > 0 { format!(" ({} of it taken)", bytes(node.taken_bytes)) } else { String::new() };
        format!("{} {}{taken}", node.name, bytes(node.capacity.memory_bytes))
    };
    let mut said: Vec<String> = desk.nodes.iter().take(8).map(one).collect();
    if desk.nodes.len() > said.len() {
        said.push(format!("and {} more", desk.nodes.len() - said.len()));
    }
    said.join(", ")
}
