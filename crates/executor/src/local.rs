//! One device: model, KV cache and backend of one rank, behind the engine's `Executor`.

use std::collections::VecDeque;

use pagedllm_backend::{Backend, DeviceError};
use pagedllm_core::{SamplingBatch, StepInput, StepOutput};
use pagedllm_engine::{Executor, ExecutorError, ExecutorShape, StepTicket};
use pagedllm_models::Model;

/// Runs a model on one backend, in the engine's thread.
pub struct LocalExecutor<B: Backend> {
    backend: B,
    model: Box<dyn Model<B>>,
    kv: B::KvCache,
    shape: ExecutorShape,
    in_flight: VecDeque<InFlight<B>>,
    next_ticket: u64,
}

struct InFlight<B: Backend> {
    ticket: u64,
    stage: Stage<B>,
}

enum Stage<B: Backend> {
    Submitted { step: B::Step, logits: Option<B::Tensor> },
    Sampling(B::Sampled),
}

impl<B: Backend> LocalExecutor<B> {
    /// Puts the parts together.
    #[must_use]
    pub fn new(backend: B, model: Box<dyn Model<B>>, kv: B::KvCache, shape: ExecutorShape) -> Self {
        Self { backend, model, kv, shape, in_flight: VecDeque::new(), next_ticket: 0 }
    }
}

impl<B: Backend> Executor for LocalExecutor<B> {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn submit(&mut self, input: StepInput) -> StepTicket {
        assert!(self.in_flight.len() < self.shape.max_steps_in_flight, "too many steps in flight");
        debug_assert!({
            input.batch.check(self.shape.block_size);
            true
        });
        let Self { backend, model, kv, .. } = self;
        let step = backend.begin_step(kv, &input);
        let hidden = backend.run(&step, |b| model.forward(b, kv, &step));
        let logits = if input.batch.logit_rows.is_empty() {
            None
        } else {
            Some(model.head(backend, &hidden, &step))
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.in_flight.push_back(InFlight { ticket, stage: Stage::Submitted { step, logits } });
        StepTicket(ticket)
    }

    fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch) {
        let last = self.in_flight.pop_back().expect("a step was submitted");
        assert_eq!(last.ticket, ticket.0, "steps are sampled in submit order");
        let Stage::Submitted { step, logits } = last.stage else {
            panic!("a step is sampled once");
        };
        let sampled = self.backend.sample(logits, &step, &sampling);
        self.in_flight.push_back(InFlight { ticket: ticket.0, stage: Stage::Sampling(sampled) });
    }

    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
        let first = self.in_flight.pop_front().expect("a step is in flight");
        assert_eq!(first.ticket, ticket.0, "steps are waited for in submit order");
        let Stage::Sampling(sampled) = first.stage else {
            panic!("a step is sampled before it is waited for");
        };
        self.backend.wait(sampled).map_err(|error| match error {
            DeviceError::Fault(message) => ExecutorError { message },
            other => ExecutorError { message: other.to_string() },
        })
    }
}
