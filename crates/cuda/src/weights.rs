//! Weights from the mapped file to the device, converted on the way, through two page-locked
//! buffers, so that the host never holds a second copy of the model. While the device reads one
//! buffer, threads fill the other: reading a file and multiplying blocks out take longer than the
//! way over the bus.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use pagedllm_backend::{DeviceError, dequantize};
use pagedllm_core::{DType, WeightFormat, WeightView};

use crate::device::{Device, DeviceBuffer, Staging};

/// Bytes of each of the two buffers.
const STAGING_BYTES: usize = 16 << 20;
/// Most threads that fill a buffer; more do not read a file faster.
const MAX_THREADS: usize = 8;
/// Ranges that threads fill are multiples of this, so they begin at whole pages of the file and at
/// whole blocks of every format; smaller copies are not worth a thread.
const RANGE_BYTES: usize = 256 << 10;

/// The way of weights to the device.
#[derive(Debug)]
pub(crate) struct Loader {
    device: Arc<Device>,
    staging: Staging,
    num_threads: usize,
}

impl Loader {
    /// Allocates the buffers.
    pub fn new(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            device: device.clone(),
            staging: Staging::new(device, STAGING_BYTES / 4)?,
            num_threads: cores.min(MAX_THREADS),
        })
    }

    /// Starts copying `weight` as `dtype` to `to`. Block formats are multiplied out exactly and
    /// then rounded to `dtype`.
    pub fn copy(
        &mut self,
        weight: &WeightView<'_>,
        dtype: DType,
        to: u64,
    ) -> Result<(), DeviceError> {
        let as_stored = matches!(
            (weight.format, dtype),
            (WeightFormat::F32, DType::F32)
                | (WeightFormat::F16, DType::F16)
                | (WeightFormat::BF16, DType::BF16)
        );
        if as_stored {
            let bytes = weight.rows * weight.row_bytes();
            return self.copy_with(bytes, to, |range, out| {
                out.copy_from_slice(&weight.data[range]);
            });
        }
        // Whole blocks, as many as fit.
        let (len, block) = (weight.format.block_len(), weight.format.block_bytes());
        let blocks = weight.rows * weight.cols / len;
        let bytes = blocks * len * dtype.size();
        self.copy_with(bytes, to, |range, out| {
            let mut values = vec![0.0; len];
            let first = range.start / (len * dtype.size());
            for (index, out) in out.chunks_exact_mut(len * dtype.size()).enumerate() {
                let at = (first + index) * block;
                dequantize::row(weight.format, &weight.data[at..at + block], &mut values);
                for (&value, out) in values.iter().zip(out.chunks_exact_mut(dtype.size())) {
                    write(value, dtype, out);
                }
            }
        })
    }

    /// Copies `bytes` bytes, which `fill` produces range by range, on several threads. Ranges
    /// start at multiples of `RANGE_BYTES`.
    fn copy_with(
        &mut self,
        bytes: usize,
        to: u64,
        fill: impl Fn(Range<usize>, &mut [u8]) + Sync,
    ) -> Result<(), DeviceError> {
        self.device.bind()?;
        for start in (0..bytes).step_by(STAGING_BYTES) {
            let len = STAGING_BYTES.min(bytes - start);
            let out = &mut bytemuck::cast_slice_mut::<u32, u8>(self.staging.words()?)[..len];
            fill_in_parts(start, out, self.num_threads, &fill);
            self.staging.send(to + start as u64, len.div_ceil(4))?;
        }
        Ok(())
    }

    /// A new buffer with `weight` as `dtype`.
    pub fn load(
        &mut self,
        weight: &WeightView<'_>,
        dtype: DType,
    ) -> Result<DeviceBuffer, DeviceError> {
        let bytes = weight.rows * weight.cols * dtype.size();
        let buffer = DeviceBuffer::new(&self.device, padded(bytes), &weight.name)?;
        self.copy(weight, dtype, buffer.address())?;
        Ok(buffer)
    }
}

/// Fills `out`, which begins at byte `start` of the whole.
fn fill_in_parts(
    start: usize,
    out: &mut [u8],
    num_threads: usize,
    fill: &(impl Fn(Range<usize>, &mut [u8]) + Sync),
) {
    let each =
        out.len().div_ceil(num_threads.max(1)).next_multiple_of(RANGE_BYTES).max(RANGE_BYTES);
    let mut parts = out.chunks_mut(each).enumerate().map(|(index, part)| {
        let first = start + index * each;
        (first..first + part.len(), part)
    });
    let Some((own_range, own_part)) = parts.next() else { return };
    std::thread::scope(|scope| {
        for (range, part) in parts {
            scope.spawn(move || fill(range, part));
        }
        fill(own_range, own_part);
    });
}

/// Room for whole words.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// Writes one element.
pub(crate) fn write(value: f32, dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        DType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F32 | DType::Fp8E4M3 => out.copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_filled_once_from_its_own_place() {
        let byte = |at: usize| (at % 251) as u8 + 1;
        for len in [0, 1, 5, RANGE_BYTES, RANGE_BYTES + 1, 3 * RANGE_BYTES + 7, STAGING_BYTES] {
            for threads in [1, 2, 3, 8, 64] {
                let start = 7 * RANGE_BYTES;
                let mut out = vec![0; len];
                fill_in_parts(start, &mut out, threads, &|range: Range<usize>, out: &mut [u8]| {
                    assert!(range.start.is_multiple_of(RANGE_BYTES) && range.len() == out.len());
                    for (at, out) in range.zip(out) {
                        *out += byte(at);
                    }
                });
                assert!(out.iter().enumerate().all(|(at, &value)| value == byte(start + at)));
            }
        }
    }
}
