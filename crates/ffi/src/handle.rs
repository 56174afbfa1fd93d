//! Handles: objects behind opaque pointers.
//!
//! A handle begins with one word that holds its kind and the number of calls inside of it. So a
//! pointer of another kind is refused, a handle in use is not freed, and a freed one is poisoned
//! and refused as long as its memory is mapped and not used again.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::caller::invalid;
use crate::error::Failure;
use crate::log;
use crate::status::{
    PAGEDLLM_BUSY, PAGEDLLM_INVALID_HANDLE, PAGEDLLM_OK, PAGEDLLM_USED_AFTER_FORK, Status,
};

/// A type that C knows by name only.
pub(crate) trait Opaque {
    /// What a handle holds.
    type Object: Send + Sync;
    /// Marks handles of this kind.
    const MAGIC: u32;
}

const POISON: u64 = 0xdead_f4ee << 32;

#[repr(C)]
struct Handle<T> {
    /// Kind in the high half, calls inside in the low half.
    state: AtomicU64,
    /// The process that made it.
    process: u32,
    object: T,
}

/// A handle in use by a call.
pub(crate) struct InUse<'c, O: Opaque> {
    handle: *const Handle<O::Object>,
    call: PhantomData<&'c O::Object>,
}

impl<O: Opaque> Deref for InUse<'_, O> {
    type Target = O::Object;

    fn deref(&self) -> &O::Object {
        // SAFETY: it was entered and is not freed while a call is inside.
        unsafe { &(*self.handle).object }
    }
}

impl<O: Opaque> Drop for InUse<'_, O> {
    fn drop(&mut self) {
        // SAFETY: as in `deref`; afterwards the handle is not touched.
        unsafe { (*self.handle).state.fetch_sub(1, Ordering::Release) };
    }
}

/// Makes a handle of an object.
pub(crate) fn new<O: Opaque>(object: O::Object) -> *mut O {
    let state = AtomicU64::new(u64::from(O::MAGIC) << 32);
    Box::into_raw(Box::new(Handle { state, process: std::process::id(), object })).cast()
}

fn check<O: Opaque>(
    pointer: *const O,
    name: &'static str,
) -> Result<*const Handle<O::Object>, Failure> {
    let handle: *const Handle<O::Object> = pointer.cast();
    if handle.is_null() {
        return Err(invalid(name, "is NULL"));
    }
    if !handle.is_aligned() {
        return Err(no_handle(name));
    }
    Ok(handle)
}

fn no_handle(name: &'static str) -> Failure {
    let message = format!("{name} is no handle of this kind, or was freed");
    Failure::new(PAGEDLLM_INVALID_HANDLE, message).about(name)
}

fn busy(name: &'static str) -> Failure {
    Failure::new(PAGEDLLM_BUSY, format!("{name} is in use by another call")).about(name)
}

/// Enters a handle, so that it can't be freed.
pub(crate) fn enter<'c, O: Opaque>(
    pointer: *const O,
    name: &'static str,
) -> Result<InUse<'c, O>, Failure> {
    let handle = check(pointer, name)?;
    // SAFETY: the caller promised a handle; of a freed one only this word is looked at.
    let state = unsafe { &(*handle).state };
    let mut seen = state.load(Ordering::Relaxed);
    loop {
        if seen >> 32 != u64::from(O::MAGIC) {
            return Err(no_handle(name));
        }
        if seen as u32 == u32::MAX {
            return Err(busy(name));
        }
        match state.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    let entered = InUse { handle, call: PhantomData };
    // SAFETY: entered, so it is alive.
    if unsafe { (*handle).process } != std::process::id() {
        let message = format!("{name} was made before fork and belongs to the parent");
        return Err(Failure::new(PAGEDLLM_USED_AFTER_FORK, message).about(name));
    }
    Ok(entered)
}

/// Frees a handle that nobody is in. NULL is nothing to free. After a fork the child frees
/// nothing: the threads that the object would wait for are not there.
pub(crate) fn free<O: Opaque>(pointer: *mut O, name: &'static str) -> Result<Status, Failure> {
    if pointer.is_null() {
        return Ok(PAGEDLLM_OK);
    }
    if log::in_callback() {
        return Err(busy(name));
    }
    let handle = check(pointer, name)?;
    drop(enter(pointer, name)?);
    // SAFETY: as in `enter`.
    let state = unsafe { &(*handle).state };
    poison::<O>(state, name)?;
    // SAFETY: it came from `new`, and one call only poisons it.
    drop(unsafe { Box::from_raw(handle.cast_mut()) });
    Ok(PAGEDLLM_OK)
}

/// Takes a state that nobody is in out of use: whoever comes later finds no handle, as long as the
/// memory says so.
fn poison<O: Opaque>(state: &AtomicU64, name: &'static str) -> Result<(), Failure> {
    let alive = u64::from(O::MAGIC) << 32;
    match state.compare_exchange(alive, POISON, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(now) if now >> 32 == u64::from(O::MAGIC) => Err(busy(name)),
        Err(_) => Err(no_handle(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple;
    impl Opaque for Apple {
        type Object = u64;
        const MAGIC: u32 = 1;
    }
    struct Pear;
    impl Opaque for Pear {
        type Object = u64;
        const MAGIC: u32 = 2;
    }

    #[test]
    fn a_handle_in_use_is_not_freed_and_another_kind_is_refused() {
        let apple = new::<Apple>(7);
        let inside = enter(apple, "apple").expect("a handle");
        assert_eq!(*inside, 7);
        assert_eq!(free(apple, "apple").err().map(|f| f.status), Some(PAGEDLLM_BUSY));
        let pear: *const Pear = apple.cast_const().cast();
        assert_eq!(enter(pear, "pear").err().map(|f| f.status), Some(PAGEDLLM_INVALID_HANDLE));
        drop(inside);
        assert_eq!(free(apple, "apple").ok(), Some(PAGEDLLM_OK));
        assert_eq!(free(std::ptr::null_mut::<Apple>(), "apple").ok(), Some(PAGEDLLM_OK));
    }

    #[test]
    fn a_poisoned_state_is_no_handle() {
        let apple = new::<Apple>(7);
        let handle = check(apple, "apple").expect("a handle");
        // SAFETY: it is alive, and not freed before the end.
        let state = unsafe { &(*handle).state };
        assert!(poison::<Apple>(state, "apple").is_ok());
        for failure in [
            enter(apple, "apple").err(),
            free(apple, "apple").err(),
            poison::<Apple>(state, "apple").err(),
        ] {
            assert_eq!(failure.map(|f| f.status), Some(PAGEDLLM_INVALID_HANDLE));
        }
        state.store(u64::from(Apple::MAGIC) << 32, Ordering::Release);
        assert_eq!(free(apple, "apple").ok(), Some(PAGEDLLM_OK));
    }

    #[test]
    fn misaligned_and_null_pointers_are_refused() {
        let apple = new::<Apple>(7);
        assert!(enter(apple.cast::<u8>().wrapping_add(1).cast::<Apple>(), "apple").is_err());
        assert!(enter(std::ptr::null::<Apple>(), "apple").is_err());
        assert!(free(apple, "apple").is_ok());
    }
}
