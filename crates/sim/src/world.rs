//! One world: traffic against a step loop, first with faults, then until everything has ended.
//!
//! After every turn the pool's invariants are proved, the plan is checked, and the oldest
//! sequence must have advanced. At the end each request is compared with the naive generator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedllm_core::{BlockId, FinishReason, SequenceId, TokenId, TokenLogprobs};
use pagedllm_engine::{
    EngineConfig, Event, EventReceiver, EventSender, Progress, PromptHashes, RequestId,
    RequestSpec, StepLoop, Submission, event_channel,
};

use crate::fake_executor::{Bug, FakeExecutor, Poison};
use crate::model::Expected;
use crate::options::Options;
use crate::random::Random;
use crate::traffic::SimRequest;

/// What became of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Its log-probabilities.
    pub logprobs: Vec<TokenLogprobs>,
    /// Its end.
    pub reason: Option<FinishReason>,
}

/// What happened in a world.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Choices by request.
    pub outcomes: BTreeMap<(RequestId, u32), Outcome>,
    /// Requests that nobody disturbed: all of their answer is owed.
    pub owed: BTreeSet<RequestId>,
    /// Requests that were refused.
    pub num_refused: usize,
    /// Steps.
    pub num_steps: u64,
    /// Preemptions.
    pub num_preemptions: u64,
    /// Tokens found in the prefix cache.
    pub num_hit_tokens: u64,
    /// Block copies.
    pub num_copies: usize,
}

/// Turns without progress of the oldest sequence that are a livelock.
const MAX_STUCK_TURNS: usize = 6;

struct World {
    options: Options,
    random: Random,
    step_loop: StepLoop,
    now: Arc<AtomicU64>,
    begun: Instant,
    events: (EventSender, EventReceiver),
    poison: Poison,
    requests: BTreeMap<RequestId, SimRequest>,
    prompt_logprobs: BTreeMap<RequestId, Vec<TokenLogprobs>>,
    /// Requests that somebody ended early, so that only a part of the answer is owed.
    disturbed: BTreeSet<RequestId>,
    oldest: Option<(SequenceId, usize, usize)>,
    stuck_turns: usize,
    has_failed: bool,
    report: Report,
}

/// Runs the world of these options with `depth` steps in flight.
///
/// # Panics
/// If anything is wrong; that is what it is for.
#[must_use]
pub fn run(options: &Options, depth: usize, bug: Option<Bug>) -> Report {
    let mut world = World::new(options.clone(), depth, bug);
    world.safety_phase();
    world.liveness_phase();
    world.verify();
    world.report
}

impl World {
    fn new(mut options: Options, depth: usize, bug: Option<Bug>) -> Self {
        options.shape.max_steps_in_flight = depth;
        let poison = Poison::default();
        let executor = FakeExecutor::new(options.shape.clone(), options.model, Arc::clone(&poison))
            .with_bug(bug)
            .failing_at(options.device_fails_at);
        let begun = Instant::now();
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let config = EngineConfig {
            prefix_caching: options.prefix_caching,
            mask_time_limit: Duration::from_secs(60),
            ..EngineConfig::default()
        };
        let step_loop = StepLoop::new(
            Box::new(executor),
            &config,
            Box::new(move || begun + Duration::from_micros(clock.load(Ordering::Relaxed))),
        );
        Self {
            random: Random::new(options.seed ^ 0xF00D),
            step_loop,
            now,
            begun,
            events: event_channel(),
            poison,
            requests: BTreeMap::new(),
            prompt_logprobs: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            oldest: None,
            stuck_turns: 0,
            has_failed: false,
            report: Report::default(),
            options,
        }
    }

    fn safety_phase(&mut self) {
        for number in 0..self.options.num_turns as u64 {
            if self.has_failed {
                return;
            }
            if self.random.chance(self.options.arrival_percent) {
                let request = SimRequest::new(number, &self.options, &mut self.random);
                self.submit(request);
            }
            if self.random.chance(self.options.cancel_percent) {
                self.disturb();
            }
            self.turn();
        }
    }

