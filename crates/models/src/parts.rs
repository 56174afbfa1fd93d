//! What the architectures share: reading weights by name, the attention half and the gated-MLP
//! half of a decoder layer.

use std::borrow::Cow;

use pagedllm_backend::{Activation, AttentionSpec, Backend, DummyMatrix};
use pagedllm_checkpoint::{Checkpoint, ModelConfig};
use pagedllm_core::{LinearPart, RankId, Split, WeightFormat, WeightView};

use crate::rope::rope_of;
use crate::{LoadError, LoadOptions, Progress, share};

/// Reads a checkpoint by full tensor name, checks shapes, and reports progress.
pub struct Loader<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a ModelConfig,
    pub options: LoadOptions,
    progress: Progress<'a>,
    done_bytes: u64,
}

impl<'a> Loader<'a> {
    pub fn new(checkpoint: &'a Checkpoint, options: LoadOptions, progress: Progress<'a>) -> Self {
        Self { checkpoint, config: checkpoint.config(), options, progress, done_bytes: 0 }
    }

    fn rank(&self) -> RankId {
        self.options.rank
    }

    fn tensor(&self, name: &str, rows: usize, cols: usize) -> Result<WeightView<'a>, LoadError> {
        Ok(self.checkpoint.tensor_of(name, rows, cols)?)
    }

    /// Counts a tensor that is on the device now, and lets its pages go.
    fn done(&mut self, weight: &WeightView<'_>) -> Result<(), LoadError> {
        self.checkpoint.release(&weight.name);
        self.count(weight.data.len())
    }

    fn count(&mut self, bytes: usize) -> Result<(), LoadError> {
        self.done_bytes += bytes as u64;
        if (self.progress)(self.done_bytes) { Ok(()) } else { Err(LoadError::Cancelled) }
    }

    /// A matrix of a checkpoint that has none.
    fn dummy(&self, name: String, rows: usize, cols: usize) -> DummyMatrix {
        DummyMatrix { name, dtype: self.config.dtype, rows, cols, has_bias: false }
    }

    fn done_dummy(&mut self, matrix: &DummyMatrix) -> Result<(), LoadError> {
        self.count(matrix.rows * matrix.cols * matrix.dtype.size())
    }

    /// Parts `[rows, cols]` of one packed matrix, each with its bias if the files have one.
    pub fn linear<B: Backend>(
        &mut self,
        b: &mut B,
        names: &[(String, usize)],
        cols: usize,
        split: Split,
    ) -> Result<B::Linear, LoadError> {
        if self.checkpoint.is_dummy() {
            return self.dummy_linear(b, names, cols, split);
        }
        let mut parts = Vec::with_capacity(names.len());
        for (name, rows) in names {
            let weight = self.tensor(&format!("{name}.weight"), *rows, cols)?;
            let bias_name = format!("{name}.bias");
            let bias = if self.checkpoint.contains(&bias_name) {
                Some(self.tensor(&bias_name, 1, *rows)?)
            } else {
                None
            };
            parts.push(LinearPart { weight, bias });
        }
        let linear = b.load_linear(&parts, split)?;
        for part in &parts {
            self.done(&part.weight)?;
        }
        Ok(linear)
    }

    fn dummy_linear<B: Backend>(
        &mut self,
        b: &mut B,
        names: &[(String, usize)],
        cols: usize,
        split: Split,
    ) -> Result<B::Linear, LoadError> {
        let part = |(name, rows): &(String, usize)| DummyMatrix {
            has_bias: self.checkpoint.contains(&format!("{name}.bias")),
            ..self.dummy(format!("{name}.weight"), *rows, cols)
        };
        let parts: Vec<DummyMatrix> = names.iter().map(part).collect();
        let linear = b.load_dummy_linear(&parts, split)?;
        for part in &parts {
            self.done_dummy(part)?;
        }
        Ok(linear)
    }

    pub fn norm<B: Backend>(&mut self, b: &mut B, name: &str) -> Result<B::Norm, LoadError> {
        let gain = if self.checkpoint.is_dummy() {
            no_gain(name, self.config.hidden_size)
        } else {
            self.tensor(name, 1, self.config.hidden_size)?
        };
        let norm = b.load_norm(&gain, self.config.rms_norm_eps)?;
        self.done(&gain)?;
        Ok(norm)
    }

    pub fn vocab<B: Backend>(&mut self, b: &mut B, name: &str) -> Result<B::Vocab, LoadError> {
        let (rows, cols) = (self.config.vocab_size, self.config.hidden_size);
        if self.checkpoint.is_dummy() {
            let table = self.dummy(name.into(), rows, cols);
            let vocab = b.load_dummy_vocab(&table)?;
            self.done_dummy(&table)?;
            return Ok(vocab);
        }
        let table = self.tensor(name, rows, cols)?;
        let vocab = b.load_vocab(&table)?;
        self.done(&table)?;
        Ok(vocab)
    }
}

