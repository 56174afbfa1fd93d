//! How long sequences may be and how many KV blocks there are. Pure arithmetic.

use pagedllm_core::KvGroup;

/// What bounds the KV cache of a device, where no number of bytes is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A part of the free memory, with a bound: other programs need the rest.
    Share {
        /// One part in so many.
        of_free: u64,
        /// Bytes.
        at_most: u64,
    },
    /// A share of the whole memory of a GPU, from which everything of ours is paid.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "no GPU can be opened"))]
    Device {
        /// Bytes of the device.
        total_bytes: u64,
        /// Bytes that were free before anything was loaded.
        free_bytes: u64,
        /// Share of the total, above 0 and up to 1.
        utilization: f32,
    },
}

impl Budget {
    /// Bytes for the KV cache when `free_now` are left beside weights, workspace and what the
    /// device holds back for later.
    pub fn kv_bytes(self, free_now: u64) -> u64 {
        match self {
            Self::Share { of_free, at_most } => (free_now / of_free).min(at_most),
            Self::Device { free_bytes, .. } => {
                let ours = free_bytes.saturating_sub(free_now);
                self.allowed().saturating_sub(ours).min(free_now)
            }
        }
    }

    /// Bytes that this program may take of a GPU.
    fn allowed(self) -> u64 {
        match self {
            Self::Share { at_most, .. } => at_most,
            Self::Device { total_bytes, utilization, .. } => {
                (total_bytes as f64 * f64::from(utilization)) as u64
            }
        }
    }

    /// What a person should know: others hold memory that the share counts on.
    #[cfg(feature = "cuda")]
    pub fn warning(self) -> Option<String> {
        let Self::Device { total_bytes, free_bytes, utilization } = self else { return None };
        (free_bytes < self.allowed()).then(|| {
            format!(
                "{free_bytes} of the GPU's {total_bytes} bytes are free, less than the share of \
                 {utilization} that gpu-memory-utilization asks for: the KV cache takes what there \
                 is"
            )
        })
    }
}

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
     there; {}", advice(*fitting)
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

fn advice(fitting: usize) -> String {
    const MORE: &str = "for more raise kv-cache-memory-bytes, or gpu-memory-utilization on a GPU";
    match fitting {
        0 => format!("not one block fits; {MORE}"),
        fitting => format!("the largest max-model-len that fits is {fitting}; {MORE}"),
    }
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
    fn a_share_of_a_gpu_is_one_of_its_total_less_what_is_ours() {
        let gpu =
            |free_bytes, utilization| Budget::Device { total_bytes: 1000, free_bytes, utilization };
        // 750 may be ours, 300 are: 450 are left, though 690 are free.
        assert_eq!(gpu(990, 0.75).kv_bytes(690), 450);
        // Others hold 500: no more than what is free.
        assert_eq!(gpu(500, 0.75).kv_bytes(200), 200);
        assert_eq!(gpu(990, 0.25).kv_bytes(690), 0);
        assert_eq!(gpu(1000, 1.0).kv_bytes(1000), 1000);
        assert_eq!(Budget::Share { of_free: 4, at_most: 100 }.kv_bytes(360), 90);
        assert_eq!(Budget::Share { of_free: 4, at_most: 100 }.kv_bytes(3600), 100);
    }

    #[test]
    fn a_length_asked_for_must_fit_and_the_error_says_what_does() {
        let small = Demand { budget_bytes: 100 * 16 * 23_040, ..demand() };
        let fitted = size(&groups(), small).unwrap();
        assert_eq!(fitted, Sizes { max_model_len: 1600, num_blocks: 100 });
        let error = size(&groups(), Demand { max_model_len: Some(1601), ..small }).unwrap_err();
        assert_eq!(error.fitting, 1600);
        assert!(
            error
                .to_string()
                .contains("the largest max-model-len that fits is 1600; for more raise")
        );
        assert!(size(&groups(), Demand { max_model_len: Some(1600), ..small }).is_ok());
        let error = size(&groups(), Demand { budget_bytes: 5, ..small }).unwrap_err();
        assert!(error.to_string().contains("not one block fits"), "{error}");
    }
}
