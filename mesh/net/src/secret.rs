//! The mesh secret: 32 bytes that every member holds. It keys the outermost layer of each connection (pnet), so a stranger
//! cannot even begin a handshake.

use std::fmt;

/// 32 secret bytes. `Debug` shows a fingerprint only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MeshSecret([u8; 32]);

/// Text that is no mesh secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mesh secret is 64 hexadecimal digits")]
pub struct SecretError;

impl MeshSecret {
    /// A fresh one, from the operating system's random bits.
    #[must_use]
    pub fn draw() -> Self {
        Self(rand::random())
    }

    /// From bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes. Keep them off logs.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    /// 64 hexadecimal digits. Keep them off logs.
    #[must_use]
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From 64 hexadecimal digits.
    ///
    /// # Errors
    /// Anything else.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SecretError);
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| SecretError)?;
        }
        Ok(Self(bytes))
    }

    /// Four bytes that tell two secrets apart for people, and help nobody to guess them.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        blake3::derive_key("mesh secret fingerprint 1", &self.0)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for MeshSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshSecret({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_its_text_and_is_not_shown() {
        let secret = MeshSecret::draw();
        assert_eq!(MeshSecret::from_hex(&secret.to_hex()), Ok(secret));
        assert_eq!(MeshSecret::from_hex("zz"), Err(SecretError));
        assert_eq!(MeshSecret::from_hex(&"ü".repeat(32)), Err(SecretError));
        assert!(!format!("{secret:?}").contains(&secret.to_hex()[..8]));
    }
}
