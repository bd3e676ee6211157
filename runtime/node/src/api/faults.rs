//! Which field of a body is at fault. The parser's own words name a type and a column, which nobody can act on, and a field
//! that is flattened loses its name on the way.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::ApiError;

/// Fields that are tried at most: more are no honest mistake.
const FIELDS_MAX: usize = 128;
/// In a longer body the search would cost more than its answer is worth.
const BYTES_MAX: usize = 1 << 20;

/// The 400 for a body that could not be read as a `T`.
pub fn of<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let mut body = match serde_json::from_slice(bytes) {
        Ok(body @ Value::Object(_)) => body,
        _ => return ApiError::invalid("", format!("the body is no JSON object: {error}")),
    };
    // Asked of the parsed value, whose errors have no columns: what is at fault is what changes the error when it is gone.
    let Some(first) = fault::<T>(&body) else { return ApiError::invalid("", error.to_string()) };
    if let Some(missing) = first.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return ApiError::invalid(missing, format!("{missing} is missing"));
    }
    let small = bytes.len() <= BYTES_MAX;
    let names: Vec<String> = body.as_object().into_iter().flat_map(Map::keys).take(FIELDS_MAX).filter(|_| small).cloned().collect();
    let mut needed = None;
    for name in names {
        let Some(value) = body.as_object_mut().and_then(|fields| fields.remove(&name)) else { continue };
        match fault::<T>(&body) {
            Some(same) if same == first => {}
            // It must be there: its absence covers the fault, and perhaps it is the fault.
            Some(other) if other == format!("missing field `{name}`") => needed = Some(name.clone()),
            _ => return at(&name, &first),
        }
        body[name] = value;
    }
    needed.map_or_else(|| ApiError::invalid("", in_words(&first)), |name| at(&name, &first))
}

fn fault<T: DeserializeOwned>(body: &Value) -> Option<String> {
    T::deserialize(body).err().map(|error| error.to_string())
}

fn at(name: &str, fault: &str) -> ApiError {
    ApiError::invalid(name, format!("{name}: {}", in_words(fault)))
}

/// The parser's words without the names of Rust's types.
fn in_words(fault: &str) -> String {
    let expected = [
        ("u8", "a small whole number"),
        ("u16", "a small whole number"),
        ("u32", "a whole number that is not negative"),
        ("u64", "a whole number that is not negative"),
        ("i64", "a whole number"),
        ("f32", "a number"),
        ("a boolean", "true or false"),
        ("a map", "an object"),
        ("a sequence", "a list"),
    ];
    let Some((said, wanted)) = fault.rsplit_once(", expected ") else { return fault.to_owned() };
    let wanted = expected.iter().find(|(kind, _)| *kind == wanted).map_or(wanted, |(_, words)| words);
    format!("{said}, expected {wanted}")
}

#[cfg(test)]
mod tests {
    use super::super::admin::DeployRequest;
    use super::super::requests::{ChatRequest, CompletionRequest};
    use super::*;

    fn refused<T: DeserializeOwned>(body: &str) -> ApiError {
        of::<T>(body.as_bytes(), &serde_json::from_str::<T>(body).err().expect("refused"))
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let chat = |more: &str| refused::<ChatRequest>(&format!(r#"{{"model": "m", "messages": [], {more}}}"#));
        for (field, more) in [
            ("max_tokens", r#""max_tokens": "x""#),
            ("max_tokens", r#""user": 3, "max_tokens": -1, "temperature": 0.5"#),
            ("temperature", r#""temperature": "hot""#),
            ("stream", r#""stream": "yes""#),
            ("stream_options", r#""stream": true, "stream_options": "usage""#),
            ("top_logprobs", r#""top_logprobs": 300"#),
            ("logit_bias", r#""logit_bias": [1]"#),
            ("model", r#""model": 3"#),
        ] {
            let error = chat(more);
            assert_eq!(error.param.as_deref(), Some(field), "{error}");
            assert!(!error.message.contains("u32") && error.message.starts_with(field), "{error}");
        }
        assert_eq!(refused::<ChatRequest>(r#"{"messages": []}"#).param.as_deref(), Some("model"));
        assert_eq!(refused::<CompletionRequest>(r#"{"model": "m", "prompt": "x", "best_of": "y"}"#).param.as_deref(), Some("best_of"));
        assert_eq!(refused::<DeployRequest>(r#"{"model": "m", "split": "two"}"#).param.as_deref(), Some("split"));
        assert_eq!(refused::<DeployRequest>("[1]").param, None);
        assert_eq!(refused::<DeployRequest>("{").param, None);
    }
}
