//! Chat messages as clients send them, and as templates want them.
//!
//! Clients write `content` as a string, as a list of parts, or as null beside tool calls; they write a tool call's arguments as
//! JSON inside a string. Templates expect strings, and arguments as values. What a template cannot be given is refused here, with a
//! text that says which message and why, and never passed over in silence (F96).

use serde_json::{Map, Value};

use super::error::TextError;

/// What a chat template makes a prompt of.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The messages: a list of objects with `role` and `content`, as in OpenAI's API.
    pub messages: Value,
    /// Functions that the model may call: a list of objects, as in OpenAI's API.
    pub tools: Option<Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn. True but for tests and for scoring.
    pub add_generation_prompt: bool,
    /// Further variables for the template (`chat_template_kwargs`): `enable_thinking` and the like.
    pub extra: Map<String, Value>,
}

impl ChatRequest {
    /// A request for the assistant's answer to these messages.
    #[must_use]
    pub fn new(messages: Value) -> Self {
        Self { messages, tools: None, add_generation_prompt: true, extra: Map::new() }
    }
}

/// Names that a template's variables have already.
const RESERVED: &[&str] = &["messages", "tools", "documents", "add_generation_prompt"];

/// Whether tool calls' arguments are given to the template as values or as the text they came as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    Values,
    Text,
}

/// The messages as templates want them.
pub(super) fn messages(request: &ChatRequest, arguments: Arguments, developer_is_system: bool) -> Result<Vec<Value>, TextError> {
    let list = request.messages.as_array().ok_or_else(|| TextError::Messages("messages must be a list".into()))?;
    if list.is_empty() {
        return Err(TextError::Messages("messages must have at least one message".into()));
    }
    list.iter().enumerate().map(|(index, one)| message(index, one, arguments, developer_is_system)).collect()
}

/// The tools, or none if the list is empty.
pub(super) fn tools(request: &ChatRequest) -> Result<Option<&Value>, TextError> {
    match &request.tools {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(list @ Value::Array(items)) if items.iter().all(Value::is_object) => Ok(Some(list)),
        Some(_) => Err(TextError::Messages("tools must be a list of objects".into())),
    }
}

/// The further variables.
pub(super) fn extra(request: &ChatRequest) -> Result<&Map<String, Value>, TextError> {
    match RESERVED.iter().find(|name| request.extra.contains_key(**name)) {
        Some(name) => Err(TextError::Messages(format!("chat_template_kwargs must not have '{name}': it is a field of the request itself"))),
        None => Ok(&request.extra),
    }
}

fn message(index: usize, message: &Value, arguments: Arguments, developer_is_system: bool) -> Result<Value, TextError> {
    let refuse = |what: &str| TextError::Messages(format!("messages[{index}]: {what}"));
    let mut fields = message.as_object().ok_or_else(|| refuse("must be an object"))?.clone();
    let role = fields.get("role").and_then(Value::as_str).ok_or_else(|| refuse("role must be a string"))?.to_owned();
    if role == "developer" && developer_is_system {
        fields.insert("role".into(), "system".into());
    }
    if fields.get("tool_calls").is_some_and(|calls| calls.is_null() || calls.as_array().is_some_and(Vec::is_empty)) {
        fields.remove("tool_calls");
    }
    let has_calls = fields.contains_key("tool_calls");
    let content = content(fields.get("content"), role == "assistant" && has_calls).map_err(|what| refuse(&what))?;
    fields.insert("content".into(), content);
    if arguments == Arguments::Values {
        parse_arguments(&mut fields);
    }
    Ok(Value::Object(fields))
}

/// A string, or null where a message is only tool calls.
fn content(content: Option<&Value>, may_be_null: bool) -> Result<Value, String> {
    match content {
        Some(text @ Value::String(_)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().map(part).collect::<Result<_, _>>()?;
            Ok(Value::String(texts.join("\n")))
        }
        None | Some(Value::Null) if may_be_null => Ok(Value::Null),
        _ => Err("content must be a string or a list of text parts".into()),
    }
}

fn part(part: &Value) -> Result<&str, String> {
    if let Some(text) = part.as_str() {
        return Ok(text);
    }
    match part["type"].as_str() {
        Some("text" | "input_text" | "output_text") => part["text"].as_str().ok_or_else(|| "a text part must have a text".into()),
        Some("refusal") => part["refusal"].as_str().ok_or_else(|| "a refusal part must have a refusal".into()),
        Some(other) => Err(format!("a part of type '{other}' cannot be read: this model takes text only")),
        None => Err("a part must have a type".into()),
    }
}

/// Arguments that are JSON in a string, as values. Other strings stay as they are: the client's model wrote them.
fn parse_arguments(fields: &mut Map<String, Value>) {
    let Some(calls) = fields.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments")) else { continue };
        if let Some(text) = arguments.as_str()
            && let Ok(parsed @ Value::Object(_)) = serde_json::from_str(if text.trim().is_empty() { "{}" } else { text })
        {
            *arguments = parsed;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(message: Value) -> Result<Value, String> {
        let request = ChatRequest::new(json!([message]));
        messages(&request, Arguments::Values, true).map(|mut list| list.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_are_joined_and_other_kinds_refused_by_name() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(settled(parts).unwrap()["content"], "a\nb");
        let picture = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        assert_eq!(settled(picture).unwrap_err(), "messages[0]: a part of type 'image_url' cannot be read: this model takes text only");
    }

    #[test]
    fn content_may_be_missing_only_beside_tool_calls() {
        let calls = json!([{"type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]);
        let settled_calls = settled(json!({"role": "assistant", "tool_calls": calls})).unwrap();
        assert_eq!(settled_calls["content"], Value::Null);
        assert_eq!(settled_calls["tool_calls"][0]["function"]["arguments"], json!({"a": [1]}));
        for bad in [
            json!({"role": "user"}),
            json!({"role": "assistant", "content": null, "tool_calls": []}),
            json!({"role": "user", "content": 3}),
            json!({"content": "x"}),
            json!("hi"),
        ] {
            assert!(settled(bad.clone()).unwrap_err().starts_with("messages[0]: "), "{bad}");
        }
    }

    #[test]
    fn broken_arguments_stay_text() {
        let calls = json!([{"function": {"name": "f", "arguments": "{broken"}}]);
        assert_eq!(
            settled(json!({"role": "assistant", "content": "", "tool_calls": calls})).unwrap()["tool_calls"][0]["function"]["arguments"],
            "{broken"
        );
    }

    #[test]
    fn the_request_around_the_messages_is_checked() {
        let with = |edit: fn(&mut ChatRequest)| {
            let mut request = ChatRequest::new(json!([{"role": "developer", "content": "x"}]));
            edit(&mut request);
            request
        };
        assert_eq!(messages(&with(|_| ()), Arguments::Values, true).unwrap()[0]["role"], "system");
        assert_eq!(messages(&with(|_| ()), Arguments::Values, false).unwrap()[0]["role"], "developer");
        assert!(messages(&with(|request| request.messages = json!([])), Arguments::Values, true).is_err());
        assert!(messages(&with(|request| request.messages = json!({})), Arguments::Values, true).is_err());
        assert_eq!(tools(&with(|request| request.tools = Some(json!([])))), Ok(None));
        assert!(tools(&with(|request| request.tools = Some(json!(["x"])))).is_err());
        assert!(extra(&with(|request| _ = request.extra.insert("messages".into(), json!(1)))).is_err());
    }
}
