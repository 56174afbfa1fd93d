//! From paths to a checked checkpoint.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::collections::btree_map::Entry as Slot;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use pagedllm_core::{DType, WeightFormat};
use serde_json::{Map, Value as Json};

use crate::checkpoint::{CheckpointFormat, Entry, Parts, TokenizerFiles};
use crate::config::ends;
use crate::gguf::{Gguf, TensorInfo, Value};
use crate::hf_config::{self, HfConfig, merge_generation};
use crate::mmap::FileBytes;
use crate::quote::quote;
use crate::{CheckpointError, gguf_config, gguf_names, gguf_vocab, hf_names};

/// Largest JSON file that is read.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Most weight files of a model.
const MAX_FILES: usize = 4096;
/// Names that an error lists.
const MAX_LISTED: usize = 8;
/// Longest value that `metadata` shows, in characters; more pairs than the limit are left out.
const MAX_SHOWN_PAIRS: usize = 4096;

/// A weight file and its name.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) bytes: FileBytes,
}

pub(crate) type JsonObject = Map<String, Json>;

/// Opens whatever is at `path`.
pub(crate) fn path(path: &Path) -> Result<Parts, CheckpointError> {
    let kind = fs::metadata(path).map_err(|source| io(path, source))?;
    if !kind.is_dir() {
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        return gguf_file(path, &directory);
    }
    let files = list(path)?;
    let with = |extension: &str| -> Vec<&String> {
        files.iter().filter(|name| name.ends_with(extension)).collect()
    };
    if !with(".safetensors").is_empty() {
        return directory(path, &files);
    }
    let ggufs = with(".gguf");
    // Only the first of a set of splits opens it.
    let first: Vec<_> = ggufs
        .iter()
        .filter(|name| split_of(name).is_none_or(|(_, number, _)| number == 1))
        .collect();
    match first.as_slice() {
        [only] => gguf_file(&path.join(only), path),
        [] if files.iter().any(|name| name.ends_with(".bin") || name.ends_with(".pt")) => {
            Err(CheckpointError::UnsupportedFormat { format: "PyTorch pickle".into() })
        }
        [] => Err(not_one(path, "has no .safetensors and no .gguf file".into())),
        _ => Err(not_one(path, "has several .gguf files; name one of them".into())),
    }
}

fn io(path: &Path, source: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.into(), source }
}

fn not_one(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::NotACheckpoint { path: path.into(), reason }
}

/// Names of the files of a directory that are valid UTF-8, sorted.
fn list(directory: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|source| io(directory, source))? {
        let entry = entry.map_err(|source| io(directory, source))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn map(path: &Path) -> Result<Named, CheckpointError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let bytes = FileBytes::map(path).map_err(|source| io(path, source))?;
    Ok(Named { name: name.unwrap_or_default(), bytes })
}

/// Parses JSON that must be an object.
pub(crate) fn json(file: &str, bytes: &[u8]) -> Result<JsonObject, CheckpointError> {
    match serde_json::from_slice(bytes) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(_) => {
            Err(CheckpointError::Malformed { file: file.into(), reason: "not an object".into() })
        }
        Err(error) => {
            Err(CheckpointError::Malformed { file: file.into(), reason: quote(&error.to_string()) })
        }
    }
}

/// Reads a JSON object, or nothing if the file does not exist.
pub(crate) fn json_file(
    directory: &Path,
    name: &str,
) -> Result<Option<JsonObject>, CheckpointError> {
    let path = directory.join(name);
    match fs::metadata(&path) {
        Ok(kind) if kind.is_file() => {}
        Ok(_) => return Err(not_one(&path, "not a regular file".into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(&path, source)),
    }
    let file = fs::File::open(&path).map_err(|source| io(&path, source))?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes).map_err(|source| io(&path, source))?;
    if bytes.len() as u64 > MAX_JSON_BYTES {
        let reason = format!("larger than {MAX_JSON_BYTES} bytes");
        return Err(CheckpointError::Malformed { file: name.into(), reason });
    }
    json(name, &bytes).map(Some)
}

pub(crate) fn tokenizer_files(directory: &Path) -> TokenizerFiles {
    let present = |name: &str| -> Option<PathBuf> {
        let path = directory.join(name);
        path.is_file().then_some(path)
    };
    TokenizerFiles {
        tokenizer: present("tokenizer.json"),
        tokenizer_config: present("tokenizer_config.json"),
        chat_template: present("chat_template.jinja"),
        generation_config: present("generation_config.json"),
    }
}

