//! Sampling on the device: rows packed for `kernels/sample.cu`, results brought back.

use std::sync::Arc;

use pagedllm_backend::sampler::MIN_TEMPERATURE;
use pagedllm_backend::{DeviceError, WorkspaceSpec};
use pagedllm_core::{
    Draw, RowFault, RowOutput, RowTask, SamplingBatch, StepOutput, TokenLogprob, TokenLogprobs,
};

use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Staging};
use crate::plan::{
    HISTOGRAM_WORDS, MAX_TOP, ROW_FILTERED, ROW_GREEDY, ROW_LOGPROBS, ROW_MASK, ROW_SCORE,
    ROW_STATE, SAMPLED_ROW_WORDS, SLICE_WORDS, SLICES, SamplingWords,
};

/// No scratch row.
const NO_ROW: u32 = u32::MAX;
/// Words of a packed row.
const ROW_LEN: usize = size_of::<SamplingWords>() / 4;
/// Bias entries of a row for which room is reserved; a batch with more makes the buffers grow.
const RESERVED_BIASES: usize = 64;

/// Tokens being drawn.
#[derive(Debug)]
pub struct Sampled {
    turn: usize,
    /// What each row asked for in log-probabilities.
    rows: Vec<Option<u32>>,
}

/// The sampling state and buffers of the device.
#[derive(Debug)]
pub(crate) struct Sampler {
    device: Arc<Device>,
    staging: Staging,
    landing: DeviceBuffer,
    results: DeviceBuffer,
    logprobs: DeviceBuffer,
    output: [(HostBuffer, Event); 2],
    turn: usize,
    /// `[rows]` tokens of the last sampling, which the next step's input may name.
    pub sampled: DeviceBuffer,
    /// `[state rows, V]` penalty state.
    pub state: DeviceBuffer,
    pub slices: DeviceBuffer,
    /// `[filtered rows]` histograms, zeros between steps.
    pub histograms: DeviceBuffer,
    pub vocab: usize,
    max_rows: usize,
    max_seqs: usize,
}

/// Where a packed batch lies on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRows {
    pub num_rows: usize,
    pub rows: u64,
    pub scratch_rows: u64,
    pub adjusted_rows: u64,
    pub num_adjusted: usize,
    pub filtered_rows: u64,
    pub num_filtered: usize,
    pub histogram_rows: u64,
    pub logprob_rows: u64,
    pub num_logprobs: usize,
    pub masks: u64,
    pub biases: u64,
    pub results: u64,
    pub logprobs: u64,
}

/// Host side of a batch before it is laid out.
#[derive(Debug, Default)]
struct Rows {
    words: Vec<SamplingWords>,
    scratch_rows: Vec<u32>,
    adjusted: Vec<u32>,
    filtered: Vec<u32>,
    histogram_rows: Vec<u32>,
    logprobs: Vec<u32>,
    masks: Vec<u32>,
    biases: Vec<[u32; 2]>,
}

impl Sampler {
    /// Reserves everything.
    pub fn new(device: &Arc<Device>, spec: &WorkspaceSpec) -> Result<Self, DeviceError> {
        let max_rows = spec.max_logit_rows + spec.max_num_seqs;
        let mask_words = spec.vocab_size.div_ceil(32);
        let words = max_rows * (ROW_LEN + 5)
            + spec.max_num_seqs * (mask_words + 2 * RESERVED_BIASES)
            + 2 * spec.vocab_size;
        let output_words = max_rows * (2 + SAMPLED_ROW_WORDS);
        let output = || -> Result<(HostBuffer, Event), DeviceError> {
            Ok((HostBuffer::new(device, output_words)?, Event::new(device, false)?))
        };
        let buffer = |words: usize| DeviceBuffer::zeroed(device, words * 4, "sampling");
        Ok(Self {
            device: device.clone(),
            staging: Staging::new(device, words)?,
            landing: buffer(words)?,
            results: buffer(max_rows * 2)?,
            logprobs: buffer(max_rows * SAMPLED_ROW_WORDS)?,
            output: [output()?, output()?],
            turn: 0,
            sampled: buffer(max_rows)?,
            state: buffer(spec.max_num_seqs * spec.vocab_size)?,
            slices: buffer(max_rows * SLICES * SLICE_WORDS)?,
            histograms: buffer(spec.max_num_seqs * HISTOGRAM_WORDS)?,
            vocab: spec.vocab_size,
            max_rows,
            max_seqs: spec.max_num_seqs,
        })
    }

