//! `ModelConfig` from the metadata of a GGUF.

use pagedllm_core::{DType, TokenId, WeightFormat};

use crate::CheckpointError;
use crate::config::{Activation, ModelConfig, RopeConfig, RopeScaling, SamplingDefaults, ends};
use crate::gguf::{Gguf, TensorInfo, Value};
use crate::gguf_names::Family;
use crate::quote::quote;

/// Theta of windowed Gemma 3 layers; the format has no key for it.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;

/// What the configuration needs of the tensors.
pub(crate) struct TensorFacts {
    /// The token embedding: rows, columns, format.
    pub(crate) embedding: (usize, usize, WeightFormat),
    pub(crate) has_head: bool,
    pub(crate) has_attention_bias: bool,
    pub(crate) has_mlp_bias: bool,
    /// `rope_freqs.weight`.
    pub(crate) freq_factors: Option<Vec<f32>>,
    /// `rope_factors_short.weight` and `rope_factors_long.weight`.
    pub(crate) longrope: Option<(Vec<f32>, Vec<f32>)>,
}

/// Reads the configuration. The caller adds the ends, and checks it.
pub(crate) fn read(
    gguf: &Gguf<'_>,
    family: &Family,
    facts: TensorFacts,
) -> Result<ModelConfig, CheckpointError> {
    let keys = Keys { gguf, arch: family.gguf };
    if keys.count("expert_count")?.unwrap_or(0) > 0 {
        let name = format!("{} with experts", family.gguf);
        return Err(CheckpointError::UnsupportedArchitecture { name });
    }
    let (vocab_size, cols, format) = facts.embedding;
    let hidden_size = keys.required("embedding_length")?;
    if cols != hidden_size {
        let reason = format!("{hidden_size}, but the token embedding has {cols} columns");
        return Err(keys.wrong("embedding_length", reason));
    }
    let num_layers = keys.required("block_count")?;
    let num_heads = keys.required("attention.head_count")?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => hidden_size.checked_div(num_heads).unwrap_or(0),
    };
    if keys.count("attention.value_length")?.is_some_and(|width| width != head_dim) {
        let reason = format!("must equal the key length {head_dim}");
        return Err(keys.wrong("attention.value_length", reason));
    }
    let max_position_embeddings = keys.required("context_length")?;
    let sliding_window = keys.count("attention.sliding_window")?.filter(|&window| window > 0);
    let (windowed, local_theta): (fn(usize) -> bool, _) = match family.gguf {
        "gemma2" => (|layer| layer % 2 == 0, None),
        "gemma3" => (|layer| layer % 6 != 5, Some(GEMMA3_LOCAL_THETA)),
        _ => (|_| true, None),
    };
    let is_gemma = family.gguf.starts_with("gemma");
    let layers = || 0..num_layers.min(ModelConfig::MAX_LAYERS);
    Ok(ModelConfig {
        architecture: family.class.into(),
        hidden_size,
        intermediate_size: keys.required("feed_forward_length")?,
        num_layers,
        num_heads,
        num_kv_heads: keys.count("attention.head_count_kv")?.unwrap_or(num_heads),
        head_dim,
        vocab_size,
        max_position_embeddings,
        rms_norm_eps: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
        rope: RopeConfig {
            theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            local_theta,
            dim: keys.count("rope.dimension_count")?.unwrap_or(head_dim),
            scaling: scaling(&keys, max_position_embeddings, facts.longrope)?,
            freq_factors: facts.freq_factors,
        },
        rope_layers: layers().map(|layer| family.gguf != "smollm3" || layer % 4 != 3).collect(),
        tie_word_embeddings: !facts.has_head,
        attention_bias: facts.has_attention_bias,
        mlp_bias: facts.has_mlp_bias,
        sliding_window,
        windowed_layers: layers().map(windowed).collect(),
        attention_scale: attention_scale(&keys, num_layers, hidden_size, num_heads, head_dim)?,
        attention_soft_cap: keys.float("attn_logit_softcapping")?.map(|cap| cap as f32),
        logit_soft_cap: keys.float("final_logit_softcapping")?.map(|cap| cap as f32),
        norm_adds_one: false,
        hidden_act: if is_gemma { Activation::GeluTanh } else { Activation::Silu },
        dtype: dtype(format),
        bos_token_id: token(gguf, "tokenizer.ggml.bos_token_id")?,
        eos_token_ids: Vec::new(),
        sampling: SamplingDefaults::default(),
    })
}

/// Tokens that the file's own keys name as ends.
pub(crate) fn end_tokens(gguf: &Gguf<'_>) -> Result<Vec<TokenId>, CheckpointError> {
    let mut tokens = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends(&mut tokens, token(gguf, &format!("tokenizer.ggml.{key}"))?);
    }
    Ok(tokens)
}

/// Type that activations should have for weights that start out as `format`.
fn dtype(format: WeightFormat) -> DType {
    match format {
        WeightFormat::F32 => DType::F32,
        WeightFormat::F16 => DType::F16,
        _ => DType::BF16,
    }
}

