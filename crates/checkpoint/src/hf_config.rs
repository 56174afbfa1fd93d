//! `ModelConfig` from config.json and generation_config.json.

use pagedllm_core::{DType, TokenId};
use serde_json::{Map, Value};

use crate::CheckpointError;
use crate::config::{Activation, ModelConfig, SamplingDefaults, ends};
use crate::fields::Fields;
use crate::hf_rope;
use crate::quote::quote;

/// What the configuration needs of the tensors.
pub(crate) struct TensorFacts {
    /// Type of the token embedding, if it is a float.
    pub(crate) dtype: Option<DType>,
    pub(crate) has_attention_bias: bool,
    pub(crate) has_mlp_bias: bool,
}

/// Values that the classes of transformers have where a file is silent, by prefix of the class.
/// Files of multimodal models leave them out.
const CLASS_DEFAULTS: [(&str, &str, f64); 13] = [
    ("Gemma3", "vocab_size", 262_208.0),
    ("Gemma3", "hidden_size", 2304.0),
    ("Gemma3", "intermediate_size", 9216.0),
    ("Gemma3", "num_hidden_layers", 26.0),
    ("Gemma3", "num_attention_heads", 8.0),
    ("Gemma3", "num_key_value_heads", 4.0),
    ("Gemma3", "head_dim", 256.0),
    ("Gemma3", "max_position_embeddings", 131_072.0),
    ("Gemma3", "query_pre_attn_scalar", 256.0),
    ("Gemma3", "sliding_window", 4096.0),
    ("Gemma2", "head_dim", 256.0),
    ("GemmaForCausalLM", "head_dim", 256.0),
    ("Qwen3", "head_dim", 128.0),
];

/// A parsed config.json: the text model's fields, and those of the file around it.
pub(crate) struct HfConfig<'a> {
    outer: Fields<'a>,
    text: Fields<'a>,
    architecture: &'a str,
}

impl<'a> HfConfig<'a> {
    /// Looks for the text model, and refuses quantized ones.
    ///
    /// # Errors
    /// If there is no architecture, or a quantization.
    pub(crate) fn new(object: &'a Map<String, Value>) -> Result<Self, CheckpointError> {
        let outer = Fields::new(object, "");
        let text = match outer.object("text_config")? {
            Some(inner) => Fields::new(inner, "text_config."),
            None => outer,
        };
        let architecture = match (outer.array("architectures")?, text.array("architectures")?) {
            (Some([Value::String(name), ..]), _) | (_, Some([Value::String(name), ..])) => name,
            _ => return Err(outer.wrong("architectures", "must list a class name")),
        };
        for fields in [outer, text] {
            for field in ["quantization_config", "compression_config"] {
                let Some(map) = fields.object(field)? else { continue };
                let method = Fields::new(map, "quantization_config.");
                let format = method
                    .text("quant_method")?
                    .ok_or_else(|| method.wrong("quant_method", "is absent"))?;
                return Err(CheckpointError::UnsupportedFormat { format: quote(format) });
            }
        }
        Ok(Self { outer, text, architecture })
    }

    fn count(&self, field: &str) -> Result<Option<usize>, CheckpointError> {
        let default = CLASS_DEFAULTS
            .iter()
            .find(|(class, known, _)| self.architecture.starts_with(class) && *known == field);
        Ok(self.text.count(field)?.or(default.map(|&(_, _, value)| value as usize)))
    }

    fn required(&self, field: &str) -> Result<usize, CheckpointError> {
        self.count(field)?.ok_or_else(|| self.text.wrong(field, "is absent"))
    }

    fn float(&self, field: &str) -> Result<Option<f32>, CheckpointError> {
        Ok(self.text.float(field)?.map(|value| value as f32))
    }