    /// Packs a batch and starts its copy.
    pub fn upload(&mut self, sampling: &SamplingBatch) -> Result<PackedRows, DeviceError> {
        assert!(sampling.rows.len() <= self.max_rows, "{} sampling rows", sampling.rows.len());
        let rows = self.pack(sampling);
        assert!(rows.filtered.len() <= self.max_seqs, "{} rows draw", rows.filtered.len());
        let lists: [&[u32]; 8] = [
            bytemuck::cast_slice(&rows.words),
            // Pairs of words are read as one, so what precedes them is padded to an even place.
            bytemuck::cast_slice(&rows.biases),
            &rows.scratch_rows,
            &rows.adjusted,
            &rows.logprobs,
            &rows.masks,
            &rows.filtered,
            &rows.histogram_rows,
        ];
        let len = lists.iter().map(|list| list.len().next_multiple_of(4)).sum();
        if len > self.staging.capacity() {
            self.device.synchronize()?;
            self.staging = Staging::new(&self.device, len)?;
            self.landing = DeviceBuffer::new(&self.device, len * 4, "sampling")?;
        }
        let words = self.staging.words()?;
        let mut at = 0;
        let mut places = [0; 8];
        for (list, place) in lists.iter().zip(&mut places) {
            words[at..at + list.len()].copy_from_slice(list);
            *place = self.landing.address() + at as u64 * 4;
            at += list.len().next_multiple_of(4);
        }
        self.staging.send(self.landing.address(), len)?;
        let [packed, biases, scratch_rows, adjusted_rows, logprob_rows, masks, filtered_rows, last] =
            places;
        Ok(PackedRows {
            num_rows: rows.words.len(),
            rows: packed,
            scratch_rows,
            adjusted_rows,
            num_adjusted: rows.adjusted.len(),
            filtered_rows,
            num_filtered: rows.filtered.len(),
            histogram_rows: last,
            logprob_rows,
            num_logprobs: rows.logprobs.len(),
            masks,
            biases,
            results: self.results.address(),
            logprobs: self.logprobs.address(),
        })
    }

    fn pack(&self, sampling: &SamplingBatch) -> Rows {
        let mask_words = self.vocab.div_ceil(32);
        let mut rows = Rows { masks: sampling.masks.clone(), ..Rows::default() };
        for (index, row) in sampling.rows.iter().enumerate() {
            let mut words = SamplingWords { logit_row: row.logit_row, ..SamplingWords::default() };
            match &row.task {
                RowTask::Score { target } => {
                    words.flags = ROW_SCORE;
                    words.target = *target;
                }
                RowTask::Draw(draw) => rows.draw(draw, &mut words, mask_words, self.max_seqs),
            }
            let adjusts =
                words.flags & (ROW_MASK | ROW_STATE) != 0 || words.bias_begin != words.bias_end;
            if adjusts {
                rows.scratch_rows.push(rows.adjusted.len() as u32);
                rows.adjusted.push(index as u32);
            } else {
                rows.scratch_rows.push(NO_ROW);
            }
            if words.flags & ROW_FILTERED == 0 {
                rows.histogram_rows.push(NO_ROW);
            } else {
                rows.histogram_rows.push(rows.filtered.len() as u32);
                rows.filtered.push(index as u32);
            }
            if let Some(count) = row.num_logprobs {
                words.flags |= ROW_LOGPROBS;
                words.num_top = count.min(MAX_TOP as u32);
                rows.logprobs.push(index as u32);
            }
            rows.words.push(words);
        }
        rows
    }

    /// Starts bringing the results back, and marks the end of the step.
    pub fn finish(
        &mut self,
        sampling: &SamplingBatch,
        num_logprobs: usize,
    ) -> Result<Sampled, DeviceError> {
        let turn = self.turn;
        self.turn = 1 - turn;
        let (buffer, event) = &mut self.output[turn];
        let rows = sampling.rows.len();
        if rows > 0 {
            buffer.download(self.results.address(), 0, rows * 2)?;
        }
        if num_logprobs > 0 {
            let words = num_logprobs * SAMPLED_ROW_WORDS;
            buffer.download(self.logprobs.address(), rows * 2, words)?;
        }
        event.record()?;
        Ok(Sampled { turn, rows: sampling.rows.iter().map(|row| row.num_logprobs).collect() })
    }

