//! What a checkpoint says about its model, in one type for both formats.

use pagedllm_core::{DType, TokenId};

use crate::CheckpointError;

/// Shape and constants of a decoder-only transformer. All counts are of the whole model, not of
/// one rank, and are checked: none is zero, and heads divide as they must.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Class name as `config.json` has it, such as `LlamaForCausalLM`; mapped from GGUF's
    /// `general.architecture`.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the token embedding, and so the width of the logits.
    pub vocab_size: usize,
    /// Positions that the model was trained for, before any rope scaling;
    /// [`context_length`](Self::context_length) counts the scaling.
    pub max_position_embeddings: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// `[num_layers]` whether the layer rotates q and k (SmolLM3 leaves some out).
    pub rope_layers: Vec<bool>,
    /// Whether the head is the transposed embedding. If so, any `lm_head` in the file is ignored.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases. Whether the output projection has one too is for
    /// [`Checkpoint::contains`](crate::Checkpoint::contains) to say.
    pub attention_bias: bool,
    /// Whether the projections of the MLP have biases.
    pub mlp_bias: bool,
    /// Tokens that a windowed layer sees, its own included.
    pub sliding_window: Option<usize>,
    /// `[num_layers]` whether the layer is limited to `sliding_window`; all false without one.
    pub windowed_layers: Vec<bool>,
    /// Factor of the attention scores, `head_dim^-0.5` unless the model says otherwise.
    pub attention_scale: f32,
    /// Soft cap of the attention scores (Gemma 2).
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits (Gemma 2).
    pub logit_soft_cap: Option<f32>,
    /// Whether norm weights are stored as an offset from 1, so that 1 must be added to each.
    /// True for Gemma directories; false for Gemma GGUFs, whose files have it added.
    pub norm_adds_one: bool,
    /// Activation of the gated MLP.
    pub hidden_act: Activation,
    /// Type of the weights, or, where they are quantized, the type they came from as far as the
    /// file tells (bfloat16 if it does not, which overflows last).
    pub dtype: DType,
    /// Beginning of sequence.
    pub bos_token_id: Option<TokenId>,
    /// Tokens that end a sequence, without repeats; generation_config.json's come first.
    pub eos_token_ids: Vec<TokenId>,
    /// Sampling defaults of generation_config.json.
    pub sampling: SamplingDefaults,
}

impl ModelConfig {
    /// Most layers that a configuration may have.
    pub(crate) const MAX_LAYERS: usize = 4096;

    /// Longest sequence that the model can serve: the trained positions times the factor of those
    /// rope scalings that extend them.
    #[must_use]
    pub fn context_length(&self) -> usize {
        let extend = |positions: usize, factor: f64| (positions as f64 * factor) as usize;
        // Gemma 3's positions are given with its scaling counted in.
        let scaling = self.rope.scaling.as_ref();
        match scaling.filter(|_| !self.architecture.starts_with("Gemma3")) {
            Some(RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. }) => {
                extend(self.max_position_embeddings, *factor)
            }
            Some(RopeScaling::Yarn { factor, original_max, .. }) => extend(*original_max, *factor),
            Some(RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. }) | None => {
                self.max_position_embeddings
            }
        }
    }

    /// Checks every range, and drops a window that no sequence outgrows.
    pub(crate) fn checked(mut self) -> Result<Self, CheckpointError> {
        let wrong = |field: &str, reason: String| {
            Err(CheckpointError::Config { field: field.into(), reason })
        };
        for (field, value, limit) in [
            ("hidden_size", self.hidden_size, 1 << 20),
            ("intermediate_size", self.intermediate_size, 1 << 24),
            ("num_hidden_layers", self.num_layers, Self::MAX_LAYERS),
            ("num_attention_heads", self.num_heads, 1 << 14),
            ("num_key_value_heads", self.num_kv_heads, 1 << 14),
            ("head_dim", self.head_dim, 1 << 12),
            ("vocab_size", self.vocab_size, 1 << 26),
            ("max_position_embeddings", self.max_position_embeddings, 1 << 30),
        ] {
            if value == 0 || value > limit {
                return wrong(field, format!("{value} is not between 1 and {limit}"));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let reason = format!("{} does not divide {} heads", self.num_kv_heads, self.num_heads);
            return wrong("num_key_value_heads", reason);
        }
        let scale = f64::from(self.attention_scale);
        for (field, value) in [
            ("rms_norm_eps", f64::from(self.rms_norm_eps)),
            ("rope_theta", self.rope.theta),
            ("rope_local_base_freq", self.rope.local_theta.unwrap_or(1.0)),
            ("query_pre_attn_scalar", scale),
            ("attn_logit_softcapping", self.attention_soft_cap.unwrap_or(1.0).into()),
            ("final_logit_softcapping", self.logit_soft_cap.unwrap_or(1.0).into()),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(field, "must be a finite number above 0".into());
            }
        }
        self.rope.check(self.head_dim)?;
        for token in self.eos_token_ids.iter().chain(&self.bos_token_id) {
            if *token as usize >= self.vocab_size {
                let reason = format!("{token} is outside the vocabulary of {}", self.vocab_size);
                return wrong("eos_token_id or bos_token_id", reason);
            }
        }
        let length = self.context_length();
        self.sliding_window = self.sliding_window.filter(|&window| window < length);
        if self.sliding_window.is_none() || !self.windowed_layers.contains(&true) {
            self.sliding_window = None;
            self.windowed_layers.fill(false);
        }
        Ok(self)
    }
}

