//! GGUF files, whole and broken.

mod common;

use common::{GgufFile, Meta, put_bytes, tiny_gguf, type_number};
use pagedllm_checkpoint::{Activation, Checkpoint, CheckpointError, CheckpointFormat, RopeScaling};
use pagedllm_core::{DType, TokenKind, VocabModel, WeightFormat};

fn open(file: &GgufFile) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_gguf(file.build())
}

fn good(file: &GgufFile) -> Checkpoint {
    open(file).expect("a whole file")
}

fn refused(file: &GgufFile, want: &str) {
    let message = open(file).expect_err(want).to_string();
    assert!(message.contains(want), "got `{message}`, want `{want}`");
}

#[test]
fn a_llama_opens_under_hugging_face_names() {
    let checkpoint = good(&tiny_gguf("llama"));
    let config = checkpoint.config();
    assert_eq!(checkpoint.format(), CheckpointFormat::Gguf);
    assert_eq!(config.architecture, "LlamaForCausalLM");
    let sizes = (config.hidden_size, config.intermediate_size, config.num_layers);
    assert_eq!(sizes, (32, 64, 1));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (2, 1, 16));
    assert_eq!((config.vocab_size, config.context_length()), (8, 128));
    assert_eq!((config.rope.theta, config.rope.dim), (10_000.0, 16));
    assert_eq!((config.hidden_act, config.dtype), (Activation::Silu, DType::BF16));
    assert!(config.tie_word_embeddings && !config.attention_bias && !config.norm_adds_one);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(4), &[5, 6][..]));
    let names: Vec<&str> = checkpoint.names().collect();
    let mut want: Vec<&str> = common::TINY_TENSORS.iter().map(|(name, _)| *name).collect();
    want.sort_unstable();
    assert_eq!(names, want);
    for (name, shape) in common::TINY_TENSORS {
        let (rows, cols) = if let [rows, cols] = *shape { (rows, cols) } else { (1, shape[0]) };
        let view = checkpoint.tensor_of(name, rows, cols).expect("the shape of the model");
        assert_eq!(view.data.len(), rows * view.row_bytes());
    }
    assert!(matches!(
        checkpoint.tensor_of("model.norm.weight", 1, 31),
        Err(CheckpointError::ShapeMismatch { cols: 32, want_cols: 31, .. })
    ));
    assert!(matches!(checkpoint.tensor("x"), Err(CheckpointError::NoSuchTensor { .. })));
}

#[test]
fn every_format_is_read_and_every_other_named() {
    for format in WeightFormat::ALL {
        let mut file = tiny_gguf("qwen2");
        file.tensor("output.weight", format, 256, 3);
        let view_bytes = {
            let checkpoint = good(&file);
            checkpoint.tensor_of("lm_head.weight", 3, 256).expect("there").data.into_owned()
        };
        assert_eq!(view_bytes, file.tensor_mut("output.weight").data, "{format}");
    }
    for (kind, want) in [(10, "Q2_K"), (16, "IQ2_XXS"), (35, "TQ2_0"), (39, "MXFP4"), (26, "I32")] {
        let mut file = tiny_gguf("llama");
        file.tensor_mut("blk.0.ffn_up.weight").kind = kind;
        assert!(
            matches!(open(&file), Err(CheckpointError::UnsupportedFormat { format }) if format == want)
        );
    }
    // F02: unknown and removed types.
    for (kind, want) in [
        (4, "Q4_2 (removed"),
        (31, "Q4_0_4_4 (removed"),
        (40, "unknown type 40"),
        (1 << 31, "unknown type 2147483648"),
    ] {
        let mut file = tiny_gguf("llama");
        file.tensor_mut("blk.0.ffn_up.weight").kind = kind;
        refused(&file, want);
    }
}

/// What the converter does to q and k: each head's rows, taken as two halves, are interleaved.
fn interleave(rows: &[Vec<u8>], heads: usize) -> Vec<Vec<u8>> {
    let head_dim = rows.len() / heads;
    let mut out = Vec::new();
    for head in rows.chunks(head_dim) {
        let (low, high) = head.split_at(head_dim / 2);
        for (a, b) in low.iter().zip(high) {
            out.extend([a.clone(), b.clone()]);
        }
    }
    out
}

