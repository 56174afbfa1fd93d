//! A GGUF file without its last layers: the same model, shallower. Metadata and tensors are copied
//! as they are; the count of layers and the places of tensors are written anew.

use anyhow::{Context, Result, bail, ensure};

const MAGIC: &[u8] = b"GGUF";
/// Tensors start at multiples of this unless the file says otherwise, which ours does not.
const ALIGNMENT: usize = 32;
const KIND_U32: u32 = 4;
const KIND_STRING: u32 = 8;
const KIND_ARRAY: u32 = 9;

/// Reads numbers and strings, front to back.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..len).context("the file ends early")?;
        self.at += len;
        Ok(taken)
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }
    fn text(&mut self) -> Result<&'a str> {
        let len = usize::try_from(self.u64()?)?;
        Ok(std::str::from_utf8(self.take(len)?)?)
    }
    /// Passes over a value.
    fn skip(&mut self, kind: u32) -> Result<()> {
        match kind {
            0 | 1 | 7 => self.take(1).map(drop),
            2 | 3 => self.take(2).map(drop),
            KIND_U32 | 5 | 6 => self.take(4).map(drop),
            10..=12 => self.take(8).map(drop),
            KIND_STRING => self.text().map(drop),
            KIND_ARRAY => {
                let (kind, len) = (self.u32()?, self.u64()?);
                ensure!(kind != KIND_ARRAY, "an array of arrays");
                (0..len).try_for_each(|_| self.skip(kind))
            }
            other => bail!("a value of unknown kind {other}"),
        }
    }
}

struct Tensor<'a> {
    name: &'a str,
    /// Dimensions and type, as they stand in the file.
    shape: &'a [u8],
    offset: usize,
}

/// The file with `layers` layers.
pub fn cut(file: &[u8], layers: u32) -> Result<Vec<u8>> {
    let mut reader = Reader { bytes: file, at: 0 };
    ensure!(reader.take(4)? == MAGIC, "no GGUF file");
    let version = reader.u32()?;
    let (num_tensors, num_pairs) = (reader.u64()?, reader.u64()?);
    let start = reader.at;
    let mut count_at = None;
    for _ in 0..num_pairs {
        let key = reader.text()?;
        let kind = reader.u32()?;
        if key.ends_with(".block_count") {
            ensure!(kind == KIND_U32, "{key} is of kind {kind}");
            count_at = Some(reader.at - start);
        }
        ensure!(key != "general.alignment", "the file has an alignment of its own");
        reader.skip(kind)?;
    }
    let mut pairs = file[start..reader.at].to_vec();
    let count_at = count_at.context("the file does not say how many layers it has")?;
    pairs[count_at..count_at + 4].copy_from_slice(&layers.to_le_bytes());
    let mut tensors = Vec::new();
    for _ in 0..num_tensors {
        let name = reader.text()?;
        let from = reader.at;
        let dimensions = reader.u32()? as usize;
        reader.take(dimensions * 8 + 4)?;
        let shape = &file[from..reader.at];
        tensors.push(Tensor { name, shape, offset: usize::try_from(reader.u64()?)? });
    }
    let data = file.get(reader.at.next_multiple_of(ALIGNMENT)..).context("no tensors")?;
    let kept: Vec<&Tensor> = tensors.iter().filter(|tensor| is_kept(tensor.name, layers)).collect();

    let mut out = [MAGIC, &version.to_le_bytes()].concat();
    out.extend((kept.len() as u64).to_le_bytes());
    out.extend(num_pairs.to_le_bytes());
    out.extend(pairs);
    let mut body = Vec::new();
    for tensor in kept {
        out.extend((tensor.name.len() as u64).to_le_bytes());
        out.extend(tensor.name.as_bytes());
        out.extend(tensor.shape);
        out.extend((body.len() as u64).to_le_bytes());
        // Up to the next tensor: its own bytes, and the padding after them.
        let after = tensors.iter().map(|other| other.offset).filter(|&at| at > tensor.offset);
        let end = after.min().unwrap_or(data.len());
        body.extend(data.get(tensor.offset..end).context("a tensor lies outside the file")?);
        body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(body);
    Ok(out)
}

fn is_kept(name: &str, layers: u32) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_none_or(|layer: u32| layer < layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [&text(key)[..], &kind.to_le_bytes(), value].concat()
    }

    /// A file of two pairs and tensors of 40 bytes, each filled with its number.
    fn file(names: &[&str], layers: u32) -> Vec<u8> {
        let mut file = [MAGIC, &3u32.to_le_bytes()].concat();
        file.extend((names.len() as u64).to_le_bytes());
        file.extend(2u64.to_le_bytes());
        file.extend(pair("general.architecture", KIND_STRING, &text("llama")));
        file.extend(pair("llama.block_count", KIND_U32, &layers.to_le_bytes()));
        let mut body = Vec::new();
        for (number, name) in (1..).zip(names) {
            file.extend(text(name));
            file.extend(1u32.to_le_bytes());
            file.extend(10u64.to_le_bytes());
            file.extend(0u32.to_le_bytes());
            file.extend((body.len() as u64).to_le_bytes());
            body.extend([number; 40]);
            body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(body);
        file
    }

    #[test]
    fn cutting_all_layers_but_some_gives_the_file_that_has_only_these() {
        let names = ["token_embd.weight", "blk.0.x", "blk.1.x", "blk.10.x", "output_norm.weight"];
        let whole = file(&names, 11);
        assert_eq!(cut(&whole, 11).expect("it is well-formed"), whole);
        let short = cut(&whole, 1).expect("it is well-formed");
        let numbers: Vec<u8> = short[short.len() - 3 * 64..].iter().copied().step_by(64).collect();
        assert_eq!(numbers, [1, 2, 5]);
        assert_eq!(cut(&short, 1).expect("it is well-formed"), short);
        for len in [0, 3, 10, 40, whole.len() / 2] {
            assert!(cut(&whole[..len], 1).is_err(), "{len}");
        }
    }
}
