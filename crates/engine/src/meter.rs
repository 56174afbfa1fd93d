//! Times and counts of requests, turned into statistics as they end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pagedllm_core::FinishReason;
use pagedllm_scheduler::{Event, RequestId, RequestSpec, StepPlan, Usage};

use crate::EngineStats;

struct ChoiceTimes {
    first_token: Instant,
    last_token: Instant,
}

struct RequestTimes {
    arrival: Instant,
    first_step: Option<Instant>,
    prompt_tokens: usize,
    cached_tokens: usize,
    n: u32,
    max_tokens: u32,
    open_choices: u32,
    longest_output: usize,
    num_preemptions: u32,
    choices: Vec<Option<ChoiceTimes>>,
    has_finished: Vec<bool>,
}

/// Follows every live request.
#[derive(Default)]
pub(crate) struct Meter {
    requests: HashMap<RequestId, RequestTimes>,
    last_start: Option<Instant>,
    /// Mean time between two requests that start, recent ones counting more.
    pub(crate) drain_interval: Duration,
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

impl Meter {
    pub(crate) fn open(&mut self, spec: &RequestSpec, arrival: Instant) {
        let times = RequestTimes {
            arrival,
            first_step: None,
            prompt_tokens: spec.prompt.len(),
            cached_tokens: 0,
            n: spec.params.n,
            max_tokens: spec.params.max_tokens,
            open_choices: spec.params.best_of,
            longest_output: 0,
            num_preemptions: 0,
            choices: (0..spec.params.best_of).map(|_| None).collect(),
            has_finished: vec![false; spec.params.best_of as usize],
        };
        self.requests.insert(spec.id, times);
    }

    pub(crate) fn num_open(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_open(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    pub(crate) fn planned(&mut self, plan: &StepPlan, now: Instant, stats: &mut EngineStats) {
        for preemption in &plan.preempted {
            if let Some(times) = self.requests.get_mut(&preemption.request) {
                times.num_preemptions += 1;
            }
        }
        for admission in plan.admitted.iter().filter(|admission| admission.is_first) {
            stats.prefix_queries_tokens_total += admission.queried_tokens as u64;
            stats.prefix_hits_tokens_total += admission.cached_tokens as u64;
            let Some(times) = self.requests.get_mut(&admission.request) else { continue };
            times.first_step = Some(now);
            times.cached_tokens = admission.cached_tokens;
            stats.queue_time_seconds.record(seconds(times.arrival, now));
            if let Some(last) = self.last_start.replace(now) {
                let interval = now.saturating_duration_since(last);
                self.drain_interval = (self.drain_interval * 7 + interval) / 8;
            }
        }
        stats.steps_total += 1;
        stats.iteration_tokens.record(plan.num_tokens() as f64);
    }

    /// The ends of all open choices, made without the scheduler.
    pub(crate) fn abandon(&self, message: &str) -> Vec<Event> {
        let mut events = Vec::new();
        for (&request, times) in &self.requests {
            let open = |&choice: &u32| !times.has_finished[choice as usize];
            events.extend((0..times.has_finished.len() as u32).filter(open).map(|choice| {
                Event::Finished {
                    request,
                    choice,
                    reason: FinishReason::Fault,
                    usage: Usage { prompt_tokens: times.prompt_tokens, ..Usage::default() },
                    cumulative_logprob: None,
                    message: Some(message.to_owned()),
                }
            }));
        }
        events
    }

    /// Counts an event; says whether it ended its request.
    pub(crate) fn happened(
        &mut self,
        event: &Event,
        now: Instant,
        stats: &mut EngineStats,
    ) -> bool {
        let Some(times) = self.requests.get_mut(&event.request()) else { return false };
        match event {
            Event::PromptLogprobs { .. } => false,
            Event::Token { choice, .. } => {
                stats.generation_tokens_total += 1;
                times.token(*choice as usize, now, stats);
                false
            }
            Event::Finished { choice, reason, usage, .. } => {
                times.longest_output = times.longest_output.max(usage.output_tokens);
                times.finished(*choice as usize, *reason, usage.output_tokens, now, stats);
                if times.open_choices == 0 {
                    times.ended(stats);
                    self.requests.remove(&event.request());
                    return true;
                }
                false
            }
        }
    }
}

impl RequestTimes {
    fn token(&mut self, choice: usize, now: Instant, stats: &mut EngineStats) {
        let is_first = self.choices.iter().all(Option::is_none);
        if is_first {
            stats.time_to_first_token_seconds.record(seconds(self.arrival, now));
            stats
                .prefill_time_seconds
                .record(seconds(self.first_step.unwrap_or(self.arrival), now));
            self.count_prompt(stats);
        }
        match &mut self.choices[choice] {
            None => {
                self.choices[choice] = Some(ChoiceTimes { first_token: now, last_token: now });
            }
            Some(times) => {
                stats.inter_token_latency_seconds.record(seconds(times.last_token, now));
                times.last_token = now;
            }
        }
    }

    fn count_prompt(&self, stats: &mut EngineStats) {
        stats.prompt_tokens_total += self.prompt_tokens as u64;
        stats.prompt_tokens_cached_total += self.cached_tokens as u64;
        let computed = self.prompt_tokens - self.cached_tokens;
        stats.request_prefill_kv_computed_tokens.record(computed as f64);
    }

    fn finished(
        &mut self,
        choice: usize,
        reason: FinishReason,
        output_tokens: usize,
        now: Instant,
        stats: &mut EngineStats,
    ) {
        self.open_choices -= 1;
        self.has_finished[choice] = true;
        let finished = &mut stats.finished_total;
        match reason {
            FinishReason::Length => finished.length += 1,
            FinishReason::StopToken(_) | FinishReason::StopString(_) => finished.stop += 1,
            FinishReason::Cancelled | FinishReason::Deadline => finished.abort += 1,
            FinishReason::Fault => finished.error += 1,
        }
        let is_first = self.open_choices as usize + 1 == self.choices.len();
        if reason == FinishReason::Length && self.max_tokens == 0 && is_first {
            self.count_prompt(stats);
        }
        stats.request_generation_tokens.record(output_tokens as f64);
        stats.e2e_latency_seconds.record(seconds(self.arrival, now));
        if let Some(first_step) = self.first_step {
            stats.inference_time_seconds.record(seconds(first_step, now));
        }
        if let Some(times) = &self.choices[choice] {
            stats.decode_time_seconds.record(seconds(times.first_token, now));
            if output_tokens > 1 {
                let decode = seconds(times.first_token, times.last_token);
                stats.time_per_output_token_seconds.record(decode / (output_tokens - 1) as f64);
            }
        }
    }

    fn ended(&self, stats: &mut EngineStats) {
        stats.request_prompt_tokens.record(self.prompt_tokens as f64);
        stats.request_max_num_generation_tokens.record(self.longest_output as f64);
        stats.request_params_n.record(f64::from(self.n));
        stats.request_params_max_tokens.record(f64::from(self.max_tokens));
        stats.request_num_preemptions.record(f64::from(self.num_preemptions));
    }
}
