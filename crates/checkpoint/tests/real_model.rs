//! A real file, where the environment names a directory of models. Tests of a clean clone skip it.

use std::path::PathBuf;

use pagedllm_checkpoint::{Activation, Checkpoint};
use pagedllm_core::{DType, VocabModel, WeightFormat};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The file, or `None` if no directory of models is named. A named one must have it.
fn model() -> Option<PathBuf> {
    let Some(directory) = std::env::var_os("PAGEDLLM_MODELS") else {
        eprintln!("skipped: no model");
        return None;
    };
    let path = PathBuf::from(directory).join(FILE);
    assert!(path.is_file(), "{} is absent", path.display());
    Some(path)
}

#[test]
fn smollm2_opens() {
    let Some(path) = model() else { return };
    let checkpoint = Checkpoint::open(&path).expect("opens");
    let config = checkpoint.config();
    assert_eq!(config.architecture, "LlamaForCausalLM");
    assert_eq!((config.hidden_size, config.intermediate_size, config.num_layers), (576, 1536, 30));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.vocab_size, config.context_length()), (49_152, 8192));
    assert_eq!((config.rope.theta, config.rope.dim), (100_000.0, 64));
    assert_eq!((config.hidden_act, config.dtype), (Activation::Silu, DType::BF16));
    assert!(config.tie_word_embeddings);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(1), &[2, 0][..]));
    assert_eq!(checkpoint.names().count(), 2 + 30 * 9);
    for layer in 0..30 {
        for (name, rows, cols) in [
            ("self_attn.q_proj", 576, 576),
            ("self_attn.k_proj", 192, 576),
            ("self_attn.v_proj", 192, 576),
            ("self_attn.o_proj", 576, 576),
            ("mlp.gate_proj", 1536, 576),
            ("mlp.up_proj", 1536, 576),
            ("mlp.down_proj", 576, 1536),
        ] {
            let name = format!("model.layers.{layer}.{name}.weight");
            let view = checkpoint.tensor_of(&name, rows, cols).expect("there");
            assert_eq!(view.format, WeightFormat::Q4_1);
            checkpoint.release(&name);
        }
    }
    let vocab = checkpoint.vocab_spec().expect("has one");
    let VocabModel::Bpe { merges, pre } = &vocab.model else { panic!("BPE") };
    assert_eq!((vocab.tokens.len(), merges.len()), (49_152, 48_900));
    assert_eq!(pre.0.as_deref(), Some("smollm"));
    assert_eq!((vocab.bos, vocab.eos, vocab.add_bos), (Some(1), Some(2), false));
    assert!(vocab.chat_template.as_deref().is_some_and(|text| text.contains("<|im_start|>")));
}
