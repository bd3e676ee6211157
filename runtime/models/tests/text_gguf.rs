//! The tokenizer inside a GGUF file gives the ids that the model's own `tokenizer.json` gives.
//!
//! Metadata are made here from the families' `tokenizer.json` as converters make them: tokens by id, their kinds, merges, and for
//! SentencePiece scores that fall with a merge's rank.

mod text_common;

use mesh_models::files::gguf::{Gguf, Value};
use mesh_models::text::{ChatRequest, Start, TextError, TextModel};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use text_common::directory;

fn read(family: &str, name: &str) -> Json {
    let bytes = std::fs::read(directory(family).join(name)).expect("a fixture");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn string(text: &str) -> Value {
    Value::String(text.into())
}

/// A merge as its two halves, however the file writes it.
fn halves(merge: &Json) -> (String, String) {
    match merge.as_array() {
        Some(pair) => (pair[0].as_str().expect("text").into(), pair[1].as_str().expect("text").into()),
        None => {
            let (left, right) = merge.as_str().expect("text").split_once(' ').expect("a pair");
            (left.into(), right.into())
        }
    }
}

/// GGUF metadata of a family's tokenizer.
fn metadata(family: &str, kind: &str, pre: Option<&str>) -> BTreeMap<String, Value> {
    let tokenizer = read(family, "tokenizer.json");
    let config = read(family, "tokenizer_config.json");
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().expect("a vocabulary") {
        let is_byte = kind == "llama" && token.len() == 6 && token.starts_with("<0x");
        tokens.insert(id.as_u64().expect("an id"), (token.clone(), if is_byte { 6 } else { 1 }));
    }
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        let text = added["content"].as_str().expect("text");
        let kind = if text == "<unk>" {
            2
        } else if added["special"] == true {
            3
        } else {
            4
        };
        tokens.insert(added["id"].as_u64().expect("an id"), (text.into(), kind));
    }
    assert!(tokens.keys().copied().eq(0..tokens.len() as u64), "{family}: gaps between ids");
    let merges: Vec<(String, String)> = tokenizer["model"]["merges"].as_array().expect("merges").iter().map(halves).collect();
    let score = |token: &str| merges.iter().position(|(left, right)| format!("{left}{right}") == token).map_or(-1e9, |rank| -(rank as f32));

    let mut metadata = BTreeMap::new();
    let mut set = |key: &str, value: Value| metadata.insert(format!("tokenizer.{key}"), value);
    set("ggml.model", string(kind));
    if let Some(pre) = pre {
        set("ggml.pre", string(pre));
    }
    set("ggml.token_type", Value::Array(tokens.values().map(|(_, kind)| Value::I32(*kind)).collect()));
    if kind == "llama" {
        set("ggml.scores", Value::Array(tokens.values().map(|(token, _)| Value::F32(score(token))).collect()));
        set("ggml.add_space_prefix", Value::Bool(tokenizer["normalizer"]["type"] == "Sequence"));
    } else {
        set("ggml.merges", Value::Array(merges.iter().map(|(left, right)| string(&format!("{left} {right}"))).collect()));
    }
    for role in ["bos", "eos"] {
        let id = config[format!("{role}_token")].as_str().and_then(|text| tokens.iter().find(|(_, (token, _))| token == text));
        if let Some((id, _)) = id {
            set(&format!("ggml.{role}_token_id"), Value::U32(u32::try_from(*id).expect("small")));
        }
    }
    set("ggml.add_bos_token", Value::Bool(config["add_bos_token"] == true));
    set("ggml.tokens", Value::Array(tokens.values().map(|(token, _)| string(token)).collect()));
    let template = config["chat_template"]
        .as_str()
        .map_or_else(|| std::fs::read_to_string(directory(family).join("chat_template.jinja")).expect("a template"), Into::into);
    set("chat_template", string(&template));
    metadata
}

const KINDS: &[(&str, &str, Option<&str>)] =
    &[("llama", "gpt2", Some("llama-bpe")), ("qwen3", "gpt2", Some("qwen2")), ("mistral", "llama", None), ("gemma3", "llama", None)];

/// Both readings of each family.
fn pairs() -> Vec<(&'static str, TextModel, TextModel)> {
    let pair = |(family, kind, pre): &(&'static str, &str, Option<&str>)| {
        let hf = TextModel::from_hf_dir(&directory(family)).expect("reads");
        (*family, hf, TextModel::from_gguf(&metadata(family, kind, *pre)).expect("reads"))
    };
    KINDS.iter().map(pair).collect()
}

#[test]
fn both_readings_agree_on_texts_chats_and_ends() {
    for (family, hf, gguf) in pairs() {
        let expected = read(family, "expected.json");
        for case in expected["tokenizer"]["encode"].as_array().expect("a list") {
            let text = case["text"].as_str().expect("text");
            for add_special in [false, true] {
                let (left, right) = (hf.encode(text, add_special).unwrap(), gguf.encode(text, add_special).unwrap());
                assert_eq!(left, right, "{family}: {text:?}");
                assert_eq!(hf.decode(&left, Start::Fresh), gguf.decode(&right, Start::Fresh), "{family}: {text:?}");
            }
        }
        for case in expected["chat"].as_array().expect("a list").iter().filter(|case| case["name"] != "tools") {
            let request = ChatRequest::new(case["messages"].clone());
            assert_eq!(hf.render_chat(&request), gguf.render_chat(&request), "{family}");
            assert_eq!(hf.encode_chat(&request), gguf.encode_chat(&request), "{family}");
        }
        assert_eq!(hf.end_ids(), gguf.end_ids(), "{family}");
        for id in 0..hf.vocabulary() {
            assert_eq!(hf.token_bytes(id), gguf.token_bytes(id), "{family}: {id}");
            assert_eq!(hf.is_special(id), gguf.is_special(id), "{family}: {id}");
        }
    }
}

