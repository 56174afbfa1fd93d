//! Model architectures, written in backend verbs.
