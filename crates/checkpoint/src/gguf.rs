//! The GGUF container: header, metadata and tensor table of one file, versions 2 and 3.
//!
//! The parser borrows everything from the file. It allocates one entry a metadata pair and one a
//! tensor, each after the bytes that declare it were seen, so a lying count or length costs
//! nothing. Why this is not a library's parser: `docs/decisions/0002-gguf-parsing.md`.

use std::collections::HashSet;
use std::ops::Range;

use pagedllm_core::WeightFormat;

use crate::CheckpointError;
use crate::quote::quote;

/// Most metadata pairs of a file; real ones have dozens.
const MAX_PAIRS: u64 = 1 << 16;
/// Most tensors of a file; real ones have thousands.
const MAX_TENSORS: u64 = 1 << 16;
/// Longest key, by the specification.
const MAX_KEY_BYTES: usize = 65_535;
/// Longest tensor name, by the specification.
const MAX_NAME_BYTES: usize = 64;
/// Most dimensions, by the specification.
const MAX_DIMS: u32 = 4;
/// Arrays in arrays; real files have none.
const MAX_NESTING: usize = 8;
/// Alignment of tensor data unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: usize = 32;
/// Largest alignment believed.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// One parsed file. Ranges are of the whole file.
#[derive(Debug)]
pub(crate) struct Gguf<'a> {
    file: &'a str,
    pub(crate) pairs: Vec<(&'a str, Value<'a>)>,
    pub(crate) tensors: Vec<TensorInfo<'a>>,
}

/// A tensor as the table declares it, checked against the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) format: WeightFormat,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) range: Range<usize>,
}

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// An array whose extent was walked; its elements are decoded on demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Array<'a> {
    kind: u32,
    pub(crate) len: usize,
    bytes: &'a [u8],
}

