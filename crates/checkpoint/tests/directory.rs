//! Hugging Face directories and safetensors files, whole and broken.

mod common;

use std::fs;
use std::path::Path;

use common::{TINY_CONFIG, TINY_TENSORS, safetensors_file, safetensors_raw, tiny_gguf};
use pagedllm_checkpoint::{Checkpoint, CheckpointError, CheckpointFormat};
use pagedllm_core::WeightFormat;
use serde_json::{Value, json};

type Tensors = Vec<(&'static str, &'static [usize])>;

fn tensors() -> Tensors {
    TINY_TENSORS.to_vec()
}

fn write(directory: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(directory.join(name), bytes).expect("written");
}

/// A directory of config.json and the given files.
fn directory(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "config.json", TINY_CONFIG);
    for (name, bytes) in files {
        write(directory.path(), name, bytes);
    }
    directory
}

fn refused(directory: &Path, want: &str) {
    let message = Checkpoint::open(directory).expect_err(want).to_string();
    assert!(message.contains(want), "got `{message}`, want `{want}`");
}

/// An index that maps the first six tensors to shard 1 and the others to shard 2.
fn sharded() -> (tempfile::TempDir, Value) {
    let all = tensors();
    let (first, second) = all.split_at(6);
    let mut map = serde_json::Map::new();
    for (part, shard) in [(first, "a.safetensors"), (second, "b.safetensors")] {
        for (name, _) in part {
            map.insert((*name).into(), shard.into());
        }
    }
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    let directory = directory(&[
        ("a.safetensors", safetensors_file(first)),
        ("b.safetensors", safetensors_file(second)),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
    ]);
    (directory, index)
}

#[test]
fn one_file_opens() {
    let directory = directory(&[("model.safetensors", safetensors_file(&tensors()))]);
    write(directory.path(), "tokenizer.json", "{}");
    let checkpoint = Checkpoint::open(directory.path()).expect("opens");
    assert_eq!(checkpoint.format(), CheckpointFormat::Safetensors);
    assert_eq!(checkpoint.names().count(), 11);
    let view = checkpoint.tensor_of("model.layers.0.mlp.down_proj.weight", 32, 64).expect("there");
    assert_eq!((view.format, view.data.len()), (WeightFormat::BF16, 32 * 64 * 2));
    let files = checkpoint.tokenizer_files();
    assert_eq!(files.tokenizer.as_deref(), Some(&*directory.path().join("tokenizer.json")));
    assert_eq!(files.chat_template, None);
    assert!(checkpoint.vocab_spec().is_none());
    assert_eq!(checkpoint.metadata()[0].0, "architectures");
    let total: usize = tensors().iter().map(|(_, shape)| 2 * shape.iter().product::<usize>()).sum();
    assert_eq!(checkpoint.total_bytes(), total as u64);
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let empty = tempfile::tempdir().expect("a directory");
    refused(empty.path(), "has no .safetensors and no .gguf file");
    refused(&empty.path().join("x"), "x: ");
    write(empty.path(), "pytorch_model.bin", "");
    refused(empty.path(), "PyTorch pickle");
    write(empty.path(), "model.safetensors", safetensors_file(&tensors()));
    refused(empty.path(), "no config.json");
    for text in ["", "[]", "{", "\u{feff}{}"] {
        write(empty.path(), "config.json", text);
        refused(empty.path(), "config.json: ");
    }
    write(empty.path(), "empty.gguf", "");
    assert!(Checkpoint::open(&empty.path().join("empty.gguf")).is_err());
    assert!(Checkpoint::open(Path::new("/dev/null")).is_err(), "not a regular file");
}

#[test]
fn a_directory_may_hold_one_gguf() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "a.gguf", tiny_gguf("llama").build());
    write(directory.path(), "generation_config.json", r#"{"eos_token_id": 2, "top_k": 20}"#);
    let checkpoint = Checkpoint::open(directory.path()).expect("opens");
    assert_eq!(checkpoint.config().eos_token_ids, [2, 5, 6]);
    assert_eq!(checkpoint.config().sampling.top_k, Some(20));
    assert!(checkpoint.tokenizer_files().generation_config.is_some());
    write(directory.path(), "b.gguf", tiny_gguf("llama").build());
    refused(directory.path(), "several .gguf files");
}

