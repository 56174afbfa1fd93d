//! Grammars and other limits on what may be drawn next, one value a sequence.

use pagedllm_core::TokenId;

/// Decides which tokens may come next. Implemented by the facade, run off the step loop.
pub trait Constraint: Send {
    /// Writes the allowed tokens as bits, low bit first: `ceil(V / 32)` words.
    ///
    /// # Errors
    /// The constraint can't go on; its request alone ends.
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError>;
    /// Takes a token that was drawn.
    fn accept(&mut self, token: TokenId);
    /// The same state again, for a fork of the sequence.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// Why a constraint failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);
