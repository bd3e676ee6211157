//! Chat templates behave as in Jinja2 (`tests/fixtures_text/jinja.json` holds what Python renders), and stay within bounds.

mod text_common;

use mesh_models::text::{ChatRequest, TextError, TextModel};
use serde_json::{Value, json};
use text_common::directory;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures_text").join(name)).expect("a fixture")
}

/// A model with this in its `tokenizer_config.json`.
fn model(config: &Value) -> TextModel {
    TextModel::from_bytes(
        &std::fs::read(directory("llama").join("tokenizer.json")).expect("a fixture"),
        config.to_string().as_bytes(),
        b"",
        b"",
    )
    .expect("reads")
}

fn template(source: &str) -> TextModel {
    model(&json!({"chat_template": source, "bos_token": "<|begin_of_text|>"}))
}

fn hello() -> ChatRequest {
    ChatRequest::new(json!([{"role": "user", "content": "hello"}]))
}

fn render(source: &str) -> Result<String, TextError> {
    template(source).render_chat(&hello())
}

#[test]
fn templates_render_as_in_jinja2() {
    let fixture: Value = serde_json::from_slice(&fixture("jinja.json")).expect("JSON");
    let mut request = hello();
    request.extra = fixture["variables"].as_object().expect("variables").clone();
    let cases = fixture["cases"].as_array().expect("cases");
    assert!(cases.len() > 30);
    for case in cases {
        let source = case["template"].as_str().expect("a template");
        let rendered = template(source).render_chat(&request);
        assert_eq!(rendered.as_deref(), Ok(case["rendered"].as_str().expect("text")), "{source}");
    }
}

#[test]
fn a_refusal_is_quoted_from_anywhere_in_a_template() {
    for source in [
        "{{ raise_exception('Only one, ' ~ messages|length) }}",
        "{% macro m() %}{{ raise_exception('Only one, 1') }}{% endmacro %}{{ m()|trim }}",
    ] {
        assert_eq!(render(source), Err(TextError::Refused("Only one, 1".into())), "{source}");
    }
}

#[test]
fn what_fails_in_the_template_is_not_the_clients_fault() {
    for source in ["{{ missing.field }}", "{{ 1 + 'a' }}", "{{ nothing_such() }}", "{{ messages[0].content.explode() }}", "{% if %}"] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, TextError::Template(_)) && !error.is_clients(), "{source}: {error}");
    }
    // The model still answers completions, though its template does not even parse.
    assert!(template("{% if %}").encode("the", true).is_ok());
}

#[test]
fn endless_deep_and_endlessly_long_templates_end() {
    let loops = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    let dives = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let grows = "{% for a in range(10000) %}{{ 'x' * 100000 }}{% endfor %}";
    for source in [loops, dives, grows] {
        // On a thread with the stack of an ordinary worker.
        let error = std::thread::spawn(move || render(source)).join().expect("no panic").unwrap_err();
        assert!(matches!(error, TextError::Template(_)), "{source}: {error}");
    }
}

#[test]
fn training_marks_and_line_ends_are_read_as_jinja2_and_transformers_do() {
    let marked = "{%- for m in messages %}\r\n{% generation %}\r\n  {{- m.content }}\r\n{%- endgeneration -%}\r\n!\r\n{% endfor %}";
    assert_eq!(render(marked).as_deref(), Ok("hello!\n"));
}

#[test]
fn named_templates_are_chosen_by_what_the_chat_needs() {
    let named =
        json!({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools|length }}"}]});
    let mut request = hello();
    assert_eq!(model(&named).render_chat(&request).as_deref(), Ok("plain"));
    request.tools = Some(json!([{"type": "function", "function": {"name": "f"}}]));
    assert_eq!(model(&named).render_chat(&request).as_deref(), Ok("tools 1"));
    assert_eq!(model(&json!({})).render_chat(&request), Err(TextError::NoChatTemplate));
}

#[test]
fn begin_and_end_tokens_may_be_strings_objects_or_missing() {
    let source = "{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ pad_token is defined }}";
    let config = json!({"chat_template": source, "bos_token": {"__type": "AddedToken", "content": "<|begin_of_text|>"}, "eos_token": null});
    assert_eq!(model(&config).render_chat(&hello()).as_deref(), Ok("<|begin_of_text|>||True|False"));
}

#[test]
fn a_tool_calls_arguments_are_values_or_text_as_the_template_wants() {
    let calls = json!([{"type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Zürich\"}"}}]);
    let mut request = ChatRequest::new(json!([{"role": "assistant", "content": null, "tool_calls": calls}]));
    request.add_generation_prompt = false;
    let values = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments.city }}";
    let text = "{{ messages[0].content }}{{ 'args ' + messages[0].tool_calls[0].function.arguments }}";
    assert_eq!(template(values).render_chat(&request).as_deref(), Ok("Zürich"));
    assert_eq!(template(text).render_chat(&request).as_deref(), Ok("args {\"city\": \"Zürich\"}"));
}

#[test]
fn a_developer_is_the_system_where_the_template_knows_none() {
    let request = ChatRequest::new(json!([{"role": "developer", "content": "x"}]));
    assert_eq!(template("{{ messages[0].role }}").render_chat(&request).as_deref(), Ok("system"));
    assert_eq!(template("{{ messages[0].role }}{# developer #}").render_chat(&request).as_deref(), Ok("developer"));
}

#[test]
fn today_can_be_asked_for() {
    let today = render("{{ strftime_now('%Y-%m-%d') }}").expect("renders");
    assert!(today.len() == 10 && today.starts_with("20"), "{today}");
}
