//! What a node is told before it starts: defaults, then the configuration file, then the environment, then flags.
//!
//! A setting has units in its name, is checked once, and an unknown key is refused. `configs/node.toml` documents each.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use mesh_core::lifetimes::Lifetimes;
use serde::Deserialize;

/// Everything a node is told. `Settings::default()` is a node that finds its neighbours and serves loopback.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name, for people. Default: the host's name.
    pub name: String,
    /// Name of the mesh when a new one is made; a token brings its own.
    pub mesh: String,
    /// Invitation into an existing mesh, as `mesh token` prints it.
    pub token: Option<String>,
    /// Where key, secret, incarnation and records live. Nothing is written anywhere else (P8).
    pub state_dir: PathBuf,
    /// Directories searched for models: Hugging Face directories and GGUF files.
    pub model_dirs: Vec<PathBuf>,
    /// Multiaddresses or `HOST:PORT` of nodes to dial, tried again until they answer.
    pub peers: Vec<String>,
    /// Where to listen for other nodes: multiaddresses or `IP:PORT`; port 0 = any.
    pub listen: Vec<String>,
    /// Where to serve HTTP, or `None` for no HTTP.
    pub api: Option<Api>,
    /// Bytes lent to models; `None` = what the machine or its container has left, less a reserve.
    pub memory_bytes: Option<u64>,
    /// Compute threads; `None` = the cores this process may use.
    pub threads: Option<u16>,
    /// Whether to find and be found by multicast DNS on the local network.
    pub mdns: bool,
    /// How long what has ended is remembered. Only for programs: all nodes of a mesh should agree, so the file has no key.
    pub lifetimes: Lifetimes,
}

/// Where and how to serve HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Address to bind.
    pub address: SocketAddr,
    /// Whether the address was asked for: then a port in use is an error; else the next free port is taken.
    pub explicit: bool,
    /// Key that clients must show as `Authorization: Bearer KEY`. Demanded by any address but loopback.
    pub key: Option<String>,
    /// Origins that browsers may call from (CORS). Empty = none.
    pub origins: Vec<String>,
}

/// First port tried for HTTP.
pub const API_PORT_DEFAULT: u16 = 8477;

impl Default for Api {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], API_PORT_DEFAULT)), explicit: false, key: None, origins: Vec::new() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: host_name(),
            mesh: "home".to_owned(),
            token: None,
            state_dir: state_dir_default(),
            model_dirs: Vec::new(),
            peers: Vec::new(),
            listen: vec!["0.0.0.0:0".to_owned()],
            api: Some(Api::default()),
            memory_bytes: None,
            threads: None,
            mdns: true,
            lifetimes: Lifetimes::default(),
        }
    }
}

/// A setting that cannot be used. Says which, where it stood, and what would do.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}: {error}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line and cause.
        error: String,
    },
    /// A value makes no sense.
    #[error("{setting}: {why}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What is wrong and what would do.
        why: String,
    },
}

/// The file's form. Every key is optional; unknown ones are refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    mesh: Option<String>,
    state_dir: Option<PathBuf>,
    model_dirs: Option<Vec<PathBuf>>,
    peers: Option<Vec<String>>,
    listen: Option<Vec<String>>,
    mdns: Option<bool>,
    memory: Option<String>,
    threads: Option<u16>,
    api: Option<ApiFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiFile {
    enabled: Option<bool>,
    address: Option<SocketAddr>,
    key: Option<String>,
    origins: Option<Vec<String>>,
}