#[test]
fn rotated_rows_come_back_in_order_for_the_families_that_have_them() {
    for (arch, is_rotated) in [("llama", true), ("smollm3", true), ("qwen2", false)] {
        let mut file = tiny_gguf(arch);
        file.tensor("blk.0.attn_q.bias", WeightFormat::F32, 32, 1);
        for (gguf, name, heads, row_bytes) in [
            ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 2, 18),
            ("blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", 1, 18),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias", 2, 4),
        ] {
            let original: Vec<Vec<u8>> =
                file.tensor_mut(gguf).data.chunks(row_bytes).map(<[u8]>::to_vec).collect();
            let mut file = file.clone();
            if is_rotated {
                file.tensor_mut(gguf).data = interleave(&original, heads).concat();
            }
            let checkpoint = good(&file);
            assert!(checkpoint.config().attention_bias);
            assert_eq!(*checkpoint.tensor(name).expect("there").data, *original.concat(), "{arch}");
        }
    }
    let mut file = tiny_gguf("llama");
    file.set("llama.attention.head_count", Meta::U32(4));
    refused(&file, "is 16 x 32 of Q4_0; 1 heads of 8");
}

#[test]
fn f01_sizes_that_overflow_or_leave_the_file_are_refused() {
    let change = |what: fn(&mut common::GgufTensor), want: &str| {
        let mut file = tiny_gguf("llama");
        what(file.tensor_mut("blk.0.ffn_norm.weight"));
        refused(&file, want);
        refused(&file, "blk.0.ffn_norm.weight");
    };
    change(|t| t.dims = vec![u64::MAX, 2, 1, 1], "overflows");
    change(|t| t.dims = vec![4, (1 << 42) + 1], "of the data, which has");
    change(|t| t.dims = vec![1 << 61, 4], "overflows");
    change(|t| t.dims = vec![u64::MAX], "overflows");
    change(|t| t.dims = vec![0], "dimension of 0");
    change(|t| t.dims = vec![32, 0], "dimension of 0");
    change(|t| t.offset = Some(u64::MAX - 31), "overflows");
    change(|t| t.offset = Some(1 << 40), "of the data, which has");
    change(|t| t.offset = Some(33), "no multiple of 32");
    change(|t| t.offset = Some(0), "overlap");
    // F02, and three dimensions.
    change(|t| t.num_dims = Some(0), "0 dimensions; must be 1 to 4");
    change(|t| t.num_dims = Some(5), "5 dimensions");
    change(|t| t.num_dims = Some(u32::MAX), "4294967295 dimensions");
    change(|t| t.dims = vec![2, 2, 2], "only matrices and vectors");
    for count in [1 << 63, u64::MAX, 1 << 20] {
        let mut file = tiny_gguf("llama");
        file.num_tensors = Some(count);
        refused(&file, "tensors; at most 65536");
        file.num_tensors = None;
        file.num_pairs = Some(count);
        refused(&file, "metadata pairs; at most 65536");
    }
    // A file cut anywhere is refused.
    let whole = tiny_gguf("llama").build();
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        assert!(Checkpoint::from_gguf(whole[..length].to_vec()).is_err(), "cut at {length}");
    }
}

#[test]
fn f03_lying_lengths_and_odd_metadata_are_refused() {
    let with = |value: Meta, want: &str| {
        let mut file = tiny_gguf("llama");
        file.pairs.insert(0, (b"x".to_vec(), value));
        refused(&file, want);
    };
    let array = |kind: u32, len: u64| [&kind.to_le_bytes()[..], &len.to_le_bytes()[..]].concat();
    with(Meta::Raw(8, (1u64 << 30).to_le_bytes().to_vec()), "truncated");
    with(Meta::Raw(9, array(8, 1 << 32)), "truncated");
    with(Meta::Raw(9, array(10, 1 << 61)), "declares");
    with(Meta::Raw(9, array(0, 1 << 61)), "truncated");
    with(Meta::Raw(9, array(9, 1).repeat(10_000)), "nests arrays deeper than 8");
    with(Meta::Raw(9, array(13, 1)), "unknown value type 13");
    with(Meta::Raw(13, Vec::new()), "unknown value type 13");
    with(Meta::Bool(2), "boolean 2");
    with(Meta::Raw(9, [array(7, 1), vec![2]].concat()), "boolean 2");
    with(
        Meta::Raw(8, {
            let mut b = Vec::new();
            put_bytes(&mut b, b"\xff");
            b
        }),
        "UTF-8",
    );
    for (key, want) in [
        (vec![b'k'; 70_000], "70000 bytes"),
        ("clé".into(), "ASCII"),
        (Vec::new(), "1 to 65535"),
        (b"general.architecture".to_vec(), "occurs twice"),
    ] {
        let mut file = tiny_gguf("llama");
        file.pairs.push((key, Meta::U32(1)));
        refused(&file, want);
    }
    let mut file = tiny_gguf("llama");
    file.tensor("output_norm.weight", WeightFormat::F32, 32, 1);
    refused(&file, "occurs twice");
    for alignment in [0, 12, 1 << 30] {
        let mut file = tiny_gguf("llama");
        refused(file.set("general.alignment", Meta::U32(alignment)), "general.alignment");
    }
    // Nested arrays are legal, and so is another alignment.
    let mut file = tiny_gguf("llama");
    let nested = [array(9, 2), array(0, 1), vec![7], array(8, 0)].concat();
    file.set("x", Meta::Raw(9, nested)).set("general.alignment", Meta::U32(64));
    file.alignment = 64;
    good(&file);
}

