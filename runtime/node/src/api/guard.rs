//! Who may call: the key, the browser rules, the name in the URL.
//!
//! Three rules, checked before any route but `/health`: a key, if one is set, compared in constant time (F115); on
//! loopback, a `Host` that is loopback, so that a web page cannot reach the node by rebinding its own name; a foreign
//! `Origin` gets no CORS header, and nothing else either (F116).

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{HttpResponse, ResponseError, web};

use super::ApiState;
use super::errors::ApiError;

/// The middleware.
///
/// # Errors
/// Whatever the inner service gives.
pub async fn guard(request: ServiceRequest, next: Next<impl MessageBody + 'static>) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let state = request.app_data::<web::Data<ApiState>>().expect("set at start").clone();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.as_ref().is_some_and(|origin| state.origins.iter().any(|known| known.as_bytes() == origin.as_bytes()));
    if request.method() == Method::OPTIONS && origin.is_some() {
        return Ok(request.into_response(preflight(allowed.then_some(origin).flatten())));
    }
    if let Err(refusal) = admit(&request, &state, origin.is_some() && !allowed) {
        return Ok(request.into_response(refusal.error_response()));
    }
    let mut response = next.call(request).await?.map_into_boxed_body();
    if let (true, Some(origin)) = (allowed, origin) {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Origin"));
    }
    Ok(response)
}

fn preflight(origin: Option<HeaderValue>) -> HttpResponse {
    let Some(origin) = origin else { return HttpResponse::Forbidden().finish() };
    HttpResponse::NoContent()
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, origin))
        .insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"))
        .insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"))
        .insert_header((header::VARY, "Origin"))
        .finish()
}

fn admit(request: &ServiceRequest, state: &ApiState, foreign_origin: bool) -> Result<(), ApiError> {
    if foreign_origin {
        return Err(ApiError::refused(
            StatusCode::FORBIDDEN,
            "origin_not_allowed",
            "this origin may not call here: list it under [api] origins",
        ));
    }
    if state.loopback_only && !names_loopback(request.connection_info().host()) {
        return Err(ApiError::refused(
            StatusCode::FORBIDDEN,
            "host_not_allowed",
            "this node serves loopback only: call it as localhost or 127.0.0.1",
        ));
    }
    if request.path() == "/health" {
        return Ok(());
    }
    let Some(key) = &state.key else { return Ok(()) };
    let shown = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let shown = shown.strip_prefix(b"Bearer ").unwrap_or_default();
    if same(shown, key.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::refused(StatusCode::UNAUTHORIZED, "invalid_api_key", "a key is needed: send it as `Authorization: Bearer KEY`"))
}

fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Equal hashes, compared without an early end: the time tells nothing about the key.
fn same(shown: &[u8], key: &[u8]) -> bool {
    // blake3's Hash compares in constant time.
    blake3::hash(shown) == blake3::hash(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass() {
        for good in ["localhost", "localhost:8477", "127.0.0.1:1", "[::1]:8477", "127.9.9.9", "app.localhost"] {
            assert!(names_loopback(good), "{good}");
        }
        for bad in ["evil.example", "localhost.evil.example", "10.0.0.1:8477", "", "[::2]"] {
            assert!(!names_loopback(bad), "{bad}");
        }
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(same(b"secret-key", b"secret-key"));
        assert!(!same(b"secret-ke", b"secret-key") && !same(b"", b"secret-key"));
    }
}