impl Settings {
    /// Takes over what a configuration file says. Relative paths in it are relative to the file's directory.
    ///
    /// # Errors
    /// Unreadable, malformed, unknown keys, or values that make no sense.
    pub fn read(&mut self, path: &Path) -> Result<(), SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        let file: File =
            toml::from_str(&text).map_err(|error| SettingsError::Malformed { path: path.to_owned(), error: error.to_string() })?;
        let base = path.parent().unwrap_or(Path::new("."));
        set(&mut self.name, file.name);
        set(&mut self.mesh, file.mesh);
        set(&mut self.state_dir, file.state_dir.map(|dir| base.join(expand(dir))));
        set(&mut self.model_dirs, file.model_dirs.map(|dirs| dirs.into_iter().map(|dir| base.join(expand(dir))).collect()));
        set(&mut self.peers, file.peers);
        set(&mut self.listen, file.listen);
        set(&mut self.mdns, file.mdns);
        if let Some(memory) = file.memory {
            self.memory_bytes = Some(bytes_of(&memory).map_err(|why| SettingsError::Value { setting: "memory", why })?);
        }
        if let Some(threads) = file.threads {
            self.threads = Some(threads);
        }
        if let Some(api) = file.api {
            self.read_api(api);
        }
        Ok(())
    }

    fn read_api(&mut self, file: ApiFile) {
        if file.enabled == Some(false) {
            self.api = None;
            return;
        }
        let api = self.api.get_or_insert_default();
        if let Some(address) = file.address {
            (api.address, api.explicit) = (address, true);
        }
        if file.key.is_some() {
            api.key = file.key;
        }
        set(&mut api.origins, file.origins);
    }

    /// Checks what can be checked before anything is touched.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingsError> {
        let no = |setting, why: &str| Err(SettingsError::Value { setting, why: why.to_owned() });
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return no("name", "a node's name has 1 to 64 printable characters");
        }
        if self.mesh.is_empty() || self.mesh.len() > 64 || self.mesh.chars().any(char::is_control) {
            return no("mesh", "a mesh's name has 1 to 64 printable characters");
        }
        if self.memory_bytes == Some(0) {
            return no("memory", "nothing can be lent out of 0 bytes: leave it out to lend what is free");
        }
        if self.threads == Some(0) {
            return no("threads", "at least one compute thread is needed");
        }
        if let Some(api) = &self.api {
            if !api.address.ip().is_loopback() && api.key.is_none() {
                return no(
                    "api",
                    "an address that other machines can reach needs a key: set --api-key, MESH_API_KEY or [api] key (for instance the output of `openssl rand -hex 24`)",
                );
            }
            if api.key.as_ref().is_some_and(|key| key.len() < 8) {
                return no("api-key", "shorter than 8 characters");
            }
        }
        Ok(())
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// `~/x` is below the home directory.
fn expand(path: PathBuf) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path,
    }
}

/// Bytes from `8G`, `512 MiB`, `1.5GB`, `4096`. Powers of 1024 whatever the spelling: memory is counted so.
///
/// # Errors
/// In words.
pub fn bytes_of(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim().to_ascii_lowercase());
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("`{text}` is no size: write for instance 512M, 8G or 1.5T")),
    };
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is no size: write for instance 512M, 8G or 1.5T"))?;
    let bytes = value * f64::from(2_u32).powi(shift);
    if !(0.0..9e15).contains(&bytes) {
        return Err(format!("`{text}` is out of range"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just above")]
    Ok(bytes as u64)
}

/// The operating system's place for a program's state, or a directory here if there is no home (F138).
#[must_use]
pub fn state_dir_default() -> PathBuf {
    let env = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = env("MESH_STATE_DIR") {
        return dir;
    }
    if cfg!(target_os = "macos") {
        if let Some(home) = env("HOME") {
            return home.join("Library/Application Support/mesh");
        }
    } else if let Some(dir) = env("XDG_STATE_HOME") {
        return dir.join("mesh");
    } else if let Some(home) = env("HOME") {
        return home.join(".local/state/mesh");
    }
    // A name of one's own: another user's directory is refused when it is opened (only its owner may set its mode).
    std::env::temp_dir().join(format!("mesh-state-{}", user_id()))
}

/// The user's number, as the owner of this process's own entry under /proc; elsewhere the user's name.
fn user_id() -> String {
    #[cfg(target_os = "linux")]
    if let Ok(own) = std::fs::metadata("/proc/self") {
        return std::os::unix::fs::MetadataExt::uid(&own).to_string();
    }
    std::env::var("USER").unwrap_or_else(|_| "user".to_owned())
}

/// The host's name, or `node`.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::process::Command::new("hostname").output().ok().and_then(|output| String::from_utf8(output.stdout).ok()))
        .unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(64).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(bytes_of("8G"), Ok(8 << 30));
        assert_eq!(bytes_of(" 512 MiB "), Ok(512 << 20));
        assert_eq!(bytes_of("1.5gb"), Ok(3 << 29));
        assert_eq!(bytes_of("4096"), Ok(4096));
        assert!(bytes_of("lots").is_err() && bytes_of("8Q").is_err() && bytes_of("").is_err() && bytes_of("9999999999T").is_err());
    }

    #[test]
    fn the_shipped_configuration_is_valid_and_says_nothing_but_defaults() {
        let mut settings = Settings::default();
        let before = format!("{settings:?}");
        settings.read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/node.toml")).expect("valid");
        assert_eq!(before, format!("{settings:?}"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("node.toml");
        std::fs::write(&path, "nmae = \"x\"\n").expect("written");
        let error = Settings::default().read(&path).expect_err("refused").to_string();
        assert!(error.contains("nmae") && error.contains("node.toml"), "{error}");
    }

    #[test]
    fn an_open_address_demands_a_key() {
        let open = Api { address: "0.0.0.0:8477".parse().expect("address"), ..Api::default() };
        let mut settings = Settings { api: Some(open), ..Settings::default() };
        assert!(settings.check().is_err());
        settings.api.as_mut().expect("set").key = Some("long-enough".to_owned());
        assert!(settings.check().is_ok());
    }
}
