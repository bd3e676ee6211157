//! The HTTP API: OpenAI's routes, health, and the node's own routes under `/mesh/v1` for the command line.
//!
//! It runs on a thread of its own with an actix-web server; only the facade's handle crosses. Loopback unless told
//! otherwise, and then a key is demanded (P7).

use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};

use crate::mesh::Mesh;
use crate::settings::Api;
pub use admin::{DeployRequest, PlaceRequest};
use errors::ApiError;

mod admin;
mod answers;
pub mod errors;
mod faults;
mod guard;
mod models;
mod replies;
mod requests;

/// What every handler can reach.
pub struct ApiState {
    mesh: Mesh,
    key: Option<String>,
    origins: Vec<String>,
    loopback_only: bool,
}

/// A running server. Dropping it does not stop it: call [`Server::stop`].
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

/// Ports tried after the default one if it is taken.
const PORTS_TRIED: u16 = 32;

/// Requests in flight get this long at a stop.
const DRAIN_S: u64 = 5;

/// Binds the address, or a free port near the default one where none was asked for.
///
/// # Errors
/// In words, with the next step.
pub fn bind(api: &Api) -> Result<TcpListener, String> {
    let last = if api.explicit { api.address.port() } else { api.address.port().saturating_add(PORTS_TRIED) };
    let mut error = None;
    for port in api.address.port()..=last {
        match TcpListener::bind(SocketAddr::new(api.address.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(refused) => error = Some(refused),
        }
    }
    let error = error.map_or_else(String::new, |error| error.to_string());
    Err(format!("cannot serve HTTP on {}: {error}; choose another address with --api, or --api off", api.address))
}

/// Serves on a bound listener until stopped.
///
/// # Errors
/// The operating system refused.
pub fn serve(mesh: Mesh, api: &Api, listener: TcpListener) -> std::io::Result<Server> {
    let address = listener.local_addr()?;
    let state =
        web::Data::new(ApiState { mesh, key: api.key.clone(), origins: api.origins.clone(), loopback_only: address.ip().is_loopback() });
    let (started, handle) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("mesh-http".to_owned()).spawn(move || {
        let system = actix_web::rt::System::new();
        system.block_on(async move {
            let server = HttpServer::new(move || App::new().app_data(state.clone()).wrap(from_fn(guard::guard)).configure(routes))
                .workers(1)
                .max_connections(4096)
                // What is no HTTP, or comes too slowly to be any, gets actix's bare 400 or 408: no handler of ours sees it.
                .client_request_timeout(Duration::from_secs(10))
                .client_disconnect_timeout(Duration::from_secs(1))
                .keep_alive(Duration::from_secs(75))
                .shutdown_timeout(DRAIN_S)
                .h1_allow_half_closed(false) // a client that hangs up cancels its answer, streamed or not (F104)
                .disable_signals()
                .listen(listener);
            match server {
                Ok(server) => {
                    let server = server.run();
                    let _ = started.send(Ok(server.handle()));
                    let _ = server.await;
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        });
    })?;
    let handle = handle.recv().map_err(|_| std::io::Error::other("the HTTP thread ended at once"))??;
    Ok(Server { address, handle, thread: Some(thread) })
}

impl Server {
    /// Stops accepting, gives requests in flight a few seconds, ends. Blocks until then.
    pub fn stop(mut self) {
        let stopping = self.handle.stop(true);
        futures::executor::block_on(stopping);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn routes(app: &mut web::ServiceConfig) {
    app.route("/health", web::get().to(admin::health))
        .route("/ready", web::get().to(admin::ready))
        .route("/v1/models", web::get().to(models::list))
        .route("/v1/models/{name:.*}", web::get().to(models::one))
        .route("/v1/chat/completions", web::post().to(answers::chat))
        .route("/v1/completions", web::post().to(answers::completions))
        .route("/mesh/v1/status", web::get().to(admin::status))
        .route("/mesh/v1/links", web::get().to(admin::links))
        .route("/mesh/v1/models", web::get().to(models::held))
        .route("/mesh/v1/plan", web::post().to(admin::plan))
        .route("/mesh/v1/deployments", web::post().to(admin::deploy))
        .route("/mesh/v1/deployments/{name:.*}", web::delete().to(admin::undeploy))
        .route("/mesh/v1/nodes/{name:.*}", web::delete().to(admin::forget))
        .default_service(web::to(nowhere));
}

async fn nowhere(request: actix_web::HttpRequest) -> Result<actix_web::HttpResponse, ApiError> {
    let known = ["/health", "/ready", "/v1/models", "/v1/chat/completions", "/v1/completions"].contains(&request.path());
    let (status, code) =
        if known { (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed") } else { (StatusCode::NOT_FOUND, "unknown_route") };
    Err(ApiError::refused(status, code, format!("there is no {} {} here", request.method(), request.path())))
}
