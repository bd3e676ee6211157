use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 6, "vocab_size": 512, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "eos_token_id": [511, 508]})
}

/// `config` with these fields changed.
fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn read(config: &Value) -> Result<Config, Fault> {
    Config::from_hf(config, &Value::Null)
}

fn cause(changes: Value) -> String {
    read(&with(llama(), changes)).expect_err("accepted").to_string()
}

fn digest(config: &Config) -> blake3::Hash {
    let mut hash = blake3::Hasher::new();
    config.digest(&mut hash);
    hash.finalize()
}

#[test]
fn defaults_and_nulls_are_those_of_transformers() {
    let nulls =
        json!({"head_dim": null, "num_key_value_heads": null, "sliding_window": null, "rope_scaling": null, "attention_bias": null});
    let config = read(&with(llama(), nulls)).unwrap();
    assert_eq!((config.head_dim, config.kv_heads, config.tied, config.rope.base), (16, 4, false, 10_000.0));
    assert_eq!((config.biases, config.windows[5], config.rope.scaling), (Biases::default(), None, Scaling::None));
    assert_eq!(config.end_ids, [508, 511]);
}

#[test]
fn both_spellings_of_rope_mean_the_same() {
    let scaling = json!({"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64, "rope_type": "llama3"});
    let hub = read(&with(llama(), json!({"rope_theta": 500000.0, "rope_scaling": scaling}))).unwrap();
    let v5 = with(scaling.clone(), json!({"rope_theta": 500000.0}));
    let v5 = read(&with(llama(), json!({"rope_parameters": v5}))).unwrap();
    assert_eq!((hub.rope.base, hub.rope.scaling), (v5.rope.base, v5.rope.scaling));
    assert_eq!(digest(&hub), digest(&v5));
    let old = with(scaling, json!({"rope_type": null, "type": "llama3"}));
    assert_eq!(read(&with(llama(), json!({"rope_scaling": old}))).unwrap().rope.scaling, hub.rope.scaling);
}

#[test]
fn end_tokens_are_those_of_both_files() {
    let config = Config::from_hf(&with(llama(), json!({"eos_token_id": 7})), &json!({"eos_token_id": [9, 7]})).unwrap();
    assert_eq!(config.end_ids, [7, 9]);
}

#[test]
fn what_is_unknown_is_named() {
    let foonet = cause(json!({"model_type": "foonet"}));
    assert!(foonet.contains("\"foonet\"") && foonet.contains("llama, qwen3"), "{foonet}");
    assert!(cause(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})).contains("\"yarn\""));
    assert!(cause(json!({"rope_scaling": {"factor": 4.0}})).contains("rope_type"));
    assert!(cause(json!({"quantization_config": {"quant_method": "awq"}})).contains("\"awq\""));
    assert!(cause(json!({"hidden_act": "gelu"})).contains("\"gelu\""));
    assert!(cause(json!({"sliding_window": 4096})).contains("sliding_window"));
    assert!(cause(json!({"partial_rotary_factor": 0.5})).contains("partial_rotary_factor"));
}

#[test]
fn what_contradicts_itself_is_named() {
    assert!(cause(json!({"hidden_size": null})).contains("\"hidden_size\""));
    assert!(cause(json!({"hidden_size": "wide"})).contains("\"wide\""));
    assert!(cause(json!({"hidden_size": -4})).contains("-4"));
    assert!(cause(json!({"num_key_value_heads": 3})).contains("evenly"));
    assert!(cause(json!({"num_attention_heads": 7})).contains("head_dim"));
    assert!(cause(json!({"num_hidden_layers": 70_000})).contains("layers"));
    assert!(cause(json!({"rope_theta": 0})).contains("rope_theta"));
    assert!(cause(json!({"rope_scaling": 3})).contains("object"));
    assert!(cause(json!({"head_dim": 15})).contains("15"));
}

#[test]
fn windows_of_qwen3_are_used_only_when_switched_on() {
    let qwen3 = json!({"model_type": "qwen3", "sliding_window": 32, "max_window_layers": 4, "head_dim": 16});
    let off = read(&with(llama(), qwen3.clone())).unwrap();
    assert!(off.windows.iter().all(Option::is_none));
    let on = read(&with(with(llama(), qwen3.clone()), json!({"use_sliding_window": true}))).unwrap();
    assert_eq!(on.windows, [None, None, None, None, Some(32), Some(32)]);
    let types = ["full_attention", "sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"];
    let typed = read(&with(with(llama(), qwen3), json!({"use_sliding_window": true, "layer_types": types}))).unwrap();
    assert_eq!(typed.windows.iter().filter_map(|window| *window).collect::<Vec<_>>(), [32]);
    assert_ne!(digest(&on), digest(&off));
}
