//! Data in and out of activations, for the conformance suite.

use half::{bf16, f16};
use pagedllm_backend::conformance::Probe;
use pagedllm_core::{DType, WeightFormat, WeightView};

use crate::backend::CudaBackend;
use crate::device::{HostBuffer, fill_words};
use crate::kv::KvCache;
use crate::workspace::Tensor;

impl CudaBackend {
    fn upload_as(&mut self, rows: usize, cols: usize, values: &[f32], dtype: DType) -> Tensor {
        let tensor = self.work().arena.take(rows, cols, dtype);
        let view = WeightView {
            name: "an activation".into(),
            format: WeightFormat::F32,
            rows: 1,
            cols: values.len(),
            data: bytemuck::cast_slice(values).into(),
        };
        let copied = self.loader.copy(&view, dtype, tensor.address());
        self.note(copied);
        tensor
    }
}

impl Probe for CudaBackend {
    fn upload(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        self.upload_as(rows, cols, values, self.options.dtype)
    }

    fn upload_residual(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        self.upload_as(rows, cols, values, DType::F32)
    }

    fn upload_logits(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        self.upload_as(rows, cols, values, DType::F32)
    }

    fn download(&mut self, tensor: &Tensor) -> Vec<f32> {
        let len = tensor.rows() * tensor.cols();
        let words = (len * tensor.dtype().size()).div_ceil(4);
        let mut host = HostBuffer::new(&self.device, words).expect("page-locked memory");
        host.download(tensor.address(), 0, words).expect("a copy starts");
        self.device.synchronize().expect("no device fault");
        let bytes = bytemuck::cast_slice::<u32, u8>(host.words());
        match tensor.dtype() {
            DType::F16 => bytemuck::cast_slice::<u8, f16>(&bytes[..len * 2])
                .iter()
                .map(|value| value.to_f32())
                .collect(),
            DType::BF16 => bytemuck::cast_slice::<u8, bf16>(&bytes[..len * 2])
                .iter()
                .map(|value| value.to_f32())
                .collect(),
            DType::F32 | DType::Fp8E4M3 => bytemuck::cast_slice(&bytes[..len * 4]).to_vec(),
        }
    }

    fn poison(&mut self, kv: &mut KvCache) {
        // All bits set is NaN in every element type.
        for group in &kv.groups {
            let words = group.buffer.bytes() / 4;
            let filled = fill_words(&self.device, group.buffer.address(), u32::MAX, words);
            self.note(filled);
        }
    }
}
