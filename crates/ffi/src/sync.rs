//! The primitives that [`crate::hand_over`] is made of. Its test puts loom's in their place.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
