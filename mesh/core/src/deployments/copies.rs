//! Two copies of one model that do not hold the same (F87): never in one pipeline.
//!
//! The sheet's digest is there at once and lets planning begin; what the files really hold is read in the background and
//! told in node records. A deployment means the copy of the node that it was deployed on: its coordinator writes that
//! copy's contents into the record as soon as they are known. A node whose files hold something else is named, with the
//! files, and takes no part; if it holds a stage already, the deployment is planned anew without it. A node that has not
//! read its files yet takes part: most copies are good, and reading takes minutes.

use crate::ids::{DeploymentId, NodeId};
use crate::model::{Contents, ModelSheet};
use crate::plan::Plan;
use crate::records::{DeploymentRecord, DeploymentStatus, NodeRecord};

use super::{Deployments, Effect, Health};

impl Deployments {
    /// What this node's own copy of a model holds, if it is known.
    pub(super) fn own_contents(&self, sheet: &ModelSheet) -> Option<&Contents> {
        contents_of(&self.me, sheet)
    }

    /// Nodes whose copy of a deployed model is not the one that is deployed, each with a sentence that names the files.
    #[must_use]
    pub fn other_copies(&self, id: DeploymentId) -> Vec<(NodeId, String)> {
        let Some(record) = self.directory.deployment(id) else { return Vec::new() };
        let Some(contents) = &record.contents else { return Vec::new() };
        let there = self.directory.nodes().filter(|node| matches!(self.health(node.node), Health::Up | Health::Suspect));
        there.filter_map(|node| Some((node.node, another_copy(node, &record.sheet, contents)?))).collect()
    }

    /// Writes down which copy is deployed, once that is known: our own, or where we hold none, that of the first who does.
    /// Says whether there was something to write.
    pub(super) fn know_the_copy(&mut self, record: &DeploymentRecord, effects: &mut Vec<Effect>) -> bool {
        if record.contents.is_some() || matches!(record.status, DeploymentStatus::Failed { .. }) {
            return false;
        }
        let we_hold_it = self.me.models.iter().any(|held| held.digest == record.sheet.digest);
        let known = if we_hold_it {
            self.own_contents(&record.sheet)
        } else {
            let up = self.directory.nodes().filter(|node| self.health(node.node) == Health::Up);
            up.filter_map(|node| contents_of(node, &record.sheet)).next()
        };
        let Some(contents) = known.cloned() else { return false };
        let version = self.next_version(record);
        self.author(DeploymentRecord { contents: Some(contents), version, ..record.clone() }, effects);
        true
    }

    /// Whether a stage of this plan is on a node whose files hold something else than what is deployed.
    pub(super) fn holds_another_copy(&self, id: DeploymentId, plan: &Plan) -> bool {
        let Some(record) = self.directory.deployment(id) else { return false };
        let Some(contents) = &record.contents else { return false };
        let nodes = plan.stages().iter().filter_map(|stage| self.directory.node(stage.node));
        nodes.into_iter().any(|node| another_copy(node, &record.sheet, contents).is_some())
    }
}

fn contents_of<'a>(node: &'a NodeRecord, sheet: &ModelSheet) -> Option<&'a Contents> {
    node.models.iter().find(|held| held.digest == sheet.digest)?.contents.as_ref()
}

/// Why a node's copy cannot be used beside the deployed one, if it is known to hold something else.
pub(super) fn another_copy(node: &NodeRecord, sheet: &ModelSheet, deployed: &Contents) -> Option<String> {
    let contents = contents_of(node, sheet).filter(|contents| contents.digest != deployed.digest)?;
    let (name, model, files) = (&node.name, &sheet.name, contents.differing_from(deployed));
    Some(format!(
        "{name}'s copy of {model} is not the one that is deployed (other contents in {files}): copy it again, or deploy from {name}"
    ))
}
