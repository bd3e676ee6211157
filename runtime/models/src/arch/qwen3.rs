//! Qwen3, dense (Yang et al. 2025): Llama's block, with each head of queries and keys normed before it is turned, and on
//! some models a sliding window in the later layers.
//!
//! ```text
//! h = x + o_proj(attend(rope(q_norm(q_proj(n))), rope(k_norm(k_proj(n))), v_proj(n)))     n = rms_norm(x)
//! y = h + down_proj(silu(gate_proj(m)) * up_proj(m))                                      m = rms_norm(h)
//! ```

use candle_core::{Result, Tensor};
use mesh_core::ports::ModelError;

use super::load::BlockLoader;
use super::{Block, Part, Pass};
use crate::attend::{Attention, attend};
use crate::compute::Compute;
use crate::config::Config;
use crate::linear::Linear;
use crate::ops::{add, rms_norm, silu_mul};

pub(super) struct Qwen3Block {
    input_layernorm: Tensor,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Tensor,
    k_norm: Tensor,
    post_attention_layernorm: Tensor,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f32,
    attention: Attention,
}

pub(super) fn parts(config: &Config) -> Vec<Part> {
    let Config { hidden, intermediate, head_dim, biases, .. } = *config;
    let (q, kv) = (config.heads * head_dim, config.kv_heads * head_dim);
    let matrix = |name, rows, cols, bias| Part::Matrix { name, rows, cols, bias };
    vec![
        Part::Vector { name: "input_layernorm", len: hidden },
        matrix("self_attn.q_proj", q, hidden, biases.qkv),
        matrix("self_attn.k_proj", kv, hidden, biases.qkv),
        matrix("self_attn.v_proj", kv, hidden, biases.qkv),
        matrix("self_attn.o_proj", hidden, q, biases.out),
        Part::Vector { name: "self_attn.q_norm", len: head_dim },
        Part::Vector { name: "self_attn.k_norm", len: head_dim },
        Part::Vector { name: "post_attention_layernorm", len: hidden },
        matrix("mlp.gate_proj", intermediate, hidden, false),
        matrix("mlp.up_proj", intermediate, hidden, false),
        matrix("mlp.down_proj", hidden, intermediate, false),
    ]
}

impl Qwen3Block {
    pub(super) fn load(from: &mut BlockLoader<'_, '_>, config: &Config, layer: u16) -> std::result::Result<Self, ModelError> {
        let window = config.windows.get(usize::from(layer)).copied().flatten();
        Ok(Self {
            input_layernorm: from.vector("input_layernorm")?,
            q_proj: from.matrix("self_attn.q_proj")?,
            k_proj: from.matrix("self_attn.k_proj")?,
            v_proj: from.matrix("self_attn.v_proj")?,
            o_proj: from.matrix("self_attn.o_proj")?,
            q_norm: from.vector("self_attn.q_norm")?,
            k_norm: from.vector("self_attn.k_norm")?,
            post_attention_layernorm: from.vector("post_attention_layernorm")?,
            gate_proj: from.matrix("mlp.gate_proj")?,
            up_proj: from.matrix("mlp.up_proj")?,
            down_proj: from.matrix("mlp.down_proj")?,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            eps: config.eps,
            attention: Attention { window, ..Attention::full(1.0 / (config.head_dim as f32).sqrt()) },
        })
    }

    /// What attention adds; `x` is normed already, (rows, hidden).
    fn self_attn(&self, cx: &Compute, x: &Tensor, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let q = self.q_proj.forward(cx, x)?.reshape((rows, self.heads, self.head_dim))?;
        let k = self.k_proj.forward(cx, x)?.reshape((rows, self.kv_heads, self.head_dim))?;
        let v = self.v_proj.forward(cx, x)?.reshape((rows, self.kv_heads, self.head_dim))?;
        let q = pass.rope.apply(cx, &rms_norm(cx, &q, &self.q_norm, self.eps)?, pass.positions)?;
        let k = pass.rope.apply(cx, &rms_norm(cx, &k, &self.k_norm, self.eps)?, pass.positions)?;
        let mixed = attend(cx, &q, &k, &v, pass.caches, pass.layer, pass.spans, &self.attention)?; // (rows, heads * head_dim)
        self.o_proj.forward(cx, &mixed)
    }

    /// What the feed-forward part adds (SwiGLU: Shazeer 2020).
    fn mlp(&self, cx: &Compute, x: &Tensor) -> Result<Tensor> {
        let inner = silu_mul(cx, &self.gate_proj.forward(cx, x)?, &self.up_proj.forward(cx, x)?)?; // (rows, intermediate)
        self.down_proj.forward(cx, &inner)
    }
}

impl Block for Qwen3Block {
    fn forward(&self, cx: &Compute, x: &Tensor, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let x = add(cx, x, &self.self_attn(cx, &rms_norm(cx, x, &self.input_layernorm, self.eps)?, pass)?)?;
        add(cx, &x, &self.mlp(cx, &rms_norm(cx, &x, &self.post_attention_layernorm, self.eps)?)?)
    }
}
