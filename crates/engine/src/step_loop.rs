//! The step loop without its thread: what happens in one turn, in order.
//!
//! With two steps in flight, a turn plans and submits step N+1 while step N runs, and then waits
//! for step N. Masks of N+1 need the tokens of N, so a step with constrained rows is sampled only
//! after that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagedllm_core::{FinishReason, RowFault, SamplingBatch, StepOutput};
use pagedllm_kv::{BlockPool, KvShape};
use pagedllm_scheduler::{Event, RequestId, Scheduler, StepBudget, StepLimits, StepPlan};

use crate::batch_builder::{sampling_batch, step_input};
use crate::masks::{Failure, MaskedRows, Masks};
use crate::meter::Meter;
use crate::outbox::Outbox;
use crate::{
    EngineConfig, EngineStats, Executor, ExecutorError, ExecutorShape, StepTicket, Submission,
};

/// Fewest prefill tokens in a step that also decodes, however slow the device is.
const MIN_PREFILL_TOKENS: usize = 16;

/// What a turn of the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left to do.
    Idle,
    /// A step was submitted or committed.
    Advanced,
}

/// Tells the time. The simulator has its own.
pub type Clock = Box<dyn Fn() -> Instant + Send>;

/// A step that was submitted.
struct InFlight {
    plan: StepPlan,
    ticket: StepTicket,
    submitted: Instant,
    /// Present until the masks are there.
    unsampled: Option<(SamplingBatch, Vec<MaskedRows>)>,
}

/// Scheduler, blocks and executor, and all that follows from a step.
pub struct StepLoop {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    pool: BlockPool,
    vocab_size: usize,
    depth: usize,
    max_decode_stall: Option<Duration>,
    /// Measured on steps with prefill; seconds.
    seconds_per_token: Option<f64>,
    in_flight: VecDeque<InFlight>,
    last_plan: Option<StepPlan>,
    last_done: Instant,
    deadlines: BinaryHeap<Reverse<(Instant, RequestId)>>,
    masks: Masks,
    meter: Meter,
    outbox: Outbox,
    ended: Vec<RequestId>,
    stats: Arc<Mutex<EngineStats>>,
    clock: Clock,
    started: Instant,
    host_time: Duration,
}

impl std::fmt::Debug for StepLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepLoop").field("scheduler", &self.scheduler).finish_non_exhaustive()
    }
}

/// The limits that executor and configuration give together.
fn limits(shape: &ExecutorShape, kv: &KvShape, config: &EngineConfig) -> StepLimits {
    let max_num_batched_tokens = config
        .max_num_batched_tokens
        .unwrap_or(usize::MAX)
        .clamp(1, shape.max_num_batched_tokens.max(1));
    let max_num_seqs = config
        .max_num_seqs
        .unwrap_or(usize::MAX)
        .min(shape.max_num_seqs)
        .min(max_num_batched_tokens)
        .min(shape.max_logit_rows)
        .max(1);
    StepLimits::new(
        kv,
        max_num_batched_tokens,
        max_num_seqs,
        shape.max_logit_rows,
        shape.max_model_len,
        shape.vocab_size,
    )
}