/// A norm's gain that changes nothing.
fn no_gain(name: &str, cols: usize) -> WeightView<'static> {
    let data: Vec<u8> = std::iter::repeat_n(1.0f32.to_le_bytes(), cols).flatten().collect();
    let (name, data) = (name.to_owned(), Cow::Owned(data));
    WeightView { name, format: WeightFormat::F32, rows: 1, cols, data }
}

/// Attention with its projections.
pub struct AttentionHalf<B: Backend> {
    qkv_proj: B::Linear,
    attention: B::Attention,
    o_proj: B::Linear,
}

impl<B: Backend> AttentionHalf<B> {
    pub fn load(b: &mut B, w: &mut Loader<'_>, layer: usize) -> Result<Self, LoadError> {
        let config = w.config;
        let world = w.rank().world;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let dim = config.head_dim;
        let (q_rows, kv_rows) = (config.num_heads * dim, config.num_kv_heads * dim);
        let windowed = config.windowed_layers[layer];
        let same_kind = |other: &usize| config.windowed_layers[*other] == windowed;
        let first_group_is_windowed = !config.windowed_layers.contains(&false);
        let spec = AttentionSpec {
            layer,
            group: usize::from(windowed && !first_group_is_windowed),
            layer_in_group: (0..layer).filter(same_kind).count(),
            num_heads: share("query heads", config.num_heads, world)?,
            num_kv_heads: share("key/value heads", config.num_kv_heads, world)?,
            head_dim: dim,
            scale: config.attention_scale,
            rope: if config.rope_layers[layer] {
                Some(rope_of(config, windowed, w.options.max_model_len)?)
            } else {
                None
            },
            window: if windowed { config.sliding_window } else { None },
            soft_cap: config.attention_soft_cap,
            qk_norm_eps: config.rms_norm_eps,
        };
        Ok(Self {
            qkv_proj: w.linear(
                b,
                &[(name("q_proj"), q_rows), (name("k_proj"), kv_rows), (name("v_proj"), kv_rows)],
                config.hidden_size,
                Split::Outputs,
            )?,
            attention: b.load_attention(&spec, None, None, None)?,
            o_proj: w.linear(b, &[(name("o_proj"), config.hidden_size)], q_rows, Split::Inputs)?,
        })
    }

    /// Takes the residual stream's last partial sum, returns the next.
    pub fn forward(
        &self,
        b: &mut B,
        kv: &mut B::KvCache,
        step: &B::Step,
        hidden: B::Tensor,
        residual: &mut B::Tensor,
        norm: &B::Norm,
    ) -> B::Tensor {
        let qkv = b.norm_linear(hidden, residual, norm, &self.qkv_proj, step);
        let heads = b.attend(qkv, &self.attention, kv, step);
        b.linear(&heads, &self.o_proj, step)
    }
}

/// The gated MLP.
pub struct GatedMlp<B: Backend> {
    gate_up_proj: B::Linear,
    activation: Activation,
    down_proj: B::Linear,
}

impl<B: Backend> GatedMlp<B> {
    pub fn load(b: &mut B, w: &mut Loader<'_>, layer: usize) -> Result<Self, LoadError> {
        let (hidden, inner) = (w.config.hidden_size, w.config.intermediate_size);
        share("MLP columns", inner, w.rank().world)?;
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let activation = match w.config.hidden_act {
            pagedllm_checkpoint::Activation::Silu => Activation::Silu,
            pagedllm_checkpoint::Activation::GeluTanh => Activation::GeluTanh,
            pagedllm_checkpoint::Activation::Gelu => {
                return Err(LoadError::UnsupportedConfig {
                    field: "hidden_act",
                    reason: "gelu by the error function; silu and gelu_pytorch_tanh load".into(),
                });
            }
        };
        let gate_up = [(name("gate_proj"), inner), (name("up_proj"), inner)];
        Ok(Self {
            gate_up_proj: w.linear(b, &gate_up, hidden, Split::Outputs)?,
            activation,
            down_proj: w.linear(b, &[(name("down_proj"), hidden)], inner, Split::Inputs)?,
        })
    }

    /// Takes the residual stream's last partial sum, returns the next.
    pub fn forward(
        &self,
        b: &mut B,
        step: &B::Step,
        hidden: B::Tensor,
        residual: &mut B::Tensor,
        norm: &B::Norm,
    ) -> B::Tensor {
        let Self { gate_up_proj, activation, down_proj } = self;
        b.gated_mlp(hidden, residual, norm, gate_up_proj, *activation, down_proj, step)
    }
}
