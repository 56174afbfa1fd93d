//! The header of a safetensors file, and the index of a directory of them.
//!
//! The `safetensors` crate reads the JSON and judges the layout (no gap, overlap or tail), so our
//! verdicts are its own. Only the frame is read here, because the crate adds the declared sizes
//! without a check for overflow.

use std::collections::BTreeMap;
use std::ops::Range;

use pagedllm_core::WeightFormat;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value;

use crate::CheckpointError;
use crate::quote::quote;

/// Largest header, as in the `safetensors` crate.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length before the header.
const LENGTH_BYTES: usize = 8;

/// A tensor of the file. `layout` says why it can't be used, where it can't.
#[derive(Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) range: Range<usize>,
    /// The last dimension.
    pub(crate) width: usize,
    pub(crate) layout: Result<(WeightFormat, usize, usize), String>,
}

/// Parses the header of `bytes`. `file` is its name, for messages.
///
/// # Errors
/// `Malformed`, with the reason.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Vec<TensorInfo>, CheckpointError> {
    let fail = |reason: String| CheckpointError::Malformed { file: file.into(), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(fail(format!("truncated: {} bytes, a header takes 8 or more", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(fail(format!("a header of {length} bytes; at most {MAX_HEADER_BYTES}")));
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        let left = rest.len();
        return Err(fail(format!("truncated: a header of {length} bytes, {left} are left")));
    };
    let text = std::str::from_utf8(header).map_err(|_| fail("header is not UTF-8".into()))?;
    // Any text in the message is the file's, so it is quoted.
    let metadata: Metadata = serde_json::from_str(text)
        .map_err(|error| fail(format!("header: {}", quote(&error.to_string()))))?;
    if metadata.data_len() != data.len() {
        let (declared, found) = (metadata.data_len(), data.len());
        return Err(fail(format!("tensors take {declared} bytes, the file has {found}")));
    }
    let start = LENGTH_BYTES + header.len();
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let range = info.data_offsets.0 + start..info.data_offsets.1 + start;
        let width = info.shape.last().copied().unwrap_or(1);
        tensors.push(TensorInfo { name, range, width, layout: layout(info.dtype, &info.shape) });
    }
    Ok(tensors)
}

fn layout(dtype: Dtype, shape: &[usize]) -> Result<(WeightFormat, usize, usize), String> {
    let format = match dtype {
        Dtype::F32 => WeightFormat::F32,
        Dtype::F16 => WeightFormat::F16,
        Dtype::BF16 => WeightFormat::BF16,
        other => return Err(format!("has type {other}; F32, F16 and BF16 are supported")),
    };
    match *shape {
        [cols] if cols > 0 => Ok((format, 1, cols)),
        [rows, cols] if rows > 0 && cols > 0 => Ok((format, rows, cols)),
        _ => Err("has no matrix or vector shape".into()),
    }
}

/// Which quantized format the tensors are of, if any. A `qweight` beside scales of the same width
/// is GPTQ's, which packs along the rows; AWQ's is narrower, since it packs along the columns.
pub(crate) fn packed_format(tensors: &[TensorInfo]) -> Option<&'static str> {
    let packed = tensors.iter().find(|tensor| tensor.name.ends_with(".qweight"))?;
    let scales = format!("{}scales", packed.name.strip_suffix("qweight")?);
    let scales = tensors.iter().find(|tensor| tensor.name == scales);
    let is_narrower = scales.is_some_and(|scales| packed.width < scales.width);
    Some(if is_narrower { "awq" } else { "gptq" })
}

/// The `weight_map` of model.safetensors.index.json: files, and the tensors each must hold.
///
/// # Errors
/// If it is no such index, or names a file outside the directory.
pub(crate) fn index(
    file: &str,
    json: &Value,
) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
    let fail = |reason: String| CheckpointError::Malformed { file: file.into(), reason };
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| fail("weight_map is absent or no object".into()))?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard
            .as_str()
            .filter(|name| name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']))
            .ok_or_else(|| fail(format!("weight_map gives `{}` no file name", quote(tensor))))?;
        files.entry(shard.into()).or_default().push(tensor.clone());
    }
    if files.is_empty() {
        return Err(fail("weight_map is empty".into()));
    }
    Ok(files)
}
