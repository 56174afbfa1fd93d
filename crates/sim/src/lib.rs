//! A seeded simulator of serving: traffic, faults, invariants.
