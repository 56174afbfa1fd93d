//! The words that every pagedllm crate says: ids, weight formats, the ragged batch of a step,
//! sampling parameters and results. Plain data with checks; no clock, thread, device or text.

mod batch;
mod dtype;
mod hash;
mod ids;
mod kv_layout;
mod output;
mod sampling;
mod vocab_spec;
mod weights;

pub use batch::{GroupTables, RaggedBatch, StateOp, StepInput, TokenSource};
pub use dtype::{DType, WeightFormat};
pub use hash::{BlockHash, BlockHasher};
pub use ids::{BlockCopy, BlockId, RankId, SequenceId, TokenId};
pub use kv_layout::{KvGroup, KvLayout};
pub use output::{FinishReason, RowFault, RowOutput, StepOutput, TokenLogprob, TokenLogprobs};
pub use sampling::{Draw, InvalidParams, RowTask, SamplingBatch, SamplingParams, SamplingRow};
pub use vocab_spec::{PreTokenizer, TokenKind, VocabModel, VocabSpec};
pub use weights::{LinearPart, Split, WeightView};
