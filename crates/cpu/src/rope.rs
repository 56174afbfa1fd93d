//! Norms of single heads, rotation, and the angles of a step.

use pagedllm_backend::{AttentionSpec, Rope};

use crate::simd::Kernels;

/// The rotations that the layers of a model use, and the cosines and sines of the current step,
/// which all layers with the same rotation share.
#[derive(Default)]
pub struct Angles {
    ropes: Vec<Rope>,
    /// For each rope: the step for which it holds, and `[T, 2, pairs]` cosines, then sines.
    values: Vec<(u64, Vec<f32>)>,
}

impl Angles {
    /// The index of a rope, known or new.
    pub fn register(&mut self, rope: &Rope) -> usize {
        let known = self.ropes.iter().position(|other| {
            other.inv_freq == rope.inv_freq && other.attention_factor == rope.attention_factor
        });
        known.unwrap_or_else(|| {
            self.ropes.push(rope.clone());
            self.values.push((u64::MAX, Vec::new()));
            self.ropes.len() - 1
        })
    }

    /// Makes room for steps of `tokens`.
    pub fn reserve(&mut self, tokens: usize) {
        for (rope, (_, values)) in self.ropes.iter().zip(&mut self.values) {
            values.reserve(tokens * 2 * rope.inv_freq.len());
        }
    }

    /// Cosines and sines of rope `index` at `positions`, of step `step`.
    pub fn of_step(&mut self, index: usize, step: u64, positions: &[u32]) -> &[f32] {
        let (of, values) = &mut self.values[index];
        if *of != step {
            let rope = &self.ropes[index];
            values.clear();
            for &position in positions {
                let angle = |inv_freq: &f32| position as f32 * inv_freq;
                let factor = rope.attention_factor;
                values.extend(rope.inv_freq.iter().map(|f| angle(f).cos() * factor));
                values.extend(rope.inv_freq.iter().map(|f| angle(f).sin() * factor));
            }
            *of = step;
        }
        values
    }
}

/// Norms and rotates the query and key heads of one row of `qkv`. `angles` has the cosines and
/// sines of the row, or nothing.
pub fn turn_row(
    kernels: &Kernels,
    spec: &AttentionSpec,
    [q_norm, k_norm]: [Option<&[f32]>; 2],
    angles: &[f32],
    row: &mut [f32],
    scratch: &mut [f32],
) {
    let heads = row.chunks_exact_mut(spec.head_dim).take(spec.num_heads + spec.num_kv_heads);
    for (index, head) in heads.enumerate() {
        if let Some(gain) = if index < spec.num_heads { q_norm } else { k_norm } {
            let scratch = &mut scratch[..head.len()];
            kernels.normalize(head, gain, spec.qk_norm_eps, scratch);
            head.copy_from_slice(scratch);
        }
        let half = angles.len() / 2;
        let (cos, sin) = angles.split_at(half);
        let (a, rest) = head.split_at_mut(half);
        for (((a, b), cos), sin) in a.iter_mut().zip(rest).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
