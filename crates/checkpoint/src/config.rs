//! What a checkpoint says about its model, in one type for both formats.

use pagedllm_core::{DType, TokenId};

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
    /// Longest sequence that the model can serve: the trained positions times the factor of those
    /// rope scalings that extend them.
    #[must_use]
    pub fn context_length(&self) -> usize {
        let extend = |positions: usize, factor: f64| (positions as f64 * factor) as usize;
        match &self.rope.scaling {
            Some(RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. }) => {
                extend(self.max_position_embeddings, *factor)
            }
            Some(RopeScaling::Yarn { factor, original_max, .. }) => extend(*original_max, *factor),
            Some(RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. }) | None => {
                self.max_position_embeddings
            }
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
    /// 0 where the file says `do_sample: false`.
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
