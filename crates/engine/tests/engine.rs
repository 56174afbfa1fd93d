//! The engine as callers see it: its thread, its ends, its limits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pagedllm_core::{FinishReason, SamplingBatch, SamplingParams, StepInput, StepOutput, TokenId};
use pagedllm_engine::{
    Constraint, ConstraintError, Engine, EngineConfig, EngineHandle, Event, Executor,
    ExecutorError, ExecutorShape, Health, PromptHashes, Refused, Rejected, Request, RequestId,
    RequestSpec, Shutdown, StepLoop, StepTicket, Submission, event_channel,
};
use pagedllm_sim::fake_executor::{FakeExecutor, Poison};
use pagedllm_sim::model::{Asked, HashConstraint, Model};
use pagedllm_sim::options::shape;

const MODEL: Model = Model { vocab_size: 500, fault_every: 0 };

fn fake(depth: usize) -> FakeExecutor {
    let mut shape = shape(&[None], 16, 512, MODEL.vocab_size);
    shape.max_steps_in_flight = depth;
    FakeExecutor::new(shape, MODEL, Poison::default())
}

fn engine(depth: usize) -> EngineHandle {
    Engine::spawn(Box::new(fake(depth)), EngineConfig::default())
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens, seed: Some(3), ..SamplingParams::default() }
}

fn expected(prompt: &[TokenId], params: &SamplingParams, choice: u32) -> Vec<TokenId> {
    let asked = Asked {
        prompt,
        params,
        eos_token_ids: &[],
        seed: params.seed.expect("seeded").cast_unsigned(),
        max_len: 4096,
        constraint: None,
    };
    MODEL.generate(asked, choice).tokens
}

/// An executor around another one that does something before each wait.
struct Wrapped<F> {
    inner: FakeExecutor,
    before_wait: F,
    dropped: Option<Arc<AtomicBool>>,
}

impl<F> Drop for Wrapped<F> {
    fn drop(&mut self) {
        if let Some(dropped) = &self.dropped {
            dropped.store(true, Ordering::SeqCst);
        }
    }
}

impl<F: FnMut(u64) -> Result<(), ExecutorError> + Send> Executor for Wrapped<F> {
    fn shape(&self) -> &ExecutorShape {
        self.inner.shape()
    }
    fn submit(&mut self, input: StepInput) -> StepTicket {
        self.inner.submit(input)
    }
    fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch) {
        self.inner.sample(ticket, sampling);
    }
    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
        (self.before_wait)(ticket.0)?;
        self.inner.wait(ticket)
    }
}

fn wrapped<F>(before_wait: F) -> Box<Wrapped<F>> {
    Box::new(Wrapped { inner: fake(2), before_wait, dropped: None })
}

/// An executor whose steps wait for a message each, and the way to send it.
fn gated() -> (Box<dyn Executor>, mpsc::Sender<()>) {
    let (gate, opened) = mpsc::channel();
    // Once the sender is gone, every step runs.
    let executor = wrapped(move |_| {
        let _ = opened.recv();
        Ok(())
    });
    (executor, gate)
}

#[test]
fn many_threads_get_their_own_tokens() {
    for depth in [1, 2] {
        let engine = engine(depth);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let engine = &engine;
                scope.spawn(move || {
                    for request in 0..10 {
                        let prompt = vec![thread, request, 7];
                        let mut params = params(20 + request);
                        (params.n, params.best_of) = (2, 2);
                        let stream = engine.stream(Request::new(prompt.clone(), params.clone()));
                        let choices = stream.expect("room").collect_choices();
                        for (index, choice) in (0..).zip(choices) {
                            assert_eq!(choice.tokens, expected(&prompt, &params, index));
                            assert_eq!(choice.reason, FinishReason::Length);
                        }
                    }
                });
            }
        });
        let stats = engine.stats();
        assert_eq!(stats.finished_total.length, 8 * 10 * 2);
        assert_eq!(stats.time_to_first_token_seconds.count(), 80);
        assert_eq!(stats.prompt_tokens_total, 240);
        assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
    }
}

