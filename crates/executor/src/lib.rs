//! From configuration to a running device.
