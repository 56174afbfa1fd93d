//! Records: plain structs that the library makes and the caller reads and frees.
//!
//! The public part comes first and may grow at its end, since only the library allocates it. What
//! its pointers point to lives behind it, unseen.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::status::{PAGEDLLM_INVALID_HANDLE, PAGEDLLM_OK, Status};

/// The public part of a record; `repr(C)`.
pub(crate) trait Public: Sized {
    /// What the pointers of the public part point to.
    type Backing;
    /// Marks records of this kind.
    const MAGIC: u64;
}

const POISON: u64 = 0xdead_f4ee_dead_f4ee;

#[repr(C)]
struct Record<P: Public> {
    public: P,
    magic: AtomicU64,
    backing: P::Backing,
}

/// Makes a record. `public` may point into the heap memory of `backing`, which does not move.
pub(crate) fn new<P: Public>(
    backing: P::Backing,
    public: impl FnOnce(&P::Backing) -> P,
) -> *const P {
    let public = public(&backing);
    let record = Record { public, magic: AtomicU64::new(P::MAGIC), backing };
    Box::into_raw(Box::new(record)).cast_const().cast()
}

/// Frees a record; NULL is nothing to free.
pub(crate) fn free<P: Public>(pointer: *const P) -> Status {
    let record: *mut Record<P> = pointer.cast_mut().cast();
    if record.is_null() {
        return PAGEDLLM_OK;
    }
    if !record.is_aligned() {
        return PAGEDLLM_INVALID_HANDLE;
    }
    // SAFETY: the caller promised a record; of a freed one only this word is looked at.
    let magic = unsafe { &(*record).magic };
    if magic.compare_exchange(P::MAGIC, POISON, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return PAGEDLLM_INVALID_HANDLE;
    }
    // SAFETY: it came from `new`, and the exchange lets one call only come here.
    drop(unsafe { Box::from_raw(record) });
    PAGEDLLM_OK
}

/// A text as C reads it: its bytes and a NUL after them.
pub(crate) fn with_nul(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    bytes
}
