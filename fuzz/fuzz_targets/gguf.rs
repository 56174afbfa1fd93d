//! Any bytes as a GGUF file: an error or a checkpoint whose tensors can all be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagedllm_checkpoint::Checkpoint;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_gguf(bytes.to_vec()) else { return };
    for name in checkpoint.names() {
        if let Ok(view) = checkpoint.tensor(name) {
            assert_eq!(view.data.len(), view.rows * view.row_bytes());
        }
    }
});