#[test]
fn f07_headers_get_the_verdict_of_the_safetensors_crate() {
    let verdict = |name: &str, bytes: Vec<u8>, want: &str| {
        let theirs = safetensors::SafeTensors::read_metadata(&bytes);
        assert!(theirs.is_err(), "{name}: the crate accepts it");
        let ours = Checkpoint::from_safetensors(TINY_CONFIG, bytes).expect_err(name).to_string();
        assert!(ours.contains(want), "{name}: got `{ours}`, want `{want}`");
    };
    let tensor =
        |offsets: [u64; 2]| json!({ "dtype": "F32", "shape": [2], "data_offsets": offsets });
    let pair = |a: [u64; 2], b: [u64; 2]| json!({ "a": tensor(a), "b": tensor(b) }).to_string();
    verdict("empty", Vec::new(), "truncated");
    verdict("length 0", 0u64.to_le_bytes().into(), "header");
    verdict("length 2^63", (1u64 << 63).to_le_bytes().into(), "at most 100000000");
    verdict("length past the end", 100u64.to_le_bytes().into(), "truncated");
    verdict("101 MB", 101_000_000u64.to_le_bytes().into(), "at most 100000000");
    verdict("not JSON", safetensors_raw("{", 0), "header");
    verdict("not UTF-8", [&1u64.to_le_bytes()[..], b"\xff"].concat(), "UTF-8");
    verdict("overlap", safetensors_raw(&pair([0, 8], [4, 12]), 12), "offset");
    verdict("gap", safetensors_raw(&pair([0, 8], [16, 24]), 24), "offset");
    verdict("begin after end", safetensors_raw(&pair([8, 0], [0, 8]), 8), "");
    verdict("wrong size", safetensors_raw(&pair([0, 8], [8, 12]), 12), "invalid shape");
    verdict("tail", safetensors_raw(&pair([0, 8], [8, 16]), 17), "the file has 17");
    verdict("too short", safetensors_raw(&pair([0, 8], [8, 16]), 15), "the file has 15");
    for (name, dtype, shape, want) in [
        ("unknown type", "F13", json!([2]), "unknown variant"),
        ("overflow", "F32", json!([1u64 << 33, 1u64 << 33]), "overflow"),
        ("negative", "F32", json!([-1]), "header"),
    ] {
        let header = json!({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 8]}});
        verdict(name, safetensors_raw(&header.to_string(), 8), want);
    }
    let header = json!({"__metadata__": {"x": 1}, "a": tensor([0, 8])}).to_string();
    verdict("metadata that is no text", safetensors_raw(&header, 8), "header");
    let twice = format!(r#"{{"a":{0},"a":{1}}}"#, tensor([0, 8]), tensor([8, 16]));
    verdict("a name twice", safetensors_raw(&twice, 16), "offset");
    // Sizes whose sum overflows, which the crate adds unchecked.
    let step = (1u64 << 61) - 8;
    let huge: serde_json::Map<String, Value> = (0..8u64)
        .map(|i| {
            let info = json!({
                "dtype": "U8", "shape": [step], "data_offsets": [i * step, (i + 1) * step],
            });
            (format!("t{i}"), info)
        })
        .collect();
    let bytes = safetensors_raw(&Value::Object(huge).to_string(), 8);
    let error = Checkpoint::from_safetensors(TINY_CONFIG, bytes).expect_err("overflow");
    assert!(error.to_string().contains("the file has 8"), "{error}");
    // Padding by spaces is what writers do.
    let mut header = String::new();
    let whole = safetensors_file(&tensors());
    let length = u64::from_le_bytes(whole[..8].try_into().expect("8 bytes")) as usize;
    header.push_str(std::str::from_utf8(&whole[8..8 + length]).expect("JSON"));
    header.push_str("     ");
    let padded = safetensors_raw(&header, whole.len() - 8 - length);
    assert!(Checkpoint::from_safetensors(TINY_CONFIG, padded).is_ok());
}

