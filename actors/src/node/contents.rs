//! What this node's model files hold, for models that are deployed: asked of the models room now and then, told in the
//! node's record. The reading itself is not done here.

use std::collections::BTreeMap;

use actix::prelude::*;
use mesh_core::ids::{Digest, Time};
use mesh_core::model::{CONTENTS_BYTES_MAX, Contents, HeldModel};
use mesh_core::ports::ModelError;

use super::NodeActor;

/// Asked again after so long.
const LOOK_PAUSE_MS: u64 = 1_000;

/// Bytes of file lists in a node's record at most: it must stay short enough for gossip. Of further models only the
/// digest is told.
const LISTS_BYTES_MAX: usize = 3 * CONTENTS_BYTES_MAX;

/// What is known, by the model's digest.
#[derive(Default)]
pub(super) struct Known {
    contents: BTreeMap<Digest, Contents>,
    /// What went wrong last, so that it is said once.
    wrong: BTreeMap<Digest, ModelError>,
    looked: Option<Time>,
}

impl NodeActor {
    /// Asks what is known of the contents of every deployed model that lies here, and tells what has changed.
    pub(super) fn look_at_contents(&mut self, ctx: &mut Context<Self>) {
        let now = self.parts.clock.now();
        if self.contents.looked.is_some_and(|at| now.ms_since(at) < LOOK_PAUSE_MS) {
            return;
        }
        self.contents.looked = Some(now);
        let held: Vec<Digest> = self.models.iter().map(|held| held.digest).filter(|digest| self.is_deployed(*digest)).collect();
        let mut gone = false;
        for digest in held {
            match self.parts.models.contents(digest) {
                Ok(None) => {}
                Ok(Some(contents)) => {
                    self.contents.wrong.remove(&digest);
                    self.contents.contents.insert(digest, contents);
                }
                Err(error) => {
                    self.contents.contents.remove(&digest);
                    gone |= matches!(error, ModelError::NotFound(_));
                    if self.contents.wrong.get(&digest) != Some(&error) {
                        self.notice(format!("the contents of a deployed model could not be read: {error}"));
                        self.contents.wrong.insert(digest, error);
                    }
                }
            }
        }
        self.contents.tell(&mut self.models);
        self.tell_of_shards(ctx);
        if gone {
            self.scan_models(ctx); // its files are no longer those that were listed
        }
    }

    fn is_deployed(&self, digest: Digest) -> bool {
        self.core.directory().deployments().any(|record| !record.is_deleted() && record.sheet.digest == digest)
    }
}

impl Known {
    /// Writes what is known into the list of models.
    pub fn tell(&self, models: &mut [HeldModel]) {
        let mut room = LISTS_BYTES_MAX;
        for held in models {
            held.contents = self.contents.get(&held.digest).cloned();
            if let Some(contents) = &mut held.contents {
                let bytes = contents.files.iter().map(|file| file.name.len() + 12).sum();
                match room.checked_sub(bytes) {
                    Some(left) => room = left,
                    None => contents.files.clear(),
                }
            }
        }
    }
}
