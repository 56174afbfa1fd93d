//! Rotation, cache and paged attention, over several steps of ragged chunks.

use pagedllm_core::{BlockCopy, BlockId, DType, KvGroup, KvLayout, StepInput, WeightFormat};

use super::random::World;
use super::{Claims, Probe, Random, close};
use crate::attention::{AttentionSpec, Rope};
use crate::backend::{Backend, WorkspaceSpec};
use crate::reference::{Matrix, Reference};

const VOCAB: usize = 50;
const MAX_TOKENS: usize = 256;
const MAX_SEQS: usize = 24;

/// One layer of each kind that a model may have.
struct Kind {
    name: &'static str,
    num_heads: usize,
    num_kv_heads: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    rope_dim: Option<usize>,
    qk_norm: bool,
    sinks: bool,
    block_size: usize,
}

const PLAIN: Kind = Kind {
    name: "plain",
    num_heads: 4,
    num_kv_heads: 2,
    window: None,
    soft_cap: None,
    rope_dim: Some(usize::MAX),
    qk_norm: false,
    sinks: false,
    block_size: 16,
};

const KINDS: [Kind; 10] = [
    PLAIN,
    Kind { name: "one kv head", num_heads: 9, num_kv_heads: 1, ..PLAIN },
    Kind { name: "groups of three", num_heads: 9, num_kv_heads: 3, ..PLAIN },
    Kind { name: "no groups, no rope", num_heads: 3, num_kv_heads: 3, rope_dim: None, ..PLAIN },
    Kind { name: "window", window: Some(21), ..PLAIN },
    Kind { name: "soft cap, partial rope", soft_cap: Some(2.0), rope_dim: Some(32), ..PLAIN },
    Kind { name: "q and k norms", qk_norm: true, ..PLAIN },
    Kind { name: "sinks", sinks: true, ..PLAIN },
    Kind { name: "blocks of 20", block_size: 20, ..PLAIN },
    Kind {
        name: "wide window, blocks of 32",
        num_heads: 8,
        window: Some(300),
        block_size: 32,
        ..PLAIN
    },
];

struct Pair<B: Backend> {
    b: B,
    kv: B::KvCache,
    attention: B::Attention,
    reference: Reference,
    reference_kv: <Reference as Backend>::KvCache,
    reference_attention: <Reference as Backend>::Attention,
    spec: AttentionSpec,
}

fn pair<B: Probe>(
    make: &impl Fn() -> B,
    claims: &Claims,
    kind: &Kind,
    head_dim: usize,
    num_blocks: usize,
    random: &mut Random,
) -> Pair<B> {
    let spec = AttentionSpec {
        layer: 1,
        group: 0,
        layer_in_group: 1,
        num_heads: kind.num_heads,
        num_kv_heads: kind.num_kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        rope: kind.rope_dim.map(|dim| {
            let pairs = dim.min(head_dim) / 2;
            Rope {
                inv_freq: (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect(),
                attention_factor: 1.0,
                max_positions: 2048,
            }
        }),
        window: kind.window,
        soft_cap: kind.soft_cap,
        qk_norm_eps: 1e-6,
    };
    let workspace = WorkspaceSpec {
        max_num_batched_tokens: MAX_TOKENS,
        max_num_seqs: MAX_SEQS,
        max_logit_rows: MAX_SEQS,
        max_model_len: 2048,
        block_size: kind.block_size,
        vocab_size: VOCAB,
        hidden_size: 64,
        max_cols: spec.qkv_cols(),
    };
    let group = |dtype: DType| KvGroup {
        layers: vec![0, 1],
        layout: KvLayout {
            block_size: kind.block_size,
            num_kv_heads: kind.num_kv_heads,
            head_dim,
            dtype,
        },
        window: kind.window,
    };
    let q_norm = kind.qk_norm.then(|| random.weight(WeightFormat::F32, 1, head_dim));
    let k_norm = kind.qk_norm.then(|| random.weight(WeightFormat::F32, 1, head_dim));
    let sinks = kind.sinks.then(|| random.weight(WeightFormat::F32, 1, kind.num_heads));
    let (q, k, s) = (q_norm.as_ref(), k_norm.as_ref(), sinks.as_ref());
    let mut b = make();
    let attention = b.load_attention(&spec, q, k, s).expect(kind.name);
    b.reserve_workspace(&workspace).expect("a small workspace");
    let mut kv = b.allocate_kv_cache(&[group(claims.kv_dtype)], num_blocks).expect("a cache");
    b.poison(&mut kv);
    let mut reference = Reference::default();
    let reference_attention = reference.load_attention(&spec, q, k, s).expect("reference");
    let reference_kv =
        reference.allocate_kv_cache(&[group(DType::F32)], num_blocks).expect("cache");
    Pair { b, kv, attention, reference, reference_kv, reference_attention, spec }
}

impl<B: Probe> Pair<B> {
    /// Runs one step on both sides, fused or not, and compares.
    fn run(
        &mut self,
        input: &StepInput,
        random: &mut Random,
        fused: bool,
        claims: &Claims,
        case: &str,
    ) {
        let (rows, cols) = (input.batch.num_tokens(), self.spec.qkv_cols());
        let step = self.b.begin_step(&mut self.kv, input);
        let reference_step = self.reference.begin_step(&mut self.reference_kv, input);
        let mut qkv = self.b.upload(rows, cols, &random.units(rows * cols));
        let reference_qkv = Matrix { rows, cols, data: self.b.download(&qkv) };
        let got = if fused {
            self.b.attend(qkv, &self.attention, &mut self.kv, &step)
        } else {
            self.b.rope_and_store(&mut qkv, &self.attention, &mut self.kv, &step);
            self.b.paged_attention(&qkv, &self.attention, &self.kv, &step)
        };
        let want = self.reference.attend(
            reference_qkv,
            &self.reference_attention,
            &mut self.reference_kv,
            &reference_step,
        );
        close(case, &self.b.download(&got), &want.data, claims.attention);
    }
}

/// Prefill in chunks, decode, and both in one step, for every kind and head width.
pub fn ragged<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    for &head_dim in &claims.head_dims {
        for kind in &KINDS {
            let mut random = Random::new(claims.seed + head_dim as u64);
            let (mut world, num_blocks) =
                World::new(&mut random, &[1100, 40, 17, 1], kind.block_size);
            let mut pair = pair(make, claims, kind, head_dim, num_blocks, &mut random);
            let steps: [&[(usize, usize)]; 8] = [
                &[(0, 200), (1, 16)],
                &[(0, 150), (1, 5), (2, 16)],
                &[(0, 1), (1, 1), (2, 1)],
                &[(1, 1), (0, 130), (3, 1)],
                &[(0, 256)],
                &[(0, 250), (1, 1)],
                &[(0, 1)],
                &[(1, 3), (0, 2)],
            ];
            for (index, chunks) in steps.iter().enumerate() {
                let input = world.step(&mut random, chunks, VOCAB);
                let case = format!(
                    "attention {}, head_dim {head_dim}, step {index}, seed {}",
                    kind.name, claims.seed
                );
                pair.run(&input, &mut random, index % 2 == 0, claims, &case);
            }
        }
    }
}

