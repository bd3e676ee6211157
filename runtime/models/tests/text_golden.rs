//! Tokenizers and chat templates of nine families against what transformers gives for them (`tests/fixtures_text`, each with the
//! files of a Hugging Face directory and an `expected.json`).

mod text_common;

use mesh_models::text::{ChatRequest, Start, TextError, TextModel};
use serde_json::{Value, json};
use text_common::directory;

const FAMILIES: &[&str] = &["llama", "qwen3", "mistral", "gemma3", "deepseek_v3", "gpt_oss", "glm4_moe", "phi3", "minimax_m2"];

fn model(family: &str) -> TextModel {
    TextModel::from_hf_dir(&directory(family)).unwrap_or_else(|error| panic!("{family}: {error}"))
}

fn expected(family: &str) -> Value {
    let text = std::fs::read_to_string(directory(family).join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

/// Checks every case of a list and says how many there were, so that an empty list cannot pass.
fn each(list: &Value, mut check: impl FnMut(&Value)) -> usize {
    let cases = list.as_array().expect("a list");
    cases.iter().for_each(&mut check);
    cases.len()
}

#[test]
fn texts_become_the_ids_that_transformers_gives() {
    for family in FAMILIES {
        let model = model(family);
        let count = each(&expected(family)["tokenizer"]["encode"], |case| {
            let text = case["text"].as_str().expect("text");
            assert_eq!(model.encode(text, false).expect("encodes"), ids(&case["ids"]), "{family}: {text:?}");
            assert_eq!(
                model.encode(text, true).expect("encodes"),
                ids(&case["ids_with_special"]),
                "{family}: {text:?} with special tokens"
            );
        });
        assert!(count >= 13, "{family}: only {count} cases");
    }
}

#[test]
fn ids_become_the_text_that_transformers_gives_at_once_and_piece_by_piece() {
    for family in FAMILIES {
        let model = model(family);
        let count = each(&expected(family)["tokenizer"]["decode"], |case| {
            let (ids, text) = (ids(&case["ids"]), case["text"].as_str().expect("text"));
            assert_eq!(model.decode(&ids, Start::Fresh), text, "{family}: {ids:?}");
            let mut pipeline = model.pipeline_from(Start::Fresh, Vec::new());
            let mut pieces: Vec<String> = ids.iter().map(|&id| pipeline.push(id).text).collect();
            pieces.push(pipeline.finish());
            assert!(!pieces.iter().any(|piece| piece.contains('\u{FFFD}')), "{family}: {pieces:?}");
            assert_eq!(pieces.concat(), text, "{family}: {pieces:?}");
        });
        assert!(count >= 13, "{family}: only {count} cases");
    }
}

#[test]
fn chats_are_rendered_and_encoded_as_transformers_does() {
    for family in FAMILIES {
        let model = model(family);
        let count = each(&expected(family)["chat"], |case| {
            let mut request = ChatRequest::new(case["messages"].clone());
            request.add_generation_prompt = case["add_generation_prompt"].as_bool().expect("a flag");
            request.extra = case["kwargs"].as_object().expect("an object").clone();
            request.tools = request.extra.shift_remove("tools");
            let name = &case["name"];
            let rendered = model.render_chat(&request).unwrap_or_else(|error| panic!("{family} {name}: {error}"));
            assert_eq!(rendered, case["rendered"].as_str().expect("text"), "{family} {name}");
            assert_eq!(model.encode_chat(&request).expect("encodes"), ids(&case["ids"]), "{family} {name}");
        });
        assert!(count >= 6, "{family}: only {count} cases");
    }
}

/// F93: a list in generation_config, and a chat end token that is not the end of text.
#[test]
fn every_end_token_ends_and_none_is_shown() {
    let ends = [("llama", vec![508, 511]), ("qwen3", vec![505, 507]), ("mistral", vec![2]), ("gemma3", vec![1, 5])];
    for (family, ids) in ends {
        let model = model(family);
        assert_eq!(model.end_ids(), ids, "{family}");
        let word = model.encode("the", false).expect("encodes");
        for id in ids {
            assert_eq!(
                model.decode(&[&word[..], &[id], &word[..]].concat(), Start::Fresh),
                model.decode(&[&word[..], &word[..]].concat(), Start::Fresh)
            );
        }
    }
    for family in FAMILIES {
        let config: Value =
            serde_json::from_slice(&std::fs::read(directory(family).join("generation_config.json")).expect("a file")).expect("JSON");
        let listed = match &config["eos_token_id"] {
            Value::Array(list) => list.iter().map(|id| id.as_u64().expect("an id") as u32).collect(),
            one => vec![one.as_u64().expect("an id") as u32],
        };
        let model = model(family);
        assert!(listed.iter().all(|id| model.end_ids().contains(id)), "{family}: {listed:?} {:?}", model.end_ids());
    }
}

/// F96: the template's own words, as the client's error; nothing is changed in silence.
#[test]
fn a_template_that_refuses_is_quoted() {
    let model = model("gemma3");
    let turn = |role: &str| json!({"role": role, "content": "x"});
    let refused = [
        json!([turn("user"), turn("user"), turn("assistant"), turn("assistant")]),
        json!([turn("user"), turn("assistant"), turn("system"), turn("user")]),
    ];
    for messages in refused {
        let error = model.render_chat(&ChatRequest::new(messages)).unwrap_err();
        assert_eq!(error, TextError::Refused("Conversation roles must alternate".into()));
        assert!(error.is_clients());
    }
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(model.render_chat(&ChatRequest::new(parts)).unwrap(), "<bos><start_of_turn>user\na\nb<end_of_turn>\n<start_of_turn>model\n");
}

/// A leading space belongs to a text of its own as little as it belongs away from one that is continued.
#[test]
fn a_leading_space_goes_with_a_fresh_text_and_stays_with_a_continued_one() {
    let model = model("mistral");
    let ids = model.encode("the cluster", false).expect("encodes");
    assert_eq!(model.decode(&ids, Start::Fresh), "the cluster");
    assert_eq!(model.decode(&ids, Start::Continuing), " the cluster");
    let byte_level = self::model("qwen3");
    let ids = byte_level.encode(" the cluster", false).expect("encodes");
    assert_eq!(byte_level.decode(&ids, Start::Fresh), " the cluster");
}

#[test]
fn a_prompt_that_brings_its_begin_token_gets_no_second_one() {
    let model = model("llama");
    assert_eq!(model.encode("<|begin_of_text|>the", true).unwrap(), model.encode("the", true).unwrap());
}
