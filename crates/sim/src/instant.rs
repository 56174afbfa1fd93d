//! An executor that costs next to nothing: it counts. For measuring what lies above the seam.

use std::collections::VecDeque;

use pagedllm_core::{
    RowOutput, RowTask, SamplingBatch, StepInput, StepOutput, TokenId, TokenLogprob, TokenLogprobs,
};
use pagedllm_engine::{Executor, ExecutorError, ExecutorShape, StepTicket};

/// The executor. A token depends on its position alone; filters and constraints are not looked at.
pub struct InstantExecutor {
    shape: ExecutorShape,
    tokens: Vec<TokenId>,
    sampled: VecDeque<(u64, Option<SamplingBatch>)>,
    next: u64,
}

impl InstantExecutor {
    /// An executor that says `tokens` over and over.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(shape: ExecutorShape, tokens: Vec<TokenId>) -> Self {
        assert!(!tokens.is_empty(), "there is a token to say");
        Self { shape, tokens, sampled: VecDeque::new(), next: 0 }
    }

    fn row(&self, task: &RowTask, num_logprobs: Option<u32>) -> RowOutput {
        let token = match task {
            RowTask::Score { target } => *target,
            RowTask::Draw(draw) => self.tokens[draw.position as usize % self.tokens.len()],
        };
        let chosen = TokenLogprob { token, logprob: 0.0 };
        let logprobs =
            num_logprobs.map(|_| vec![TokenLogprobs { chosen, rank: 1, top: Vec::new() }]);
        RowOutput { tokens: vec![token], logprobs, fault: None }
    }
}

impl Executor for InstantExecutor {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn submit(&mut self, _input: StepInput) -> StepTicket {
        self.sampled.push_back((self.next, None));
        self.next += 1;
        StepTicket(self.next - 1)
    }

    fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch) {
        let step = self.sampled.iter_mut().find(|(number, _)| *number == ticket.0);
        step.expect("a step in flight is sampled").1 = Some(sampling);
    }

    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
        let (number, sampling) = self.sampled.pop_front().expect("a step in flight");
        assert_eq!(number, ticket.0, "waits come in submit order");
        let sampling = sampling.expect("sampled before it is waited for");
        let rows = sampling.rows.iter().map(|row| self.row(&row.task, row.num_logprobs)).collect();
        Ok(StepOutput { rows })
    }
}

#[cfg(test)]
mod tests {
    use pagedllm_core::SamplingParams;
    use pagedllm_engine::{Engine, EngineConfig, Request};

    use super::*;
    use crate::options::shape;

    #[test]
    fn it_says_its_tokens_over_and_over() {
        let executor = InstantExecutor::new(shape(&[None], 16, 64, 100), vec![5, 6, 7]);
        let engine = Engine::spawn(Box::new(executor), EngineConfig::default());
        let params = SamplingParams { max_tokens: 5, ..SamplingParams::default() };
        let stream = engine.stream(Request::new(vec![1], params)).expect("a place");
        assert_eq!(stream.collect_choices()[0].tokens, [6, 7, 5, 6, 7]);
    }
}