#[test]
fn one_channel_serves_many_requests() {
    let engine = engine(2);
    let (sender, receiver) = event_channel();
    let ids: Vec<_> = (0..5).map(|_| engine.new_request_id()).collect();
    for &id in &ids {
        engine.generate(id, Request::new(vec![1, 2], params(6)), &sender).expect("room");
    }
    let mut tokens = vec![0; 5];
    let mut open = 5;
    while open > 0 {
        for event in receiver.recv().expect("the sender is held here") {
            let index = ids.iter().position(|&id| id == event.request()).expect("known");
            match event {
                Event::Token { .. } => tokens[index] += 1,
                Event::Finished { .. } => open -= 1,
                Event::PromptLogprobs { .. } => unreachable!("not asked for"),
            }
        }
    }
    assert_eq!(tokens, [6; 5]);
}

#[test]
fn shutting_down_ends_everything_and_joins() {
    let dropped = Arc::new(AtomicBool::new(false));
    let executor =
        Wrapped { inner: fake(2), before_wait: |_| Ok(()), dropped: Some(Arc::clone(&dropped)) };
    let engine = Engine::spawn(Box::new(executor), EngineConfig::default());
    let streams: Vec<_> =
        (0..3).map(|_| engine.stream(Request::new(vec![1], params(4000))).expect("room")).collect();
    engine.shutdown(Shutdown::Now);
    assert!(dropped.load(Ordering::SeqCst), "the thread is gone");
    assert_eq!(engine.health(), Health::ShuttingDown);
    for stream in streams {
        assert_eq!(stream.collect_choices()[0].reason, FinishReason::Cancelled);
    }
    let late = engine.stream(Request::new(vec![1], params(1)));
    assert_eq!(late.err(), Some(Rejected::ShuttingDown));
    engine.shutdown(Shutdown::Now);
}

#[test]
fn a_drain_lets_requests_end() {
    let engine = engine(2);
    let stream = engine.stream(Request::new(vec![1], params(50))).expect("room");
    engine.shutdown(Shutdown::Drain { timeout: Duration::from_secs(60) });
    assert_eq!(stream.collect_choices()[0].reason, FinishReason::Length);
}

#[test]
fn a_drain_may_take_as_long_as_it_wants() {
    let engine = engine(2);
    let stream = engine.stream(Request::new(vec![1], params(50))).expect("room");
    engine.shutdown(Shutdown::Drain { timeout: Duration::MAX });
    assert_eq!(stream.collect_choices()[0].reason, FinishReason::Length);
}

#[test]
fn a_drain_has_a_limit() {
    let (executor, gate) = gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let stream = engine.stream(Request::new(vec![1], params(4000))).expect("room");
    drop(gate);
    engine.shutdown(Shutdown::Drain { timeout: Duration::ZERO });
    assert_eq!(stream.collect_choices()[0].reason, FinishReason::Cancelled);
}

#[test]
fn a_failed_device_ends_all_streams_alike() {
    let broken = ExecutorError { message: "it fell off the bus".into() };
    let error = broken.clone();
    let executor = wrapped(move |step| if step < 3 { Ok(()) } else { Err(error.clone()) });
    let engine = Engine::spawn(executor, EngineConfig::default());
    let streams: Vec<_> =
        (0..4).map(|_| engine.stream(Request::new(vec![1], params(100)))).collect();
    for stream in streams {
        match stream {
            Ok(stream) => {
                let choice = stream.collect_choices().remove(0);
                assert_eq!(choice.reason, FinishReason::Fault);
                assert_eq!(choice.message, Some(broken.to_string()));
            }
            Err(rejected) => assert_eq!(rejected, Rejected::Failed(broken.clone())),
        }
    }
    assert_eq!(engine.health(), Health::Failed(broken.clone()));
    let late = engine.stream(Request::new(vec![1], params(1)));
    assert_eq!(late.err(), Some(Rejected::Failed(broken)));
    engine.shutdown(Shutdown::Now);
}

#[test]
fn a_panic_of_the_executor_is_a_failed_device() {
    let executor = wrapped(|step| {
        assert!(step < 2, "an index out of range");
        Ok(())
    });
    let engine = Engine::spawn(executor, EngineConfig::default());
    let stream = engine.stream(Request::new(vec![1], params(100))).expect("room");
    let choice = stream.collect_choices().remove(0);
    assert_eq!(choice.reason, FinishReason::Fault);
    assert!(choice.message.expect("a reason").contains("an index out of range"));
    assert!(matches!(engine.health(), Health::Failed(_)));
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let (executor, gate) = gated();
    let config = EngineConfig { max_num_queued: 2, max_num_seqs: Some(1), ..Default::default() };
    let engine = Engine::spawn(executor, config);
    let request = || Request::new(vec![1], params(3));
    let mut streams = Vec::new();
    let rejected = loop {
        match engine.stream(request()) {
            Ok(stream) => streams.push(stream),
            Err(rejected) => break rejected,
        }
    };
    let Rejected::QueueFull { max_num_queued: 2, retry_after_ms } = rejected else {
        panic!("{rejected}");
    };
    assert!((100..=60_000).contains(&retry_after_ms));
    assert!((2..=3).contains(&streams.len()), "two wait, and one may run");
    assert_eq!(engine.stats().rejected_queue_full_total, 1);
    drop(gate);
    for stream in streams {
        assert_eq!(stream.collect_choices()[0].tokens.len(), 3);
    }
}

