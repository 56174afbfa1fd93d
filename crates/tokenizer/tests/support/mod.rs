//! Golden files, the model cache, and random numbers with a seed.
// Each test file uses a part; what is skipped and which seed was drawn is printed.
#![allow(dead_code, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::VocabSpec;
use pagedllm_tokenizer::Tokenizer;
use serde_json::Value;

/// A committed golden file.
pub fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer");
    let text = std::fs::read_to_string(path.join(name)).expect("golden files are committed");
    serde_json::from_str(&text).expect("golden files are JSON")
}

pub fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

pub fn ids(value: &Value) -> Vec<u32> {
    let id = |id: &Value| -> u32 { id.as_u64().unwrap().try_into().unwrap() };
    value.as_array().unwrap().iter().map(id).collect()
}

/// A file of the model cache, if there is one.
pub fn cached(path: &str) -> Option<PathBuf> {
    let Some(models) = std::env::var_os("PAGEDLLM_MODELS") else {
        println!("skipped: {path} (PAGEDLLM_MODELS is not set)");
        return None;
    };
    let found = Path::new(&models).join(path);
    if !found.exists() {
        println!("skipped: {path} (not in the model cache)");
        return None;
    }
    Some(found)
}

/// The names of the real tokenizers that have goldens.
pub const NAMES: [&str; 8] =
    ["qwen3", "llama3", "llama3_1", "gemma3", "deepseek_v3", "gptoss", "llama2", "smollm2"];

pub fn smollm2() -> Option<VocabSpec> {
    let path = cached("SmolLM2-135M-Instruct.Q4_1.gguf")?;
    Some(Checkpoint::open(&path).unwrap().vocab_spec().unwrap().clone())
}

/// A real tokenizer, if its files are in the model cache.
pub fn tokenizer(name: &str) -> Option<Tokenizer> {
    if name == "smollm2" {
        return Some(Tokenizer::from_vocab(&smollm2()?).unwrap());
    }
    let folder = cached(&format!("tokenizers/{name}"))?;
    let (json, config) = (folder.join("tokenizer.json"), folder.join("tokenizer_config.json"));
    Some(Tokenizer::from_files(&json, Some(&config)).unwrap())
}

/// Random numbers (xorshift); the seed is printed, and `PAGEDLLM_SEED` sets it.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        let given = std::env::var("PAGEDLLM_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().subsec_nanos().into()
        });
        println!("PAGEDLLM_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}