    /// A step that failed before its results were on their way.
    pub fn nothing(&self) -> Sampled {
        Sampled { turn: self.turn, rows: Vec::new() }
    }

    /// Waits for the results.
    pub fn wait(&self, sampled: &Sampled) -> Result<StepOutput, DeviceError> {
        let (buffer, event) = &self.output[sampled.turn];
        event.wait()?;
        let words = buffer.words();
        let mut details = words[sampled.rows.len() * 2..].chunks_exact(SAMPLED_ROW_WORDS);
        let rows = sampled.rows.iter().zip(words.chunks_exact(2)).map(|(&asked, result)| {
            let detail = asked.and_then(|count| Some((details.next()?, count as usize)));
            row_output(result, detail, self.vocab)
        });
        Ok(StepOutput { rows: rows.collect() })
    }
}

impl Rows {
    fn draw(&mut self, draw: &Draw, words: &mut SamplingWords, mask_words: usize, states: usize) {
        words.temperature = draw.temperature;
        words.top_p = draw.top_p;
        words.min_p = draw.min_p;
        words.top_k = draw.top_k;
        words.repetition_penalty = draw.repetition_penalty;
        words.presence_penalty = draw.presence_penalty;
        words.frequency_penalty = draw.frequency_penalty;
        words.seed_low = draw.seed as u32;
        words.seed_high = (draw.seed >> 32) as u32;
        words.choice = draw.choice;
        words.position = draw.position;
        if draw.temperature < MIN_TEMPERATURE {
            words.flags |= ROW_GREEDY;
        } else if draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0 {
            words.flags |= ROW_FILTERED;
        }
        if let Some(row) = draw.state_row {
            assert!((row as usize) < states, "state row {row}");
            words.flags |= ROW_STATE;
            words.state_row = row;
        }
        // An allowed list is a mask of its own, cut by the row's mask.
        if let Some(allowed) = &draw.allowed {
            let mut mask = vec![0; mask_words];
            for &token in allowed {
                mask[token as usize / 32] |= 1 << (token % 32);
            }
            if let Some(other) = draw.mask {
                let other = &self.masks[other as usize * mask_words..][..mask_words];
                mask.iter_mut().zip(other).for_each(|(mask, other)| *mask &= other);
            }
            words.flags |= ROW_MASK;
            words.mask = (self.masks.len() / mask_words) as u32;
            self.masks.extend(mask);
        } else if let Some(mask) = draw.mask {
            words.flags |= ROW_MASK;
            words.mask = mask;
        }
        // A ban is a bias of minus infinity.
        words.bias_begin = self.biases.len() as u32;
        let ban = f32::NEG_INFINITY.to_bits();
        self.biases.extend(draw.banned.iter().map(|&token| [token, ban]));
        self.biases.extend(draw.logit_bias.iter().map(|&(token, bias)| [token, bias.to_bits()]));
        words.bias_end = self.biases.len() as u32;
    }
}

fn row_output(result: &[u32], detail: Option<(&[u32], usize)>, vocab: usize) -> RowOutput {
    let fault = match result[1] {
        0 => None,
        1 => Some(RowFault::NotANumber),
        _ => Some(RowFault::NoAllowedToken),
    };
    if fault.is_some() {
        return RowOutput { fault, ..RowOutput::default() };
    }
    let logprobs = detail.map(|(words, count)| {
        let (tokens, values) = words[4..].split_at(MAX_TOP);
        let top = tokens.iter().zip(values).take(count.min(vocab));
        let logprob = |token, bits| TokenLogprob { token, logprob: f32::from_bits(bits) };
        vec![TokenLogprobs {
            chosen: logprob(words[0], words[2]),
            rank: words[3],
            top: top.map(|(&token, &bits)| logprob(token, bits)).collect(),
        }]
    });
    RowOutput { tokens: vec![result[0]], logprobs, fault: None }
}