/// The largest Gemma 2 and 3 scale by the width that a head would have without its own key; they
/// are told by their number of layers, since the format has no key for it.
fn attention_scale(
    keys: &Keys<'_, '_>,
    num_layers: usize,
    hidden_size: usize,
    num_heads: usize,
    head_dim: usize,
) -> Result<f32, CheckpointError> {
    if let Some(scale) = keys.float("attention.scale")? {
        return Ok(scale as f32);
    }
    let width = match (keys.arch, num_layers) {
        ("gemma2", 46) | ("gemma3", 62) => hidden_size.checked_div(num_heads).unwrap_or(0),
        _ => head_dim,
    };
    Ok((width as f64).powf(-0.5) as f32)
}

fn scaling(
    keys: &Keys<'_, '_>,
    max_position_embeddings: usize,
    longrope: Option<(Vec<f32>, Vec<f32>)>,
) -> Result<Option<RopeScaling>, CheckpointError> {
    let factor = keys.float("rope.scaling.factor")?;
    let original_max =
        keys.count("rope.scaling.original_context_length")?.unwrap_or(max_position_embeddings);
    let attention_factor = keys.float("rope.scaling.attn_factor")?;
    if let Some((short_factor, long_factor)) = longrope {
        let factor = max_position_embeddings as f64 / original_max.max(1) as f64;
        return Ok(Some(RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max,
            factor,
            attention_factor,
        }));
    }
    let kind = match keys.text("rope.scaling.type")? {
        Some(kind) => kind,
        // The key of files from before there were types.
        None => {
            let old = keys.float("rope.scale_linear")?.filter(|&factor| factor != 1.0);
            return Ok(old.map(|factor| RopeScaling::Linear { factor }));
        }
    };
    let needed = || factor.ok_or_else(|| keys.wrong("rope.scaling.factor", "is absent".into()));
    match kind {
        "none" => Ok(None),
        "linear" => Ok(Some(RopeScaling::Linear { factor: needed()? })),
        "yarn" => {
            let factor = needed()?;
            // The file's factor comes on top of the usual one.
            let usual = 0.1 * factor.max(1.0).ln() + 1.0;
            Ok(Some(RopeScaling::Yarn {
                factor,
                original_max,
                beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: attention_factor.map(|extra| extra * usual),
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            }))
        }
        "longrope" => {
            Err(keys.wrong("rope.scaling.type", "longrope without its factor tensors".into()))
        }
        other => Err(keys.wrong("rope.scaling.type", format!("`{}` is unknown", quote(other)))),
    }
}

/// Metadata of one architecture by short key.
struct Keys<'g, 'a> {
    gguf: &'g Gguf<'a>,
    arch: &'static str,
}

impl<'a> Keys<'_, 'a> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn wrong(&self, key: &str, reason: String) -> CheckpointError {
        CheckpointError::Config { field: self.key(key), reason }
    }

    /// A count. Where a file has one value a layer, all must be the same.
    fn count(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        let value = match self.gguf.get(&self.key(key)) {
            Some(Value::Array(array)) => {
                let mut values = array.scalars().into_iter().flatten();
                let first = values.next();
                if first.is_none() || values.any(|value| Some(value) != first) {
                    return Err(self.wrong(key, "must be one number for all layers".into()));
                }
                first
            }
            other => other,
        };
        let count = match value {
            None => return Ok(None),
            Some(Value::Unsigned(count)) => usize::try_from(count).ok(),
            Some(Value::Signed(count)) => usize::try_from(count).ok(),
            Some(_) => None,
        };
        count.map(Some).ok_or_else(|| self.wrong(key, "must be a count".into()))
    }

    fn required(&self, key: &str) -> Result<usize, CheckpointError> {
        self.count(key)?.ok_or_else(|| self.wrong(key, "is absent".into()))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        match self.gguf.get(&self.key(key)) {
            None => Ok(None),
            Some(Value::Float(value)) if value.is_finite() => Ok(Some(value)),
            Some(Value::Unsigned(value)) => Ok(Some(value as f64)),
            Some(Value::Signed(value)) => Ok(Some(value as f64)),
            Some(_) => Err(self.wrong(key, "must be a finite number".into())),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.gguf.get(&self.key(key)) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "must be a string".into())),
        }
    }
}

/// The token id under `key`.
pub(crate) fn token(gguf: &Gguf<'_>, key: &str) -> Result<Option<TokenId>, CheckpointError> {
    let token = match gguf.get(key) {
        None => return Ok(None),
        Some(Value::Unsigned(token)) => TokenId::try_from(token).ok(),
        Some(Value::Signed(token)) => TokenId::try_from(token).ok(),
        Some(_) => None,
    };
    let reason = || "must be a token id".to_string();
    token.map(Some).ok_or_else(|| CheckpointError::Config { field: key.into(), reason: reason() })
}

/// The numbers of an F32 vector such as `rope_freqs.weight`.
pub(crate) fn floats(
    gguf: &Gguf<'_>,
    bytes: &[u8],
    tensor: &TensorInfo<'_>,
) -> Result<Vec<f32>, CheckpointError> {
    if tensor.format != WeightFormat::F32 || tensor.rows != 1 {
        let name = quote(tensor.name);
        return Err(gguf.fail(format!("tensor `{name}` must be a vector of F32")));
    }
    let numbers = bytes[tensor.range.clone()].chunks_exact(4);
    Ok(numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
