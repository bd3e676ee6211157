//! Which tokens end an answer (F93).
//!
//! Models name them in up to four places that need not agree: `generation_config.json` (a number or a list), `config.json`
//! (also inside `text_config`), the tokenizer's `eos_token`, and GGUF's `eos`, `eot` and `eom` ids. All count. Besides, files
//! of chat models exist that name only the end of a text while the chat template ends turns with another token; such tokens
//! have a few well-known names.

use serde_json::Value;

/// Tokens of these names end a turn, in the models that have them as a special token.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
];

/// Ids by well-known name. `id_of` finds special tokens only; `counts` says whether a name is to be looked for.
pub(super) fn by_name(id_of: impl Fn(&str) -> Option<u32>, counts: impl Fn(&str) -> bool) -> Vec<u32> {
    // In the harmony format <|end|> ends a message, after which the same answer goes on; <|return|> ends the answer.
    let harmony = id_of("<|return|>").is_some();
    let names = TURN_ENDS.iter().filter(|name| !(harmony && **name == "<|end|>"));
    names.filter(|name| counts(name)).filter_map(|name| id_of(name)).collect()
}

/// The ids that a `generation_config.json` or `config.json` names.
pub(super) fn in_config(config: &Value) -> Vec<u32> {
    let mut ids = Vec::new();
    for part in [config, &config["text_config"]] {
        match &part["eos_token_id"] {
            Value::Array(list) => ids.extend(list.iter().filter_map(as_id)),
            one => ids.extend(as_id(one)),
        }
    }
    ids
}

/// Sorted, each once, none beyond the vocabulary.
pub(super) fn settled(mut ids: Vec<u32>, vocabulary: u32) -> Vec<u32> {
    ids.retain(|&id| id < vocabulary);
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_lists_and_nested_configs_all_count() {
        assert_eq!(in_config(&json!({"eos_token_id": 2})), [2]);
        assert_eq!(in_config(&json!({"eos_token_id": [5, 1, -1, null], "text_config": {"eos_token_id": 7}})), [5, 1, 7]);
        assert_eq!(in_config(&json!({"eos_token_id": null})), [0_u32; 0]);
        assert_eq!(settled(vec![5, 1, 5, 900], 100), [1, 5]);
    }

    #[test]
    fn harmony_goes_on_after_a_message() {
        let id_of = |name: &str| ["<|end|>", "<|return|>", "<|call|>"].iter().position(|&known| known == name).map(|at| at as u32);
        assert_eq!(by_name(id_of, |_| true), [1, 2]);
        assert_eq!(by_name(|name| (name == "<|end|>").then_some(3), |_| true), [3]);
    }
}
