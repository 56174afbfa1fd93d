//! Matrices on the device, by format, and which product serves which.

use pagedllm_core::DType;

use crate::device::DeviceBuffer;

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
