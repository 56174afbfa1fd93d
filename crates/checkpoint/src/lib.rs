//! Weights at rest: GGUF files and safetensors directories.