#[test]
fn f05_versions_and_byte_orders() {
    let mut file = tiny_gguf("llama");
    file.version = 2;
    good(&file);
    for (version, want) in [
        (0, "version 0"),
        (1, "version 1; 2 and 3 are supported"),
        (4, "version 4"),
        (3u32.swap_bytes(), "big-endian"),
    ] {
        file.version = version;
        refused(&file, want);
    }
    file.version = 3;
    file.magic = *b"FUGG";
    refused(&file, "big-endian");
    file.magic = *b"PK\x03\x04";
    refused(&file, "not a GGUF file");
}

#[test]
fn f21_rows_are_whole_blocks() {
    for (format, cols) in
        [(WeightFormat::Q4K, 128), (WeightFormat::Q4K, 300), (WeightFormat::Q8_0, 33)]
    {
        let mut file = tiny_gguf("llama");
        let tensor = file.tensor_mut("blk.0.ffn_up.weight");
        (tensor.kind, tensor.dims) = (type_number(format), vec![cols, 1]);
        refused(&file, "no multiple of");
    }
}

#[test]
fn f12_f13_heads_and_unknown_tensors() {
    let mut file = tiny_gguf("llama");
    file.tensor("output.weight", WeightFormat::Q8_0, 32, 8);
    assert!(!good(&file).config().tie_word_embeddings, "the file has a head of its own");
    file.tensor("blk.0.mystery.weight", WeightFormat::F32, 4, 1);
    refused(&file, "`blk.0.mystery.weight` is unknown to the architecture llama");
    let mut file = tiny_gguf("llama");
    file.tensors.remove(0);
    refused(&file, "model.embed_tokens.weight");
    let mut file = tiny_gguf("llama");
    refused(file.set("general.architecture", Meta::Text("mamba".into())), "architecture `mamba`");
    let mut file = tiny_gguf("llama");
    refused(file.set("llama.expert_count", Meta::U32(8)), "llama with experts");
}

#[test]
fn configuration_values_out_of_range_are_named() {
    let cases: [(&str, Meta, &str); 10] = [
        ("embedding_length", Meta::U32(64), "the token embedding has 32 columns"),
        ("block_count", Meta::U32(0), "num_hidden_layers"),
        ("block_count", Meta::U32(u32::MAX), "num_hidden_layers"),
        ("attention.head_count", Meta::U32(0), "num_attention_heads"),
        ("attention.head_count_kv", Meta::U32(0), "num_key_value_heads"),
        ("attention.head_count_kv", Meta::U32(3), "num_key_value_heads"),
        ("attention.key_length", Meta::U32(1 << 20), "head_dim"),
        ("attention.layer_norm_rms_epsilon", Meta::F32(f32::NAN), "finite"),
        ("rope.freq_base", Meta::F32(-1.0), "rope_theta"),
        ("rope.dimension_count", Meta::U32(17), "rotates 17 of 16"),
    ];
    for (key, value, want) in cases {
        let mut file = tiny_gguf("llama");
        refused(file.set(&format!("llama.{key}"), value), want);
    }
    let mut file = tiny_gguf("llama");
    refused(file.remove("llama.context_length"), "llama.context_length`: is absent");
    // One value a layer is read where all are the same.
    let mut file = tiny_gguf("llama");
    file.set("llama.feed_forward_length", Meta::I32s(vec![64, 64]));
    assert_eq!(good(&file).config().intermediate_size, 64);
    refused(file.set("llama.feed_forward_length", Meta::I32s(vec![64, 65])), "for all layers");
}

