//! The text fields of an API request, read and bounded: `prompt` and `stop`.

use serde_json::Value;

use super::error::TextError;
use super::model::TextModel;

/// Stop strings of one request at most.
pub const STOPS_MAX: usize = 16;

/// Bytes of a stop string at most. So much text can be held back from a stream.
pub const STOP_BYTES_MAX: usize = 1 << 10;

/// The stop strings of a request's `stop`: a string, a list of strings, null or absent.
///
/// # Errors
/// [`TextError::Messages`]: another kind of value, too many, too long.
pub fn stop_strings(stop: Option<&Value>) -> Result<Vec<String>, TextError> {
    let refuse =
        || TextError::Messages(format!("stop must be a string or a list of at most {STOPS_MAX} strings of at most {STOP_BYTES_MAX} bytes"));
    let stops: Vec<String> = match stop {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) if many.len() <= STOPS_MAX => {
            many.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(refuse)?
        }
        Some(_) => return Err(refuse()),
    };
    if stops.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        return Err(refuse());
    }
    Ok(stops)
}

impl TextModel {
    /// The ids of a completion request's `prompt`: a text, or token ids, or a list of one of these. Texts get the model's begin
    /// token; ids are taken as they are, if they are below `vocabulary`, the number of the model's embeddings.
    ///
    /// # Errors
    /// [`TextError::Messages`]: several prompts, none, an id that the model has not; [`TextError::Encode`] as [`TextModel::encode`].
    pub fn encode_prompt(&self, prompt: &Value, vocabulary: u32) -> Result<Vec<u32>, TextError> {
        let refuse = |what: &str| TextError::Messages(format!("prompt {what}"));
        match prompt {
            Value::String(text) => match self.encode(text, true)?.as_slice() {
                [] => Err(refuse("must not be empty: this model has no begin token to start from")),
                ids => Ok(ids.to_vec()),
            },
            Value::Array(list) => match list.as_slice() {
                [] => Err(refuse("must not be an empty list")),
                [one @ (Value::String(_) | Value::Array(_))] => self.encode_prompt(one, vocabulary),
                [Value::String(_) | Value::Array(_), ..] => Err(refuse("must be one prompt: send several in requests of their own")),
                ids => ids.iter().map(|id| known_id(id, vocabulary)).collect(),
            },
            _ => Err(refuse("must be a text or a list of token ids")),
        }
    }
}

fn known_id(value: &Value, vocabulary: u32) -> Result<u32, TextError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| id < vocabulary);
    id.ok_or_else(|| {
        TextError::Messages(format!(
            "prompt has {value}, which is no token id of this model: they are 0 to {}",
            vocabulary.saturating_sub(1)
        ))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stops_are_read_and_bounded() {
        assert_eq!(stop_strings(None), Ok(vec![]));
        assert_eq!(stop_strings(Some(&json!("a"))), Ok(vec!["a".into()]));
        assert_eq!(stop_strings(Some(&json!(["a", "b"]))), Ok(vec!["a".into(), "b".into()]));
        for bad in [json!(1), json!(["a", 1]), json!(vec!["x"; STOPS_MAX + 1]), json!("x".repeat(STOP_BYTES_MAX + 1))] {
            assert!(stop_strings(Some(&bad)).unwrap_err().is_clients(), "{bad}");
        }
    }

    #[test]
    fn prompts_are_text_or_known_ids() {
        let tokenizer = json!({"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}});
        let model = TextModel::from_bytes(tokenizer.to_string().as_bytes(), b"", b"", b"").expect("reads");
        for same in [json!("ab"), json!(["ab"]), json!([0, 1]), json!([[0, 1]])] {
            assert_eq!(model.encode_prompt(&same, 2), Ok(vec![0, 1]), "{same}");
        }
        for bad in [
            json!(["a", "b"]),
            json!([[0], [1]]),
            json!([]),
            json!(""),
            json!([2]),
            json!([-1]),
            json!([0, "a"]),
            json!({}),
            json!(null),
            json!([1.5]),
        ] {
            assert!(model.encode_prompt(&bad, 2).unwrap_err().is_clients(), "{bad}");
        }
        let mut deep = json!("a");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        assert_eq!(model.encode_prompt(&deep, 2), Ok(vec![0]));
    }
}
