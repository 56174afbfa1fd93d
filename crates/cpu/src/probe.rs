//! What the conformance suite needs of this backend.

use pagedllm_backend::conformance::Probe;

use crate::backend::CpuBackend;
use crate::kv_cache::KvCache;
use crate::workspace::Tensor;

impl Probe for CpuBackend {
    fn upload(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        let mut tensor = self.tensor(rows, cols);
        tensor.copy_from_slice(values);
        tensor
    }
    fn upload_residual(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        self.upload(rows, cols, values)
    }
    fn upload_logits(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        self.upload(rows, cols, values)
    }
    fn download(&mut self, tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec()
    }
    fn poison(&mut self, kv: &mut KvCache) {
        kv.poison();
    }
}