#[test]
fn what_never_fits_is_refused_before_it_is_queued() {
    let engine = engine(1);
    let refused = |request| matches!(engine.stream(request).err(), Some(Rejected::Refused(_)));
    assert!(refused(Request::new(vec![], params(1))));
    assert!(refused(Request::new(vec![500], params(1))));
    assert!(refused(Request::new(vec![1; 4096], params(1))));
    assert!(refused(Request::new(vec![1], SamplingParams { top_p: 2.0, ..params(1) })));
    assert_eq!(engine.stats().rejected_refused_total, 4);
}

#[test]
fn priorities_need_their_policy() {
    let config = EngineConfig { sorts_by_priority: false, ..EngineConfig::default() };
    let engine = Engine::spawn(Box::new(fake(1)), config);
    let of = |priority| Request { priority, ..Request::new(vec![1], params(1)) };
    let Err(Rejected::Refused(Refused::Params(wrong))) = engine.stream(of(-1)) else {
        panic!("a priority without effect is refused");
    };
    assert_eq!(wrong.param, "priority");
    assert_eq!(engine.stream(of(0)).expect("room").collect_choices()[0].tokens.len(), 1);
}

#[test]
fn a_seed_of_the_engine_is_that_of_requests_without_one() {
    let config = EngineConfig { seed: Some(3), ..EngineConfig::default() };
    let engine = Engine::spawn(Box::new(fake(1)), config);
    let tokens = |seed| {
        let params = SamplingParams { seed, ..params(20) };
        engine.stream(Request::new(vec![1], params)).expect("room").collect_choices()
    };
    assert_eq!(tokens(None), tokens(Some(3)));
    assert_eq!(tokens(None), tokens(None));
    assert_ne!(tokens(None), tokens(Some(4)), "a request's own seed wins");
}

#[test]
fn a_deadline_ends_its_request_alone() {
    let engine = engine(2);
    let hurried = Request { deadline: Some(Duration::ZERO), ..Request::new(vec![1], params(4000)) };
    let hurried = engine.stream(hurried).expect("room");
    let patient = engine.stream(Request::new(vec![2], params(30))).expect("room");
    assert_eq!(hurried.collect_choices()[0].reason, FinishReason::Deadline);
    assert_eq!(patient.collect_choices()[0].reason, FinishReason::Length);
}

#[test]
fn dropping_a_stream_or_a_receiver_cancels() {
    let (executor, gate) = gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    drop(engine.stream(Request::new(vec![1], params(4000))).expect("room"));
    let (sender, receiver) = event_channel();
    let id = engine.new_request_id();
    engine.generate(id, Request::new(vec![2], params(4000)), &sender).expect("room");
    drop((sender, receiver));
    let stream = engine.stream(Request::new(vec![3], params(20))).expect("room");
    drop(gate);
    assert_eq!(stream.collect_choices()[0].tokens.len(), 20);
    engine.shutdown(Shutdown::Drain { timeout: Duration::from_secs(60) });
    assert_eq!(engine.stats().finished_total.abort, 2);
    assert_eq!(engine.stats().num_blocks_used, 0);
}

#[test]
fn gauges_come_to_rest_after_the_last_request_is_cancelled() {
    let (executor, gate) = gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    drop(gate);
    let mut stream = engine.stream(Request::new(vec![1], params(4000))).expect("room");
    assert!(stream.next().is_some());
    drop(stream);
    let start = std::time::Instant::now();
    let at_rest = |stats: pagedllm_engine::EngineStats| {
        stats.num_running == 0 && stats.num_blocks_used == 0 && stats.finished_total.abort == 1
    };
    while !at_rest(engine.stats()) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::yield_now();
    }
}

