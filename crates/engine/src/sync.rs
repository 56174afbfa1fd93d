//! The primitives that [`crate::inbox`] is made of. Its test puts loom's in their place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