    /// Reads the rest. `generation` is generation_config.json, if there is one.
    ///
    /// # Errors
    /// The first field that is absent, out of range or unknown.
    pub(crate) fn read(
        &self,
        generation: Option<&Map<String, Value>>,
        facts: &TensorFacts,
    ) -> Result<ModelConfig, CheckpointError> {
        let hidden_size = self.required("hidden_size")?;
        let num_heads = self.required("num_attention_heads")?;
        let num_layers = self.required("num_hidden_layers")?;
        let head_dim = match self.count("head_dim")? {
            Some(head_dim) => head_dim,
            None => hidden_size.checked_div(num_heads).unwrap_or(0),
        };
        let max_position_embeddings = self.required("max_position_embeddings")?;
        let is_gemma = self.architecture.starts_with("Gemma");
        let is_gemma3 = self.architecture.starts_with("Gemma3");
        let (sliding_window, windowed_layers) = self.window(num_layers)?;
        let tied_by_class = is_gemma || self.architecture.starts_with("SmolLM3");
        let tie = match self.text.flag("tie_word_embeddings")? {
            Some(tie) => Some(tie),
            None => self.outer.flag("tie_word_embeddings")?,
        };
        let scalar = match self.text.float("query_pre_attn_scalar")? {
            Some(scalar) => scalar,
            None => self.count("query_pre_attn_scalar")?.unwrap_or(head_dim) as f64,
        };
        let mut config = ModelConfig {
            architecture: quote(self.architecture),
            hidden_size,
            intermediate_size: self.required("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads: self.count("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: self.required("vocab_size")?,
            max_position_embeddings,
            rms_norm_eps: self.float("rms_norm_eps")?.unwrap_or(1e-6),
            rope: hf_rope::read(self.text, is_gemma3, head_dim, max_position_embeddings)?,
            rope_layers: self.rope_layers(num_layers)?,
            tie_word_embeddings: tie.unwrap_or(tied_by_class),
            attention_bias: facts.has_attention_bias
                || self.text.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: facts.has_mlp_bias || self.text.flag("mlp_bias")?.unwrap_or(false),
            sliding_window,
            windowed_layers,
            attention_scale: scalar.powf(-0.5) as f32,
            attention_soft_cap: self.float("attn_logit_softcapping")?,
            logit_soft_cap: self.float("final_logit_softcapping")?,
            norm_adds_one: is_gemma,
            hidden_act: self.activation(is_gemma)?,
            dtype: self.dtype(facts)?,
            bos_token_id: self.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: Vec::new(),
            sampling: SamplingDefaults::default(),
        };
        let own_ends = self.tokens("eos_token_id")?;
        merge_generation(&mut config, generation, &own_ends)?;
        config.checked()
    }

    fn tokens(&self, field: &str) -> Result<Vec<TokenId>, CheckpointError> {
        let inner = self.text.tokens(field)?;
        if inner.is_empty() { self.outer.tokens(field) } else { Ok(inner) }
    }

    fn activation(&self, is_gemma: bool) -> Result<Activation, CheckpointError> {
        // Gemma's classes read the second field, and take the hyperbolic tangent if it is absent,
        // whatever the first one says.
        let field = if is_gemma { "hidden_activation" } else { "hidden_act" };
        let fallback = if is_gemma { "gelu_pytorch_tanh" } else { "silu" };
        match self.text.text(field)?.unwrap_or(fallback) {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
            other => Err(self.text.wrong(
                field,
                format!("`{}` is unknown; known are silu, gelu, gelu_pytorch_tanh", quote(other)),
            )),
        }
    }

    fn dtype(&self, facts: &TensorFacts) -> Result<DType, CheckpointError> {
        for fields in [self.text, self.outer] {
            for field in ["dtype", "torch_dtype"] {
                let Some(name) = fields.text(field)? else { continue };
                match name.strip_prefix("torch.").unwrap_or(name) {
                    "float32" => return Ok(DType::F32),
                    "float16" => return Ok(DType::F16),
                    "bfloat16" => return Ok(DType::BF16),
                    "auto" => {}
                    other => {
                        let reason = format!(
                            "`{}` is unknown; known are float32, float16, bfloat16",
                            quote(other)
                        );
                        return Err(fields.wrong(field, reason));
                    }
                }
            }
        }
        Ok(facts.dtype.unwrap_or(DType::BF16))
    }

    /// The window, and which layers it holds for.
    fn window(&self, num_layers: usize) -> Result<(Option<usize>, Vec<bool>), CheckpointError> {
        let layers = 0..num_layers.min(ModelConfig::MAX_LAYERS);
        let window = self.count("sliding_window")?.filter(|&window| window > 0);
        let used = self.text.flag("use_sliding_window")?;
        if let Some(types) = self.text.array("layer_types")? {
            if types.len() != num_layers {
                let reason = format!("has {} entries for {num_layers} layers", types.len());
                return Err(self.text.wrong("layer_types", reason));
            }
            let windowed = types.iter().map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(false),
                Some("sliding_attention") => Ok(true),
                other => Err(self.text.wrong(
                    "layer_types",
                    format!("`{}` is unknown", quote(other.unwrap_or("not a string"))),
                )),
            });
            return Ok((window, windowed.collect::<Result<_, _>>()?));
        }
        let is = |class: &str| self.architecture.starts_with(class);
        let windowed: Vec<bool> = if is("Gemma2") {
            layers.map(|layer| layer % 2 == 0).collect()
        } else if is("Gemma3") {
            let pattern = self.text.count("sliding_window_pattern")?.unwrap_or(6).max(1);
            layers.map(|layer| (layer + 1) % pattern != 0).collect()
        } else if is("Qwen2") || is("Qwen3") {
            let first = self.text.count("max_window_layers")?.unwrap_or(28);
            layers.map(|layer| used == Some(true) && layer >= first).collect()
        } else if is("Mistral") || is("Mixtral") || is("Phi3") {
            layers.map(|_| used != Some(false)).collect()
        } else {
            layers.map(|_| used == Some(true)).collect()
        };
        Ok((window, windowed))
    }

    /// SmolLM3's list, where 1 is a layer *with* rotary positions.
    fn rope_layers(&self, num_layers: usize) -> Result<Vec<bool>, CheckpointError> {
        let layers = 0..num_layers.min(ModelConfig::MAX_LAYERS);
        if !self.architecture.starts_with("SmolLM3") {
            return Ok(layers.map(|_| true).collect());
        }
        const FIELD: &str = "no_rope_layers";
        let Some(list) = self.text.array(FIELD)? else {
            let interval = self.text.count("no_rope_layer_interval")?.unwrap_or(4).max(1);
            return Ok(layers.map(|layer| (layer + 1) % interval != 0).collect());
        };
        if list.len() != num_layers {
            let reason = format!("has {} entries for {num_layers} layers", list.len());
            return Err(self.text.wrong(FIELD, reason));
        }
        let rotated = list.iter().map(|flag| match flag.as_u64() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(self.text.wrong(FIELD, "must hold 0 or 1 a layer")),
        });
        rotated.collect()
    }
}

