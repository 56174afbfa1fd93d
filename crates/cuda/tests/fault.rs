//! What happens when the device faults. Alone in its program, because a fault ends every use of the
//! device by the process.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use pagedllm_backend::{AttentionSpec, Backend, DeviceError, DummyMatrix, WorkspaceSpec};
use pagedllm_core::{
    DType, GroupTables, KvGroup, KvLayout, RaggedBatch, SamplingBatch, Split, StepInput,
    TokenSource,
};
use pagedllm_cuda::{CudaBackend, CudaOptions, available};

const HIDDEN: usize = 128;
const HEADS: usize = 2;
const DIM: usize = 64;
const BLOCK: usize = 16;
/// Far outside of every allocation.
const NO_SLOT: u32 = 0x7fff_fff0;

fn dummy(name: &str, rows: usize) -> DummyMatrix {
    DummyMatrix { name: name.into(), dtype: DType::BF16, rows, cols: HIDDEN, has_bias: false }
}

fn workspace() -> WorkspaceSpec {
    WorkspaceSpec {
        max_num_batched_tokens: 16,
        max_num_seqs: 4,
        max_logit_rows: 4,
        max_model_len: 64,
        block_size: BLOCK,
        vocab_size: 64,
        hidden_size: HIDDEN,
        max_cols: 3 * HEADS * DIM,
    }
}

fn one_token_in(slot: u32) -> StepInput {
    let group = GroupTables { slot_mapping: vec![slot], block_tables: vec![0], max_blocks: 1 };
    let batch = RaggedBatch {
        token_ids: vec![TokenSource::Known(1)],
        positions: vec![0],
        query_starts: vec![0, 1],
        seq_lens: vec![1],
        groups: vec![group],
        ..RaggedBatch::default()
    };
    StepInput { batch, ..StepInput::default() }
}

#[test]
fn a_fault_comes_out_of_wait_and_stays() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let mut b = CudaBackend::new(CudaOptions::default()).expect("the device opens");
    let vocab = b.load_dummy_vocab(&dummy("vocab", 64)).expect("memory");
    let qkv = b.load_dummy_linear(&[dummy("qkv", 3 * HEADS * DIM)], Split::Whole).expect("memory");
    let spec = AttentionSpec {
        layer: 0,
        group: 0,
        layer_in_group: 0,
        num_heads: HEADS,
        num_kv_heads: HEADS,
        head_dim: DIM,
        scale: 0.125,
        rope: None,
        window: None,
        soft_cap: None,
        qk_norm_eps: 0.0,
    };
    let attention = b.load_attention(&spec, None, None, None).expect("a known shape");
    b.reserve_workspace(&workspace()).expect("memory");
    let layout =
        KvLayout { block_size: BLOCK, num_kv_heads: HEADS, head_dim: DIM, dtype: DType::BF16 };
    let group = KvGroup { layers: vec![0], layout, window: None };
    let mut kv = b.allocate_kv_cache(&[group], 4).expect("memory");
    let mut step = |b: &mut CudaBackend, slot| {
        let step = b.begin_step(&mut kv, &one_token_in(slot));
        drop(b.run(&step, |b| {
            let x = b.embed(&vocab, &step);
            let qkv = b.linear(&x, &qkv, &step);
            b.attend(qkv, &attention, &mut kv, &step)
        }));
        let sampled = b.sample(None, &step, &SamplingBatch::default());
        b.wait(sampled)
    };
    step(&mut b, 0).expect("a good step runs");
    let fault = step(&mut b, NO_SLOT).expect_err("a write outside of the cache");
    assert!(matches!(fault, DeviceError::Fault(_)), "{fault}");
    for _ in 0..3 {
        assert_eq!(step(&mut b, 0).expect_err("the device is gone"), fault);
    }
}
