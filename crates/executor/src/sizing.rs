//! How long sequences may be and how many KV blocks there are. Pure arithmetic.

use pagedllm_core::KvGroup;

/// What the sizes follow from.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Bytes that the KV cache may take.
    pub budget_bytes: u64,
    /// Positions that the model can serve.
    pub context_length: usize,
    /// Length asked for.
    pub max_model_len: Option<usize>,
    /// Most sequences at once.
    pub max_num_seqs: usize,
    /// Token slots in a block.
    pub block_size: usize,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Longest sequence.
    pub max_model_len: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
}

/// The KV cache can't hold one sequence of the length asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "one sequence of {wanted} tokens needs {needed_bytes} bytes of KV cache and {budget_bytes} are \
     there; the largest max-model-len that fits is {fitting}"
)]
pub struct ContextTooLarge {
    /// Tokens asked for.
    pub wanted: usize,
    /// Bytes that they need.
    pub needed_bytes: u64,
    /// Bytes that there are.
    pub budget_bytes: u64,
    /// Tokens that would fit.
    pub fitting: usize,
}

/// Bytes of one block: the same in every group, since all draw from one pool.
pub fn block_bytes(groups: &[KvGroup]) -> u64 {
    groups[0].block_bytes() as u64
}

/// Chooses the sizes: never more blocks than `max_num_seqs` sequences of full length need.
pub fn size(groups: &[KvGroup], demand: Demand) -> Result<Sizes, ContextTooLarge> {
    let bytes = block_bytes(groups);
    let blocks_of = |tokens: usize| tokens.div_ceil(demand.block_size) * groups.len();
    let affordable = usize::try_from(demand.budget_bytes / bytes).unwrap_or(usize::MAX);
    let fitting = affordable / groups.len() * demand.block_size;
    let wanted = demand.max_model_len.unwrap_or(demand.context_length);
    if fitting == 0 || (fitting < wanted && demand.max_model_len.is_some()) {
        return Err(ContextTooLarge {
            wanted,
            needed_bytes: blocks_of(wanted) as u64 * bytes,
            budget_bytes: demand.budget_bytes,
            fitting,
        });
    }
    let max_model_len = wanted.min(fitting);
    let useful = blocks_of(max_model_len).saturating_mul(demand.max_num_seqs);
    Ok(Sizes { max_model_len, num_blocks: affordable.min(useful) })
}

#[cfg(test)]
mod tests {
    use pagedllm_core::{DType, KvLayout};

    use super::*;

    fn groups() -> Vec<KvGroup> {
        let layout = KvLayout { block_size: 16, num_kv_heads: 3, head_dim: 64, dtype: DType::BF16 };
        vec![KvGroup { layers: (0..30).collect(), layout, window: None }]
    }

    fn demand() -> Demand {
        Demand {
            budget_bytes: 1 << 30,
            context_length: 8192,
            max_model_len: None,
            max_num_seqs: 4,
            block_size: 16,
        }
    }

    #[test]
    fn the_pool_is_no_larger_than_the_sequences_need() {
        let sizes = size(&groups(), demand()).unwrap();
        assert_eq!(sizes, Sizes { max_model_len: 8192, num_blocks: 4 * 512 });
    }

    #[test]
    fn a_length_asked_for_must_fit_and_the_error_says_what_does() {
        let small = Demand { budget_bytes: 100 * 16 * 23_040, ..demand() };
        let fitted = size(&groups(), small).unwrap();
        assert_eq!(fitted, Sizes { max_model_len: 1600, num_blocks: 100 });
        let error = size(&groups(), Demand { max_model_len: Some(1601), ..small }).unwrap_err();
        assert_eq!(error.fitting, 1600);
        assert!(size(&groups(), Demand { max_model_len: Some(1600), ..small }).is_ok());
        assert!(size(&groups(), Demand { budget_bytes: 5, ..small }).is_err());
    }
}
