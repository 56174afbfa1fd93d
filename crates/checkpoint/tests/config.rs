//! config.json in the spellings that exist.

mod common;

use common::{TINY_CONFIG, TINY_TENSORS, safetensors_file};
use pagedllm_checkpoint::{Activation, Checkpoint, CheckpointError, ModelConfig, RopeScaling};
use pagedllm_core::DType;
use serde_json::{Value, json};

/// The tiny configuration with fields replaced; `null` takes one away.
fn read(changes: Value) -> Result<ModelConfig, CheckpointError> {
    let mut config: Value = serde_json::from_str(TINY_CONFIG).expect("JSON");
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    let mut tensors = TINY_TENSORS.to_vec();
    tensors.push(("lm_head.weight", &[8, 32]));
    let checkpoint = Checkpoint::from_safetensors(&config.to_string(), safetensors_file(&tensors))?;
    Ok(checkpoint.config().clone())
}

fn good(changes: Value) -> ModelConfig {
    let shown = changes.to_string();
    read(changes).unwrap_or_else(|error| panic!("{shown}: {error}"))
}

fn refused(changes: Value, want: &str) {
    let shown = changes.to_string();
    let message = read(changes).expect_err(&shown).to_string();
    assert!(message.contains(want), "{shown}: got `{message}`, want `{want}`");
}

#[test]
fn n03_both_names_of_the_rope_type_work() {
    let yarn = |key: &str| {
        good(json!({ "rope_scaling": {
            key: "yarn", "factor": 4.0, "original_max_position_embeddings": 100,
        }}))
    };
    let (old, new) = (yarn("type"), yarn("rope_type"));
    assert_eq!(old, new);
    assert_eq!(old.context_length(), 400, "the factor counts");
    let RopeScaling::Yarn { factor, original_max, beta_fast, truncate, .. } =
        old.rope.scaling.expect("a scaling")
    else {
        panic!("yarn")
    };
    assert_eq!((factor, original_max, beta_fast, truncate), (4.0, 100, 32.0, true));
    let both = json!({ "rope_scaling": { "type": "yarn", "rope_type": "yarn", "factor": 4.0 } });
    assert_eq!(good(both).context_length(), 512);
    for none in [json!(null), json!({ "type": "default" }), json!({ "rope_type": "default" })] {
        assert_eq!(good(json!({ "rope_scaling": none })).rope.scaling, None);
    }
    refused(json!({ "rope_scaling": { "type": "foo", "factor": 2.0 } }), "`foo` is unknown");
    refused(json!({ "rope_scaling": { "factor": 2.0 } }), "rope_scaling.rope_type`: is absent");
    refused(json!({ "rope_scaling": "yarn" }), "must be an object");
}

#[test]
fn n05_every_scaling_is_read_and_checked() {
    let scaling = |value: Value| good(json!({ "rope_scaling": value }));
    let linear = scaling(json!({ "type": "linear", "factor": 2 }));
    assert_eq!(linear.rope.scaling, Some(RopeScaling::Linear { factor: 2.0 }));
    assert_eq!(linear.context_length(), 256);
    let dynamic = scaling(json!({ "rope_type": "dynamic", "factor": 2.5 }));
    let want = RopeScaling::Dynamic { factor: 2.5, original_max: 128 };
    assert_eq!((dynamic.rope.scaling.clone(), dynamic.context_length()), (Some(want), 320));
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    });
    let config = scaling(llama3.clone());
    assert_eq!(config.context_length(), 128, "the trained positions count it already");
    assert_eq!(
        config.rope.scaling,
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max: 16,
        })
    );
    let mut broken = llama3.clone();
    broken["high_freq_factor"] = json!(1.0);
    refused(json!({ "rope_scaling": broken }), "high_freq_factor");
    let longrope = |kind: &str, numbers: usize| {
        json!({
            "original_max_position_embeddings": 32,
            "rope_scaling": {
                "type": kind, "short_factor": vec![1.0; numbers], "long_factor": vec![2.0; numbers],
            },
        })
    };
    let config = good(longrope("su", 8));
    assert_eq!(config, good(longrope("longrope", 8)));
    assert!(matches!(
        config.rope.scaling,
        Some(RopeScaling::LongRope { factor: 4.0, original_max: 32, .. })
    ));
    refused(longrope("su", 7), "8 finite numbers");
    for factor in [json!(0.5), json!(1e9), json!("2"), json!(null)] {
        refused(json!({ "rope_scaling": { "type": "linear", "factor": factor } }), "factor");
    }
    let partial = good(json!({ "partial_rotary_factor": 0.5 }));
    assert_eq!(partial.rope.dim, 8);
    refused(json!({ "partial_rotary_factor": 0.2 }), "rotates 3 of 16");
    refused(json!({ "rope_theta": 0.0 }), "rope_theta");
}

