//! A node's lasting key. The node id is its public half, so a connection's handshake proves the id.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey, ed25519};
use mesh_core::ids::NodeId;

/// An ed25519 key pair.
#[derive(Clone)]
pub struct NodeKey(Keypair);

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Cannot be read or written.
    #[error("the key file {path} cannot be used: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// Is no key.
    #[error("{path} holds no ed25519 key; restore it, or remove it to become a new node")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// A key file is 68 bytes; nothing longer is read.
const KEY_FILE_BYTES_MAX: u64 = 1024;

impl NodeKey {
    /// A fresh key.
    #[must_use]
    pub fn draw() -> Self {
        Self(Keypair::generate_ed25519())
    }

    /// The key in a file (libp2p's protobuf form, readable by its owner only), or a fresh one written there.
    ///
    /// # Errors
    /// The operating system refused, or the file holds something else. It is then left as it is.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match fs::metadata(path) {
            Ok(about) if about.len() > KEY_FILE_BYTES_MAX => Err(KeyError::Damaged { path: path.to_owned() }),
            Ok(_) => Self::load(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            Err(error) => Err(KeyError::Unusable { path: path.to_owned(), error }),
        }
    }

    fn load(path: &Path) -> Result<Self, KeyError> {
        let unusable = |error| KeyError::Unusable { path: path.to_owned(), error };
        let bytes = fs::read(path).map_err(unusable)?;
        let damaged = || KeyError::Damaged { path: path.to_owned() };
        let pair = Keypair::from_protobuf_encoding(&bytes).map_err(|_| damaged())?;
        pair.clone().try_into_ed25519().map_err(|_| damaged())?;
        restrict(path).map_err(unusable)?;
        Ok(Self(pair))
    }

    fn create(path: &Path) -> Result<Self, KeyError> {
        let key = Self::draw();
        let bytes = key.0.to_protobuf_encoding().map_err(|_| KeyError::Damaged { path: path.to_owned() })?;
        write_whole(path, &bytes).map_err(|error| KeyError::Unusable { path: path.to_owned(), error })?;
        Ok(key)
    }

    /// The node id: the public key.
    #[must_use]
    pub fn node(&self) -> NodeId {
        node_of_key(&self.0.public()).unwrap_or_else(|| unreachable!("a NodeKey is an ed25519 key"))
    }

    pub(crate) fn pair(&self) -> &Keypair {
        &self.0
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeKey({:?})", self.node())
    }
}

fn node_of_key(key: &PublicKey) -> Option<NodeId> {
    Some(NodeId(key.clone().try_into_ed25519().ok()?.to_bytes()))
}

/// The node id in a peer id. `None` if the peer's key is not ed25519 (libp2p then keeps only its hash).
pub(crate) fn node_of(peer: PeerId) -> Option<NodeId> {
    let hash = multihash_of(peer);
    const IDENTITY: u64 = 0;
    if hash.code() != IDENTITY {
        return None;
    }
    node_of_key(&PublicKey::try_decode_protobuf(hash.digest()).ok()?)
}

fn multihash_of(peer: PeerId) -> libp2p::multihash::Multihash<64> {
    peer.into()
}

/// The peer id of a node. `None` if the 32 bytes are no point on the curve.
pub(crate) fn peer_of(node: NodeId) -> Option<PeerId> {
    Some(PublicKey::from(ed25519::PublicKey::try_from_bytes(&node.0).ok()?).to_peer_id())
}

/// Beside, flush, rename, flush the directory: all of it or nothing. Never over a file that came in between.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let written = (|| {
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&beside)?;
        restrict(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::hard_link(&beside, path)?;
        File::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
    })();
    let _ = fs::remove_file(&beside);
    written
}

fn restrict(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_the_process_and_is_for_its_owner_only() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("node.key");
        let key = NodeKey::load_or_create(&path).expect("made");
        assert_eq!(NodeKey::load_or_create(&path).expect("read").node(), key.node());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("loosened");
            NodeKey::load_or_create(&path).expect("read");
            assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_key_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("node.key");
        for bytes in [Vec::new(), b"garbage".to_vec(), vec![0; 4096]] {
            fs::write(&path, &bytes).expect("written");
            assert!(matches!(NodeKey::load_or_create(&path), Err(KeyError::Damaged { .. })));
            assert_eq!(fs::read(&path).expect("still there"), bytes);
        }
    }

    #[test]
    fn node_and_peer_ids_are_two_forms_of_one_key() {
        let key = NodeKey::draw();
        let peer = key.pair().public().to_peer_id();
        assert_eq!(node_of(peer), Some(key.node()));
        assert_eq!(peer_of(key.node()), Some(peer));
        assert_eq!(node_of(PeerId::random()), None);
    }
}