/// A step that copies a block first reads what the source held.
pub fn block_copies<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let mut random = Random::new(claims.seed + 5);
    let (mut world, num_blocks) = World::new(&mut random, &[60, 60], PLAIN.block_size);
    let mut pair = pair(make, claims, &PLAIN, claims.head_dims[0], num_blocks, &mut random);
    let first = world.step(&mut random, &[(0, 40)], VOCAB);
    pair.run(&first, &mut random, true, claims, "before the copy");
    // The second sequence shares two full blocks and takes a copy of the third.
    let (source, target) = (world.tables[0][2], world.tables[1][2]);
    let shared: Vec<u32> = world.tables[0][..2].to_vec();
    world.tables[1][..2].copy_from_slice(&shared);
    world.lens[1] = 40;
    let mut second = world.step(&mut random, &[(0, 1), (1, 1)], VOCAB);
    second.copies.push(BlockCopy {
        source: BlockId::new(source as usize),
        target: BlockId::new(target as usize),
    });
    pair.run(&second, &mut random, true, claims, "block copy");
}

/// Many sequences in one step, some of which begin with the same blocks. Results of one prefix differ
/// between sequences by far more than any tolerance, so none may get another's.
pub fn shared_prefixes<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let kinds = [
        PLAIN,
        Kind {
            name: "groups of three, soft cap, sinks",
            num_heads: 6,
            soft_cap: Some(2.0),
            sinks: true,
            ..PLAIN
        },
        Kind { name: "window", window: Some(600), ..PLAIN },
        Kind { name: "blocks of 20", block_size: 20, ..PLAIN },
    ];
    // Two families, of which the first has members that leave it early, and some that share nothing.
    let founder = |sequence: usize| match sequence {
        0..14 => Some((0, if sequence % 4 == 3 { 540 } else { 720 })),
        14..19 => Some((14, 540)),
        _ => None,
    };
    for &head_dim in &claims.head_dims {
        for kind in &kinds {
            let mut random = Random::new(claims.seed + 6 + head_dim as u64);
            let max_lens: Vec<usize> =
                (0..MAX_SEQS).map(|s| founder(s).map_or(100, |(_, shared)| shared + 60)).collect();
            let (mut world, num_blocks) = World::new(&mut random, &max_lens, kind.block_size);
            let mut pair = pair(make, claims, kind, head_dim, num_blocks, &mut random);
            let case = |what: &str| {
                let name = kind.name;
                format!("{what}, {name}, head_dim {head_dim}, seed {}", claims.seed)
            };
            for sequence in [0, 14] {
                let (_, shared) = founder(sequence).expect("it founds a family");
                for _ in 0..shared / 180 {
                    let input = world.step(&mut random, &[(sequence, 180)], VOCAB);
                    pair.run(&input, &mut random, true, claims, &case("a prefix"));
                }
            }
            for sequence in 0..MAX_SEQS {
                if let Some((first, shared)) = founder(sequence) {
                    let blocks = shared / kind.block_size;
                    let common = world.tables[first][..blocks].to_vec();
                    world.tables[sequence][..blocks].copy_from_slice(&common);
                    world.lens[sequence] = blocks * kind.block_size;
                }
            }
            let own: Vec<_> = (0..MAX_SEQS).map(|s| (s, 1 + s * 5 % 19)).collect();
            let input = world.step(&mut random, &own, VOCAB);
            pair.run(&input, &mut random, true, claims, &case("own tokens"));
            for round in 0..4 {
                // All of them; some, in another order; one that reads a prompt beside the others.
                let chunks: Vec<_> = match round {
                    0 | 3 => (0..MAX_SEQS).map(|s| (s, 1)).collect(),
                    1 => (0..MAX_SEQS).rev().filter(|s| s % 7 != 2).map(|s| (s, 1)).collect(),
                    _ => (0..MAX_SEQS).map(|s| (s, if s == 5 { 9 } else { 1 })).collect(),
                };
                let input = world.step(&mut random, &chunks, VOCAB);
                let what = case(&format!("shared prefixes, round {round}"));
                pair.run(&input, &mut random, round % 2 == 0, claims, &what);
            }
        }
    }
}
