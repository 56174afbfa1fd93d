//! Weights on their way from a file to a device.

use std::borrow::Cow;

use crate::WeightFormat;

/// One matrix or vector of a checkpoint, as stored. A vector has one row.
///
/// The bytes usually borrow from the mapped file; they are owned where the file's row order had
/// to be undone.
#[derive(Clone, Debug)]
pub struct WeightView<'a> {
    /// Checkpoint name, for messages.
    pub name: String,
    /// How the bytes are to be read.
    pub format: WeightFormat,
    /// Rows, which are outputs.
    pub rows: usize,
    /// Columns, which are inputs.
    pub cols: usize,
    /// `rows x row_bytes(cols)` bytes, rows one after the other.
    pub data: Cow<'a, [u8]>,
}

impl WeightView<'_> {
    /// Bytes of one row.
    ///
    /// # Panics
    /// If `cols` is no whole number of blocks; `checkpoint` refuses such tensors.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.cols).expect("checked when the tensor was opened")
    }
    /// The bytes of row `row`.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..(row + 1) * bytes]
    }
}

/// One of the matrices that a packed linear layer is made of (q, k and v of a `qkv_proj`).
#[derive(Clone, Debug)]
pub struct LinearPart<'a> {
    /// `[out, in]`.
    pub weight: WeightView<'a>,
    /// `[out]`, added to the product.
    pub bias: Option<WeightView<'a>>,
}

/// How tensor parallel shares a matrix between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Each rank has some outputs of each part (column-parallel); the result is split.
    Outputs,
    /// Each rank has some inputs (row-parallel); the result is a partial sum.
    Inputs,
    /// Every rank has the whole matrix.
    Whole,
}
