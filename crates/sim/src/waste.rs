//! How much of the KV cache holds no token, under the traffic that we promise a figure for:
//! prompts of 16 to 300 tokens, 128 tokens out, blocks of 16, 50 requests in flight.

use std::time::Instant;

use pagedllm_core::{SamplingParams, TokenId};
use pagedllm_engine::{
    EngineConfig, EngineStats, Progress, PromptHashes, RequestId, RequestSpec, StepLoop,
    Submission, event_channel,
};

use crate::fake_executor::{FakeExecutor, Poison};
use crate::model::Model;
use crate::options::shape;
use crate::random::Random;

/// Serves `num_requests` and gives the counters.
///
/// # Panics
/// If the fake device fails, which it does not.
#[must_use]
pub fn serve(num_requests: u64) -> EngineStats {
    let mut random = Random::new(1);
    let model = Model { vocab_size: 1000, fault_every: 0 };
    let shape = shape(&[None], 16, 2048, model.vocab_size);
    let limits_shape = shape.clone();
    let executor = FakeExecutor::new(shape, model, Poison::default());
    let clock = Box::new(Instant::now);
    let mut step_loop = StepLoop::new(Box::new(executor), &EngineConfig::default(), clock);
    let (sender, receiver) = event_channel();
    let mut ended = Vec::new();
    let (mut submitted, mut in_flight) = (0, 0);
    loop {
        while in_flight < 50 && submitted < num_requests {
            let len = random.between(16, 300);
            let prompt: Vec<_> = (0..len).map(|_| random.below(1000) as TokenId).collect();
            let params =
                SamplingParams { max_tokens: 128, ignore_eos: true, ..SamplingParams::default() };
            let spec = RequestSpec {
                id: RequestId::new(submitted),
                hashes: PromptHashes::new(&prompt, &[], limits_shape.block_size),
                prompt,
                params,
                eos_token_ids: Vec::new(),
                priority: 0,
                seed: submitted,
                caching: true,
            };
            let events = sender.clone();
            let arrival = Instant::now();
            step_loop.submit(Submission {
                spec,
                arrival,
                deadline: None,
                events,
                constraint: None,
            });
            submitted += 1;
            in_flight += 1;
        }
        let progress = step_loop.turn().expect("this device does not fail");
        while receiver.channel().try_recv().is_ok() {}
        step_loop.take_ended(&mut ended);
        in_flight -= ended.drain(..).count();
        if progress == Progress::Idle && submitted == num_requests {
            return step_loop.stats().lock().expect("nobody panics holding it").clone();
        }
    }
}
