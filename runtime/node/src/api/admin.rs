//! Health, readiness, and what the command line asks of a node.

use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use mesh_core::model::Layers;
use mesh_core::plan::Stage;
use mesh_core::records::{DeploymentStatus, Wish};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ApiState;
use super::answers::read;
use super::errors::ApiError;
use crate::mesh::{DeployError, ForgetError, Mesh};

/// A model and how it is wished for: body of plan and deploy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeployRequest {
    /// Path, name in a model directory, or `builtin:story`.
    pub model: String,
    /// Exactly this many stages.
    pub split: Option<u16>,
    /// Tokens a stream may have.
    pub context: Option<u32>,
    /// Streams of full context side by side; default 4.
    pub streams: Option<u16>,
    /// Exactly these stages, first to last; nothing leaves it to the planner.
    #[serde(default)]
    pub place: Vec<PlaceRequest>,
}

/// Layers on a node, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequest {
    /// The node's name, or the first digits of its id.
    pub node: String,
    /// The layers it is to hold.
    pub layers: Layers,
}

impl DeployRequest {
    /// As the planner takes it: names become ids.
    async fn wish(&self, mesh: &Mesh) -> Result<Wish, DeployError> {
        let mut place = Vec::new();
        for wanted in &self.place {
            place.push(Stage { node: mesh.node_named(&wanted.node).await?, layers: wanted.layers });
        }
        Ok(Wish { split: self.split, context: self.context, streams: self.streams.unwrap_or(crate::mesh::STREAMS_DEFAULT), place })
    }
}

/// `GET /health`: the process answers. Says nothing about models (F146).
pub async fn health() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok" }))
}

/// `GET /ready`: 200 if every deployment is ready, else 503 with the reasons (F146).
///
/// # Errors
/// The node has stopped.
pub async fn ready(state: Data<ApiState>) -> Result<HttpResponse, ApiError> {
    let status = state.mesh.status().await.map_err(stopped)?;
    let waiting: Vec<_> = status
        .deployments
        .iter()
        .filter(|deployment| deployment.record.status != DeploymentStatus::Ready)
        .map(|deployment| json!({ "model": deployment.record.sheet.name, "status": deployment.record.status }))
        .collect();
    if waiting.is_empty() {
        return Ok(HttpResponse::Ok().json(json!({ "ready": true, "models": status.deployments.len() })));
    }
    Ok(HttpResponse::ServiceUnavailable().insert_header(("retry-after", "2")).json(json!({ "ready": false, "waiting": waiting })))
}

/// `GET /mesh/v1/status`.
///
/// # Errors
/// The node has stopped.
pub async fn status(state: Data<ApiState>) -> Result<HttpResponse, ApiError> {
    let status = state.mesh.status().await.map_err(stopped)?;
    Ok(HttpResponse::Ok().json(status))
}

/// `GET /mesh/v1/links`: every link to a node that is up, in the order in which they are used.
///
/// # Errors
/// The node has stopped.
pub async fn links(state: Data<ApiState>) -> Result<HttpResponse, ApiError> {
    let status = state.mesh.status().await.map_err(stopped)?;
    Ok(HttpResponse::Ok().json(status.links))
}

/// `POST /mesh/v1/plan`: what would be done, and why.
///
/// # Errors
/// The model cannot be read, or the node has stopped.
pub async fn plan(state: Data<ApiState>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse, ApiError> {
    let body: DeployRequest = read(&request, payload).await?;
    let preview = state.mesh.plan(&body.model, body.wish(&state.mesh).await?).await?;
    Ok(HttpResponse::Ok().json(preview))
}

/// `POST /mesh/v1/deployments`: 202 with the id; the deployment is visible from then on (F124).
///
/// # Errors
/// The model cannot be read, the wish makes no sense, or the node has stopped.
pub async fn deploy(state: Data<ApiState>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse, ApiError> {
    let body: DeployRequest = read(&request, payload).await?;
    let (id, name) = state.mesh.deploy(&body.model, body.wish(&state.mesh).await?).await?;
    Ok(HttpResponse::Accepted().json(json!({ "id": id, "model": name })))
}

/// `DELETE /mesh/v1/deployments/{model or id}`.
///
/// # Errors
/// 404 with the list, or the node has stopped.
pub async fn undeploy(state: Data<ApiState>, name: Path<String>) -> Result<HttpResponse, ApiError> {
    state.mesh.undeploy(&name).await?;
    Ok(HttpResponse::Ok().json(json!({ "undeployed": *name })))
}

/// `DELETE /mesh/v1/nodes/{name or start of the id}`: forgets a node that is gone for good.
///
/// # Errors
/// 404 with the list, 409 if more than one is meant or the node is up, or the asked node has stopped.
pub async fn forget(state: Data<ApiState>, name: Path<String>) -> Result<HttpResponse, ApiError> {
    let node = state.mesh.forget(&name).await?;
    Ok(HttpResponse::Ok().json(json!({ "forgotten": node })))
}

fn stopped<E>(_: E) -> ApiError {
    ApiError::unavailable("shutting_down", "the node has stopped")
}

impl From<ForgetError> for ApiError {
    fn from(error: ForgetError) -> Self {
        let message = error.to_string();
        match error {
            ForgetError::Unknown { .. } => Self::refused(StatusCode::NOT_FOUND, "node_not_found", message),
            ForgetError::Ambiguous { .. } => Self::refused(StatusCode::CONFLICT, "node_ambiguous", message),
            ForgetError::Refused(_) => Self::refused(StatusCode::CONFLICT, "node_here", message),
            ForgetError::Gone => Self::unavailable("shutting_down", message),
        }
    }
}

impl From<DeployError> for ApiError {
    fn from(error: DeployError) -> Self {
        let message = error.to_string();
        match error {
            DeployError::Model(_) => Self::invalid("model", message),
            DeployError::Unknown { .. } => Self::refused(StatusCode::NOT_FOUND, "model_not_found", message),
            DeployError::Node(_) => Self::invalid("place", message),
            DeployError::Refused(_) => Self::invalid("", message),
            DeployError::Gone => Self::unavailable("shutting_down", message),
        }
    }
}
