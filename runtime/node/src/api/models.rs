//! `/v1/models`, and the models on this node's disk.

use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, http::StatusCode};
use mesh_core::records::DeploymentStatus;
use serde_json::{Value, json};

use super::ApiState;
use super::errors::ApiError;

/// `GET /v1/models`: what is deployed, ready or not (F124).
///
/// # Errors
/// The node has stopped.
pub async fn list(state: Data<ApiState>) -> Result<HttpResponse, ApiError> {
    let data = deployed(&state).await?;
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": data })))
}

/// `GET /v1/models/{name}`.
///
/// # Errors
/// 404 with the list, or the node has stopped.
pub async fn one(state: Data<ApiState>, name: Path<String>) -> Result<HttpResponse, ApiError> {
    let all = deployed(&state).await?;
    if let Some(model) = all.iter().find(|model| model["id"] == name.as_str()) {
        return Ok(HttpResponse::Ok().json(model));
    }
    let names: Vec<&str> = all.iter().filter_map(|model| model["id"].as_str()).collect();
    Err(ApiError::refused(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("no model `{name}` is deployed; there are: {}", names.join(", ")),
    ))
}

/// `GET /mesh/v1/models`: what lies on this node's disk and in its binary.
///
/// # Errors
/// The node has stopped.
pub async fn held(state: Data<ApiState>) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(state.mesh.models().await))
}

async fn deployed(state: &ApiState) -> Result<Vec<Value>, ApiError> {
    let status = state.mesh.status().await.map_err(|_| ApiError::unavailable("shutting_down", "the node has stopped"))?;
    Ok(status
        .deployments
        .iter()
        .map(|deployment| {
            let record = &deployment.record;
            let context = record.plan.as_ref().map_or(record.sheet.context_max, mesh_core::plan::Plan::context);
            json!({
                "id": record.sheet.name,
                "object": "model",
                "created": 0,
                "owned_by": "mesh",
                "status": record.status,
                "ready": record.status == DeploymentStatus::Ready,
                "context_length": context,
                "deployment": record.id,
            })
        })
        .collect())
}