/// Adds what generation_config.json says. Its ends come first and config.json's stay too, so that
/// no model runs past an end that either file names.
pub(crate) fn merge_generation(
    config: &mut ModelConfig,
    generation: Option<&Map<String, Value>>,
    own_ends: &[TokenId],
) -> Result<(), CheckpointError> {
    if let Some(object) = generation {
        let fields = Fields::new(object, "generation_config.");
        ends(&mut config.eos_token_ids, fields.tokens("eos_token_id")?);
        config.bos_token_id =
            config.bos_token_id.or(fields.tokens("bos_token_id")?.first().copied());
        // Out of range, they would make every request that is silent about them an error.
        let float = |field, low: f64, high: f64| match fields.float(field)? {
            Some(value) if !(low..=high).contains(&value) => {
                Err(fields.wrong(field, format!("{value} is not between {low} and {high}")))
            }
            value => Ok(value.map(|value| value as f32)),
        };
        // 0 and -1 both keep all.
        let top_k = fields.float("top_k")?.map(|count| count.max(0.0) as u32);
        config.sampling = SamplingDefaults {
            temperature: float("temperature", 0.0, 2.0)?,
            top_k,
            top_p: float("top_p", 0.0, 1.0)?,
            min_p: float("min_p", 0.0, 1.0)?,
            repetition_penalty: float("repetition_penalty", 0.01, 100.0)?,
        };
    }
    ends(&mut config.eos_token_ids, own_ends.iter().copied());
    Ok(())
}
