//! Activations: one arena, reserved once, from which tensors take ranges and to which they return
//! them when dropped. All use is in the order of one stream, so a range may be handed on at once.
//!
//! A recorded step names addresses, so its result must lie where it lay when it was recorded:
//! [`Arena::take_at`].

use std::sync::{Arc, Mutex};

use pagedllm_backend::DeviceError;
use pagedllm_core::DType;

use crate::device::{Device, DeviceBuffer};

/// Tensors start at multiples of this, so that every vector access is aligned.
const ALIGNMENT: usize = 256;

/// The memory of all activations.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    buffer: DeviceBuffer,
    /// Ranges in use, by offset.
    used: Mutex<Vec<(usize, usize)>>,
}

/// A matrix in the arena.
#[derive(Debug)]
pub struct Tensor {
    shared: Arc<Shared>,
    offset: usize,
    rows: usize,
    cols: usize,
    dtype: DType,
}

impl Arena {
    /// Reserves `bytes`.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DeviceError> {
        let buffer = DeviceBuffer::new(device, bytes, "activations")?;
        Ok(Self { shared: Arc::new(Shared { buffer, used: Mutex::new(Vec::new()) }) })
    }

    /// A matrix at the lowest place where it fits.
    ///
    /// # Panics
    /// If it fits nowhere: `reserve_workspace` reserved too little, which is a bug.
    pub fn take(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let bytes = bytes(rows, cols, dtype);
        let mut used = self.shared.lock();
        let mut offset = 0;
        let mut place = 0;
        for &(start, len) in used.iter() {
            if offset + bytes <= start {
                break;
            }
            offset = start + len;
            place += 1;
        }
        assert!(
            offset + bytes <= self.shared.buffer.bytes(),
            "an activation of {rows} x {cols} does not fit the workspace"
        );
        used.insert(place, (offset, bytes));
        drop(used);
        Tensor { shared: self.shared.clone(), offset, rows, cols, dtype }
    }

    /// The matrix that lay at `like`'s place when a step was recorded.
    ///
    /// # Panics
    /// If the place is in use: a step was issued while tensors of another one lived.
    pub fn take_at(&self, place: Place) -> Tensor {
        let Place { offset, rows, cols, dtype } = place;
        let len = bytes(rows, cols, dtype);
        let mut used = self.shared.lock();
        let index = used.partition_point(|&(start, _)| start < offset);
        let is_free = used.get(index).is_none_or(|&(start, _)| offset + len <= start)
            && (index == 0 || used[index - 1].0 + used[index - 1].1 <= offset);
        assert!(is_free, "the workspace is empty when a step is issued");
        used.insert(index, (offset, len));
        drop(used);
        Tensor { shared: self.shared.clone(), offset, rows, cols, dtype }
    }
}

/// Where a tensor lies, and its shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    offset: usize,
    rows: usize,
    cols: usize,
    dtype: DType,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(usize, usize)>> {
        self.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn bytes(rows: usize, cols: usize, dtype: DType) -> usize {
    (rows * cols * dtype.size()).next_multiple_of(ALIGNMENT).max(ALIGNMENT)
}

impl Tensor {
    /// Address of the first element.
    pub(crate) fn address(&self) -> u64 {
        self.shared.buffer.address() + self.offset as u64
    }
    /// Rows, those of padding included.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    pub(crate) fn place(&self) -> Place {
        Place { offset: self.offset, rows: self.rows, cols: self.cols, dtype: self.dtype }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let mut used = self.shared.lock();
        let index = used.partition_point(|&(start, _)| start < self.offset);
        used.remove(index);
    }
}