    /// No arrivals, no cancels: everything must end, in a number of turns that its tokens bound.
    fn liveness_phase(&mut self) {
        let work: usize = self
            .requests
            .values()
            .map(|request| {
                let tokens = request.prompt.len() + request.params.max_tokens as usize;
                tokens * request.params.best_of as usize + 4
            })
            .sum();
        // A preempted token is computed again, but never while nobody else advances.
        let max_turns = 20 * work + 100;
        for _ in 0..max_turns {
            if self.has_failed || self.turn() == Progress::Idle {
                return;
            }
        }
        panic!("not idle after {max_turns} turns without arrivals");
    }

    fn submit(&mut self, request: SimRequest) {
        request.params.check(self.options.model.vocab_size).expect("the traffic is valid");
        let limits = self.step_loop.scheduler().limits();
        if limits.check(&request.prompt, &request.params).is_err() {
            self.report.num_refused += 1;
            return;
        }
        let hashes =
            PromptHashes::new(&request.prompt, &request.salt, self.options.shape.block_size);
        let arrival = self.begun + Duration::from_micros(self.now.load(Ordering::Relaxed));
        let spec = RequestSpec {
            id: request.id,
            prompt: request.prompt.clone(),
            hashes,
            params: request.params.clone(),
            eos_token_ids: request.eos_token_ids.clone(),
            priority: request.priority,
            seed: request.seed,
            caching: self.options.prefix_caching,
        };
        self.step_loop.submit(Submission {
            spec,
            arrival,
            deadline: request.deadline.map(|limit| arrival + limit),
            events: self.events.0.clone(),
            constraint: request.constraint.clone().map(|constraint| Box::new(constraint) as _),
        });
        if request.deadline.is_some() {
            self.disturbed.insert(request.id);
        }
        self.requests.insert(request.id, request);
    }

    /// Cancels a request or ends a choice, in whatever state it is, ended ones included.
    fn disturb(&mut self) {
        let ids: Vec<_> = self.requests.keys().copied().collect();
        if ids.is_empty() {
            self.step_loop.end(RequestId::new(u64::MAX), None, FinishReason::Cancelled);
            return;
        }
        // Recent ones more often, since they are alive.
        let back = self.random.below(ids.len().min(8));
        let id = ids[ids.len() - 1 - back];
        let choice = self.random.chance(40).then(|| self.random.below(5) as u32);
        self.disturbed.insert(id);
        self.step_loop.end(id, choice, FinishReason::Cancelled);
        if self.random.chance(20) {
            self.step_loop.end(id, choice, FinishReason::Cancelled);
        }
    }

    fn turn(&mut self) -> Progress {
        self.now.fetch_add(self.random.between(1, 5000) as u64, Ordering::Relaxed);
        let progress = match self.step_loop.turn() {
            Ok(progress) => progress,
            Err(error) => {
                assert!(self.options.device_fails_at.is_some(), "{error}");
                self.has_failed = true;
                self.step_loop.fail_all(&error);
                Progress::Idle
            }
        };
        self.check();
        self.drain_events();
        self.poison_free_blocks();
        progress
    }

    fn check(&mut self) {
        let scheduler = self.step_loop.scheduler();
        let pool = self.step_loop.pool();
        pool.check(scheduler.sequences().map(pagedllm_scheduler::Sequence::blocks));
        if let Some(plan) = self.step_loop.last_plan()
            && self.report.num_steps <= plan.number
        {
            plan.check(self.options.shape.max_logit_rows);
            self.report.num_steps = plan.number + 1;
            self.report.num_copies += plan.copies.len();
        }
        self.report.num_preemptions = scheduler.num_preemptions();
        // I3 of the scheduler: the oldest always advances.
        let oldest = scheduler
            .first_running()
            .map(|sequence| (sequence.id(), sequence.num_scheduled(), sequence.tokens().len()));
        if oldest.is_some() && oldest == self.oldest {
            self.stuck_turns += 1;
            assert!(self.stuck_turns < MAX_STUCK_TURNS, "the oldest sequence does not advance");
        } else {
            self.stuck_turns = 0;
        }
        self.oldest = oldest;
    }

    fn drain_events(&mut self) {
        while let Ok(batch) = self.events.1.channel().try_recv() {
            for event in batch {
                self.take(event);
            }
        }
    }

