//! Products of few rows on Hopper as launches: `kernels/linear/few_rows.cu`.

use bytemuck::{Pod, Zeroable};
use pagedllm_backend::{Activation, DeviceError};
use pagedllm_core::DType;

use super::address;
use crate::backend::CudaBackend;
use crate::dispatch::{self, FEW_ROWS, suffix};
use crate::kernel::Kernels;
use crate::launch::tensor_map::TensorMap;
use crate::launch::{Arg, Function, Shape};
use crate::linear::{DenseProduct, Linear, Weights};
use crate::workspace::Tensor;

/// Rows of a box of w: those of a warpgroup.
const BOX_ROWS: usize = 64;

/// Parameters of the kernels. `kernels/linear/few_rows.cu` has the same struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct FewRowsParams {
    w: TensorMap,
    x: TensorMap,
    bias: u64,
    y: u64,
    rows: u32,
    outputs: u32,
    inputs: u32,
    gate: u32,
    stages: u32,
    unused: [u32; 7],
}

/// `FewRowsParams::gate`. `kernels/include/pagedllm/plan.h` has the same numbers.
fn gate(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::GeluTanh) => 2,
    }
}

/// The kernels, one for each of `FEW_ROWS`.
#[derive(Debug)]
pub(crate) struct FewRows([Function; FEW_ROWS.len()]);

impl FewRows {
    /// `None` where the device's code has no such kernels: they are for Hopper and 16-bit elements.
    pub fn new(kernels: &Kernels, dtype: DType) -> Result<Option<Self>, DeviceError> {
        let mut functions = Vec::new();
        for rows in FEW_ROWS {
            let name = format!("linear_few_rows_{}_n{rows}", suffix(dtype));
            let Ok(function) = kernels.get(&name) else { return Ok(None) };
            function.allow_shared(dispatch::few_rows_ring(rows).1)?;
            functions.push(function);
        }
        Ok(functions.try_into().ok().map(Self))
    }
}

impl CudaBackend {
    /// A product by the kernel for few rows; with an activation, that of gate and up, whose result has
    /// half the columns. False where there is no kernel for it.
    pub(crate) fn issue_few_rows(
        &mut self,
        p: DenseProduct,
        activation: Option<Activation>,
    ) -> bool {
        let dtype = self.options.dtype;
        let Some(FewRows(functions)) = &self.verbs.few_rows else { return false };
        let shape = dispatch::few_rows(p.rows, p.outputs, p.inputs, activation.is_some());
        let Some(shape) = shape.filter(|_| p.out_dtype == dtype) else { return false };
        let function = functions[shape.kernel];
        let box_rows = FEW_ROWS[shape.kernel];
        let maps = TensorMap::matrix(p.w, p.outputs, p.inputs, BOX_ROWS, dtype).and_then(|w| {
            let x = TensorMap::matrix(p.x, p.rows, p.inputs, box_rows, dtype)?;
            Ok((w, x))
        });
        let (w, x) = match maps {
            Ok(maps) => maps,
            Err(error) => {
                self.note(Err(error));
                return true;
            }
        };
        let params = FewRowsParams {
            w,
            x,
            bias: p.bias,
            y: p.y,
            rows: p.rows as u32,
            outputs: p.outputs as u32,
            inputs: p.inputs as u32,
            gate: gate(activation),
            stages: shape.stages as u32,
            unused: [0; 7],
        };
        let launch = Shape {
            shared: shape.shared,
            cluster: shape.ranks,
            ..Shape::new([shape.blocks, 1, 1], shape.threads)
        };
        self.issue(function, launch, &[Arg::Struct(bytemuck::bytes_of(&params))]);
        true
    }

    /// `x . w^T`, gate and up, gated: in one launch where there is a kernel for it.
    pub(crate) fn issue_gated_product(
        &mut self,
        x: Tensor,
        w: &Linear,
        activation: Activation,
    ) -> Tensor {
        assert_eq!(x.cols(), w.inputs, "inputs of a product");
        let dtype = self.options.dtype;
        let out = self.take(x.rows(), w.outputs / 2, dtype);
        let Weights::Dense(weights) = &w.weights;
        let product = DenseProduct {
            x: x.address(),
            w: weights.address(),
            bias: address(w.bias.as_ref()),
            y: out.address(),
            rows: x.rows(),
            outputs: w.outputs,
            inputs: w.inputs,
            out_dtype: dtype,
        };
        if self.issue_few_rows(product, Some(activation)) {
            return out;
        }
        drop(out);
        let gate_up = self.issue_linear(&x, w);
        drop(x);
        self.issue_gated(&gate_up, activation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_size_of_the_kernel_s() {
        assert_eq!(size_of::<FewRowsParams>(), 320);
    }
}
