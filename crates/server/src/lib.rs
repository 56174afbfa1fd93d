//! The hyper server.
