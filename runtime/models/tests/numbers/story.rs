//! The built-in model tells its stories word for word.

use mesh_core::generation::Sampling;
use mesh_core::ports::Models;
use mesh_models::builtin::STORY;
use mesh_models::library::Library;
use mesh_models::model_files::Origin;
use mesh_models::text::ChatRequest;
use serde_json::json;

use crate::chain::{Chain, apart, floats, ids};

#[test]
fn greedy_stories_are_those_of_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/story/expected.json");
    let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let library = Library::new(Vec::new(), 1);
    assert_eq!(library.sheet(STORY).unwrap().name, STORY);
    let text = library.text(STORY).unwrap();
    let mut chain = Chain::whole(&Origin::Builtin);
    for case in expected["cases"].as_array().unwrap() {
        let prompt = ids(&case["prompt_ids"]);
        let messages = json!([{"role": "user", "content": case["user"]}]);
        let chat = ChatRequest { messages, tools: None, add_generation_prompt: true, extra: Default::default() };
        assert_eq!(text.encode_chat(&chat).unwrap(), prompt);
        assert!(apart(chain.logits(&prompt).last().unwrap(), &floats(&case["logits_last_of_prompt"])) < 2e-3);
        let greedy = ids(&case["greedy_ids"]);
        let got = chain.generate(&prompt, greedy.len(), &Sampling::default());
        assert_eq!(got, greedy);
        assert!(text.end_ids().contains(got.last().unwrap()));
        assert_eq!(text.decode(&got, mesh_models::text::Start::Fresh), case["text"].as_str().unwrap());
    }
}