#[test]
fn f09_an_incomplete_set_is_refused_with_names() {
    let (directory, index) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).expect("opens");
    assert_eq!(checkpoint.names().count(), 11);
    let name = "model.layers.0.mlp.down_proj.weight";

    let put = |index: &Value| {
        write(directory.path(), "model.safetensors.index.json", index.to_string());
    };
    let mut wrong = index.clone();
    wrong["weight_map"][name] = "a.safetensors".into();
    put(&wrong);
    refused(directory.path(), name);
    for outside in ["../a.safetensors", "/a.safetensors", "config.json", "x\\y.safetensors"] {
        wrong["weight_map"][name] = outside.into();
        put(&wrong);
        refused(directory.path(), "no file name");
    }
    put(&json!({ "weight_map": {} }));
    refused(directory.path(), "weight_map is empty");
    put(&json!({}));
    refused(directory.path(), "weight_map is absent");

    put(&index);
    write(directory.path(), "b.safetensors", safetensors_file(&tensors()[6..10]));
    refused(directory.path(), &format!("1 tensors are missing, among them {name}"));
    fs::remove_file(directory.path().join("b.safetensors")).expect("removed");
    refused(directory.path(), "5 tensors are missing");
}

#[test]
fn f11_strays_do_not_count() {
    let (directory, _) = sharded();
    let stray = safetensors_file(&[("model.embed_tokens.weight", &[1, 1]), ("x", &[1])]);
    write(directory.path(), "consolidated.safetensors", &stray);
    write(directory.path(), "model.safetensors", &stray);
    let checkpoint = Checkpoint::open(directory.path()).expect("the index decides");
    assert!(checkpoint.tensor_of("model.embed_tokens.weight", 8, 32).is_ok());
    assert!(!checkpoint.contains("x"));

    fs::remove_file(directory.path().join("model.safetensors.index.json")).expect("removed");
    write(directory.path(), "model.safetensors", safetensors_file(&tensors()));
    let checkpoint = Checkpoint::open(directory.path()).expect("model.safetensors decides");
    assert_eq!(checkpoint.names().count(), 11);
    fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
    refused(directory.path(), "3 .safetensors files");
}

#[test]
fn f12_heads_tied_and_not() {
    let head: (&str, &[usize]) = ("lm_head.weight", &[8, 32]);
    for (tie, has_head, opens) in
        [(true, false, true), (true, true, true), (false, true, true), (false, false, false)]
    {
        let mut config: Value = serde_json::from_str(TINY_CONFIG).expect("JSON");
        config["tie_word_embeddings"] = tie.into();
        let mut tensors = tensors();
        tensors.extend(has_head.then_some(head));
        let opened = Checkpoint::from_safetensors(&config.to_string(), safetensors_file(&tensors));
        match opened {
            Ok(checkpoint) => {
                assert!(opens, "tie {tie}, head {has_head}");
                assert_eq!(checkpoint.config().tie_word_embeddings, tie);
            }
            Err(error) => {
                assert!(!opens && error.to_string().contains("lm_head.weight"), "{error}");
            }
        }
    }
}

