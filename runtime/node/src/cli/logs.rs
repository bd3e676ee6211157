//! Log lines go to standard error; only the binary installs a subscriber.

use tracing_subscriber::EnvFilter;

use super::LogFormat;

/// Installs the subscriber. actix-http logs every stranger's garbage as an error: it stays quiet unless asked for. `RUST_LOG` beats the level.
pub fn install(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},libp2p=warn,actix_server=warn,actix_http=off")));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none()
        && std::env::var("TERM").as_deref() != Ok("dumb");
    match format {
        LogFormat::Text => builder.with_ansi(colours).with_target(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}