const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl<'a> Gguf<'a> {
    /// Parses the header of `bytes`. `file` is its name, for messages.
    ///
    /// # Errors
    /// The first thing that is damaged, impossible or not supported.
    pub(crate) fn parse(file: &'a str, bytes: &'a [u8]) -> Result<Self, CheckpointError> {
        let mut cursor = Cursor { file, bytes, at: 0 };
        let (num_tensors, num_pairs) = cursor.preamble()?;
        let mut gguf = Self { file, pairs: Vec::new(), tensors: Vec::new() };
        let mut keys = HashSet::new();
        for _ in 0..num_pairs {
            let key = cursor.key()?;
            let kind = cursor.u32("value type")?;
            let value = cursor.value(kind, key)?;
            if !keys.insert(key) {
                return Err(cursor.fail(format!("metadata key `{}` occurs twice", quote(key))));
            }
            gguf.pairs.push((key, value));
        }
        let alignment = gguf.alignment()?;
        let mut names = HashSet::new();
        for _ in 0..num_tensors {
            let tensor = cursor.tensor(alignment)?;
            if !names.insert(tensor.name) {
                let name = quote(tensor.name);
                return Err(cursor.fail(format!("tensor `{name}` occurs twice")));
            }
            gguf.tensors.push(tensor);
        }
        let data_start = cursor.at.next_multiple_of(alignment);
        gguf.place(data_start, bytes.len())?;
        Ok(gguf)
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.pairs.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    pub(crate) fn fail(&self, reason: String) -> CheckpointError {
        CheckpointError::Malformed { file: self.file.into(), reason }
    }

    fn alignment(&self) -> Result<usize, CheckpointError> {
        match self.get("general.alignment") {
            None => Ok(DEFAULT_ALIGNMENT),
            Some(Value::Unsigned(bytes))
                if bytes > 0 && bytes.is_multiple_of(8) && bytes <= MAX_ALIGNMENT =>
            {
                Ok(bytes as usize)
            }
            Some(other) => Err(self.fail(format!(
                "general.alignment is {other:?}; must be a multiple of 8 up to {MAX_ALIGNMENT}"
            ))),
        }
    }

    /// Turns offsets into ranges of the file, and refuses those outside it or over each other.
    fn place(&mut self, data_start: usize, file_bytes: usize) -> Result<(), CheckpointError> {
        let available = file_bytes.saturating_sub(data_start);
        for tensor in &mut self.tensors {
            if tensor.range.end > available {
                let (name, end) = (quote(tensor.name), tensor.range.end);
                return Err(CheckpointError::Malformed {
                    file: self.file.into(),
                    reason: format!(
                        "tensor `{name}` ends at byte {end} of the data, which has {available}"
                    ),
                });
            }
            tensor.range = tensor.range.start + data_start..tensor.range.end + data_start;
        }
        let mut order: Vec<&TensorInfo<'_>> = self.tensors.iter().collect();
        order.sort_by_key(|tensor| tensor.range.start);
        for pair in order.windows(2) {
            if pair[0].range.end > pair[1].range.start {
                let (first, second) = (quote(pair[0].name), quote(pair[1].name));
                return Err(self.fail(format!("tensors `{first}` and `{second}` overlap")));
            }
        }
        Ok(())
    }
}

impl<'a> Array<'a> {
    /// The elements, if they are strings in UTF-8; `None` stands for one that is not.
    pub(crate) fn texts(&self) -> Option<impl Iterator<Item = Option<&'a str>> + use<'a>> {
        let mut rest = self.bytes;
        (self.kind == TEXT).then_some((0..self.len).map(move |_| {
            let (length, tail) = rest.split_first_chunk::<8>()?;
            let (text, tail) = tail.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            rest = tail;
            std::str::from_utf8(text).ok()
        }))
    }

    /// The elements, if they are numbers or booleans.
    pub(crate) fn scalars(&self) -> Option<impl Iterator<Item = Value<'a>> + use<'a>> {
        let kind = self.kind;
        let size = scalar_size(kind)?;
        Some(self.bytes.chunks_exact(size).map(move |bytes| scalar(kind, bytes)))
    }

    /// Name of the element type, for people.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            0 => "u8",
            1 => "i8",
            2 => "u16",
            3 => "i16",
            4 => "u32",
            5 => "i32",
            6 => "f32",
            BOOL => "bool",
            TEXT => "string",
            ARRAY => "array",
            10 => "u64",
            11 => "i64",
            _ => "f64",
        }
    }
}

/// Bytes of a scalar type, or `None` for strings, arrays and unknown types.
fn scalar_size(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Decodes a scalar of `kind` from its `scalar_size(kind)` bytes.
fn scalar(kind: u32, bytes: &[u8]) -> Value<'static> {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match kind {
        1 => Value::Signed(i64::from(bits as i8)),
        3 => Value::Signed(i64::from(bits as i16)),
        5 => Value::Signed(i64::from(bits as i32)),
        6 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        BOOL => Value::Bool(bits != 0),
        11 => Value::Signed(bits as i64),
        12 => Value::Float(f64::from_bits(bits)),
        _ => Value::Unsigned(bits),
    }
}

