//! Matrices on the device, by format, and which product serves which.

use pagedllm_core::DType;

use crate::device::DeviceBuffer;
use crate::workspace::Tensor;

/// A packed linear layer.
#[derive(Debug)]
pub struct Linear {
    pub(crate) weights: Weights,
    /// `[outputs]`, of the activations' type.
    pub(crate) bias: Option<DeviceBuffer>,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// How the matrix is packed. Formats that stay quantized on the device get a variant each; what
/// has none yet is multiplied out at load.
#[derive(Debug)]
pub(crate) enum Weights {
    /// `[outputs, inputs]`, of the activations' type.
    Dense(DeviceBuffer),
}

impl Linear {
    /// The product of `x` into `y`, whose columns are the outputs, or half of them where a gate is
    /// behind it.
    pub(crate) fn product(&self, x: &Tensor, y: &Tensor) -> DenseProduct {
        assert_eq!(x.cols(), self.inputs, "inputs of a product");
        let Weights::Dense(weights) = &self.weights;
        DenseProduct {
            x: x.address(),
            w: weights.address(),
            bias: self.bias.as_ref().map_or(0, DeviceBuffer::address),
            y: y.address(),
            rows: x.rows(),
            outputs: self.outputs,
            inputs: self.inputs,
            out_dtype: y.dtype(),
        }
    }
}

/// A vocabulary matrix `[rows, cols]`, of the activations' type.
#[derive(Debug)]
pub struct Vocab {
    pub(crate) table: DeviceBuffer,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// A gain `[cols]` in f32, and its epsilon.
#[derive(Debug)]
pub struct Norm {
    pub(crate) gain: DeviceBuffer,
    pub(crate) cols: usize,
    pub(crate) eps: f32,
}

/// A dense product as the backend issues it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseProduct {
    pub x: u64,
    pub w: u64,
    /// 0 where there is none.
    pub bias: u64,
    pub y: u64,
    pub rows: usize,
    pub outputs: usize,
    pub inputs: usize,
    pub out_dtype: DType,
}
