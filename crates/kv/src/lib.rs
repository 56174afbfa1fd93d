//! KV blocks: who holds which, and which can be reused as a prefix.
