//! Any bytes as the header of a safetensors file, with as much data as its tensors claim (up to a
//! limit), so that the fuzzer gets past the check of the file's length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagedllm_checkpoint::Checkpoint;

const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2, "intermediate_size": 2,
    "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 2,
    "max_position_embeddings": 8, "tie_word_embeddings": true
}"#;

fuzz_target!(|input: (&[u8], u16)| {
    let (header, data_bytes) = input;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + usize::from(data_bytes), 0);
    let Ok(checkpoint) = Checkpoint::from_safetensors(CONFIG, file) else { return };
    for name in checkpoint.names() {
        if let Ok(view) = checkpoint.tensor(name) {
            assert_eq!(view.data.len(), view.rows * view.row_bytes());
        }
    }
});
