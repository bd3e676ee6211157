//! The observer: looks at what every node says, again and again.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures::future::{Either, select};
use mesh_actors::handle::{NodeStatus, SeenShard};
use mesh_core::ids::DeploymentId;
use mesh_core::records::DeploymentStatus;

use super::{MS, Outside, Running};
use crate::happening::Happening;
use crate::outcome::Kind;

/// A node that does not say how it is within this is not asked further now. (A frozen one cannot.)
const PATIENCE_MS: u64 = 2_000;
/// An actor that is gone and whose process is there is an error, once it has lasted so long: a process that was told to
/// leave, or is being killed, is gone by then.
const GONE_NS: u64 = 500 * MS;

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Seen {
    /// What each shard was last: by machine and deployment.
    shards: BTreeMap<(usize, DeploymentId), (SeenShard, String)>,
    /// When a deployment was first ready anywhere.
    first_ready: Option<u64>,
    /// Since when it is ready nowhere, after that; and the longest such time.
    not_ready_since: Option<u64>,
    longest_not_ready: u64,
}

impl Seen {
    /// Whether anything was ever ready.
    pub fn ever_ready(&self) -> bool {
        self.first_ready.is_some()
    }
    /// When something was first ready.
    pub fn first_ready(&self) -> Option<u64> {
        self.first_ready
    }
    /// Longest time without anything ready, after that, until now.
    pub fn longest_not_ready(&self, now: u64) -> u64 {
        self.longest_not_ready.max(self.not_ready_since.map_or(0, |since| now - since))
    }

    fn readiness(&mut self, now: u64, ready: bool) {
        match (ready, self.not_ready_since) {
            (true, _) => {
                self.first_ready.get_or_insert(now);
                let lasted = self.not_ready_since.take().map_or(0, |since| now - since);
                self.longest_not_ready = self.longest_not_ready.max(lasted);
            }
            (false, None) if self.first_ready.is_some() => self.not_ready_since = Some(now),
            (false, _) => {}
        }
    }
}

impl Outside {
    /// Looks until the world is over.
    pub(super) async fn observe(self: Rc<Self>) {
        loop {
            self.ground.wait(self.scenario.world.look_ms * MS).await;
            self.look().await;
        }
    }

    /// Looks at everybody once.
    async fn look(&self) {
        let mut ready = None;
        for (place, running) in self.all_running() {
            if let Some(status) = self.status(place, &running).await {
                ready = Some(ready.unwrap_or(false) | self.take_status(place, &status));
            }
        }
        if let Some(ready) = ready {
            let now = self.now();
            self.book.borrow_mut().seen.readiness(now, ready);
        }
    }

    /// What a node says, if it does.
    pub(super) async fn status(&self, place: usize, running: &Running) -> Option<NodeStatus> {
        if self.book.borrow().healths[place].frozen_since.is_some() {
            return None;
        }
        let late = self.ground.wait(PATIENCE_MS * MS);
        match select(pin!(running.handle.status()), late).await {
            Either::Left((Ok(status), _)) => Some(status),
            Either::Left((Err(mesh_actors::handle::Gone::Stopped), _)) => {
                self.ground.wait(GONE_NS).await;
                let still = self.running(place).is_some_and(|now| now.life == running.life && !now.leaving);
                if still {
                    let text = format!("the node actor of machine {place} ended by itself");
                    self.violated("P5", Kind::Safety, text);
                    self.book.borrow_mut().running[place] = None;
                }
                None
            }
            Either::Left((Err(_), _)) | Either::Right(_) => None,
        }
    }

    /// Whether it says that something is ready.
    fn take_status(&self, place: usize, status: &NodeStatus) -> bool {
        let mut ready = false;
        let mut gone: Vec<(usize, DeploymentId)> = self.book.borrow().seen.shards.keys().filter(|key| key.0 == place).copied().collect();
        for seen in &status.deployments {
            let id = seen.record.id;
            ready |= seen.record.status == DeploymentStatus::Ready;
            let deleted = self.book.borrow().deleted.iter().any(|(deleted, on, _)| *deleted == id && *on == place);
            if deleted {
                self.violated(
                    "resurrection",
                    Kind::Safety,
                    format!("machine {place} shows deployment {id} again, which was deleted there"),
                );
            }
            let Some(shard) = seen.shard else { continue };
            gone.retain(|key| *key != (place, id));
            let state = match seen.record.status {
                _ if shard.layers.count() == 0 => "loading",
                DeploymentStatus::Ready => "ready",
                _ => "loaded",
            };
            let former = self.book.borrow().seen.shards.get(&(place, id)).map(|(shard, state)| (shard.layers, state.clone()));
            if former != Some((shard.layers, state.to_owned())) {
                let deployment = self.ground.with(|inner| inner.deployment(id));
                let (first, end) = (shard.layers.first, shard.layers.end);
                self.note(Happening::Shard { node: place, deployment, first, end, state: state.to_owned() });
            }
            self.book.borrow_mut().seen.shards.insert((place, id), (shard, state.to_owned()));
        }
        for key in gone {
            let deployment = self.ground.with(|inner| inner.deployment(key.1));
            self.note(Happening::Shard { node: place, deployment, first: 0, end: 0, state: "gone".to_owned() });
            self.book.borrow_mut().seen.shards.remove(&key);
        }
        ready
    }
}
