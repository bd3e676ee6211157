//! The outermost layer of a connection: does the other side hold the mesh secret?
//!
//! libp2p's pnet encrypts from the first byte with the pre-shared key but checks nothing: with a wrong key both sides
//! would read noise until some parser fails or a deadline passes. So right after it both sides send one fixed word under
//! the cipher. A stranger is known by it at once, and told apart from a node that does not answer.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::pnet::{PnetConfig, PnetError, PnetOutput, PreSharedKey};

/// Both sides say this first, under the mesh secret.
const WORD: &[u8; 16] = b"mesh member 1\r\n\0";

/// How long a side may take to say it. Slots for half-open connections are few, so not long.
const ADMIT_MS: u64 = 3_000;

/// Why a connection came no further than this layer.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// Another secret, or not a mesh node at all.
    #[error("it does not hold this mesh's secret")]
    Stranger,
    /// Connected, then silent.
    #[error("it accepted the connection and said nothing for {ADMIT_MS} ms")]
    Silent,
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Puts the secret's cipher around a socket and checks that the other side holds the secret too.
///
/// # Errors
/// See [`AdmitError`].
pub async fn admit<S>(socket: S, key: PreSharedKey) -> Result<PnetOutput<S>, AdmitError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    admit_within(ADMIT_MS, socket, key).await
}

async fn admit_within<S>(ms: u64, socket: S, key: PreSharedKey) -> Result<PnetOutput<S>, AdmitError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    tokio::time::timeout(Duration::from_millis(ms), exchange(socket, key)).await.map_err(|_| AdmitError::Silent)?
}

async fn exchange<S>(socket: S, key: PreSharedKey) -> Result<PnetOutput<S>, AdmitError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut sealed = PnetConfig::new(key).handshake(socket).await.map_err(|error| match error {
        PnetError::HandshakeError(error) | PnetError::IoError(error) => AdmitError::Io(error),
    })?;
    sealed.write_all(WORD).await?;
    sealed.flush().await?;
    let mut word = [0; WORD.len()];
    sealed.read_exact(&mut word).await?;
    if word == *WORD { Ok(sealed) } else { Err(AdmitError::Stranger) }
}

#[cfg(test)]
mod tests {
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;

    async fn meet(ours: u8, theirs: u8) -> [Result<(), AdmitError>; 2] {
        let (a, b) = tokio::io::duplex(256);
        let side =
            |socket: tokio::io::DuplexStream, key| async move { admit(socket.compat(), PreSharedKey::new([key; 32])).await.map(|_| ()) };
        let (a, b) = tokio::join!(side(a, ours), side(b, theirs));
        [a, b]
    }

    #[tokio::test]
    async fn members_are_let_in_and_strangers_are_named() {
        assert!(meet(1, 1).await.iter().all(Result::is_ok));
        assert!(meet(1, 2).await.iter().all(|side| matches!(side, Err(AdmitError::Stranger))));
    }

    #[tokio::test]
    async fn garbage_is_a_stranger_and_silence_has_an_end() {
        let (ours, mut theirs) = tokio::io::duplex(256);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, &[b'G'; 64]).await.expect("written");
        assert!(matches!(admit(ours.compat(), PreSharedKey::new([1; 32])).await, Err(AdmitError::Stranger)));
        let (ours, _theirs) = tokio::io::duplex(256);
        assert!(matches!(admit_within(20, ours.compat(), PreSharedKey::new([1; 32])).await, Err(AdmitError::Silent)));
    }
}
