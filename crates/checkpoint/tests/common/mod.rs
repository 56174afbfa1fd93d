//! Small checkpoints, built in memory byte by byte, so that a test can also build wrong ones.
#![allow(dead_code, reason = "each test file uses its own part")]

use pagedllm_core::WeightFormat;

/// A metadata value with its GGUF type number.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(u8),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type number and the bytes that follow it.
    Raw(u32, Vec<u8>),
}

/// A GGUF to be; every field may be set to something impossible.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub magic: [u8; 4],
    pub version: u32,
    pub num_tensors: Option<u64>,
    pub num_pairs: Option<u64>,
    pub pairs: Vec<(Vec<u8>, Meta)>,
    pub tensors: Vec<GgufTensor>,
    pub alignment: usize,
}

#[derive(Clone, Debug)]
pub struct GgufTensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub num_dims: Option<u32>,
    pub kind: u32,
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            num_tensors: None,
            num_pairs: None,
            pairs: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        }
    }
}

impl GgufFile {
    pub fn set(&mut self, key: &str, value: Meta) -> &mut Self {
        self.remove(key);
        self.pairs.push((key.as_bytes().to_vec(), value));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.pairs.retain(|(known, _)| known != key.as_bytes());
        self
    }

    /// Adds a tensor whose bytes count up, so that every row is different.
    pub fn tensor(
        &mut self,
        name: &str,
        format: WeightFormat,
        cols: usize,
        rows: usize,
    ) -> &mut Self {
        let size = format.row_bytes(cols).expect("whole blocks") * rows;
        let data = (0..size).map(|i| (i % 251) as u8).collect();
        let dims = if rows == 1 { vec![cols as u64] } else { vec![cols as u64, rows as u64] };
        self.tensors.push(GgufTensor {
            name: name.into(),
            dims,
            num_dims: None,
            kind: type_number(format),
            offset: None,
            data,
        });
        self
    }

    pub fn tensor_mut(&mut self, name: &str) -> &mut GgufTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the test")
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.num_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.num_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            put_bytes(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_bytes(&mut out, tensor.name.as_bytes());
            out.extend(tensor.num_dims.unwrap_or(tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &Meta) {
    let mut array = |kind: u32, len: usize, bytes: Vec<u8>| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Meta::I32s(v) => array(5, v.len(), v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Meta::F32s(v) => array(6, v.len(), v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Meta::Texts(v) => {
            let mut bytes = Vec::new();
            v.iter().for_each(|text| put_bytes(&mut bytes, text.as_bytes()));
            array(8, v.len(), bytes);
        }
        Meta::U32(v) => {
            out.extend(4u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Meta::F32(v) => {
            out.extend(6u32.to_le_bytes());
            out.extend(v.to_le_bytes());
        }
        Meta::Bool(v) => {
            out.extend(7u32.to_le_bytes());
            out.push(*v);
        }
        Meta::Text(v) => {
            out.extend(8u32.to_le_bytes());
            put_bytes(out, v.as_bytes());
        }
        Meta::Raw(kind, bytes) => {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
    }
}

/// ggml's number of a format, written down a second time.
pub fn type_number(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::F32 => 0,
        WeightFormat::F16 => 1,
        WeightFormat::Q4_0 => 2,
        WeightFormat::Q4_1 => 3,
        WeightFormat::Q5_0 => 6,
        WeightFormat::Q5_1 => 7,
        WeightFormat::Q8_0 => 8,
        WeightFormat::Q4K => 12,
        WeightFormat::Q5K => 13,
        WeightFormat::Q6K => 14,
        WeightFormat::BF16 => 30,
    }
}

/// One layer of width 32 with two heads of 16, one of them for keys, and 8 tokens; tied.
pub fn tiny_gguf(arch: &str) -> GgufFile {
    let mut file = GgufFile::default();
    file.set("general.architecture", Meta::Text(arch.into()));
    for (key, value) in [
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 128),
    ] {
        file.set(&format!("{arch}.{key}"), Meta::U32(value));
    }
    file.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Meta::F32(1e-5));
    let pieces = ["a", "b", "ab", "c", "<s>", "</s>", "<|im_end|>", "<unk>"];
    file.set("tokenizer.ggml.model", Meta::Text("gpt2".into()));
    file.set("tokenizer.ggml.pre", Meta::Text("smollm".into()));
    file.set("tokenizer.ggml.tokens", Meta::Texts(pieces.map(String::from).into()));
    file.set("tokenizer.ggml.token_type", Meta::I32s(vec![1, 1, 1, 1, 3, 3, 3, 2]));
    file.set("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into()]));
    file.set("tokenizer.ggml.bos_token_id", Meta::U32(4));
    file.set("tokenizer.ggml.eos_token_id", Meta::U32(5));
    use WeightFormat::{F32, Q4_0, Q8_0};
    file.tensor("token_embd.weight", Q8_0, 32, 8)
        .tensor("output_norm.weight", F32, 32, 1)
        .tensor("blk.0.attn_norm.weight", F32, 32, 1)
        .tensor("blk.0.attn_q.weight", Q4_0, 32, 32)
        .tensor("blk.0.attn_k.weight", Q4_0, 32, 16)
        .tensor("blk.0.attn_v.weight", Q4_0, 32, 16)
        .tensor("blk.0.attn_output.weight", Q4_0, 32, 32)
        .tensor("blk.0.ffn_norm.weight", F32, 32, 1)
        .tensor("blk.0.ffn_gate.weight", Q4_0, 32, 64)
        .tensor("blk.0.ffn_up.weight", Q4_0, 32, 64)
        .tensor("blk.0.ffn_down.weight", Q4_0, 64, 32);
    file
}

/// config.json of the same shape.
pub const TINY_CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "bos_token_id": 4, "eos_token_id": [5, 6]
}"#;

/// A safetensors file of BF16 tensors: name and shape each. Bytes count up.
pub fn safetensors_file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let info = serde_json::json!({
            "dtype": "BF16", "shape": shape, "data_offsets": [start, end],
        });
        header.insert((*name).into(), info);
    }
    safetensors_raw(&serde_json::Value::Object(header).to_string(), end)
}

/// A safetensors file of this header and `size` bytes of data.
pub fn safetensors_raw(header: &str, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, header.as_bytes());
    out.extend((0..size).map(|i| (i % 251) as u8));
    out
}

/// The tensors of the tiny model.
pub const TINY_TENSORS: [(&str, &[usize]); 11] = [
    ("model.embed_tokens.weight", &[8, 32]),
    ("model.norm.weight", &[32]),
    ("model.layers.0.input_layernorm.weight", &[32]),
    ("model.layers.0.self_attn.q_proj.weight", &[32, 32]),
    ("model.layers.0.self_attn.k_proj.weight", &[16, 32]),
    ("model.layers.0.self_attn.v_proj.weight", &[16, 32]),
    ("model.layers.0.self_attn.o_proj.weight", &[32, 32]),
    ("model.layers.0.post_attention_layernorm.weight", &[32]),
    ("model.layers.0.mlp.gate_proj.weight", &[64, 32]),
    ("model.layers.0.mlp.up_proj.weight", &[64, 32]),
    ("model.layers.0.mlp.down_proj.weight", &[32, 64]),
];
