//! The operator: deploys, deletes, and deploys again what was given up.

use std::rc::Rc;

use mesh_core::ids::DeploymentId;
use mesh_core::records::Wish;

use super::{MS, Outside};
use crate::happening::Happening;

/// An operator who was told no, or found nobody, tries again after this.
const AGAIN_MS: u64 = 500;

impl Outside {
    /// Sees to one line of `[[deployments]]`.
    pub(super) async fn operate(self: Rc<Self>, index: usize) {
        let line = self.scenario.deployments[index].clone();
        let place = line.on.as_ref().and_then(|name| self.scenario.places().get(name).copied()).unwrap_or(0);
        self.ground.wait(line.at_ms * MS).await;
        let id = self.deploy(index, place).await;
        let Some(at_ms) = line.delete_at_ms else { return };
        let pause = (at_ms * MS).saturating_sub(self.now());
        self.ground.wait(pause).await;
        // A node that dies while it writes answers nobody: whether it was deleted shows when it is asked again.
        let mut unsure = false;
        loop {
            if let Some(running) = self.running(place) {
                let answer = running.handle.undeploy(id).await;
                let heard = self.lives(running.life);
                let gone = unsure && matches!(&answer, Ok(Err(why)) if why.contains("there is no deployment"));
                if heard && (matches!(answer, Ok(Ok(()))) || gone) {
                    let now = self.now();
                    let deployment = self.ground.with(|inner| inner.deployment(id));
                    self.note(Happening::Deleted { on: place, deployment });
                    self.book.borrow_mut().deleted.push((id, place, now));
                    return;
                }
                unsure |= !heard;
            }
            self.ground.wait(AGAIN_MS * MS).await;
        }
    }

    /// Deploys a line of the scenario on a machine, until that is done.
    pub(super) async fn deploy(&self, index: usize, place: usize) -> DeploymentId {
        let line = &self.scenario.deployments[index];
        let context = Some(self.scenario.model.context.min(self.sheet.context_max));
        let wish = Wish { split: line.split, context, streams: line.streams, place: Vec::new() };
        loop {
            if let Some(running) = self.running(place)
                && let Ok(Ok(id)) = running.handle.deploy(self.sheet.clone(), wish.clone()).await
                && self.lives(running.life)
            {
                let deployment = self.ground.with(|inner| inner.deployment(id));
                self.note(Happening::Deployed { on: place, deployment });
                self.book.borrow_mut().deployments[index] = Some(id);
                return id;
            }
            self.ground.wait(AGAIN_MS * MS).await;
        }
    }

    /// Whether a life still runs: what a dead process answered, nobody heard.
    fn lives(&self, life: usize) -> bool {
        self.ground.with(|inner| inner.net.lives[life].alive)
    }

    /// Deployments that were made and not deleted.
    pub(super) fn living_deployments(&self) -> Vec<DeploymentId> {
        let book = self.book.borrow();
        let deleted = |id: &DeploymentId| book.deleted.iter().any(|(other, ..)| other == id);
        book.deployments.iter().flatten().copied().filter(|id| !deleted(id)).collect()
    }
}