#[test]
fn a_stop_string_ends_one_choice() {
    let (executor, gate) = gated();
    let engine = Engine::spawn(executor, EngineConfig::default());
    let request = SamplingParams { n: 2, best_of: 2, ..params(50) };
    let stream = engine.stream(Request::new(vec![1], request)).expect("room");
    engine.finish(stream.id(), 1, FinishReason::StopString(4));
    drop(gate);
    let choices = stream.collect_choices();
    assert_eq!(choices[0].reason, FinishReason::Length);
    assert_eq!(choices[1].reason, FinishReason::StopString(4));
    assert_eq!(engine.stats().finished_total.stop, 1);
}

/// A constraint that waits, fails or panics.
#[derive(Clone)]
enum Trouble {
    Late(Arc<Mutex<mpsc::Receiver<()>>>),
    Fails,
    Panics,
}

impl Constraint for Trouble {
    fn mask(&mut self, _: &mut [u32]) -> Result<(), ConstraintError> {
        match self {
            Self::Late(gate) => {
                let _ = gate.lock().expect("one at a time").recv();
                Ok(())
            }
            Self::Fails => Err(ConstraintError("no way out".into())),
            Self::Panics => panic!("a bug in a grammar"),
        }
    }
    fn accept(&mut self, _: TokenId) {}
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_bad_constraint_ends_its_request_alone() {
    for depth in [1, 2] {
        let (release, gate) = mpsc::channel();
        let config =
            EngineConfig { mask_time_limit: Duration::from_millis(2000), ..Default::default() };
        let engine = Engine::spawn(Box::new(fake(depth)), config);
        let troubles = [
            (Trouble::Late(Arc::new(Mutex::new(gate))), "took longer than 2000 ms"),
            (Trouble::Fails, "no way out"),
            (Trouble::Panics, "panicked"),
        ];
        let good = Request {
            constraint: Some(Box::new(HashConstraint::new(1, MODEL.vocab_size, 0))),
            ..Request::new(vec![9], params(40))
        };
        let good = engine.stream(good).expect("room");
        let plain = engine.stream(Request::new(vec![8], params(40))).expect("room");
        for (trouble, want) in troubles {
            let constraint: Option<Box<dyn Constraint>> = Some(Box::new(trouble));
            let request = Request { constraint, ..Request::new(vec![1], params(40)) };
            let choice = engine.stream(request).expect("room").collect_choices().remove(0);
            assert_eq!(choice.reason, FinishReason::Fault);
            let message = choice.message.expect("a reason");
            assert!(message.contains(want), "{message}");
        }
        assert_eq!(good.collect_choices()[0].tokens.len(), 40);
        assert_eq!(plain.collect_choices()[0].tokens, expected(&[8], &params(40), 0));
        assert_eq!(engine.stats().finished_total.error, 3);
        assert_eq!(engine.health(), Health::Ready);
        drop(release);
        engine.shutdown(Shutdown::Now);
    }
}

/// Counts events; everything else is inert.
struct Counter(Arc<AtomicUsize>);

impl tracing::Subscriber for Counter {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn each_engine_logs_to_its_own_dispatcher() {
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let engines = counts.each_ref().map(|count| {
        let dispatch = tracing::Dispatch::new(Counter(Arc::clone(count)));
        Engine::spawn(Box::new(fake(1)), EngineConfig { dispatch, ..Default::default() })
    });
    let stream = engines[0].stream(Request::new(vec![1], params(5))).expect("room");
    assert_eq!(stream.collect_choices()[0].tokens.len(), 5);
    assert!(counts[0].load(Ordering::SeqCst) >= 5, "each step says something");
    assert_eq!(counts[1].load(Ordering::SeqCst), 0);
}

#[test]
fn events_say_what_was_cached() {
    let engine = engine(2);
    let prompt: Vec<_> = (0..40).collect();
    let cached = || {
        let stream = engine.stream(Request::new(prompt.clone(), params(4))).expect("room");
        let usage = stream.filter_map(|event| match event {
            Event::Finished { usage, .. } => Some(usage),
            _ => None,
        });
        usage.last().expect("it ends").cached_tokens
    };
    assert_eq!(cached(), 0);
    assert_eq!(cached(), 32);
    let stats = engine.stats();
    assert_eq!((stats.prefix_queries_tokens_total, stats.prefix_hits_tokens_total), (80, 32));
    assert_eq!(stats.prompt_tokens_cached_total, 32);
}

#[test]
fn logits_that_are_not_numbers_end_their_request_alone() {
    let model = Model { fault_every: 60, ..MODEL };
    let mut shape = shape(&[None], 16, 512, MODEL.vocab_size);
    shape.max_steps_in_flight = 2;
    let executor = FakeExecutor::new(shape, model, Poison::default());
    let engine = Engine::spawn(Box::new(executor), EngineConfig::default());
    let streams: Vec<_> = (0..20)
        .map(|token| engine.stream(Request::new(vec![token, 5], params(30))).expect("room"))
        .collect();
    let choices: Vec<_> =
        streams.into_iter().map(|stream| stream.collect_choices().remove(0)).collect();
    let is_faulty = |choice: &&pagedllm_engine::Choice| choice.reason == FinishReason::Fault;
    let num_faulty = choices.iter().filter(is_faulty).count();
    assert!((1..20).contains(&num_faulty), "some fail and some do not: {num_faulty}");
    assert!(choices.iter().all(|choice| is_faulty(&choice) || choice.tokens.len() == 30));
    assert_eq!(engine.stats().corrupted_requests_total, num_faulty as u64);
    assert_eq!(engine.stats().finished_total.error, num_faulty as u64);
}

#[test]
fn a_request_that_allows_no_token_ends_alone_and_is_no_fault_of_the_model() {
    let engine = engine(2);
    let impossible = SamplingParams {
        allowed_token_ids: Some(vec![7]),
        stop_token_ids: vec![7],
        min_tokens: 1,
        ..params(5)
    };
    let impossible = engine.stream(Request::new(vec![1], impossible)).expect("room");
    let possible = engine.stream(Request::new(vec![2], params(5))).expect("room");
    assert_eq!(impossible.collect_choices()[0].reason, FinishReason::Fault);
    assert_eq!(possible.collect_choices()[0].tokens.len(), 5);
    assert_eq!(engine.stats().finished_total.error, 1);
    assert_eq!(engine.stats().corrupted_requests_total, 0);
}

/// The clock runs a millisecond a token; prefill beside a decode must stay within the bound.
#[test]
fn a_long_prompt_does_not_stall_decodes() {
    let begun = Instant::now();
    let now = Arc::new(AtomicUsize::new(0));
    struct Slow(FakeExecutor, Arc<AtomicUsize>, std::collections::VecDeque<usize>);
    impl Executor for Slow {
        fn shape(&self) -> &ExecutorShape {
            self.0.shape()
        }
        fn submit(&mut self, input: StepInput) -> StepTicket {
            self.2.push_back(input.batch.num_tokens());
            self.0.submit(input)
        }
        fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch) {
            self.0.sample(ticket, sampling);
        }
        fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
            self.1.fetch_add(self.2.pop_front().expect("submitted"), Ordering::SeqCst);
            self.0.wait(ticket)
        }
    }
    let executor = Slow(fake(1), Arc::clone(&now), Default::default());
    let clock = {
        let now = Arc::clone(&now);
        Box::new(move || begun + Duration::from_millis(now.load(Ordering::SeqCst) as u64))
    };
    let mut step_loop = StepLoop::new(Box::new(executor), &EngineConfig::default(), clock);
    let (events, receiver) = event_channel();
    let submit = |step_loop: &mut StepLoop, number: u64, len: usize, max_tokens| {
        let prompt = vec![number as TokenId; len];
        step_loop.submit(Submission {
            spec: RequestSpec {
                id: RequestId::new(number),
                hashes: PromptHashes::new(&prompt, &[], 16),
                prompt,
                params: params(max_tokens),
                eos_token_ids: Vec::new(),
                priority: 0,
                seed: 0,
                caching: true,
            },
            arrival: begun,
            deadline: None,
            events: events.clone(),
            constraint: None,
        });
    };
    submit(&mut step_loop, 1, 64, 100);
    step_loop.turn().expect("the prompt");
    submit(&mut step_loop, 2, 2000, 1);
    let mut longest = 0;
    for _ in 0..40 {
        step_loop.turn().expect("work");
        longest = longest.max(step_loop.last_plan().expect("a step").num_tokens());
    }
    assert!((90..=101).contains(&longest), "{longest} tokens in 100 ms and a decode");
    let ended = receiver.channel().try_iter().flatten().any(
        |event| matches!(event, Event::Finished { request, .. } if request == RequestId::new(2)),
    );
    assert!(ended, "the long prompt advances");
}