#[test]
fn transformers_5_spellings_mean_the_same() {
    let old = good(json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } }));
    let new = good(json!({
        "rope_theta": null, "torch_dtype": null, "dtype": "bfloat16",
        "rope_parameters": { "rope_theta": 500_000.0, "rope_type": "linear", "factor": 2.0 },
    }));
    assert_eq!(old, new);
    let plain = good(json!({
        "rope_theta": null, "rope_parameters": { "rope_theta": 500_000, "rope_type": "default" },
    }));
    assert_eq!(plain, good(json!({})));
    let gemma = good(json!({
        "architectures": ["Gemma3ForCausalLM"], "rope_theta": null, "rope_parameters": {
            "full_attention": { "rope_type": "default", "rope_theta": 7.0 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 5.0 },
        },
    }));
    assert_eq!((gemma.rope.theta, gemma.rope.local_theta), (7.0, Some(5.0)));
}

#[test]
fn t18_fields_of_several_types() {
    let eos = |value: Value| good(json!({ "eos_token_id": value })).eos_token_ids;
    assert_eq!(eos(json!(3)), [3]);
    assert_eq!(eos(json!([3, 1, 3])), [3, 1]);
    assert_eq!(eos(json!(null)), [0u32; 0]);
    assert_eq!(eos(json!(-1)), [0u32; 0]);
    for wrong in [json!("3"), json!([1, "x"]), json!(1.5), json!({ "id": 3 }), json!(1u64 << 40)] {
        refused(json!({ "eos_token_id": wrong }), "eos_token_id");
    }
    refused(json!({ "eos_token_id": 8 }), "outside the vocabulary of 8");
    refused(json!({ "eos_token_id": vec![1; 300] }), "at most 256");
    assert_eq!(good(json!({ "bos_token_id": null })).bos_token_id, None);
    assert_eq!(good(json!({ "head_dim": null })).head_dim, 16);
    assert_eq!(good(json!({ "head_dim": 8 })).head_dim, 8);
    assert_eq!(good(json!({ "max_position_embeddings": 128.0 })).max_position_embeddings, 128);
    refused(json!({ "max_position_embeddings": 1e30 }), "max_position_embeddings");
    for dtype in ["bfloat16", "torch.bfloat16", "auto"] {
        assert_eq!(good(json!({ "torch_dtype": dtype })).dtype, DType::BF16);
    }
    assert_eq!(good(json!({ "torch_dtype": "float16" })).dtype, DType::F16);
    refused(json!({ "torch_dtype": "int4" }), "`int4` is unknown");
    for (act, want) in [
        ("silu", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
    ] {
        assert_eq!(good(json!({ "hidden_act": act })).hidden_act, want);
    }
    refused(json!({ "hidden_act": "relu6" }), "`relu6` is unknown");
    refused(json!({ "architectures": [] }), "architectures");
    refused(json!({ "architectures": null }), "architectures");
    refused(json!({ "hidden_size": "32" }), "hidden_size`: must be a count");
    refused(json!({ "hidden_size": null }), "hidden_size`: is absent");
    refused(json!({ "vocab_size": 9 }), "8 x 32; the configuration asks for 9 x 32");
}

#[test]
fn nested_text_configurations_are_found() {
    let mut inner: Value = serde_json::from_str(TINY_CONFIG).expect("JSON");
    inner["architectures"] = Value::Null;
    let outer = json!({ "architectures": ["LlamaForCausalLM"], "text_config": inner });
    let nested = Checkpoint::from_safetensors(&outer.to_string(), safetensors_file(&TINY_TENSORS));
    assert_eq!(*nested.expect("opens").config(), good(json!({})));
}

#[test]
fn windows_hold_for_the_layers_of_each_family() {
    let windowed = |class: &str, mut changes: Value| {
        changes["architectures"] = json!([class]);
        changes["num_hidden_layers"] = json!(6);
        changes["sliding_window"] = json!(16);
        let config = good(changes);
        let layers: String =
            config.windowed_layers.iter().map(|&w| if w { 'w' } else { '-' }).collect();
        assert_eq!(config.sliding_window.is_some(), layers.contains('w'));
        layers
    };
    assert_eq!(windowed("LlamaForCausalLM", json!({})), "------");
    assert_eq!(windowed("MistralForCausalLM", json!({})), "wwwwww");
    assert_eq!(windowed("Gemma2ForCausalLM", json!({ "head_dim": 16 })), "w-w-w-");
    assert_eq!(windowed("Gemma3ForCausalLM", json!({ "head_dim": 16 })), "wwwww-");
    let qwen = |used: bool| json!({ "use_sliding_window": used, "max_window_layers": 4 });
    assert_eq!(windowed("Qwen2ForCausalLM", qwen(false)), "------");
    assert_eq!(windowed("Qwen2ForCausalLM", qwen(true)), "----ww");
    let types = ["full_attention", "sliding_attention"].repeat(3);
    assert_eq!(windowed("Qwen3ForCausalLM", json!({ "layer_types": types })), "-w-w-w");
    refused(json!({ "layer_types": ["mamba"] }), "`mamba` is unknown");
    refused(json!({ "layer_types": [] }), "0 entries for 1 layers");
}

#[test]
fn families_differ_where_they_must() {
    let gemma = good(json!({
        "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "tie_word_embeddings": null,
        "hidden_act": "gelu", "hidden_activation": null, "query_pre_attn_scalar": 4,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }));
    assert!(gemma.norm_adds_one && gemma.tie_word_embeddings);
    assert_eq!((gemma.hidden_act, gemma.attention_scale), (Activation::GeluTanh, 0.5));
    assert_eq!((gemma.attention_soft_cap, gemma.logit_soft_cap), (Some(50.0), Some(30.0)));
    let smol = |list: Value| {
        let changes = json!({
            "architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 4, "no_rope_layers": list,
        });
        good(changes).rope_layers
    };
    assert_eq!(smol(json!(null)), [true, true, true, false]);
    assert_eq!(smol(json!([0, 1, 1, 1])), [false, true, true, true]);
    assert_eq!(good(json!({ "architectures": ["Qwen3ForCausalLM"] })).head_dim, 128);
    assert!(!good(json!({ "tie_word_embeddings": null })).tie_word_embeddings);
}

#[test]
fn generation_config_adds_ends_and_sampling() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(directory.path().join(name), bytes).expect("written");
    };
    write("config.json", TINY_CONFIG.as_bytes());
    write("model.safetensors", &safetensors_file(&TINY_TENSORS));
    let generation = json!({
        "eos_token_id": [7, 5], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null,
    });
    write("generation_config.json", generation.to_string().as_bytes());
    let config = Checkpoint::open(directory.path()).expect("opens").config().clone();
    assert_eq!(config.eos_token_ids, [7, 5, 6]);
    assert_eq!((config.sampling.temperature, config.sampling.top_k), (Some(0.6), Some(20)));
    assert_eq!((config.sampling.top_p, config.sampling.min_p), (Some(0.95), None));
    write("generation_config.json", br#"{"temperature": "hot"}"#);
    let error = Checkpoint::open(directory.path()).expect_err("a string").to_string();
    assert!(error.contains("generation_config.temperature"), "{error}");
    for (field, value) in
        [("temperature", 5.0), ("top_p", -0.5), ("min_p", 1.5), ("repetition_penalty", 0.0)]
    {
        write("generation_config.json", json!({ field: value }).to_string().as_bytes());
        let error = Checkpoint::open(directory.path()).expect_err(field).to_string();
        assert!(error.contains(&format!("generation_config.{field}")), "{error}");
    }
}
