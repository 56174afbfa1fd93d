//! The tiny models that transformers wrote, and one of them as a GGUF.

use std::path::PathBuf;

use pagedllm_checkpoint::{Checkpoint, CheckpointFormat, RopeScaling};
use pagedllm_core::{WeightFormat, WeightView};

fn open(name: &str) -> Checkpoint {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tiny");
    Checkpoint::open(&root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The numbers of an unquantized tensor.
fn numbers(view: &WeightView<'_>) -> Vec<f32> {
    let bits = |b: &[u8]| match view.format {
        WeightFormat::F32 => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        WeightFormat::BF16 => u32::from(u16::from_le_bytes([b[0], b[1]])) << 16,
        other => panic!("{}: {other}", view.name),
    };
    view.data.chunks_exact(view.format.block_bytes()).map(|b| f32::from_bits(bits(b))).collect()
}

#[test]
fn every_architecture_and_scaling_opens() {
    for (name, class) in [
        ("llama", "LlamaForCausalLM"),
        ("llama_bias", "LlamaForCausalLM"),
        ("llama_tied", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    ] {
        let checkpoint = open(name);
        let config = checkpoint.config();
        assert_eq!(config.architecture, class);
        assert_eq!(checkpoint.format(), CheckpointFormat::Safetensors);
        let biased = matches!(name, "qwen2" | "llama_bias");
        assert_eq!(config.attention_bias, biased, "{name}");
        assert_eq!(config.tie_word_embeddings, !checkpoint.contains("lm_head.weight"), "{name}");
        for tensor in checkpoint.names() {
            assert!(checkpoint.tensor(tensor).is_ok(), "{name}: {tensor}");
        }
    }
    let scaling = |name: &str| open(name).config().rope.scaling.clone();
    assert!(matches!(scaling("linear_rope"), Some(RopeScaling::Linear { .. })));
    assert!(matches!(scaling("llama3_rope"), Some(RopeScaling::Llama3 { .. })));
    assert!(matches!(
        scaling("yarn_rope"),
        Some(RopeScaling::Yarn { factor: 8.0, original_max: 64, .. })
    ));
    assert_eq!(open("yarn_rope").config().context_length(), 512);
}

#[test]
fn a_gguf_has_the_weights_of_the_directory_it_was_made_from() {
    let (ours, theirs) = (open("gguf_bf16"), open("llama"));
    assert!(ours.names().eq(theirs.names()));
    for name in theirs.names() {
        let (ours, theirs) = (ours.tensor(name).expect(name), theirs.tensor(name).expect(name));
        assert_eq!((ours.rows, ours.cols), (theirs.rows, theirs.cols), "{name}");
        assert_eq!(numbers(&ours), numbers(&theirs), "{name}");
    }
    assert_eq!(ours.config(), theirs.config());
}
