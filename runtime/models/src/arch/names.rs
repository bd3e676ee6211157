//! What tensors are called in files of either kind.

use crate::files::Kind;

/// Where a tensor belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To a layer.
    Layer(u16),
    /// Before or behind all layers.
    Ends,
}

/// A tensor's name in a file: `part` is its name on the Hub without the layer, `field` is `weight` or `bias`.
pub(crate) fn tensor_name(kind: &Kind, place: Place, part: &str, field: &str) -> String {
    match (kind, place) {
        (Kind::Gguf(_), Place::Layer(layer)) => format!("blk.{layer}.{}.{field}", in_gguf(part)),
        (Kind::Gguf(_), Place::Ends) => format!("{}.{field}", in_gguf(part)),
        (Kind::Safetensors, Place::Layer(layer)) => format!("model.layers.{layer}.{part}.{field}"),
        (Kind::Safetensors, Place::Ends) if part == "lm_head" => format!("{part}.{field}"),
        (Kind::Safetensors, Place::Ends) => format!("model.{part}.{field}"),
    }
}

/// The names of gguf-py's `tensor_mapping.py`.
fn in_gguf(part: &str) -> &str {
    match part {
        "embed_tokens" => "token_embd",
        "norm" => "output_norm",
        "lm_head" => "output",
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        same => same,
    }
}
