//! Paged attention with online softmax (Milakov and Gimelshein 2018, Online normalizer
//! calculation for softmax), as small matrix products.
//!
//! A task is a block of queries of one chunk and one key/value head: all query heads that share
//! that head are rows of one product, so each strip of keys and values is read once for them.
//! The context goes by in tiles of [`TILE`] tokens: scores, running maximum, weights, sums.

use pagedllm_backend::AttentionSpec;
use pagedllm_core::GroupTables;

use crate::kv_cache::{CellShape, STRIP};
use crate::simd::Kernels;
use crate::threads::{ThreadPool, TileMut, Tiles};
use crate::workspace::{Scratch, ScratchSizes};

/// Strips in a tile of the context.
const TILE_STRIPS: usize = 4;
/// Tokens in a tile of the context.
const TILE: usize = TILE_STRIPS * STRIP;
/// Rows of scores that a task aims at.
const TASK_ROWS: usize = 48;

/// One attention layer.
pub struct AttentionLayer {
    /// What it does.
    pub spec: AttentionSpec,
    /// Index of its rotation.
    pub rope: Option<usize>,
    /// `[D]` gain of the queries' norm.
    pub q_norm: Option<Vec<f32>>,
    /// `[D]` gain of the keys' norm.
    pub k_norm: Option<Vec<f32>>,
    /// `[H]` logits of the sinks.
    pub sinks: Option<Vec<f32>>,
}

/// What a task of a layer like this needs.
#[must_use]
pub fn scratch_sizes(spec: &AttentionSpec) -> ScratchSizes {
    let group = spec.num_heads / spec.num_kv_heads;
    let rows = tokens_per_task(spec) * group;
    let width = spec.head_dim.next_multiple_of(STRIP);
    ScratchSizes {
        panel: width * STRIP,
        values: width * TILE,
        tile: (rows * TILE).max(spec.head_dim),
        queries: rows * spec.head_dim,
        sums: rows * width,
        totals: 2 * rows,
    }
}

/// Queries in a task.
fn tokens_per_task(spec: &AttentionSpec) -> usize {
    (TASK_ROWS / (spec.num_heads / spec.num_kv_heads)).max(1)
}

/// Where the rows of a step belong, cut into tasks. Rebuilt for each layer, kept for its memory.
#[derive(Default)]
pub struct QueryBlocks {
    /// Chunk of each block.
    chunks: Vec<usize>,
    /// First token of each block, then `T`.
    row_starts: Vec<usize>,
    col_starts: Vec<usize>,
}

impl QueryBlocks {
    /// Makes room for steps of `tokens`.
    pub fn reserve(&mut self, tokens: usize) {
        self.chunks.reserve(tokens + 1);
        self.row_starts.reserve(tokens + 1);
        self.col_starts.reserve(1024);
    }

    fn cut(&mut self, query_starts: &[u32], spec: &AttentionSpec) {
        let group = spec.num_heads / spec.num_kv_heads;
        let len = tokens_per_task(spec);
        self.chunks.clear();
        self.row_starts.clear();
        for (chunk, ends) in query_starts.windows(2).enumerate() {
            for start in (ends[0] as usize..ends[1] as usize).step_by(len) {
                self.chunks.push(chunk);
                self.row_starts.push(start);
            }
        }
        self.row_starts.push(query_starts.last().map_or(0, |&end| end as usize));
        self.col_starts.clear();
        let width = group * spec.head_dim;
        self.col_starts.extend((0..=spec.num_kv_heads).map(|head| head * width));
    }
}

/// What all tasks of one call read.
pub struct Problem<'a> {
    /// The layer.
    pub layer: &'a AttentionLayer,
    /// Shape of its cells.
    pub shape: CellShape,
    /// Its blocks.
    pub cells: &'a [u8],
    /// `[T, (H + 2·K)·D]`.
    pub qkv: &'a [f32],
    /// `[T]`.
    pub positions: &'a [u32],
    /// `[S + 1]`.
    pub query_starts: &'a [u32],
    /// Block tables of the layer's group.
    pub tables: &'a GroupTables,
}

