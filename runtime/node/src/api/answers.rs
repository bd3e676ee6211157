//! `/v1/chat/completions` and `/v1/completions`: one way through for both, streamed or not.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data};
use actix_web::{HttpRequest, HttpResponse};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ApiState;
use super::errors::ApiError;
use super::faults;
use super::replies::{Form, Reply};
use super::requests::{ChatRequest, CompletionRequest};
use crate::answer::{Answer, AnswerEvent, GenerateOptions, Prompt, TokenPiece};

/// A comment goes to a waiting client this often, so that nothing on the way thinks the connection idle (F113).
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A body that takes longer than this to arrive is refused (F121).
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest body, in bytes (F120).
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// `POST /v1/chat/completions`.
///
/// # Errors
/// See [`ApiError`].
pub async fn chat(state: Data<ApiState>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse, ApiError> {
    let body: ChatRequest = read(&request, payload).await?;
    let (prompt, options) = body.question()?;
    let how = How { form: Form::Chat, model: body.model.clone(), stream: body.common.stream, usage: body.common.include_usage() };
    answer(&state, how, prompt, options).await
}

/// `POST /v1/completions`.
///
/// # Errors
/// See [`ApiError`].
pub async fn completions(state: Data<ApiState>, request: HttpRequest, payload: web::Payload) -> Result<HttpResponse, ApiError> {
    let body: CompletionRequest = read(&request, payload).await?;
    let (prompt, options) = body.question()?;
    let how = How { form: Form::Completion, model: body.model.clone(), stream: body.common.stream, usage: body.common.include_usage() };
    answer(&state, how, prompt, options).await
}

/// Reads a JSON body: typed, bounded in length and time.
///
/// # Errors
/// 400, 408, 413, 415 in OpenAI's form.
pub async fn read<T: DeserializeOwned>(request: &HttpRequest, mut payload: web::Payload) -> Result<T, ApiError> {
    let kind = request.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/json") {
        return Err(ApiError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "wrong_content_type",
            "send the body as content-type: application/json",
        ));
    }
    let too_long =
        || ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("the body is longer than {BODY_BYTES_MAX} bytes"));
    let announced = request.headers().get("content-length").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    let reading = async {
        while let Some(part) = payload.next().await {
            let part = part.map_err(|error| ApiError::invalid("", format!("the body broke off: {error}")))?;
            if bytes.len() + part.len() > BODY_BYTES_MAX {
                return Err(too_long());
            }
            bytes.extend_from_slice(&part);
        }
        Ok(())
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(done) => done?,
        Err(_) => return Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "body_too_slow", "the body did not arrive within 30 seconds")),
    }
    serde_json::from_slice(&bytes).map_err(|error| faults::of::<T>(&bytes, &error))
}

struct How {
    form: Form,
    model: String,
    stream: bool,
    usage: bool,
}

async fn answer(state: &ApiState, how: How, prompt: Prompt, options: GenerateOptions) -> Result<HttpResponse, ApiError> {
    let logprobs = options.logprobs.is_some();
    let mut answer = state.mesh.generate(&how.model, prompt, options).await?;
    let Some(Ok(AnswerEvent::Started { stream, .. })) = answer.next().await else {
        return Err(ApiError::unavailable("shutting_down", "the node stopped"));
    };
    let reply = Reply::new(how.form, stream, how.model.clone(), logprobs);
    if how.stream {
        // A failure before the first token still gets a status code of its own; after that only an event can tell.
        let first = answer.next().await;
        if let Some(Err(error)) = first {
            return Err(error.into());
        }
        let events = events(reply, answer, first, how.usage);
        return Ok(HttpResponse::Ok()
            .content_type("text/event-stream")
            .insert_header(("cache-control", "no-store"))
            .insert_header(("x-accel-buffering", "no"))
            .insert_header(("x-mesh-stream", stream.to_string()))
            .streaming(events));
    }
    let body = whole(&reply, answer).await?;
    Ok(HttpResponse::Ok().insert_header(("x-mesh-stream", stream.to_string())).json(body))
}

async fn whole(reply: &Reply, mut answer: Answer) -> Result<Value, ApiError> {
    let mut text = String::new();
    let mut tokens: Vec<(TokenPiece, usize)> = Vec::new();
    while let Some(event) = answer.next().await {
        match event? {
            AnswerEvent::Started { .. } => {}
            AnswerEvent::Text { text: more, token } => {
                tokens.push((token, text.chars().count()));
                text.push_str(&more);
            }
            AnswerEvent::Finished { rest, reason, usage } => {
                text.push_str(&rest);
                let logprobs = reply.logprobs_json(answer.text_model(), &tokens);
                return Ok(reply.whole(&text, reason, logprobs, usage));
            }
        }
    }
    Err(ApiError::unavailable("shutting_down", "the node stopped before the answer was whole"))
}

type Event = Option<Result<AnswerEvent, mesh_core::generation::StreamError>>;

/// The answer as server-sent events. Dropping the returned stream (the client went away) cancels the generation.
fn events(reply: Reply, answer: Answer, first: Event, usage: bool) -> impl futures::Stream<Item = Result<Bytes, actix_web::Error>> {
    let opening = reply.opening().map(|chunk| sse(&chunk));
    let state = Events { reply, answer, first: Some(first), usage, offset: 0, over: false };
    let rest = futures::stream::unfold(state, |mut state| async move {
        if state.over {
            return None;
        }
        let bytes = state.next().await;
        Some((Ok(bytes), state))
    });
    futures::stream::iter(opening.map(Ok)).chain(rest)
}

struct Events {
    reply: Reply,
    answer: Answer,
    first: Option<Event>,
    usage: bool,
    offset: usize,
    over: bool,
}

impl Events {
    async fn next(&mut self) -> Bytes {
        loop {
            let event = match self.first.take() {
                Some(event) => event,
                None => match tokio::time::timeout(KEEP_ALIVE, self.answer.next()).await {
                    Ok(event) => event,
                    Err(_) => return Bytes::from_static(b": still here\n\n"),
                },
            };
            match event {
                Some(Ok(AnswerEvent::Started { .. })) => {}
                Some(Ok(AnswerEvent::Text { text, token })) => {
                    if let Some(bytes) = self.text(&text, token) {
                        return bytes;
                    }
                }
                Some(Ok(AnswerEvent::Finished { rest, reason, usage })) => {
                    self.over = true;
                    let mut out = Vec::new();
                    if !rest.is_empty() {
                        out.extend_from_slice(&sse(&self.reply.delta(&rest, None)));
                    }
                    out.extend_from_slice(&sse(&self.reply.closing(reason)));
                    if self.usage {
                        out.extend_from_slice(&sse(&self.reply.usage_chunk(usage)));
                    }
                    out.extend_from_slice(b"data: [DONE]\n\n");
                    return Bytes::from(out);
                }
                Some(Err(error)) => {
                    self.over = true;
                    return sse(&ApiError::from(error).json());
                }
                None => {
                    self.over = true;
                    return sse(&ApiError::unavailable("shutting_down", "the node stopped before the answer was whole").json());
                }
            }
        }
    }

    /// A chunk, if there is something to tell: a token that is only part of a character has log-probabilities at most.
    fn text(&mut self, text: &str, token: TokenPiece) -> Option<Bytes> {
        if text.is_empty() && !self.reply.logprobs {
            return None;
        }
        let logprobs = self.reply.logprobs_json(self.answer.text_model(), &[(token, self.offset)]);
        self.offset += text.chars().count();
        Some(sse(&self.reply.delta(text, logprobs)))
    }
}

fn sse(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
