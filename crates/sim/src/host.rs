//! What the engine itself costs: planning, building the batch, committing and sending, with an
//! executor that does nothing.

use std::time::Instant;

use pagedllm_core::{RowOutput, SamplingBatch, SamplingParams, StepInput, StepOutput};
use pagedllm_engine::{
    EngineConfig, Executor, ExecutorError, ExecutorShape, PromptHashes, RequestId, RequestSpec,
    StepLoop, StepTicket, Submission, event_channel,
};

use crate::options::shape;

/// Draws token 1 for every row, in no time.
struct Instantly {
    shape: ExecutorShape,
    num_rows: std::collections::VecDeque<usize>,
    next: u64,
}

impl Executor for Instantly {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }
    fn submit(&mut self, _: StepInput) -> StepTicket {
        self.next += 1;
        StepTicket(self.next - 1)
    }
    fn sample(&mut self, _: &StepTicket, sampling: SamplingBatch) {
        self.num_rows.push_back(sampling.rows.len());
    }
    fn wait(&mut self, _: StepTicket) -> Result<StepOutput, ExecutorError> {
        let row = RowOutput { tokens: vec![1], logprobs: None, fault: None };
        let num_rows = self.num_rows.pop_front().unwrap_or(0);
        Ok(StepOutput { rows: vec![row; num_rows] })
    }
}

/// Median time of a whole turn of the loop, in microseconds, over `num_steps` decode steps of
/// `num_seqs` sequences of 500 tokens and more. It includes what the executor above takes.
///
/// # Panics
/// If the executor fails, which it does not.
#[must_use]
pub fn step_us(num_seqs: usize, num_steps: u32) -> f64 {
    let shape = ExecutorShape { max_num_seqs: num_seqs, ..shape(&[None], 16, 65_536, 128_256) };
    let executor = Instantly { shape, num_rows: Default::default(), next: 0 };
    let clock = Box::new(Instant::now);
    let mut step_loop = StepLoop::new(Box::new(executor), &EngineConfig::default(), clock);
    let (sender, receiver) = event_channel();
    for number in 0..num_seqs as u64 {
        let prompt: Vec<_> = (0..500).map(|token| token + number as u32).collect();
        let params =
            SamplingParams { max_tokens: 3500, ignore_eos: true, ..SamplingParams::default() };
        let spec = RequestSpec {
            id: RequestId::new(number),
            hashes: PromptHashes::new(&prompt, &[], 16),
            prompt,
            params,
            eos_token_ids: Vec::new(),
            priority: 0,
            seed: number,
            caching: true,
        };
        let (arrival, events) = (Instant::now(), sender.clone());
        step_loop.submit(Submission { spec, arrival, deadline: None, events, constraint: None });
    }
    for _ in 0..100 {
        step_loop.turn().expect("this device does not fail");
    }
    let mut times = Vec::new();
    for _ in 0..num_steps {
        let begun = Instant::now();
        step_loop.turn().expect("this device does not fail");
        times.push(begun.elapsed());
        while receiver.channel().try_recv().is_ok() {}
    }
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |median| median.as_secs_f64() * 1e6)
}