#[test]
fn f13_prefixes_vary_and_extras_are_ignored() {
    for prefix in ["", "language_model.model.", "model.language_model."] {
        let renamed: Vec<(String, &[usize])> = tensors()
            .iter()
            .map(|(name, shape)| (name.replacen("model.", prefix, 1), *shape))
            .collect();
        let mut list: Vec<(&str, &[usize])> =
            renamed.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
        list.push(("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]));
        let checkpoint =
            Checkpoint::from_safetensors(TINY_CONFIG, safetensors_file(&list)).expect(prefix);
        let names: Vec<&str> = checkpoint.names().collect();
        let mut want: Vec<&str> = TINY_TENSORS.iter().map(|(name, _)| *name).collect();
        want.sort_unstable();
        assert_eq!(names, want, "{prefix}");
    }
    let mut both = tensors();
    both.push(("norm.weight", &[32]));
    let error = Checkpoint::from_safetensors(TINY_CONFIG, safetensors_file(&both));
    assert!(
        error.expect_err("two for one").to_string().contains("`model.norm.weight` is there twice")
    );
}

#[test]
fn quantized_directories_are_named() {
    let name = "model.layers.0.mlp.up_proj";
    for (want, width) in [("gptq", 64), ("awq", 8)] {
        let (qweight, scales) = (format!("{name}.qweight"), format!("{name}.scales"));
        let mut list: Vec<(&str, &[usize])> = tensors();
        let shape = [4, width];
        list.extend([(qweight.as_str(), &shape[..]), (scales.as_str(), &[1, 64][..])]);
        assert!(matches!(
            Checkpoint::from_safetensors(TINY_CONFIG, safetensors_file(&list)),
            Err(CheckpointError::UnsupportedFormat { format }) if format == want
        ));
        let mut config: Value = serde_json::from_str(TINY_CONFIG).expect("JSON");
        config["quantization_config"] = json!({ "quant_method": want, "bits": 4 });
        assert!(matches!(
            Checkpoint::from_safetensors(&config.to_string(), safetensors_file(&tensors())),
            Err(CheckpointError::UnsupportedFormat { format }) if format == want
        ));
    }
}

#[test]
fn tensors_that_are_no_weights_are_refused_when_asked_for() {
    let mut list = tensors();
    list.extend([("conv", &[2, 2, 2][..]), ("none", &[0, 4][..]), ("scalar", &[][..])]);
    let file = safetensors_file(&list);
    let checkpoint = Checkpoint::from_safetensors(TINY_CONFIG, file).expect("opens");
    for name in ["conv", "none", "scalar"] {
        assert!(matches!(
            checkpoint.tensor(name),
            Err(CheckpointError::UnsupportedTensor { reason, .. }) if reason.contains("shape")
        ));
    }
}

#[test]
fn a_configuration_alone_opens_as_a_dummy() {
    let directory = directory(&[]);
    refused(directory.path(), "has no .safetensors");
    for path in [directory.path().to_owned(), directory.path().join("config.json")] {
        let dummy = Checkpoint::open_dummy(&path).expect("it has a configuration");
        assert!(dummy.is_dummy() && dummy.format() == CheckpointFormat::Dummy);
        assert_eq!((dummy.config().hidden_size, dummy.config().vocab_size), (32, 8));
        assert_eq!(dummy.config().eos_token_ids, [5, 6]);
        assert_eq!((dummy.names().count(), dummy.total_bytes()), (0, 0));
        assert!(dummy.tensor("model.embed_tokens.weight").is_err());
        assert!(!dummy.contains("model.layers.0.self_attn.q_proj.bias"));
    }
    let biased =
        TINY_CONFIG.replace("\"hidden_size\"", "\"attention_bias\": true, \"hidden_size\"");
    write(directory.path(), "config.json", biased);
    let dummy = Checkpoint::open_dummy(directory.path()).expect("it has a configuration");
    assert!(dummy.contains("model.layers.0.self_attn.q_proj.bias"));
    assert!(!dummy.contains("model.layers.0.mlp.down_proj.bias"));
    assert!(!dummy.contains("model.layers.0.self_attn.q_proj.weight"));
    fs::remove_file(directory.path().join("config.json")).expect("removed");
    assert!(Checkpoint::open_dummy(directory.path()).is_err());
    assert!(Checkpoint::open_dummy(Path::new("/no/such/model")).is_err());
    // Weight files need not be read, only what describes them.
    write(directory.path(), "model.gguf", tiny_gguf("llama").build());
    let dummy = Checkpoint::open_dummy(directory.path()).expect("a GGUF describes itself");
    assert!(dummy.is_dummy() && dummy.names().count() == 0);
}
