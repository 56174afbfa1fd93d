//! GGUF's names for architectures and tensors, and Hugging Face's.

/// A model family that GGUF files can hold.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    /// `general.architecture`.
    pub(crate) gguf: &'static str,
    /// The class of transformers.
    pub(crate) class: &'static str,
    /// Whether the file's q and k rows are in the order of interleaved rotation pairs, which must
    /// be undone. The converter does that to the classes that derive from its Llama class.
    pub(crate) rotates_rows: bool,
}

/// The families, one line each.
const FAMILIES: [Family; 8] = [
    Family { gguf: "llama", class: "LlamaForCausalLM", rotates_rows: true },
    Family { gguf: "smollm3", class: "SmolLM3ForCausalLM", rotates_rows: true },
    Family { gguf: "qwen2", class: "Qwen2ForCausalLM", rotates_rows: false },
    Family { gguf: "qwen3", class: "Qwen3ForCausalLM", rotates_rows: false },
    Family { gguf: "gemma", class: "GemmaForCausalLM", rotates_rows: false },
    Family { gguf: "gemma2", class: "Gemma2ForCausalLM", rotates_rows: false },
    Family { gguf: "gemma3", class: "Gemma3ForCausalLM", rotates_rows: false },
    Family { gguf: "phi3", class: "Phi3ForCausalLM", rotates_rows: false },
];

/// The family of this `general.architecture`.
pub(crate) fn family(gguf: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.gguf == gguf)
}

impl Family {
    /// Whether MLP inputs have a norm of their own beside the one after attention.
    fn has_four_norms(&self) -> bool {
        matches!(self.gguf, "gemma2" | "gemma3")
    }

    /// The Hugging Face name of a tensor, or `None` if the table does not know it.
    pub(crate) fn tensor_name(&self, gguf: &str) -> Option<String> {
        let whole = match gguf {
            "token_embd.weight" => Some("model.embed_tokens.weight"),
            "output_norm.weight" => Some("model.norm.weight"),
            "output.weight" => Some("lm_head.weight"),
            "output.bias" => Some("lm_head.bias"),
            _ => None,
        };
        if let Some(name) = whole {
            return Some(name.into());
        }
        let (layer, part) = gguf.strip_prefix("blk.")?.split_once('.')?;
        let number: u16 = layer.parse().ok()?;
        let (part, suffix) = part.rsplit_once('.')?;
        if number.to_string() != layer || !matches!(suffix, "weight" | "bias") {
            return None;
        }
        let part = match part {
            "attn_norm" => "input_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_qkv" => "self_attn.qkv_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "post_attention_norm" => "post_attention_layernorm",
            "ffn_norm" if self.has_four_norms() => "pre_feedforward_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "post_ffw_norm" => "post_feedforward_layernorm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" if self.gguf == "phi3" => "mlp.gate_up_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return None,
        };
        Some(format!("model.layers.{number}.{part}.{suffix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::family;

    #[test]
    fn names_map_and_unknown_ones_do_not() {
        let llama = family("llama").expect("in the table");
        let gemma = family("gemma3").expect("in the table");
        let name = |name| llama.tensor_name(name);
        assert_eq!(
            name("blk.12.attn_q.bias"),
            Some("model.layers.12.self_attn.q_proj.bias".into())
        );
        assert_eq!(
            name("blk.0.ffn_norm.weight"),
            Some("model.layers.0.post_attention_layernorm.weight".into())
        );
        assert_eq!(
            gemma.tensor_name("blk.0.ffn_norm.weight"),
            Some("model.layers.0.pre_feedforward_layernorm.weight".into())
        );
        for unknown in
            ["blk.00.attn_q.weight", "blk.x.attn_q.weight", "blk.1.attn_q", "foo", "blk."]
        {
            assert_eq!(name(unknown), None, "{unknown}");
        }
        assert!(family("mamba").is_none());
    }
}