/// A place in the file. Every read is checked.
struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn fail(&self, reason: String) -> CheckpointError {
        CheckpointError::Malformed { file: self.file.into(), reason }
    }

    fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], CheckpointError> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left => {
                let taken = &self.bytes[self.at..self.at + count];
                self.at += count;
                Ok(taken)
            }
            _ => Err(self.fail(format!(
                "truncated: {what} at byte {} needs {count} bytes, the file has {left} more",
                self.at
            ))),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32, CheckpointError> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64, CheckpointError> {
        let low = self.u32(what)?;
        Ok(u64::from(self.u32(what)?) << 32 | u64::from(low))
    }

    /// Magic, version and counts; gives the number of tensors and of metadata pairs.
    fn preamble(&mut self) -> Result<(u64, u64), CheckpointError> {
        match self.take(4, "magic")? {
            b"GGUF" => {}
            b"FUGG" => return Err(self.fail("big-endian GGUF is not supported".into())),
            other => {
                let magic = quote(&String::from_utf8_lossy(other));
                return Err(self.fail(format!("not a GGUF file: it starts with `{magic}`")));
            }
        }
        let version = self.u32("version")?;
        match version {
            2 | 3 => {}
            _ if (1..=3).contains(&version.swap_bytes()) => {
                return Err(self.fail("big-endian GGUF is not supported".into()));
            }
            _ => {
                return Err(self.fail(format!("GGUF version {version}; 2 and 3 are supported")));
            }
        }
        let (num_tensors, num_pairs) = (self.u64("tensor count")?, self.u64("metadata count")?);
        for (what, count, limit) in
            [("tensors", num_tensors, MAX_TENSORS), ("metadata pairs", num_pairs, MAX_PAIRS)]
        {
            if count > limit {
                return Err(self.fail(format!("{count} {what}; at most {limit}")));
            }
        }
        Ok((num_tensors, num_pairs))
    }

    fn string(&mut self, what: &str) -> Result<&'a str, CheckpointError> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|_| self.fail(format!("{what} is not valid UTF-8")))
    }

    fn key(&mut self) -> Result<&'a str, CheckpointError> {
        let key = self.string("metadata key")?;
        if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.is_ascii() {
            return Err(self.fail(format!(
                "metadata key `{}` has {} bytes; must be 1 to {MAX_KEY_BYTES} bytes of ASCII",
                quote(key),
                key.len()
            )));
        }
        Ok(key)
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value<'a>, CheckpointError> {
        match kind {
            TEXT => Ok(Value::Text(self.string(&format!("value of `{}`", quote(key)))?)),
            ARRAY => Ok(Value::Array(self.array(key, 1)?)),
            _ => {
                let size = self.scalar_size(kind, key)?;
                let bytes = self.take(size, "metadata value")?;
                self.check_booleans(kind, bytes, key)?;
                Ok(scalar(kind, bytes))
            }
        }
    }

    fn scalar_size(&self, kind: u32, key: &str) -> Result<u64, CheckpointError> {
        scalar_size(kind).map(|size| size as u64).ok_or_else(|| {
            self.fail(format!("metadata key `{}` has the unknown value type {kind}", quote(key)))
        })
    }

    fn check_booleans(&self, kind: u32, bytes: &[u8], key: &str) -> Result<(), CheckpointError> {
        match bytes.iter().find(|&&byte| kind == BOOL && byte > 1) {
            None => Ok(()),
            Some(byte) => {
                Err(self.fail(format!("`{}` is the boolean {byte}; must be 0 or 1", quote(key))))
            }
        }
    }

    /// Walks over an array. `depth` arrays are open, this one included.
    fn array(&mut self, key: &str, depth: usize) -> Result<Array<'a>, CheckpointError> {
        if depth > MAX_NESTING {
            let key = quote(key);
            return Err(self.fail(format!("`{key}` nests arrays deeper than {MAX_NESTING}")));
        }
        let kind = self.u32("array type")?;
        let len = self.u64("array length")?;
        let start = self.at;
        match kind {
            TEXT => {
                for _ in 0..len {
                    let length = self.u64("array element")?;
                    self.take(length, "array element")?;
                }
            }
            ARRAY => {
                for _ in 0..len {
                    self.array(key, depth + 1)?;
                }
            }
            _ => {
                let size = self.scalar_size(kind, key)?;
                let total = len.checked_mul(size).ok_or_else(|| {
                    self.fail(format!("`{}` declares {len} elements", quote(key)))
                })?;
                let bytes = self.take(total, "array")?;
                self.check_booleans(kind, bytes, key)?;
            }
        }
        // Each element took at least a byte of the file, so `len` fits.
        Ok(Array { kind, len: len as usize, bytes: &self.bytes[start..self.at] })
    }

    /// One entry of the tensor table; its range starts at its offset in the data.
    fn tensor(&mut self, alignment: usize) -> Result<TensorInfo<'a>, CheckpointError> {
        let name = self.string("tensor name")?;
        let shown = quote(name);
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(self.fail(format!(
                "tensor name `{shown}` has {} bytes; must be 1 to {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        let num_dims = self.u32("number of dimensions")?;
        if num_dims == 0 || num_dims > MAX_DIMS {
            return Err(self.fail(format!(
                "tensor `{shown}` has {num_dims} dimensions; must be 1 to {MAX_DIMS}"
            )));
        }
        let mut dims = [1u64; MAX_DIMS as usize];
        for dim in &mut dims[..num_dims as usize] {
            *dim = self.u64("dimension")?;
        }
        let format = self.u32("tensor type")?;
        let offset = self.u64("tensor offset")?;
        let overflow = |what: &str| self.fail(format!("tensor `{shown}`: {what} overflows"));
        if dims.contains(&0) {
            return Err(self.fail(format!("tensor `{shown}` has a dimension of 0")));
        }
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        elements.ok_or_else(|| overflow("its shape"))?;
        let format = self.format(format, &shown)?;
        if dims[2..] != [1, 1] {
            return Err(CheckpointError::UnsupportedTensor {
                name: shown,
                reason: format!("has shape {dims:?}; only matrices and vectors are supported"),
            });
        }
        let cols = usize::try_from(dims[0]).map_err(|_| overflow("its row"))?;
        let rows = usize::try_from(dims[1]).map_err(|_| overflow("its number of rows"))?;
        if !cols.is_multiple_of(format.block_len()) {
            return Err(self.fail(format!(
                "tensor `{shown}` has rows of {cols}, which is no multiple of the {} of {format}",
                format.block_len()
            )));
        }
        let row_bytes = format.row_bytes(cols).ok_or_else(|| overflow("its row"))?;
        let size = row_bytes.checked_mul(rows).ok_or_else(|| overflow("its size"))?;
        let start = usize::try_from(offset).map_err(|_| overflow("its offset"))?;
        if !start.is_multiple_of(alignment) {
            return Err(self.fail(format!(
                "tensor `{shown}` starts at {start}, which is no multiple of {alignment}"
            )));
        }
        let end = start.checked_add(size).ok_or_else(|| overflow("its end"))?;
        Ok(TensorInfo { name, format, rows, cols, range: start..end })
    }

    fn format(&self, number: u32, tensor: &str) -> Result<WeightFormat, CheckpointError> {
        if let Some(&(_, format)) = FORMATS.iter().find(|(known, _)| *known == number) {
            return Ok(format);
        }
        match OTHER_TYPES.iter().find(|(known, _)| *known == number) {
            Some((_, name)) => Err(CheckpointError::UnsupportedFormat { format: (*name).into() }),
            None => Err(self.fail(format!("tensor `{tensor}` has the unknown type {number}"))),
        }
    }
}

/// Numbers of the supported tensor types.
pub(crate) const FORMATS: [(u32, WeightFormat); 11] = [
    (0, WeightFormat::F32),
    (1, WeightFormat::F16),
    (2, WeightFormat::Q4_0),
    (3, WeightFormat::Q4_1),
    (6, WeightFormat::Q5_0),
    (7, WeightFormat::Q5_1),
    (8, WeightFormat::Q8_0),
    (12, WeightFormat::Q4K),
    (13, WeightFormat::Q5K),
    (14, WeightFormat::Q6K),
    (30, WeightFormat::BF16),
];

/// Numbers of the types that are only named.
const OTHER_TYPES: [(u32, &str); 29] = [
    (4, "Q4_2 (removed from ggml)"),
    (5, "Q4_3 (removed from ggml)"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4 (removed from ggml)"),
    (32, "Q4_0_4_8 (removed from ggml)"),
    (33, "Q4_0_8_8 (removed from ggml)"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4 (removed from ggml)"),
    (37, "IQ4_NL_4_8 (removed from ggml)"),
    (38, "IQ4_NL_8_8 (removed from ggml)"),
    (39, "MXFP4"),
];
