//! The end of a world: everything is mended, so all have to agree, to answer, and to leave nothing behind.

use std::collections::BTreeMap;
use std::rc::Rc;

use mesh_actors::handle::{Health, NodeStatus};
use mesh_core::ids::DeploymentId;
use mesh_core::records::{DeploymentStatus, PlanId};

use super::{MS, Outside, Running};
use crate::outcome::Kind;

/// All have agreed when they have done so for so long: longer than a death takes to be noticed and planned around.
const STEADY_MS: u64 = 3_000;
/// How often it is looked whether all agree.
const LOOK_MS: u64 = 250;
/// A stream's stages hear of its end, or drop it when its lease is over, and this is what the rest may take.
const QUIET_MS: u64 = 15_000;

/// What a node says about deployments: version and whether it answers.
type Said = BTreeMap<DeploymentId, (PlanId, Stand)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Ready,
    /// There is no room for it, or nobody has its files: a true answer.
    NoRoom,
    GivenUp,
    Moving,
}

impl Outside {
    pub(super) async fn close(self: &Rc<Self>) {
        let deadline = self.now() + self.scenario.heal_ms() * MS;
        let ready = self.converge(deadline).await;
        if ready {
            // The last questions: everybody who runs is asked once.
            let mut dice = self.seed.stream("last questions").dice();
            for (place, _) in self.all_running() {
                let client = self.clone().client(dice.clone(), Some(place));
                dice.draw();
                tokio::task::spawn_local(client);
            }
            self.ground.wait(LOOK_MS * MS).await; // they have asked by then
        }
        self.await_clients(deadline).await;
        self.await_quiet(deadline).await;
    }

    /// Waits until all agree. Whether there is something to be asked then.
    async fn converge(&self, deadline: u64) -> bool {
        let mut revived = false;
        let mut steady: Option<(u64, Said)> = None;
        loop {
            let mut views = Vec::new();
            for (place, running) in self.all_running() {
                views.push((place, running.clone(), self.status(place, &running).await));
            }
            let dissent = match self.dissent(&views) {
                Ok(said) => {
                    if said.values().any(|(_, stand)| *stand == Stand::GivenUp) && !revived {
                        revived = true;
                        self.revive(&said).await;
                        continue;
                    }
                    // What is settled right after the healing may still be planned anew for what was found out just before.
                    let now = self.now();
                    let since = steady.take().filter(|(_, former)| *former == said).map_or(now, |(since, _)| since);
                    if now - since < STEADY_MS * MS {
                        steady = Some((since, said));
                        self.ground.wait(LOOK_MS * MS).await;
                        continue;
                    }
                    self.book.borrow_mut().converged_ns = Some(since);
                    return said.values().any(|(_, stand)| *stand == Stand::Ready);
                }
                Err(dissent) => {
                    steady = None;
                    dissent
                }
            };
            if self.now() >= deadline {
                let text = format!("{} ms after the healing: {dissent}", self.scenario.heal_ms());
                self.violated("convergence", Kind::Liveness, text);
                return false;
            }
            self.ground.wait(LOOK_MS * MS).await;
        }
    }

    /// An operator deploys again what was given up.
    async fn revive(&self, said: &Said) {
        let given_up: Vec<DeploymentId> = said.iter().filter(|(_, (_, stand))| *stand == Stand::GivenUp).map(|(id, _)| *id).collect();
        let lines: Vec<usize> = {
            let book = self.book.borrow();
            let of = |id: &DeploymentId| book.deployments.iter().position(|known| known.as_ref() == Some(id));
            given_up.iter().filter_map(of).collect()
        };
        let Some((place, _)) = self.all_running().first().cloned() else { return };
        for line in lines {
            self.deploy(line, place).await;
        }
        self.ground.wait(LOOK_MS * MS).await;
    }

