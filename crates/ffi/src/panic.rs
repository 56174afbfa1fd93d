//! The boundary that no panic crosses.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::caller::Caller;
use crate::error::Failure;
use crate::status::{PAGEDLLM_INTERNAL, Status};

/// Runs an export. A failure becomes its status, and an error object where the caller wants one.
pub(crate) fn guard(
    caller: Caller,
    body: impl FnOnce(&Caller) -> Result<Status, Failure>,
) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(|| body(&caller))) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(PAGEDLLM_INTERNAL, words(&*panic)),
    };
    let status = failure.status;
    caller.report(failure);
    status
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a fault of the library: {}", text.unwrap_or("a panic without words"))
}

/// Sends what is said about panics to the log of the engine whose thread panics. The standard
/// library would write it to standard error, which belongs to the host. The hook is this
/// library's own: a Rust host has another copy of the standard library.
pub(crate) fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::record;
    use crate::status::PAGEDLLM_OK;

    #[test]
    fn a_panic_becomes_a_status_and_an_error() {
        let mut error: *const Error = std::ptr::null();
        // SAFETY: the pointer is valid.
        let status = guard(unsafe { Caller::new(&raw mut error) }, |_| panic!("seven {}", 7));
        assert_eq!(status, PAGEDLLM_INTERNAL);
        // SAFETY: guard wrote it.
        assert_eq!(unsafe { (*error).status }, PAGEDLLM_INTERNAL);
        assert_eq!(record::free(error), PAGEDLLM_OK);
    }

    #[test]
    fn a_panic_without_a_place_for_its_error_is_a_status() {
        // SAFETY: NULL is allowed.
        let caller = unsafe { Caller::new(std::ptr::null_mut()) };
        assert_eq!(guard(caller, |_| std::panic::panic_any(7)), PAGEDLLM_INTERNAL);
    }
}
