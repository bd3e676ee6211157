//! Two deployments of one model, one wish too many: what a healed partition leaves behind when both sides were asked for the
//! same model (F31), or two users at the same moment.
//!
//! One of them stays: the first in order of id that is ready, or the first if none is. The coordinator of the first one
//! decides for all and buries the rest, so that there is one mind about it, whatever it has heard so far; its successor does
//! so if it is gone. Answers on a buried deployment end as at any deletion, and the next question by the model's name goes to
//! the one that stayed.

use crate::ids::{DeploymentId, Time};
use crate::records::{DeploymentRecord, DeploymentStatus};

use super::{Deployments, Effect};

impl Deployments {
    /// Buries what is one too many, if it is ours to decide. Says whether `record` itself was.
    pub(super) fn settle_twins(&mut self, now: Time, record: &DeploymentRecord, effects: &mut Vec<Effect>) -> bool {
        let same = |other: &&DeploymentRecord| {
            !other.is_deleted() && other.sheet.digest == record.sheet.digest && other.sheet.name == record.sheet.name
        };
        let twins: Vec<&DeploymentRecord> = self.directory.deployments().filter(same).collect();
        if twins.len() < 2 || twins[0].id != record.id || !self.decides(now, record) {
            return false;
        }
        let ready = twins.iter().find(|twin| twin.status == DeploymentStatus::Ready);
        let stays = ready.unwrap_or(&twins[0]).id;
        let over: Vec<DeploymentRecord> =
            twins.iter().filter(|twin| twin.id != stays && !self.is_being_written(now, twin.id)).copied().cloned().collect();
        if !over.is_empty() {
            let what = format!("{} was deployed {} times while nodes did not hear each other", record.sheet.name, twins.len());
            effects.push(Effect::Notice(format!("{what}: {stays} stays")));
        }
        over.iter().for_each(|twin| self.bury(twin, effects));
        stays != record.id
    }

    /// Its coordinator decides; if that is gone, whoever takes over. One that was given up is not taken over, and still decided.
    fn decides(&self, now: Time, record: &DeploymentRecord) -> bool {
        let coordinator = record.version.coordinator;
        let given_up = matches!(record.status, DeploymentStatus::Failed { .. });
        coordinator == self.me.node || (given_up && self.is_gone(now, coordinator) && self.successor(record.id) == self.me.node)
    }

    fn is_being_written(&self, now: Time, id: DeploymentId) -> bool {
        let driving = self.desks.get(&id).map(|desk| &desk.driving);
        driving.is_some_and(|driving| driving.pending || driving.save_again_at.is_some_and(|at| now < at))
    }
}