/// Adds tokens to a list of ends, each once.
pub(crate) fn ends(list: &mut Vec<TokenId>, more: impl IntoIterator<Item = TokenId>) {
    for token in more {
        if !list.contains(&token) {
            list.push(token);
        }
    }
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Base of the frequencies of windowed layers, where it differs (Gemma 3). Scaling and
    /// `freq_factors` hold for the other layers only then.
    pub local_theta: Option<f64>,
    /// Leading elements of each head that are rotated; even, at most `head_dim`.
    pub dim: usize,
    /// How positions past the trained ones are reached.
    pub scaling: Option<RopeScaling>,
    /// `[dim / 2]` divisors of the frequencies, as GGUF's `rope_freqs.weight` has them (llama3
    /// scaling already worked out; `scaling` is `None` then).
    pub freq_factors: Option<Vec<f32>>,
}

impl RopeConfig {
    fn check(&self, head_dim: usize) -> Result<(), CheckpointError> {
        let wrong = |field: &str, reason: String| {
            Err(CheckpointError::Config { field: format!("rope_scaling.{field}"), reason })
        };
        if self.dim == 0 || self.dim > head_dim || !self.dim.is_multiple_of(2) {
            let reason = format!("rotates {} of {head_dim} elements", self.dim);
            return wrong("partial_rotary_factor", reason);
        }
        let (factor, original_max) = match &self.scaling {
            None => (1.0, 1),
            Some(RopeScaling::Linear { factor }) => (*factor, 1),
            Some(
                RopeScaling::Dynamic { factor, original_max }
                | RopeScaling::Llama3 { factor, original_max, .. }
                | RopeScaling::Yarn { factor, original_max, .. }
                | RopeScaling::LongRope { factor, original_max, .. },
            ) => (*factor, *original_max),
        };
        if !(1.0..=65_536.0).contains(&factor) {
            return wrong("factor", format!("{factor} is not between 1 and 65536"));
        }
        if original_max == 0 || original_max > 1 << 30 {
            let reason = format!("{original_max} is not between 1 and {}", 1 << 30);
            return wrong("original_max_position_embeddings", reason);
        }
        if let Some(RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. }) = self.scaling
            && !(low_freq_factor > 0.0 && high_freq_factor > low_freq_factor)
        {
            return wrong(
                "high_freq_factor",
                "must be above low_freq_factor, and that above 0".into(),
            );
        }
        let mut lists: Vec<(&str, &Vec<f32>)> = Vec::new();
        lists.extend(self.freq_factors.iter().map(|list| ("freq_factors", list)));
        if let Some(RopeScaling::LongRope { short_factor, long_factor, .. }) = &self.scaling {
            lists.extend([("short_factor", short_factor), ("long_factor", long_factor)]);
        }
        for (field, list) in lists {
            if list.len() != self.dim / 2 || !list.iter().all(|f| *f > 0.0 && f.is_finite()) {
                let want = self.dim / 2;
                return wrong(field, format!("must be {want} finite numbers above 0"));
            }
        }
        Ok(())
    }
}

/// Rope scalings, with the names and meanings of transformers.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are divided by the factor.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// The base grows with the length once that exceeds the trained positions.
    Dynamic {
        /// At least 1.
        factor: f64,
        /// Trained positions.
        original_max: usize,
    },
    /// Llama 3.1's interpolation by wavelength.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Long wavelengths are divided by `factor` below this many turns.
        low_freq_factor: f64,
        /// Short wavelengths stay as they are above this many turns.
        high_freq_factor: f64,
        /// Trained positions.
        original_max: usize,
    },
    /// YaRN.
    Yarn {
        /// At least 1.
        factor: f64,
        /// Trained positions.
        original_max: usize,
        /// Turns above which a dimension is extrapolated.
        beta_fast: f64,
        /// Turns below which a dimension is interpolated.
        beta_slow: f64,
        /// Factor of the cosines and sines; derived from the others if absent.
        attention_factor: Option<f64>,
        /// DeepSeek's numerator of the attention factor.
        mscale: Option<f64>,
        /// DeepSeek's denominator of the attention factor.
        mscale_all_dim: Option<f64>,
        /// Whether the borders of the ramp are rounded to whole dimensions.
        truncate: bool,
    },
    /// Phi's per-dimension divisors.
    LongRope {
        /// `[dim / 2]` divisors up to `original_max` tokens.
        short_factor: Vec<f32>,
        /// `[dim / 2]` divisors beyond.
        long_factor: Vec<f32>,
        /// Trained positions.
        original_max: usize,
        /// Extension; `max_position_embeddings / original_max` unless the file says otherwise.
        factor: f64,
        /// Factor of the cosines and sines; derived from `factor` if absent.
        attention_factor: Option<f64>,
    },
}

/// Activation of the gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
}

/// What generation_config.json proposes; a request's own values win, and these win over built-in
/// ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy. `do_sample` is not read, as in vLLM.
    pub temperature: Option<f32>,
    /// Candidates kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Mass kept.
    pub top_p: Option<f32>,
    /// Least probability kept, as a share of the best.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
}
