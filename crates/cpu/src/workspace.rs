//! Memory: page-aligned buffers that the system zeroes when they are first touched, the arena
//! that activations come from, and each worker's scratch.
//!
//! After the first step of a size nothing here allocates: a dropped activation returns to the
//! arena, and scratch only grows.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use memmap2::MmapMut;
use pagedllm_backend::DeviceError;

/// Page-aligned zeroes that take memory only where they were touched.
pub struct Buffer<T> {
    map: Option<MmapMut>,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Default for Buffer<T> {
    fn default() -> Self {
        Self { map: None, len: 0, element: PhantomData }
    }
}

impl<T: Pod> Buffer<T> {
    /// `len` zeroes for `what`.
    ///
    /// # Errors
    /// The system has not that much memory left.
    pub fn new(len: usize, what: &str) -> Result<Self, DeviceError> {
        let needed_bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let out_of_memory = || DeviceError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes,
            free_bytes: available_bytes(),
        };
        if len == 0 {
            return Ok(Self::default());
        }
        // Small ones are not worth a look at the system's accounts.
        if needed_bytes > 1 << 24 && needed_bytes > available_bytes() {
            return Err(out_of_memory());
        }
        let bytes = usize::try_from(needed_bytes).map_err(|_| out_of_memory())?;
        let map = MmapMut::map_anon(bytes).map_err(|_| out_of_memory())?;
        #[cfg(target_os = "linux")]
        if bytes >= 1 << 21 {
            // Only a hint: without huge pages the buffer works as well, with more page walks.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map: Some(map), len, element: PhantomData })
    }
    /// Grows to at least `len` elements; the contents are lost when it grows.
    ///
    /// # Panics
    /// If the system is out of memory.
    pub fn grow(&mut self, len: usize) {
        if len > self.len {
            *self = Self::new(len.next_power_of_two(), "scratch").expect("memory for scratch");
        }
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |map| bytemuck::cast_slice(&map[..self.len * size_of::<T>()]))
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map
            .as_mut()
            .map_or(&mut [], |map| bytemuck::cast_slice_mut(&mut map[..self.len * size_of::<T>()]))
    }
}

/// Bytes that the system can still give without swapping, the limit of a container included.
#[must_use]
pub fn available_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |text: String| text.trim().parse::<u64>().ok();
    let system = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let limit = read("/sys/fs/cgroup/memory.max").and_then(number);
    let used = read("/sys/fs/cgroup/memory.current").and_then(number);
    let container = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    // Where the system does not say, a size that any machine fit for inference has.
    const UNKNOWN: u64 = 4 << 30;
    match (system, container) {
        (Some(system), Some(container)) => system.min(container),
        (Some(system), None) => system,
        (None, Some(container)) => container,
        (None, None) => UNKNOWN,
    }
}

/// Free activation buffers.
#[derive(Default)]
pub struct Arena {
    free: Mutex<Vec<Buffer<f32>>>,
}

impl Arena {
    /// Puts `count` buffers of `len` elements into the arena.
    ///
    /// # Errors
    /// Out of memory.
    pub fn reserve(&self, count: usize, len: usize) -> Result<(), DeviceError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // Room for every buffer that may ever come back.
        free.reserve(64);
        for _ in 0..count {
            free.push(Buffer::new(len, "activations")?);
        }
        Ok(())
    }

    /// An activation `[rows, cols]` with unspecified contents. Takes the smallest free buffer
    /// that is large enough; makes one where none is.
    ///
    /// # Panics
    /// If there is no memory for a buffer that was not reserved.
    #[must_use]
    pub fn take(self: &Arc<Self>, rows: usize, cols: usize) -> Tensor {
        let len = rows * cols;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = (0..free.len()).filter(|&i| free[i].len() >= len).min_by_key(|&i| free[i].len());
        let buffer = match fit {
            Some(index) => free.swap_remove(index),
            None => Buffer::new(len, "activations").expect("memory for an activation"),
        };
        drop(free);
        Tensor { rows, cols, buffer, arena: Arc::clone(self) }
    }
}

/// An activation, `[rows, cols]` in f32. Its memory goes back to the arena when it is dropped.
pub struct Tensor {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    buffer: Buffer<f32>,
    arena: Arc<Arena>,
}

impl Tensor {
    /// One row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self[row * self.cols..(row + 1) * self.cols]
    }
}

impl Deref for Tensor {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.buffer[..self.rows * self.cols]
    }
}

impl DerefMut for Tensor {
    fn deref_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.cols;
        &mut self.buffer[..len]
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.arena.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

/// What one worker needs for itself; kept from loop to loop, so that nothing is allocated in one.
#[derive(Default)]
pub struct Scratch {
    /// A panel of weights or a strip of keys, expanded.
    pub panel: Buffer<f32>,
    /// Values, expanded.
    pub values: Buffer<f32>,
    /// Attention scores, or a partial tile of a product.
    pub tile: Buffer<f32>,
    /// Gathered queries.
    pub queries: Buffer<f32>,
    /// Attention sums.
    pub sums: Buffer<f32>,
    /// Running maximum and total of each attention row.
    pub totals: Buffer<f32>,
}

impl Scratch {
    /// Makes room for what `sizes` says: panel, values, tile, queries, sums, totals.
    pub fn reserve(&mut self, sizes: &ScratchSizes) {
        self.panel.grow(sizes.panel);
        self.values.grow(sizes.values);
        self.tile.grow(sizes.tile);
        self.queries.grow(sizes.queries);
        self.sums.grow(sizes.sums);
        self.totals.grow(sizes.totals);
    }
}

/// Elements that each part of [`Scratch`] needs at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchSizes {
    /// Of `panel`.
    pub panel: usize,
    /// Of `values`.
    pub values: usize,
    /// Of `tile`.
    pub tile: usize,
    /// Of `queries`.
    pub queries: usize,
    /// Of `sums`.
    pub sums: usize,
    /// Of `totals`.
    pub totals: usize,
}

impl ScratchSizes {
    /// The larger of both, part by part.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            panel: self.panel.max(other.panel),
            values: self.values.max(other.values),
            tile: self.tile.max(other.tile),
            queries: self.queries.max(other.queries),
            sums: self.sums.max(other.sums),
            totals: self.totals.max(other.totals),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_tensor_is_taken_again() {
        let arena = Arc::new(Arena::default());
        let mut a = arena.take(2, 3);
        a[5] = 1.0;
        let address = a.as_ptr();
        drop(a);
        assert_eq!(arena.take(1, 6).as_ptr(), address);
    }

    #[test]
    fn too_much_is_an_error() {
        let error = Buffer::<f32>::new(1 << 50, "a giant").err();
        assert!(matches!(error, Some(DeviceError::OutOfMemory { needed_bytes, .. })
            if needed_bytes == 1 << 52));
    }
}