/// Takes `PREFIX-00002-of-00005.gguf` apart: prefix, number, count.
fn split_of(name: &str) -> Option<(&str, usize, usize)> {
    let stem = name.strip_suffix(".gguf")?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    Some((prefix, digits(number)?, digits(count)?))
}

fn gguf_file(path: &Path, directory: &Path) -> Result<Parts, CheckpointError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut files = vec![map(path)?];
    if let Some((prefix, number, count)) = name.as_deref().and_then(split_of) {
        if number != 1 || count == 0 || count > MAX_FILES {
            let reason =
                format!("split {number} of {count}; open the first of at most {MAX_FILES}");
            return Err(not_one(path, reason));
        }
        for number in 2..=count {
            let name = format!("{prefix}-{number:05}-of-{count:05}.gguf");
            files.push(map(&directory.join(name))?);
        }
    }
    let mut parts = gguf(files, json_file(directory, "generation_config.json")?.as_ref())?;
    parts.tokenizer_files = tokenizer_files(directory);
    Ok(parts)
}

/// Puts the splits of a GGUF together; the first has the metadata.
pub(crate) fn gguf(
    files: Vec<Named>,
    generation: Option<&JsonObject>,
) -> Result<Parts, CheckpointError> {
    let headers = files
        .iter()
        .map(|file| Gguf::parse(&file.name, file.bytes.bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(first) = headers.first() else {
        return Err(not_one(Path::new(""), "no file".into()));
    };
    check_splits(&headers)?;
    let family = match first.get("general.architecture") {
        Some(Value::Text(name)) => gguf_names::family(name)
            .ok_or_else(|| CheckpointError::UnsupportedArchitecture { name: quote(name) })?,
        _ => return Err(first.fail("general.architecture is absent or no string".into())),
    };
    let mut tensors = BTreeMap::new();
    let mut facts = RawFacts::default();
    for (index, (header, file)) in headers.iter().zip(&files).enumerate() {
        for tensor in &header.tensors {
            if facts.take(header, file, tensor)? {
                continue;
            }
            let name = family.tensor_name(tensor.name).ok_or_else(|| {
                header.fail(format!(
                    "tensor `{}` is unknown to the architecture {}",
                    quote(tensor.name),
                    family.gguf
                ))
            })?;
            let entry = Entry {
                file: index,
                range: tensor.range.clone(),
                layout: Ok((tensor.format, tensor.rows, tensor.cols)),
                interleaved_heads: None,
            };
            insert(&mut tensors, name, entry, &file.name)?;
        }
    }
    let facts = facts.finish(&tensors)?;
    let mut config = gguf_config::read(first, family, facts)?;
    let vocab = gguf_vocab::read(first)?;
    let mut own_ends = gguf_config::end_tokens(first)?;
    ends(&mut own_ends, vocab.iter().flat_map(|vocab| vocab.other_ends.iter().copied()));
    merge_generation(&mut config, generation, &own_ends)?;
    let config = config.checked()?;
    if family.rotates_rows {
        mark_interleaved(&mut tensors, config.num_heads, config.num_kv_heads, config.head_dim)?;
    }
    let metadata = first.pairs.iter().take(MAX_SHOWN_PAIRS);
    let metadata = metadata.map(|(key, value)| (quote(key), shown(value))).collect();
    drop(headers);
    Ok(Parts {
        config,
        format: CheckpointFormat::Gguf,
        files: files.into_iter().map(|file| file.bytes).collect(),
        tensors,
        tokenizer_files: TokenizerFiles::default(),
        vocab,
        metadata,
    })
}

fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Unsigned(value) => value.to_string(),
        Value::Signed(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Text(text) => quote(text),
        Value::Array(array) => format!("[{} x {}]", array.len, array.kind_name()),
    }
}

/// Adds a tensor under a name that must be new.
fn insert(
    tensors: &mut BTreeMap<String, Entry>,
    name: String,
    entry: Entry,
    file: &str,
) -> Result<(), CheckpointError> {
    match tensors.entry(name) {
        Slot::Vacant(slot) => {
            slot.insert(entry);
            Ok(())
        }
        Slot::Occupied(slot) => Err(CheckpointError::Malformed {
            file: file.into(),
            reason: format!("tensor `{}` is there twice", quote(slot.key())),
        }),
    }
}

/// The splits must say what their names say, and hold all tensors between them.
fn check_splits(headers: &[Gguf<'_>]) -> Result<(), CheckpointError> {
    let number = |header: &Gguf<'_>, key: &str| match header.get(key) {
        Some(Value::Unsigned(number)) => Some(number),
        Some(Value::Signed(number)) => u64::try_from(number).ok(),
        _ => None,
    };
    for (index, header) in headers.iter().enumerate() {
        let count = number(header, "split.count").unwrap_or(1).max(1);
        if count != headers.len() as u64 {
            let reason = format!("split.count is {count}, but {} files are open", headers.len());
            return Err(header.fail(reason));
        }
        if headers.len() > 1 && number(header, "split.no") != Some(index as u64) {
            return Err(header.fail(format!("split.no is not {index}")));
        }
    }
    let Some(first) = headers.first() else { return Ok(()) };
    let found: usize = headers.iter().map(|header| header.tensors.len()).sum();
    match number(first, "split.tensors.count") {
        Some(count) if count != found as u64 => {
            Err(first.fail(format!("split.tensors.count is {count}, the files hold {found}")))
        }
        _ => Ok(()),
    }
}

/// Tensors that belong to the configuration.
#[derive(Default)]
struct RawFacts {
    freq_factors: Option<Vec<f32>>,
    short: Option<Vec<f32>>,
    long: Option<Vec<f32>>,
}

impl RawFacts {
    /// Keeps the tensor if it is one of those.
    fn take(
        &mut self,
        header: &Gguf<'_>,
        file: &Named,
        tensor: &TensorInfo<'_>,
    ) -> Result<bool, CheckpointError> {
        let slot = match tensor.name {
            "rope_freqs.weight" => &mut self.freq_factors,
            "rope_factors_short.weight" => &mut self.short,
            "rope_factors_long.weight" => &mut self.long,
            _ => return Ok(false),
        };
        *slot = Some(gguf_config::floats(header, file.bytes.bytes(), tensor)?);
        Ok(true)
    }

    fn finish(
        self,
        tensors: &BTreeMap<String, Entry>,
    ) -> Result<gguf_config::TensorFacts, CheckpointError> {
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let embedding = tensors.get(EMBEDDING).ok_or_else(|| missing(vec![EMBEDDING.into()]))?;
        let Ok((format, rows, cols)) = embedding.layout else {
            return Err(missing(vec![EMBEDDING.into()]));
        };
        Ok(gguf_config::TensorFacts {
            embedding: (rows, cols, format),
            has_head: tensors.contains_key("lm_head.weight"),
            has_attention_bias: has_attention_bias(tensors),
            has_mlp_bias: has_mlp_bias(tensors),
            freq_factors: self.freq_factors,
            longrope: self.short.zip(self.long),
        })
    }
}

fn has_attention_bias(tensors: &BTreeMap<String, Entry>) -> bool {
    tensors.contains_key("model.layers.0.self_attn.q_proj.bias")
        || tensors.contains_key("model.layers.0.self_attn.qkv_proj.bias")
}

fn has_mlp_bias(tensors: &BTreeMap<String, Entry>) -> bool {
    tensors.contains_key("model.layers.0.mlp.down_proj.bias")
}

fn missing(names: Vec<String>) -> CheckpointError {
    let count = names.len();
    let names = names.iter().take(MAX_LISTED).map(|name| quote(name)).collect();
    CheckpointError::MissingTensors { names, count }
}

/// Marks q and k, whose rows the file has in interleaved order.
fn mark_interleaved(
    tensors: &mut BTreeMap<String, Entry>,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
) -> Result<(), CheckpointError> {
    for (name, entry) in tensors {
        let heads = if name.contains(".self_attn.q_proj.") {
            num_heads
        } else if name.contains(".self_attn.k_proj.") {
            num_kv_heads
        } else {
            continue;
        };
        let Ok((format, rows, cols)) = entry.layout else { continue };
        let is_bias = name.ends_with(".bias");
        let outputs = if is_bias { cols } else { rows };
        let fits = outputs == heads * head_dim && head_dim.is_multiple_of(2);
        if !fits || (is_bias && (rows != 1 || format.block_len() != 1)) {
            return Err(CheckpointError::UnsupportedTensor {
                name: quote(name),
                reason: format!("is {rows} x {cols} of {format}; {heads} heads of {head_dim}"),
            });
        }
        entry.interleaved_heads = Some(heads);
    }
    Ok(())
}

/// Opens a Hugging Face directory, whose files are `names`.
fn directory(path: &Path, names: &[String]) -> Result<Parts, CheckpointError> {
    const INDEX: &str = "model.safetensors.index.json";
    let config = json_file(path, "config.json")?
        .ok_or_else(|| not_one(path, "has safetensors files but no config.json".into()))?;
    let generation = json_file(path, "generation_config.json")?;
    let mut files = Vec::new();
    if let Some(index) = json_file(path, INDEX)? {
        let index = crate::safetensors::index(INDEX, &Json::Object(index))?;
        if index.len() > MAX_FILES {
            let reason = format!("names {} files; at most {MAX_FILES}", index.len());
            return Err(CheckpointError::Malformed { file: INDEX.into(), reason });
        }
        let absent = |shard: &String| !path.join(shard).is_file();
        let lost: Vec<String> = index
            .iter()
            .filter(|(shard, _)| absent(shard))
            .flat_map(|(_, tensors)| tensors.iter().cloned())
            .collect();
        if !lost.is_empty() {
            return Err(missing(lost));
        }
        for (shard, tensors) in index {
            files.push((map(&path.join(shard))?, Some(tensors)));
        }
    } else {
        let found: Vec<&String> =
            names.iter().filter(|name| name.ends_with(".safetensors")).collect();
        let whole = found.iter().find(|name| name.as_str() == "model.safetensors");
        match (whole, found.as_slice()) {
            (Some(name), _) | (None, [name]) => files.push((map(&path.join(name))?, None)),
            _ => {
                let reason = format!(
                    "has {} .safetensors files, none of them model.safetensors, and no {INDEX}",
                    found.len()
                );
                return Err(not_one(path, reason));
            }
        }
    }
    let mut parts = safetensors(files, &config, generation.as_ref())?;
    parts.tokenizer_files = tokenizer_files(path);
    Ok(parts)
}

/// Puts safetensors files together. Where an index lists the tensors of a file, all must be there
/// and others do not count.
pub(crate) fn safetensors(
    files: Vec<(Named, Option<Vec<String>>)>,
    config: &JsonObject,
    generation: Option<&JsonObject>,
) -> Result<Parts, CheckpointError> {
    let hf_config = HfConfig::new(config)?;
    let mut tensors = BTreeMap::new();
    let mut lost = Vec::new();
    for (index, (file, listed)) in files.iter().enumerate() {
        let found = crate::safetensors::parse(&file.name, file.bytes.bytes())?;
        if let Some(format) = crate::safetensors::packed_format(&found) {
            return Err(CheckpointError::UnsupportedFormat { format: format.into() });
        }
        let mut listed: Option<HashSet<&str>> =
            listed.as_ref().map(|names| names.iter().map(String::as_str).collect());
        for tensor in found {
            if listed.as_mut().is_some_and(|listed| !listed.remove(tensor.name.as_str())) {
                continue;
            }
            let Some(name) = hf_names::canonical(&tensor.name) else { continue };
            let (range, layout) = (tensor.range, tensor.layout);
            let entry = Entry { file: index, range, layout, interleaved_heads: None };
            insert(&mut tensors, name, entry, &file.name)?;
        }
        lost.extend(listed.into_iter().flatten().map(String::from));
    }
    if !lost.is_empty() {
        lost.sort();
        return Err(missing(lost));
    }
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let embedding = tensors.get(EMBEDDING).ok_or_else(|| missing(vec![EMBEDDING.into()]))?;
    let embedding = embedding.layout.clone();
    let dtype = embedding.as_ref().ok().and_then(|&(format, _, _)| match format {
        WeightFormat::F32 => Some(DType::F32),
        WeightFormat::F16 => Some(DType::F16),
        WeightFormat::BF16 => Some(DType::BF16),
        _ => None,
    });
    let facts = hf_config::TensorFacts {
        dtype,
        has_attention_bias: has_attention_bias(&tensors),
        has_mlp_bias: has_mlp_bias(&tensors),
    };
    let model = hf_config.read(generation, &facts)?;
    if let Ok((_, rows, cols)) = embedding
        && (rows, cols) != (model.vocab_size, model.hidden_size)
    {
        return Err(CheckpointError::ShapeMismatch {
            name: EMBEDDING.into(),
            rows,
            cols,
            want_rows: model.vocab_size,
            want_cols: model.hidden_size,
        });
    }
    if !model.tie_word_embeddings && !tensors.contains_key("lm_head.weight") {
        return Err(missing(vec!["lm_head.weight".into()]));
    }
    let metadata = shown_config(config);
    Ok(Parts {
        config: model,
        format: CheckpointFormat::Safetensors,
        files: files.into_iter().map(|(file, _)| file.bytes).collect(),
        tensors,
        tokenizer_files: TokenizerFiles::default(),
        vocab: None,
        metadata,
    })
}

/// The fields of a config.json, as `metadata` shows them.
pub(crate) fn shown_config(config: &JsonObject) -> Vec<(String, String)> {
    let pairs = config.iter().take(MAX_SHOWN_PAIRS);
    pairs.map(|(key, value)| (quote(key), quote(&value.to_string()))).collect()
}
