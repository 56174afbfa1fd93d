//! Arguments from C, checked as far as pointers can be.

use std::ffi::c_char;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};

use crate::error::{Error, Failure};
use crate::handle::{self, InUse, Opaque};
use crate::record;
use crate::status::{
    PAGEDLLM_INVALID_ARGUMENT, PAGEDLLM_INVALID_STRUCT_SIZE, PAGEDLLM_INVALID_UTF8,
};

/// The promise of whoever called an export: each pointer is NULL or points to what the header
/// says, for as long as the call runs. Its methods check the rest.
pub(crate) struct Caller {
    error: *mut *const Error,
}

/// A struct that callers fill. It begins with its size as the caller knows it and grows at its
/// end only.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `usize`, and all bits zero is a value of it.
pub(crate) unsafe trait Filled: Copy {
    /// Size of its first version.
    const FIRST_SIZE: usize;
}

/// Larger structs are no structs of ours.
const MAX_STRUCT_SIZE: usize = 4096;

/// A place for a result.
pub(crate) struct Out<'c, T> {
    place: *mut T,
    caller: PhantomData<&'c Caller>,
}

impl<T> Out<'_, T> {
    /// Fills the place.
    pub(crate) fn set(self, value: T) {
        // SAFETY: not NULL and aligned, see `Caller::out`; the caller owns it during the call.
        unsafe { self.place.write(value) };
    }
}

/// Places for several results.
pub(crate) struct Places<'c, T> {
    first: *mut T,
    len: usize,
    caller: PhantomData<&'c Caller>,
}

impl<T: Copy> Places<'_, T> {
    /// Fills the first places.
    pub(crate) fn set(self, values: &[T]) {
        assert!(values.len() <= self.len, "more values than places");
        // SAFETY: not NULL and aligned, see `Caller::places`; the caller owns `len` of them, and
        // they do not overlap what the library holds.
        unsafe { self.first.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
}

impl Caller {
    /// Takes the promise, and the place for an error, which may be NULL.
    ///
    /// # Safety
    /// The promise above holds for all arguments of the export.
    pub(crate) unsafe fn new(error: *mut *const Error) -> Self {
        Self { error }
    }

    /// Hands out an error object, if the caller has a place for it.
    pub(crate) fn report(&self, failure: Failure) {
        if !self.error.is_null() && self.error.is_aligned() {
            // SAFETY: not NULL, aligned, and the caller's during the call.
            unsafe { self.error.write(failure.into_record()) };
        }
    }

    /// A handle, in use until the guard is dropped.
    pub(crate) fn enter<O: Opaque>(
        &self,
        pointer: *const O,
        name: &'static str,
    ) -> Result<InUse<'_, O>, Failure> {
        handle::enter(pointer, name)
    }

    /// A place for a result.
    pub(crate) fn out<T>(&self, place: *mut T, name: &'static str) -> Result<Out<'_, T>, Failure> {
        check_pointer(place, name)?;
        Ok(Out { place, caller: PhantomData })
    }

    /// `len` places for results.
    pub(crate) fn places<T: Copy>(
        &self,
        data: *mut T,
        len: usize,
        name: &'static str,
    ) -> Result<Places<'_, T>, Failure> {
        check_pointer(data, name)?;
        Ok(Places { first: data, len, caller: PhantomData })
    }

    /// `len` elements. NULL stands for none.
    pub(crate) fn slice<T: Copy>(
        &self,
        data: *const T,
        len: usize,
        name: &'static str,
    ) -> Result<&[T], Failure> {
        if len == 0 {
            return Ok(&[]);
        }
        check_pointer(data, name)?;
        if len > isize::MAX as usize / size_of::<T>() {
            return Err(invalid(name, "is longer than memory"));
        }
        // SAFETY: not NULL, aligned, of a length that fits; the caller keeps it during the call.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// `len` bytes of UTF-8; NUL is a character like any other.
    pub(crate) fn text(
        &self,
        data: *const c_char,
        len: usize,
        name: &'static str,
    ) -> Result<&str, Failure> {
        let bytes = self.slice(data.cast::<u8>(), len, name)?;
        std::str::from_utf8(bytes).map_err(|error| {
            let message = format!("{name} is not UTF-8 at byte {}", error.valid_up_to());
            Failure::new(PAGEDLLM_INVALID_UTF8, message).about(name)
        })
    }

    /// A struct that the caller filled, as large as the caller knows it. Fields that it does not
    /// know are zero; fields that this library does not know must be zero.
    pub(crate) fn sized<T: Filled>(
        &self,
        data: *const T,
        name: &'static str,
    ) -> Result<T, Failure> {
        check_pointer(data, name)?;
        // SAFETY: the first field of any version is its size.
        let size = unsafe { data.cast::<usize>().read() };
        let wrong = |message: String| {
            Failure::new(PAGEDLLM_INVALID_STRUCT_SIZE, format!("{name}: {message}")).about(name)
        };
        if size < T::FIRST_SIZE || size > MAX_STRUCT_SIZE {
            let (low, high) = (T::FIRST_SIZE, MAX_STRUCT_SIZE);
            return Err(wrong(format!("struct_size {size} is not between {low} and {high}")));
        }
        let known = size.min(size_of::<T>());
        // SAFETY: the caller says that `size` bytes are there.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        if bytes[known..].iter().any(|&byte| byte != 0) {
            return Err(wrong("fields are set that this library does not know".into()));
        }
        // SAFETY: all bits zero is a value, see `Filled`.
        let mut value: T = unsafe { std::mem::zeroed() };
        // SAFETY: both are at least `known` long and do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                std::ptr::from_mut(&mut value).cast::<u8>(),
                known,
            );
        }
        Ok(value)
    }
}