    fn take(&mut self, event: Event) {
        let of = |choice| (event.request(), choice);
        match &event {
            Event::PromptLogprobs { request, logprobs } => {
                self.prompt_logprobs.entry(*request).or_default().extend(logprobs.iter().cloned());
            }
            Event::Token { choice, token, logprobs, .. } => {
                let outcome = self.report.outcomes.entry(of(*choice)).or_default();
                assert_eq!(outcome.reason, None, "nothing follows the end");
                outcome.tokens.push(*token);
                outcome.logprobs.extend(logprobs.clone());
            }
            Event::Finished { choice, reason, usage, .. } => {
                let prompt_len = self.requests[&event.request()].prompt.len();
                let outcome = self.report.outcomes.entry(of(*choice)).or_default();
                assert_eq!(outcome.reason.replace(*reason), None, "a choice ends once");
                assert_eq!(usage.output_tokens, outcome.tokens.len());
                assert_eq!(usage.prompt_tokens, prompt_len);
                assert!(usage.cached_tokens < prompt_len, "one prompt token is computed");
                assert!(usage.cached_tokens.is_multiple_of(self.options.shape.block_size));
            }
        }
    }

    /// Fills every block that means nothing with nonsense, before the next step that is submitted.
    fn poison_free_blocks(&mut self) {
        let pool = self.step_loop.pool();
        let blocks = (0..self.options.shape.num_blocks).map(BlockId::new);
        let mut poison = self.poison.lock().expect("nobody panics holding it");
        *poison = blocks.filter(|&block| pool.is_meaningless(block)).collect();
    }

    fn verify(&mut self) {
        assert!(self.step_loop.is_idle(), "everything has ended");
        assert_eq!(self.step_loop.pool().stats().used, 0, "every block came back");
        self.report.num_hit_tokens = {
            let stats = self.step_loop.stats().lock().expect("nobody panics holding it");
            stats.prefix_hits_tokens_total
        };
        let max_len = self.step_loop.scheduler().limits().cache_len;
        for (id, request) in &self.requests {
            let expected: Vec<_> = (0..request.params.best_of)
                .map(|choice| request.expected(&self.options.model, max_len, choice))
                .collect();
            // A fault in one choice ends them all, wherever they are.
            let faults = expected.iter().any(|choice| choice.reason == FinishReason::Fault);
            let owes_all = !faults && !self.disturbed.contains(id) && !self.has_failed;
            if owes_all {
                self.report.owed.insert(*id);
            }
            for (choice, expected) in expected.iter().enumerate() {
                let outcome = self.report.outcomes.get(&(*id, choice as u32));
                let outcome = outcome.unwrap_or_else(|| panic!("{id} choice {choice} never ended"));
                check_outcome(*id, outcome, expected, owes_all);
            }
            if faults && !self.disturbed.contains(id) && !self.has_failed {
                let ended = |choice: u32| self.report.outcomes[&(*id, choice)].reason;
                let mut reasons = (0..request.params.best_of).map(ended);
                assert!(reasons.any(|reason| reason == Some(FinishReason::Fault)), "{id} faults");
            }
            if let Some(num_top) = request.params.prompt_logprobs {
                let want = self.options.model.prompt_logprobs(&request.prompt, num_top);
                let got = self.prompt_logprobs.get(id).map_or(&[][..], |list| list);
                assert_eq!(got, &want[..got.len()], "{id}: prompt log-probabilities");
                assert!(!owes_all || got.len() == want.len(), "{id}: each prompt token is scored");
            }
        }
    }
}

fn check_outcome(id: RequestId, outcome: &Outcome, expected: &Expected, owes_all: bool) {
    if owes_all {
        assert_eq!(outcome.tokens, expected.tokens, "{id}: tokens");
        assert_eq!(outcome.logprobs, expected.logprobs, "{id}: log-probabilities");
        assert_eq!(outcome.reason, Some(expected.reason), "{id}: reason");
        return;
    }
    let len = outcome.tokens.len();
    assert!(len <= expected.tokens.len(), "{id}: more tokens than it should ever have");
    assert_eq!(outcome.tokens, expected.tokens[..len], "{id}: tokens until it was ended");
    assert!(outcome.reason.is_some(), "{id} ends");
}