impl StepLoop {
    /// A loop without requests.
    #[must_use]
    pub fn new(executor: Box<dyn Executor>, config: &EngineConfig, clock: Clock) -> Self {
        let shape = executor.shape();
        let kv = KvShape::new(&shape.groups, shape.block_size, shape.num_blocks);
        let limits = limits(shape, &kv, config);
        let stats = EngineStats::new(shape.num_blocks, shape.block_size, shape.max_model_len);
        let now = clock();
        Self {
            scheduler: Scheduler::new(limits),
            vocab_size: shape.vocab_size,
            depth: shape.max_steps_in_flight.clamp(1, 2),
            max_decode_stall: config.max_decode_stall,
            seconds_per_token: None,
            in_flight: VecDeque::new(),
            last_plan: None,
            last_done: now,
            deadlines: BinaryHeap::new(),
            masks: Masks::new(config, shape.vocab_size),
            meter: Meter::default(),
            outbox: Outbox::default(),
            ended: Vec::new(),
            stats: Arc::new(Mutex::new(stats)),
            pool: BlockPool::new(kv),
            clock,
            started: now,
            host_time: Duration::ZERO,
            executor,
        }
    }
    /// The scheduler, to look at.
    #[must_use]
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
    /// The blocks, to look at.
    #[must_use]
    pub const fn pool(&self) -> &BlockPool {
        &self.pool
    }
    /// The plan that was committed last.
    #[must_use]
    pub const fn last_plan(&self) -> Option<&StepPlan> {
        self.last_plan.as_ref()
    }
    /// All counters, shared with whoever reads them.
    #[must_use]
    pub const fn stats(&self) -> &Arc<Mutex<EngineStats>> {
        &self.stats
    }
    /// Whether no request is left and no step is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.in_flight.is_empty()
    }
    /// Mean time between two requests that start.
    #[must_use]
    pub fn drain_interval(&self) -> Duration {
        self.meter.drain_interval
    }
    /// Requests that have ended since the last call.
    pub fn take_ended(&mut self, into: &mut Vec<RequestId>) {
        into.append(&mut self.ended);
    }

    /// Queues a request that the limits' [`check`](StepLimits::check) has passed.
    pub fn submit(&mut self, submission: Submission) {
        let Submission { spec, arrival, deadline, events, constraint } = submission;
        self.meter.open(&spec, arrival);
        self.outbox.open(spec.id, events);
        if let Some(constraint) = constraint {
            self.masks.open(spec.id, constraint);
        }
        if let Some(deadline) = deadline {
            self.deadlines.push(Reverse((deadline, spec.id)));
            // Requests mostly end before their time; the list must not outgrow the live ones.
            if self.deadlines.len() > 2 * self.meter.num_open() + 64 {
                let meter = &self.meter;
                self.deadlines.retain(|Reverse((_, request))| meter.is_open(*request));
            }
        }
        self.scheduler.submit(spec);
    }

    /// Ends a request, or one choice of it, in whatever state it is.
    pub fn end(&mut self, request: RequestId, choice: Option<u32>, reason: FinishReason) {
        let events = self.scheduler.end(&mut self.pool, request, choice, reason);
        self.emit(events);
    }

    /// Ends every request.
    pub fn end_all(&mut self, reason: FinishReason) {
        for request in self.scheduler.requests() {
            self.end(request, None, reason);
        }
        self.flush();
    }

    /// Ends every request with the same fault: the device is gone.
    pub fn fail_all(&mut self, error: &ExecutorError) {
        self.in_flight.clear();
        let message = error.to_string();
        for request in self.scheduler.requests() {
            let events = self.scheduler.fail(&mut self.pool, request, &message);
            self.emit(events);
        }
        self.flush();
    }

    /// As [`fail_all`](Self::fail_all), after a panic has left the scheduler in doubt.
    pub(crate) fn abandon_all(&mut self, error: &ExecutorError) {
        for event in self.meter.abandon(&error.to_string()) {
            self.emit(vec![event]);
        }
        self.flush();
    }

    /// One turn: plan and submit a step if there is room for one in flight, then wait for the
    /// oldest, commit it and send its events.
    ///
    /// # Errors
    /// The device is gone.
    pub fn turn(&mut self) -> Result<Progress, ExecutorError> {
        let begun = (self.clock)();
        self.host_time = Duration::ZERO;
        self.expire(begun);
        let budget = self.budget(begun);
        if self.in_flight.len() < self.depth
            && let Some(plan) = self.scheduler.schedule(&mut self.pool, budget)
        {
            self.launch(plan, begun);
            if self.in_flight.len() < self.depth {
                self.flush();
                return Ok(Progress::Advanced);
            }
        }
        if self.in_flight.is_empty() {
            self.unblock();
            self.flush();
            self.publish_gauges();
            return Ok(if self.is_idle() { Progress::Idle } else { Progress::Advanced });
        }
        self.land()?;
        self.flush();
        Ok(Progress::Advanced)
    }

    fn budget(&self, now: Instant) -> StepBudget {
        let stall = self.max_decode_stall.zip(self.seconds_per_token);
        StepBudget {
            now: now.saturating_duration_since(self.started),
            max_num_batched_tokens: self.scheduler.limits().max_num_batched_tokens,
            max_num_prefill_tokens: stall.map(|(stall, per_token)| {
                ((stall.as_secs_f64() / per_token) as usize).max(MIN_PREFILL_TOKENS)
            }),
        }
    }

    fn launch(&mut self, plan: StepPlan, begun: Instant) {
        let input = step_input(&plan, &self.scheduler, self.pool.shape());
        let mut sampling = sampling_batch(&plan, &self.scheduler);
        let masked = self.masks.rows_of(&plan, &self.scheduler);
        let is_current = self.in_flight.is_empty();
        if is_current && !masked.is_empty() {
            self.masks.start(&masked);
        }
        let submitted = (self.clock)();
        self.meter.planned(&plan, submitted, &mut lock(&self.stats));
        let ticket = self.executor.submit(input);
        let returned = (self.clock)();
        self.host_time += submitted.saturating_duration_since(begun);
        let mut unsampled = None;
        if masked.is_empty() {
            self.executor.sample(&ticket, sampling);
        } else if is_current {
            let failures = self.masks.collect(&masked, &mut sampling);
            self.executor.sample(&ticket, sampling);
            self.fail(failures);
        } else {
            unsampled = Some((sampling, masked));
        }
        tracing::trace!(
            step = plan.number,
            num_tokens = plan.num_tokens(),
            num_seqs = plan.chunks.len(),
            num_preempted = plan.preempted.len(),
            submit_us = returned.saturating_duration_since(submitted).as_micros() as u64,
            "step submitted"
        );
        self.in_flight.push_back(InFlight { plan, ticket, submitted, unsampled });
    }

    fn land(&mut self) -> Result<(), ExecutorError> {
        let Some(InFlight { plan, ticket, submitted, unsampled }) = self.in_flight.pop_front()
        else {
            return Ok(());
        };
        assert!(unsampled.is_none(), "a step is sampled before it is waited for");
        let output = self.executor.wait(ticket)?;
        let done = (self.clock)();
        self.check_output(&plan, &output)?;
        self.measure(&plan, submitted, done);
        let events = self.scheduler.commit(&mut self.pool, &plan, &output);
        self.last_plan = Some(plan);
        lock(&self.stats).corrupted_requests_total += num_corrupted(&events);
        self.emit(events);
        self.sample_next();
        self.host_time += (self.clock)().saturating_duration_since(done);
        self.publish_gauges();
        let block_size = self.pool.shape().block_size();
        let mut stats = lock(&self.stats);
        stats.preemptions_total = self.scheduler.num_preemptions();
        stats.slots_allocated_total += (stats.num_blocks_used * block_size) as u64;
        stats.slots_wasted_total += self.scheduler.num_wasted_slots(block_size) as u64;
        stats.host_step_seconds.record(self.host_time.as_secs_f64());
        Ok(())
    }

    /// What runs, waits and is held now; also after a cancel that left nothing to compute.
    fn publish_gauges(&mut self) {
        let pool = self.pool.stats();
        let mut stats = lock(&self.stats);
        stats.num_running = self.scheduler.num_running();
        stats.num_waiting = self.scheduler.num_waiting();
        stats.num_blocks_used = pool.used;
        stats.num_blocks_cached = pool.cached;
    }

    /// The step in flight, if it waited for the tokens of the one that was just committed.
    fn sample_next(&mut self) {
        let Some(next) = self.in_flight.front_mut() else { return };
        let Some((mut sampling, masked)) = next.unsampled.take() else { return };
        self.masks.start(&masked);
        let failures = self.masks.collect(&masked, &mut sampling);
        self.executor.sample(&next.ticket, sampling);
        self.fail(failures);
    }

    fn fail(&mut self, failures: Vec<Failure>) {
        for (request, message) in failures {
            tracing::warn!(%request, message, "the constraint of a request failed");
            let events = self.scheduler.fail(&mut self.pool, request, &message);
            self.emit(events);
        }
    }

    /// An executor that answers nonsense is a broken device, not a broken engine.
    fn check_output(&self, plan: &StepPlan, output: &StepOutput) -> Result<(), ExecutorError> {
        let fail = |message: String| Err(ExecutorError { message });
        if output.rows.len() != plan.num_rows() {
            let (got, asked) = (output.rows.len(), plan.num_rows());
            return fail(format!("it answered {got} of {asked} rows"));
        }
        let mut tokens = output.rows.iter().flat_map(|row| &row.tokens);
        match tokens.find(|&&token| token as usize >= self.vocab_size) {
            Some(token) => fail(format!("it drew token id {token}; there are {}", self.vocab_size)),
            None => Ok(()),
        }
    }

    /// Learns how long a token of prefill takes, so that decodes do not stall behind it.
    fn measure(&mut self, plan: &StepPlan, submitted: Instant, done: Instant) {
        let begun = submitted.max(self.last_done);
        self.last_done = done;
        let num_tokens = plan.num_tokens();
        if num_tokens - plan.chunks.len() < MIN_PREFILL_TOKENS / 2 {
            return;
        }
        let measured = done.saturating_duration_since(begun).as_secs_f64() / num_tokens as f64;
        let measured = measured.max(1e-9);
        let mean =
            self.seconds_per_token.map_or(measured, |old| old.mul_add(0.75, measured * 0.25));
        self.seconds_per_token = Some(mean);
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((deadline, request))) = self.deadlines.peek()
            && deadline <= now
        {
            self.deadlines.pop();
            self.end(request, None, FinishReason::Deadline);
        }
    }

    /// Nothing is in flight and nothing could be planned, yet requests are there: a bug, which
    /// must not become a hang. The first request in line ends.
    fn unblock(&mut self) {
        if let Some(sequence) = self.scheduler.first_waiting() {
            let request = sequence.terms().id;
            tracing::error!(%request, "a request could not be planned");
            let events =
                self.scheduler.fail(&mut self.pool, request, "the request could not be planned");
            self.emit(events);
        }
    }

    fn emit(&mut self, events: Vec<Event>) {
        let mut failures = Vec::new();
        let now = (self.clock)();
        let mut stats = lock(&self.stats);
        for event in events {
            failures.extend(self.masks.happened(&event));
            let request = event.request();
            let has_ended = self.meter.happened(&event, now, &mut stats);
            self.outbox.put(event);
            if has_ended {
                self.masks.close(request);
                self.ended.push(request);
            }
        }
        drop(stats);
        if !failures.is_empty() {
            self.fail(failures);
        }
    }

    /// Sends what the turn produced, and cancels what nobody reads.
    fn flush(&mut self) {
        let orphans = self.outbox.flush();
        for request in orphans {
            self.end(request, None, FinishReason::Cancelled);
        }
        for &request in &self.ended {
            self.outbox.close(request);
        }
    }
}

/// Requests whose logits were not numbers; the ends of one request stand together.
fn num_corrupted(events: &[Event]) -> u64 {
    let not_a_number = RowFault::NotANumber.to_string();
    let is_corrupted = |event: &&Event| match event {
        Event::Finished { message: Some(message), .. } => *message == not_a_number,
        _ => false,
    };
    let mut corrupted: Vec<_> = events.iter().filter(is_corrupted).map(Event::request).collect();
    corrupted.dedup();
    corrupted.len() as u64
}

fn lock(stats: &Mutex<EngineStats>) -> MutexGuard<'_, EngineStats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}