fn check_pointer<T>(pointer: *const T, name: &'static str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(invalid(name, "is NULL"));
    }
    if !pointer.is_aligned() {
        return Err(invalid(name, &format!("is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// An argument that has no meaning.
pub(crate) fn invalid(name: &'static str, message: &str) -> Failure {
    Failure::new(PAGEDLLM_INVALID_ARGUMENT, format!("{name} {message}")).about(name)
}

/// Frees a record; NULL is nothing to free.
pub(crate) fn free_record<P: record::Public>(pointer: *const P) {
    // A record that is freed twice can't be told to a caller that expects no answer.
    record::free(pointer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Grown {
        struct_size: usize,
        first: u32,
        second: u32,
    }
    // SAFETY: repr(C), a usize first, all integers.
    unsafe impl Filled for Grown {
        const FIRST_SIZE: usize = 12;
    }

    fn caller() -> Caller {
        // SAFETY: the tests pass valid pointers.
        unsafe { Caller::new(std::ptr::null_mut()) }
    }

    #[test]
    fn older_and_newer_structs_are_read() {
        let of_size = |struct_size| Grown { struct_size, first: 1, second: 2 };
        assert_eq!(caller().sized(&of_size(12), "s").map(|s| s.second).ok(), Some(0));
        assert_eq!(caller().sized(&of_size(16), "s").map(|s| s.second).ok(), Some(2));
        let mut newer = [0usize; 4];
        newer[0] = size_of_val(&newer);
        assert!(caller().sized(newer.as_ptr().cast::<Grown>(), "s").is_ok());
        newer[3] = 1;
        for data in [newer.as_ptr().cast::<Grown>(), &of_size(8), &of_size(usize::MAX)] {
            let failure = caller().sized(data, "s").err().expect("refused");
            assert_eq!(failure.status, PAGEDLLM_INVALID_STRUCT_SIZE);
        }
    }

    #[test]
    fn texts_are_utf8_of_a_length() {
        let text = "a\0é";
        let read = |data: &[u8]| caller().text(data.as_ptr().cast(), data.len(), "t").map(str::len);
        assert_eq!(read(text.as_bytes()).ok(), Some(4));
        assert_eq!(read(b"\xff").err().map(|f| f.status), Some(PAGEDLLM_INVALID_UTF8));
        assert_eq!(caller().text(std::ptr::null(), 0, "t").ok(), Some(""));
        assert!(caller().text(std::ptr::null(), 1, "t").is_err());
        assert!(caller().slice(std::ptr::dangling::<u32>(), usize::MAX, "t").is_err());
    }
}
