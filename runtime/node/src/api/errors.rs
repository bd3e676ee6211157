//! Errors in OpenAI's JSON form, with the status codes that clients act on: 4xx = do not retry as is, 503 = retry later.

use actix_web::http::StatusCode;
use actix_web::{HttpResponse, ResponseError};
use mesh_core::generation::{Refusal, StreamError};
use serde_json::json;

use crate::mesh::GenerateError;

/// An error on its way to a client.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`, if there is one.
    pub code: Option<&'static str>,
    /// The field at fault, if there is one.
    pub param: Option<String>,
    /// What happened and what to do.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// 400: the request is at fault.
    #[must_use]
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            param: (!param.is_empty()).then(|| param.to_owned()),
            message: message.into(),
            retry_after: None,
        }
    }

    /// Another 4xx.
    #[must_use]
    pub fn refused(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind: "invalid_request_error", code: Some(code), param: None, message: message.into(), retry_after: None }
    }

    /// 503: try again.
    #[must_use]
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "server_error",
            code: Some(code),
            param: None,
            message: message.into(),
            retry_after: Some(2),
        }
    }

    /// The JSON that body and SSE events carry.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }
    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(seconds) = self.retry_after {
            response.insert_header(("retry-after", seconds.to_string()));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header(("www-authenticate", "Bearer"));
        }
        response.json(self.json())
    }
}

impl From<StreamError> for ApiError {
    fn from(error: StreamError) -> Self {
        let message = error.to_string();
        match error {
            StreamError::Refused { refusal: Refusal::TooLong { .. }, .. } => {
                Self::refused(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
            }
            StreamError::Refused { refusal: Refusal::CacheFull { .. }, .. } => Self::unavailable("cache_full", message),
            StreamError::NodeDown { .. } => Self::unavailable("node_down", message),
            StreamError::Late { .. } => Self::unavailable("stage_late", message),
            StreamError::Stage { .. } | StreamError::Refused { .. } => Self::unavailable("stage_failed", message),
            StreamError::Replanned => Self::unavailable("replanned", message),
            StreamError::Undeployed => Self::refused(StatusCode::NOT_FOUND, "model_not_found", message),
            StreamError::NotReady { .. } => Self::unavailable("model_not_ready", message),
            StreamError::ShuttingDown => Self::unavailable("shutting_down", message),
        }
    }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::UnknownModel { .. } => Self::refused(StatusCode::NOT_FOUND, "model_not_found", message),
            GenerateError::TooLong { .. } | GenerateError::TooLongText { .. } => {
                Self { param: Some("messages".to_owned()), ..Self::refused(StatusCode::BAD_REQUEST, "context_length_exceeded", message) }
            }
            GenerateError::Prompt(error) if error.is_clients() => Self::invalid("messages", message),
            // The model's own template or tokenizer is at fault: asking again does not help.
            GenerateError::Prompt(_) => {
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None, ..Self::unavailable("template_failed", message) }
            }
            GenerateError::Option { name, .. } => Self::invalid(name, message),
            GenerateError::Stream(error) => error.into(),
            GenerateError::Text(_) => Self::unavailable("text_model_missing", message),
            GenerateError::Busy => {
                Self { retry_after: Some(1), status: StatusCode::TOO_MANY_REQUESTS, ..Self::unavailable("busy", message) }
            }
            GenerateError::Gone => Self::unavailable("shutting_down", message),
        }
    }
}