/// Files as a converter wrote them, read by our own parser.
#[test]
fn files_give_what_transformers_gives() {
    for (family, reference) in [("gguf_llama", "llama"), ("gguf_qwen3", "qwen3")] {
        let gguf = Gguf::open(&directory(family).join("model-Q4_K_M.gguf")).expect("reads");
        let model = TextModel::from_gguf(&gguf.metadata).expect("reads");
        let expected = read(family, "expected.json");
        let ids = |value: &Json| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ids") };
        for case in expected["tokenizer"]["encode"].as_array().expect("a list") {
            let text = case["text"].as_str().expect("text");
            assert_eq!(model.encode(text, true).unwrap(), ids(&case["ids_with_special"]), "{family}: {text:?}");
        }
        for case in expected["chat"].as_array().expect("a list") {
            let mut request = ChatRequest::new(case["messages"].clone());
            request.add_generation_prompt = case["add_generation_prompt"] == true;
            request.extra = case["kwargs"].as_object().expect("an object").clone();
            request.tools = request.extra.shift_remove("tools");
            assert_eq!(model.encode_chat(&request).unwrap(), ids(&case["ids"]), "{family}: {}", case["name"]);
        }
        assert_eq!(model.end_ids(), TextModel::from_hf_dir(&directory(reference)).expect("reads").end_ids(), "{family}");
    }
}

#[test]
fn what_a_file_says_wrong_is_named() {
    let with = |key: &str, value: Option<Value>| {
        let mut metadata = metadata("qwen3", "gpt2", Some("qwen2"));
        match value {
            Some(value) => _ = metadata.insert(key.into(), value),
            None => _ = metadata.remove(key),
        }
        TextModel::from_gguf(&metadata).map(|_| ()).expect_err(key)
    };
    assert!(matches!(with("tokenizer.ggml.pre", Some(string("martian"))), TextError::Unsupported(text) if text.contains("'martian'")));
    assert!(matches!(with("tokenizer.ggml.model", Some(string("bert"))), TextError::Unsupported(text) if text.contains("'bert'")));
    assert!(matches!(with("tokenizer.ggml.model", None), TextError::Damaged(_)));
    assert!(matches!(with("tokenizer.ggml.merges", None), TextError::Damaged(text) if text.contains("merges")));
    assert!(matches!(with("tokenizer.ggml.tokens", Some(Value::U32(3))), TextError::Damaged(text) if text.contains("tokens")));
    assert!(matches!(with("tokenizer.ggml.tokens", Some(Value::Array(vec![Value::U32(3)]))), TextError::Damaged(_)));
    // As the kind with scores, of which the file has none.
    assert!(matches!(with("tokenizer.ggml.model", Some(string("llama"))), TextError::Damaged(text) if text.contains("scores")));
}

#[test]
fn a_file_without_a_template_answers_completions_only() {
    let mut metadata = metadata("qwen3", "gpt2", Some("qwen2"));
    metadata.remove("tokenizer.chat_template");
    let model = TextModel::from_gguf(&metadata).expect("reads");
    assert!(!model.has_chat_template());
    let error = model.render_chat(&ChatRequest::new(json!([{"role": "user", "content": "x"}]))).unwrap_err();
    assert!(error.is_clients() && error.to_string().contains("/v1/completions"), "{error}");
    assert!(!model.encode("the", true).expect("encodes").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any words of the fixtures' kind of text, with what splits and merges differently.
    #[test]
    fn both_readings_agree_on_random_text(text in r"([a-zA-Z ]{1,6}|[0-9]{1,4}|  ?|\n|é|🙂|日本|don't|[!-/]){0,12}") {
        for (family, hf, gguf) in readings() {
            let (left, right) = (hf.encode(&text, false).unwrap(), gguf.encode(&text, false).unwrap());
            prop_assert_eq!(&left, &right, "{}: {:?}", family, &text);
            prop_assert_eq!(gguf.decode(&right, Start::Fresh), hf.decode(&left, Start::Fresh));
        }
    }

    /// Damaged metadata are refused or read; nothing panics.
    #[test]
    fn damage_is_survived(which in 0_usize..12, with in 0_usize..6) {
        let mut metadata = metadata("mistral", "llama", None);
        let values = [Value::Bool(true), Value::U32(u32::MAX), Value::Array(vec![string("")]), Value::Array(Vec::new()), string("gpt2"), Value::F32(f32::NAN)];
        let key = metadata.keys().nth(which % metadata.len()).cloned().expect("a key");
        metadata.insert(key, values[with].clone());
        if let Ok(model) = TextModel::from_gguf(&metadata) {
            let ids = model.encode("the <s> 🙂 cluster", true).expect("encodes");
            let _ = model.decode(&ids, Start::Fresh);
        }
    }
}

/// [`pairs`], read once.
fn readings() -> &'static [(&'static str, TextModel, TextModel)] {
    static READINGS: std::sync::OnceLock<Vec<(&'static str, TextModel, TextModel)>> = std::sync::OnceLock::new();
    READINGS.get_or_init(pairs)
}
