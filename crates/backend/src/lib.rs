//! The seam between models and devices: the verbs, their scalar reference, their conformance suite.