/// Attention of every token, into `out`, `[T, H·D]`.
pub fn attend(
    pool: &mut ThreadPool,
    kernels: &Kernels,
    problem: &Problem<'_>,
    blocks: &mut QueryBlocks,
    out: &mut [f32],
) {
    let spec = &problem.layer.spec;
    blocks.cut(problem.query_starts, spec);
    let cols = spec.num_heads * spec.head_dim;
    let tiles = Tiles::new(out, cols, &blocks.row_starts, &blocks.col_starts);
    pool.for_parts(tiles, |index, tile, scratch| {
        let chunk = blocks.chunks[index / spec.num_kv_heads];
        Task::new(problem, chunk, index % spec.num_kv_heads, &tile).run(kernels, tile, scratch);
    });
}

/// A few consecutive tokens of a chunk, and one key/value head.
struct Task<'a> {
    problem: &'a Problem<'a>,
    table: &'a [u32],
    kv_head: usize,
    first_token: usize,
    num_tokens: usize,
    /// Position of the first token.
    position: usize,
    /// Query heads for each key/value head.
    group: usize,
    /// Positions that some token of the task sees.
    visible: std::ops::Range<usize>,
}

/// A strip of the context within a tile.
#[derive(Clone, Copy, Default)]
struct StripSpan {
    /// Position of its first token.
    position: usize,
    /// Tokens of it that the sequence has.
    len: usize,
}

impl<'a> Task<'a> {
    fn new(problem: &'a Problem<'a>, chunk: usize, kv_head: usize, tile: &TileMut<'_>) -> Self {
        let spec = &problem.layer.spec;
        let max_blocks = problem.tables.max_blocks;
        let position = problem.positions[tile.first_row] as usize;
        let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
        Self {
            problem,
            table: &problem.tables.block_tables[chunk * max_blocks..][..max_blocks],
            kv_head,
            first_token: tile.first_row,
            num_tokens: tile.rows,
            position,
            group: spec.num_heads / spec.num_kv_heads,
            visible: first..position + tile.rows,
        }
    }

    fn rows(&self) -> usize {
        self.num_tokens * self.group
    }

    fn run(&self, kernels: &Kernels, tile: TileMut<'_>, scratch: &mut Scratch) {
        let (shape, rows) = (self.problem.shape, self.rows());
        let width = shape.value_tiles() * STRIP;
        scratch.reserve(&scratch_sizes(&self.problem.layer.spec));
        self.gather_queries(&mut scratch.queries);
        scratch.sums[..rows * width].fill(0.0);
        let (best, totals) = scratch.totals.split_at_mut(rows);
        best.fill(f32::NEG_INFINITY);
        totals[..rows].fill(0.0);

        let mut position = self.visible.start;
        while position < self.visible.end {
            let mut spans = [StripSpan::default(); TILE_STRIPS];
            let mut count = 0;
            while count < TILE_STRIPS && position < self.visible.end {
                spans[count] = self.load_strip(kernels, position, count, scratch);
                position = spans[count].position + spans[count].len;
                count += 1;
            }
            self.weigh(kernels, &spans[..count], scratch);
            for value_tile in 0..shape.value_tiles() {
                let values = &scratch.values[value_tile * TILE * STRIP..][..TILE * STRIP];
                let sums = &mut scratch.sums[value_tile * STRIP..];
                let scores = (&scratch.tile[..], TILE);
                kernels.gemm(scores, rows, values, count * STRIP, (sums, width), true);
            }
        }
        self.finish(kernels, tile, scratch);
    }

    /// Scaled queries as rows `[tokens, group, D]`.
    fn gather_queries(&self, to: &mut [f32]) {
        let spec = &self.problem.layer.spec;
        let width = self.group * spec.head_dim;
        for (token, to) in to.chunks_exact_mut(width).take(self.num_tokens).enumerate() {
            let row = (self.first_token + token) * spec.qkv_cols();
            let from = &self.problem.qkv[row + self.kv_head * width..][..width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * spec.scale);
        }
    }