    /// What they agree on, or where they do not.
    fn dissent(&self, views: &[(usize, Running, Option<NodeStatus>)]) -> Result<Said, String> {
        let names = self.ground.with(|inner| inner.names.clone());
        let keys = self.ground.with(|inner| inner.keys.clone());
        let mut common: Option<(usize, Said)> = None;
        // Of two machines with one key, one is refused by everybody; of another protocol, so is a node.
        let strange = |place: usize| self.is_strange(place);
        for (place, _, status) in views {
            let Some(status) = status else { return Err(format!("{} does not say how it is", names[*place])) };
            if strange(*place) {
                continue;
            }
            for (other, ..) in views.iter().filter(|(other, ..)| other != place && !strange(*other)) {
                let seen = status.nodes.iter().find(|seen| seen.record.node == keys[*other]);
                if seen.is_none_or(|seen| seen.health != Health::Up) {
                    let health = seen.map(|seen| seen.health);
                    return Err(format!("{} does not see {} up but {health:?}", names[*place], names[*other]));
                }
            }
            let runs = |node| views.iter().any(|(other, ..)| keys[*other] == node);
            if let Some(ghost) =
                status.nodes.iter().find(|seen| matches!(seen.health, Health::Up | Health::Suspect) && !runs(seen.record.node))
            {
                return Err(format!("{} sees a ghost: {}", names[*place], ghost.record.name));
            }
            let said = said_by(status);
            if let Some((id, (version, stand))) = said.iter().find(|(_, (_, stand))| *stand == Stand::Moving) {
                return Err(format!("{} says that deployment {id} at {version:?} is {stand:?}", names[*place]));
            }
            let living = self.living_deployments();
            if let Some(id) = said.keys().find(|id| !living.contains(id)).filter(|id| self.was_deleted(**id)) {
                return Err(format!("{} still shows deployment {id}, which was deleted", names[*place]));
            }
            if let Some(id) = living.iter().find(|id| !said.contains_key(id)) {
                return Err(format!("{} does not know deployment {id}", names[*place]));
            }
            match &common {
                Some((first, known)) if *known != said => {
                    return Err(format!("{} says {known:?}, {} says {said:?}", names[*first], names[*place]));
                }
                Some(_) => {}
                None => common = Some((*place, said)),
            }
        }
        Ok(common.map(|(_, said)| said).unwrap_or_default())
    }

    fn was_deleted(&self, id: DeploymentId) -> bool {
        self.book.borrow().deleted.iter().any(|(deleted, ..)| *deleted == id)
    }

    /// A clone, or a node of another protocol than most.
    fn is_strange(&self, place: usize) -> bool {
        let machines = self.scenario.machines();
        let cloned = machines[place].line.clone_of.is_some();
        cloned
            || self.ground.with(|inner| {
                let life = inner.net.running[place];
                let of = |life: Option<usize>| life.and_then(|life| inner.carriers[life].as_ref()).map(|carrier| carrier.protocol());
                let mine = of(life);
                let alike = (0..machines.len()).filter(|other| of(inner.net.running[*other]) == mine).count();
                let running = inner.net.running.iter().flatten().count();
                alike * 2 < running
            })
    }

    async fn await_clients(&self, deadline: u64) {
        // A question has its own deadlines: a client's patience at most.
        let traffic = &self.scenario.traffic;
        let patience = (traffic.patience_ms + 1_000) * u64::from(traffic.tries.max(1)) * MS;
        let deadline = deadline.max(self.now() + patience);
        while self.book.borrow().open_requests > 0 {
            if self.now() >= deadline {
                let open = self.book.borrow().open_requests;
                return self.violated("P4", Kind::Liveness, format!("{open} questions have no end, long after every deadline"));
            }
            self.ground.wait(100 * MS).await;
        }
        let book = self.book.borrow();
        let broken: Vec<String> = book
            .requests
            .iter()
            .enumerate()
            .filter(|(_, request)| request.last && !matches!(request.end, Some(crate::happening::End::Finished(_))))
            .map(|(index, request)| format!("request {index} on machine {:?} ended {:?}", request.owner.map(|owner| owner.0), request.end))
            .collect();
        drop(book);
        for text in broken {
            self.violated("P6", Kind::Liveness, format!("everything is mended and ready, and yet {text}"));
        }
    }

    /// No shard has a stream any more.
    async fn await_quiet(&self, deadline: u64) {
        let deadline = deadline.max(self.now() + (self.scenario.world.lease_ms + QUIET_MS) * MS);
        loop {
            let mut left = None;
            for (place, running) in self.all_running() {
                let status = self.status(place, &running).await;
                let shards = status.iter().flat_map(|status| &status.deployments).filter_map(|seen| seen.shard);
                left = left.or(shards.into_iter().find(|shard| shard.streams > 0).map(|shard| (place, shard.streams, shard.kv_bytes)));
            }
            let Some((place, streams, kv_bytes)) = left else { return };
            if self.now() >= deadline {
                let text = format!("machine {place} still has {streams} streams with {kv_bytes} bytes, and nobody asks anything");
                return self.violated("P4", Kind::Liveness, text);
            }
            self.ground.wait(LOOK_MS * MS).await;
        }
    }
}

fn said_by(status: &NodeStatus) -> Said {
    let stand = |status: &DeploymentStatus| match status {
        DeploymentStatus::Ready => Stand::Ready,
        DeploymentStatus::Waiting { .. } => Stand::NoRoom,
        DeploymentStatus::Failed { .. } => Stand::GivenUp,
        _ => Stand::Moving,
    };
    status.deployments.iter().map(|seen| (seen.record.id, (seen.record.version, stand(&seen.record.status)))).collect()
}
