//! Llama: pre-norm decoder, grouped-query attention, rotary positions, gated MLP. Also Mistral,
//! which adds a window, and every model that kept this shape (SmolLM2, Hermes 3, Yi).

use pagedllm_backend::Backend;
use pagedllm_checkpoint::Checkpoint;

use crate::parts::{AttentionHalf, GatedMlp, Loader};
use crate::{LoadError, LoadOptions, Model, Progress};

/// The weights.
pub struct Llama<B: Backend> {
    embed_tokens: B::Vocab,
    layers: Vec<Layer<B>>,
    norm: B::Norm,
    /// `None` where the head is the embedding.
    lm_head: Option<B::Vocab>,
}

struct Layer<B: Backend> {
    input_norm: B::Norm,
    attention: AttentionHalf<B>,
    post_attention_norm: B::Norm,
    mlp: GatedMlp<B>,
}

impl<B: Backend> Model<B> for Llama<B> {
    /// `hidden` is always this rank's partial sum; each norm completes it over the ranks and adds
    /// it to the residual stream.
    fn forward(&self, b: &mut B, kv: &mut B::KvCache, step: &B::Step) -> B::Tensor {
        let mut hidden = b.embed(&self.embed_tokens, step);
        let mut residual = b.zeros(&hidden, step);
        for layer in &self.layers {
            hidden = layer.attention.forward(b, kv, step, hidden, &mut residual, &layer.input_norm);
            hidden = layer.mlp.forward(b, step, hidden, &mut residual, &layer.post_attention_norm);
        }
        b.final_norm(hidden, &mut residual, &self.norm, step)
    }

    fn head(&self, b: &mut B, hidden: &B::Tensor, step: &B::Step) -> B::Tensor {
        b.head(hidden, self.lm_head.as_ref().unwrap_or(&self.embed_tokens), step)
    }
}

impl<B: Backend> Llama<B> {
    /// Loads the weights in the order in which `forward` uses them.
    pub fn load(
        b: &mut B,
        checkpoint: &Checkpoint,
        options: LoadOptions,
        progress: Progress<'_>,
    ) -> Result<Self, LoadError> {
        let mut w = Loader::new(checkpoint, options, progress);
        Ok(Self {
            embed_tokens: w.vocab(b, "model.embed_tokens.weight")?,
            layers: (0..w.config.num_layers)
                .map(|layer| Layer::load(b, &mut w, layer))
                .collect::<Result<_, _>>()?,
            norm: w.norm(b, "model.norm.weight")?,
            lm_head: if w.config.tie_word_embeddings {
                None
            } else {
                Some(w.vocab(b, "lm_head.weight")?)
            },
        })
    }
}

impl<B: Backend> Layer<B> {
    fn load(b: &mut B, w: &mut Loader<'_>, layer: usize) -> Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        Ok(Self {
            input_norm: w.norm(b, &name("input_layernorm"))?,
            attention: AttentionHalf::load(b, w, layer)?,
            post_attention_norm: w.norm(b, &name("post_attention_layernorm"))?,
            mlp: GatedMlp::load(b, w, layer)?,
        })
    }
}
