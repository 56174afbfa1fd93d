//! Products of few rows on Hopper as launches: `kernels/linear/few_rows.cu`.

use bytemuck::{Pod, Zeroable};
use pagedllm_backend::{Activation, DeviceError};
use pagedllm_core::DType;

use crate::backend::CudaBackend;
use crate::dispatch::{self, FEW_ROWS, FEW_ROWS_TILE, FewRowsShape, suffix};
use crate::kernel::Kernels;
use crate::launch::tensor_map::TensorMap;
use crate::launch::{Arg, Function, Shape};
use crate::linear::{DenseProduct, Linear, Norm};
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
    eps: f32,
    residual: u64,
    gain: u64,
    squares: u64,
}

/// What a product does of an RMSNorm beside it. Addresses are those of `FewRowsParams`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NormPart {
    None,
    /// The norm follows, behind the sum with the residual stream.
    Before {
        residual: u64,
        gain: u64,
        squares: u64,
    },
    /// The product takes the norm's result.
    Behind {
        squares: u64,
        eps: f32,
    },
}

/// A product that is not issued yet, so that it can take its part of the norm behind it.
///
/// Its x needs no keeping: it is issued before anything else that may write to x's range.
#[derive(Debug)]
pub(crate) struct Pending {
    product: DenseProduct,
    /// For the squares, `[rows, tiles]`. Taken while x has its range, since the same launch reads x.
    squares: Tensor,
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
    /// The kernel for few rows for a product, and its launch. `None` where there is none for it.
    fn few_rows(&self, p: &DenseProduct, has_gate: bool) -> Option<(Function, FewRowsShape)> {
        let FewRows(functions) = self.verbs.few_rows.as_ref()?;
        let shape = dispatch::few_rows(p.rows, p.outputs, p.inputs, has_gate)?;
        (p.out_dtype == self.options.dtype).then(|| (functions[shape.kernel], shape))
    }

    /// A product by the kernel for few rows; with an activation, that of gate and up, whose result has
    /// half the columns. False where there is no kernel for it.
    pub(crate) fn issue_few_rows(
        &mut self,
        p: DenseProduct,
        activation: Option<Activation>,
        norm: NormPart,
    ) -> bool {
        let dtype = self.options.dtype;
        let Some((function, shape)) = self.few_rows(&p, activation.is_some()) else {
            return false;
        };
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
        let (residual, gain, squares, eps) = match norm {
            NormPart::None => (0, 0, 0, 0.0),
            NormPart::Before { residual, gain, squares } => (residual, gain, squares, 0.0),
            NormPart::Behind { squares, eps } => (0, 0, squares, eps),
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
            eps,
            residual,
            gain,
            squares,
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
        let out = self.take(x.rows(), w.outputs / 2, self.options.dtype);
        if self.issue_few_rows(w.product(&x, &out), Some(activation), NormPart::None) {
            return out;
        }
        drop(out);
        let gate_up = self.issue_linear(&x, w);
        drop(x);
        self.issue_gated(&gate_up, activation)
    }

    /// Lets a product wait for what is issued next. False where it cannot take part in a norm: f16
    /// has no range for rows that are not normed yet.
    pub(crate) fn keep_pending(&mut self, product: DenseProduct) -> bool {
        let may_wait = self.is_recording && self.options.dtype == DType::BF16;
        if !may_wait || self.few_rows(&product, false).is_none() {
            return false;
        }
        self.issue_pending();
        let tiles = product.outputs.div_ceil(FEW_ROWS_TILE);
        let squares = self.take(product.rows, tiles, DType::F32);
        self.pending = Some(Pending { product, squares });
        true
    }

    /// Issues the product that waits as it is.
    pub(crate) fn issue_pending(&mut self) {
        if let Some(Pending { product, .. }) = self.pending.take() {
            self.issue_few_rows(product, None, NormPart::None);
        }
    }

    /// Issues the product that waits for its norm, and the product of the norm's result with `w`; with
    /// an activation, that of gate and up, gated. `None`, and nothing is issued, where `x` is not what
    /// waits or there is no kernel for few rows for `w`.
    pub(crate) fn issue_around_norm(
        &mut self,
        x: &Tensor,
        residual: &mut Tensor,
        norm: &Norm,
        w: &Linear,
        activation: Option<Activation>,
    ) -> Option<Tensor> {
        assert_eq!(residual.dtype(), DType::F32, "the residual stream");
        if self.pending.as_ref().is_none_or(|pending| pending.product.y != x.address()) {
            return None;
        }
        let has_gate = activation.is_some();
        let cols = if has_gate { w.outputs / 2 } else { w.outputs };
        let out = self.take(x.rows(), cols, self.options.dtype);
        let second = w.product(x, &out);
        self.few_rows(&second, has_gate)?;
        let first = self.pending.take()?;
        // The rows times the gain lie in x, which is not written otherwise.
        let squares = first.squares.address();
        let (residual, gain) = (residual.address(), norm.gain.address());
        let before = NormPart::Before { residual, gain, squares };
        self.issue_few_rows(first.product, None, before);
        self.issue_few_rows(second, activation, NormPart::Behind { squares, eps: norm.eps });
        Some(out)
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