    /// Scores of the strip around `position` into its columns of the tile; its values, zero
    /// where no token of the task may look, into the scratch.
    fn load_strip(
        &self,
        kernels: &Kernels,
        position: usize,
        index: usize,
        scratch: &mut Scratch,
    ) -> StripSpan {
        let shape = self.problem.shape;
        let (block, offset) = (position / shape.block_size, position % shape.block_size);
        let strip = offset / STRIP;
        let start = block * shape.block_size + strip * STRIP;
        let len = STRIP.min(shape.block_size - strip * STRIP);
        let span = StripSpan { position: start, len };
        let (keys, values) =
            shape.strip(self.problem.cells, self.table[block] as usize, self.kv_head, strip);
        let panel = &mut scratch.panel[..shape.key_rows() * STRIP];
        kernels.widen(shape.format, keys, panel);
        let queries = (&scratch.queries[..], shape.head_dim);
        let scores = (&mut scratch.tile[index * STRIP..], TILE);
        kernels.gemm(queries, self.rows(), panel, shape.head_dim, scores, false);

        let bytes = STRIP * STRIP * shape.format.block_bytes();
        for (value_tile, values) in values.chunks_exact(bytes).enumerate() {
            let to = value_tile * TILE * STRIP + index * STRIP * STRIP;
            let to = &mut scratch.values[to..to + STRIP * STRIP];
            kernels.widen(shape.format, values, to);
            for (token, values) in to.chunks_exact_mut(STRIP).enumerate() {
                if token >= len || !self.visible.contains(&(start + token)) {
                    values.fill(0.0);
                }
            }
        }
        span
    }

    /// Turns the scores of a tile into weights, and scales what was summed before to match.
    fn weigh(&self, kernels: &Kernels, spans: &[StripSpan], scratch: &mut Scratch) {
        let spec = &self.problem.layer.spec;
        let (rows, width) = (self.rows(), self.problem.shape.value_tiles() * STRIP);
        let (best, totals) = scratch.totals.split_at_mut(rows);
        for row in 0..rows {
            let position = self.position + row / self.group;
            let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let scores = &mut scratch.tile[row * TILE..][..spans.len() * STRIP];
            if let Some(cap) = spec.soft_cap {
                kernels.soft_cap(scores, cap);
            }
            for (span, scores) in spans.iter().zip(scores.chunks_exact_mut(STRIP)) {
                let hidden = first.saturating_sub(span.position).min(STRIP);
                let seen = (position + 1).saturating_sub(span.position).min(span.len);
                scores[..hidden].fill(f32::NEG_INFINITY);
                scores[seen..].fill(f32::NEG_INFINITY);
            }
            let new = best[row].max(kernels.max(scores));
            if new == f32::NEG_INFINITY && !scores.iter().any(|score| score.is_nan()) {
                scores.fill(0.0);
                continue;
            }
            let total = kernels.exp_sum(scores, new);
            if new > best[row] {
                let factor = (best[row] - new).exp();
                totals[row] *= factor;
                kernels.scale(&mut scratch.sums[row * width..][..width], factor);
                best[row] = new;
            }
            totals[row] += total;
        }
    }

    /// Divides by the totals, the sinks counted, and writes the task's part of the output.
    fn finish(&self, kernels: &Kernels, mut tile: TileMut<'_>, scratch: &mut Scratch) {
        let dim = self.problem.layer.spec.head_dim;
        let (rows, width) = (self.rows(), self.problem.shape.value_tiles() * STRIP);
        for row in 0..rows {
            let (token, head) = (row / self.group, row % self.group);
            let mut total = scratch.totals[rows + row];
            if let Some(sinks) = &self.problem.layer.sinks {
                total += (sinks[self.kv_head * self.group + head] - scratch.totals[row]).exp();
            }
            let to = &mut tile.row(token)[head * dim..(head + 1) * dim];
            to.copy_from_slice(&scratch.sums[row * width..][..dim]);
            kernels.scale(to, 1.0 / total);
        }
    }
}