#[test]
fn rope_scalings_of_gguf() {
    let mut file = tiny_gguf("llama");
    file.tensor("rope_freqs.weight", WeightFormat::F32, 8, 1);
    let factors: Vec<f32> = (0..8).map(|i| 1.0 + i as f32).collect();
    file.tensor_mut("rope_freqs.weight").data =
        factors.iter().flat_map(|f| f.to_le_bytes()).collect();
    let config = good(&file).config().clone();
    assert_eq!((config.rope.freq_factors, config.rope.scaling), (Some(factors), None));
    file.tensor_mut("rope_freqs.weight").data[..4].copy_from_slice(&0f32.to_le_bytes());
    refused(&file, "8 finite numbers above 0");

    let mut file = tiny_gguf("qwen2");
    file.set("qwen2.rope.scaling.type", Meta::Text("yarn".into()))
        .set("qwen2.rope.scaling.factor", Meta::F32(4.0))
        .set("qwen2.rope.scaling.original_context_length", Meta::U32(100));
    let config = good(&file).config().clone();
    assert!(matches!(
        config.rope.scaling,
        Some(RopeScaling::Yarn { factor: 4.0, original_max: 100, attention_factor: None, .. })
    ));
    assert_eq!(config.context_length(), 400);
    refused(file.set("qwen2.rope.scaling.type", Meta::Text("foo".into())), "`foo` is unknown");
    file.set("qwen2.rope.scaling.type", Meta::Text("linear".into()));
    assert_eq!(good(&file).config().rope.scaling, Some(RopeScaling::Linear { factor: 4.0 }));
    refused(file.remove("qwen2.rope.scaling.factor"), "rope.scaling.factor");
}

#[test]
fn phi_has_packed_projections_and_two_sets_of_factors() {
    let mut file = tiny_gguf("phi3");
    file.tensors.retain(|tensor| {
        !["attn_k", "attn_v", "ffn_gate"].iter().any(|part| tensor.name.contains(part))
    });
    file.tensor_mut("blk.0.attn_q.weight").name = "blk.0.attn_qkv.weight".into();
    file.set("phi3.rope.scaling.original_context_length", Meta::U32(32));
    file.set("phi3.rope.scaling.attn_factor", Meta::F32(1.5));
    for (name, factor) in [("short", 1f32), ("long", 2f32)] {
        let name = format!("rope_factors_{name}.weight");
        file.tensor(&name, WeightFormat::F32, 8, 1);
        file.tensor_mut(&name).data = factor.to_le_bytes().repeat(8);
    }
    let checkpoint = good(&file);
    assert!(checkpoint.contains("model.layers.0.self_attn.qkv_proj.weight"));
    assert!(checkpoint.contains("model.layers.0.mlp.gate_up_proj.weight"));
    let want = RopeScaling::LongRope {
        short_factor: vec![1.0; 8],
        long_factor: vec![2.0; 8],
        original_max: 32,
        factor: 4.0,
        attention_factor: Some(1.5),
    };
    assert_eq!(checkpoint.config().rope.scaling, Some(want));
    file.tensors.pop();
    file.set("phi3.rope.scaling.type", Meta::Text("longrope".into()));
    refused(&file, "longrope without its factor tensors");
}

#[test]
fn gemma_has_windows_and_its_norms_are_whole() {
    let mut file = tiny_gguf("gemma3");
    file.set("gemma3.block_count", Meta::U32(12))
        .set("gemma3.attention.sliding_window", Meta::U32(16));
    file.set("gemma3.attention.key_length", Meta::U32(8));
    file.set("gemma3.attention.value_length", Meta::U32(8));
    let config = good(&file).config().clone();
    assert_eq!((config.sliding_window, config.head_dim), (Some(16), 8));
    let whole: Vec<usize> = (0..12).filter(|&layer| !config.windowed_layers[layer]).collect();
    assert_eq!(whole, [5, 11]);
    assert_eq!(config.hidden_act, Activation::GeluTanh);
    assert_eq!(config.rope.local_theta, Some(10_000.0));
    assert!(!config.norm_adds_one, "the converter added it");
    assert_eq!(config.attention_scale, 8f32.powf(-0.5));
    // A window that no sequence outgrows is none.
    file.set("gemma3.attention.sliding_window", Meta::U32(128));
    assert_eq!(good(&file).config().sliding_window, None);
}

