//! The step loop: tokens in, tokens out.

mod constraint;
mod executor;

pub use constraint::{Constraint, ConstraintError};
pub use executor::{Executor, ExecutorError, ExecutorShape, StepTicket};
