//! Between `begin_step` and the logits nothing is allocated, once a step of the size has run.
#![allow(unsafe_code)] // An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use pagedllm_backend::conformance::{Probe, Random};
use pagedllm_backend::{Activation, AttentionSpec, Backend, Rope, WorkspaceSpec};
use pagedllm_core::{
    DType, GroupTables, KvGroup, KvLayout, LinearPart, RaggedBatch, Split, StepInput, TokenSource,
    WeightFormat,
};
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HIDDEN: usize = 256;
const VOCAB: usize = 300;
const BLOCK_SIZE: usize = 16;
const MAX_TOKENS: usize = 48;

/// Pages that the process has mapped, where the system tells: large buffers are mappings.
fn mapped_pages() -> Option<u64> {
    std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().next()?.parse().ok()
}

/// One chunk of `tokens` tokens after `before` others.
fn step(before: usize, tokens: usize) -> StepInput {
    let number = |n: usize| u32::try_from(n).expect("small");
    let positions: Vec<u32> = (before..before + tokens).map(number).collect();
    let batch = RaggedBatch {
        token_ids: (0..tokens).map(|t| TokenSource::Known(number(t % VOCAB))).collect(),
        query_starts: vec![0, number(tokens)],
        seq_lens: vec![number(before + tokens)],
        logit_rows: vec![number(tokens - 1)],
        groups: vec![GroupTables {
            slot_mapping: positions.clone(),
            block_tables: (0..8).collect(),
            max_blocks: 8,
        }],
        positions,
    };
    StepInput { batch, ..StepInput::default() }
}

#[test]
fn a_step_allocates_nothing() {
    for dtype in [CpuDType::Float32, CpuDType::Fast] {
        let options = CpuOptions { num_threads: 2, dtype, isa: None };
        let mut b = CpuBackend::new(options).expect("a backend");
        let mut random = Random::new(1);
        let mut linear = |b: &mut CpuBackend, format, outputs, inputs| {
            let part = LinearPart { weight: random.weight(format, outputs, inputs), bias: None };
            b.load_linear(&[part], Split::Whole).expect("loads")
        };
        let rope = Rope { inv_freq: vec![0.1; 32], attention_factor: 1.0, max_positions: 128 };
        let spec = AttentionSpec {
            layer: 0,
            group: 0,
            layer_in_group: 0,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 64,
            scale: 0.125,
            rope: Some(rope),
            window: None,
            soft_cap: None,
            qk_norm_eps: 1e-6,
        };
        let qkv = linear(&mut b, WeightFormat::Q4_0, spec.qkv_cols(), HIDDEN);
        let o = linear(&mut b, WeightFormat::Q4K, HIDDEN, 256);
        let up = linear(&mut b, WeightFormat::F16, 512, HIDDEN);
        let down = linear(&mut b, WeightFormat::Q8_0, HIDDEN, 256);
        let mut random = Random::new(2);
        let table = b.load_vocab(&random.weight(WeightFormat::Q6K, VOCAB, HIDDEN)).expect("loads");
        let norm = b.load_norm(&random.weight(WeightFormat::F32, 1, HIDDEN), 1e-6).expect("loads");
        let attention = b.load_attention(&spec, None, None, None).expect("loads");
        b.reserve_workspace(&WorkspaceSpec {
            max_num_batched_tokens: MAX_TOKENS,
            max_num_seqs: 4,
            max_logit_rows: 4,
            max_model_len: 128,
            block_size: BLOCK_SIZE,
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            max_cols: 512,
        })
        .expect("reserves");
        let layout =
            KvLayout { block_size: BLOCK_SIZE, num_kv_heads: 2, head_dim: 64, dtype: DType::F32 };
        let group = KvGroup { layers: vec![0], layout, window: None };
        let mut kv = b.allocate_kv_cache(&[group], 8).expect("allocates");
        let mut forward = |b: &mut CpuBackend, input: &StepInput| {
            let step = b.begin_step(&mut kv, input);
            let mut x = b.embed(&table, &step);
            let mut residual = b.zeros(&x, &step);
            for _ in 0..2 {
                let qkv = b.norm_linear(x, &mut residual, &norm, &qkv, &step);
                let heads = b.attend(qkv, &attention, &mut kv, &step);
                let sum = b.linear(&heads, &o, &step);
                let gate_up = b.norm_linear(sum, &mut residual, &norm, &up, &step);
                x = b.gated_linear(gate_up, Activation::Silu, &down, &step);
            }
            let hidden = b.final_norm(x, &mut residual, &norm, &step);
            b.head(&hidden, &table, &step)
        };
        let inputs = [step(0, MAX_TOKENS), step(MAX_TOKENS, 1), step(MAX_TOKENS + 1, 7)];
        for input in inputs.iter().chain(&inputs) {
            let logits = forward(&mut b, input);
            assert!(b.download(&logits).iter().all(|logit| logit.is_finite()));
        }
        let (mapped, before) = (mapped_pages(), ALLOCATIONS.load(Ordering::Relaxed));
        for input in &inputs {
            drop(forward(&mut b, input));
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{dtype:?}");
        assert_eq!(mapped_pages(), mapped, "{dtype:?}");
    }
}
