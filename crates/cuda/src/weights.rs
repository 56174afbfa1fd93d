//! Weights from the mapped file to the device, converted on the way, through two page-locked
//! buffers, so that the host never holds a second copy of the model.

use std::sync::Arc;

use half::{bf16, f16};
use pagedllm_backend::{DeviceError, dequantize};
use pagedllm_core::{DType, WeightFormat, WeightView};

use crate::device::{Device, DeviceBuffer, Staging};

/// Bytes of each of the two buffers.
const STAGING_BYTES: usize = 16 << 20;

/// The way of weights to the device.
#[derive(Debug)]
pub(crate) struct Loader {
    device: Arc<Device>,
    staging: Staging,
}

impl Loader {
    /// Allocates the buffers.
    pub fn new(device: &Arc<Device>) -> Result<Self, DeviceError> {
        Ok(Self { device: device.clone(), staging: Staging::new(device, STAGING_BYTES / 4)? })
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
        let mut values = vec![0.0; len];
        let bytes = blocks * len * dtype.size();
        self.copy_with(bytes, to, |range, out| {
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

    /// Copies `bytes` bytes, which `fill` produces range by range. Ranges start at multiples of
    /// 4096 bytes.
    fn copy_with(
        &mut self,
        bytes: usize,
        to: u64,
        mut fill: impl FnMut(std::ops::Range<usize>, &mut [u8]),
    ) -> Result<(), DeviceError> {
        self.device.bind()?;
        for start in (0..bytes).step_by(STAGING_BYTES) {
            let len = STAGING_BYTES.min(bytes - start);
            let out = &mut bytemuck::cast_slice_mut::<u32, u8>(self.staging.words()?)[..len];
            fill(start..start + len, out);
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