#[test]
fn the_vocabulary_is_handed_on() {
    let mut file = tiny_gguf("llama");
    file.set("tokenizer.chat_template", Meta::Text("{{ x }}".into()));
    let vocab = good(&file).vocab_spec().expect("has one").clone();
    let VocabModel::Bpe { merges, pre } = &vocab.model else { panic!("BPE") };
    assert_eq!((merges.as_slice(), pre.0.as_deref()), (&["a b".to_string()][..], Some("smollm")));
    assert_eq!((vocab.tokens.len(), vocab.kinds[4]), (8, TokenKind::Control));
    assert_eq!((vocab.bos, vocab.eos, &vocab.other_ends[..]), (Some(4), Some(5), &[6][..]));
    assert_eq!((vocab.add_bos, vocab.add_eos), (false, false));
    assert_eq!(vocab.chat_template.as_deref(), Some("{{ x }}"));

    refused(file.clone().set("tokenizer.ggml.eos_token_id", Meta::U32(8)), "8");
    refused(file.clone().set("tokenizer.ggml.token_type", Meta::I32s(vec![1])), "1 entries for 8");
    refused(file.clone().set("tokenizer.ggml.token_type", Meta::I32s(vec![9; 8])), "holds 9");
    refused(file.clone().remove("tokenizer.ggml.merges"), "merges is absent");
    refused(file.clone().set("tokenizer.ggml.tokens", Meta::U32(1)), "must be an array");
    file.set("tokenizer.ggml.model", Meta::Text("llama".into()));
    refused(&file, "scores is absent");
    file.set("tokenizer.ggml.scores", Meta::F32s(vec![-1.0; 8]));
    let vocab = good(&file).vocab_spec().expect("has one").clone();
    assert!(matches!(vocab.model, VocabModel::SentencePiece { add_space_prefix: true, .. }));
    assert!(vocab.add_bos);
    file.set("tokenizer.ggml.model", Meta::Text("bert".into()));
    assert!(good(&file).vocab_spec().is_none(), "no algorithm for it");
}

#[test]
fn metadata_is_shown_in_order_and_cut() {
    let mut file = tiny_gguf("llama");
    file.set("tokenizer.chat_template", Meta::Text("x\n".repeat(1000)));
    let checkpoint = good(&file);
    let metadata = checkpoint.metadata();
    assert_eq!(metadata[0], ("general.architecture".into(), "llama".into()));
    assert!(metadata.contains(&("tokenizer.ggml.tokens".into(), "[8 x string]".into())));
    assert!(metadata.last().expect("pairs").1.len() < 300);
    assert!(checkpoint.total_bytes() > 0);
}

#[test]
fn a_tensor_stays_readable_after_its_release() {
    let file = tiny_gguf("llama");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    std::fs::write(&path, file.build()).expect("written");
    let mapped = Checkpoint::open(&path).expect("opens");
    let name = "model.layers.0.mlp.gate_proj.weight";
    let before = mapped.tensor(name).expect("there").data.into_owned();
    mapped.release(name);
    assert_eq!(*mapped.tensor(name).expect("still there").data, before);
}

#[test]
fn splits_open_as_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = tiny_gguf("llama");
    let mut second = GgufFile { tensors: first.tensors.split_off(6), ..Default::default() };
    let mut write = |first: &mut GgufFile, count: u32| {
        for (number, file) in [&mut *first, &mut second].into_iter().enumerate() {
            file.set("split.no", Meta::U32(number as u32)).set("split.count", Meta::U32(count));
            file.set("split.tensors.count", Meta::U32(11));
            let name = format!("m-{:05}-of-00002.gguf", number + 1);
            std::fs::write(directory.path().join(name), file.build()).expect("written");
        }
    };
    write(&mut first, 2);
    let checkpoint = Checkpoint::open(directory.path()).expect("the first is found");
    assert_eq!(checkpoint.names().count(), 11);
    assert!(checkpoint.tensor("model.layers.0.mlp.down_proj.weight").is_ok());
    let message = |name: &str| {
        Checkpoint::open(&directory.path().join(name)).expect_err("refused").to_string()
    };
    assert!(message("m-00002-of-00002.gguf").contains("open the first"));
    write(&mut first, 3);
    assert!(message("m-00001-of-00002.gguf").contains("split.count is 3"));
    std::fs::remove_file(directory.path().join("m-00002-of-00002.gguf")).expect("removed");
    assert!(message("m-00001-of-00002.gguf").contains("m-00002-of-00002.gguf"));
}
