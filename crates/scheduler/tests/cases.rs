//! One test a rule of the scheduler. Long random walks are the simulator's.

use std::time::Duration;

use pagedllm_core::{
    DType, FinishReason, KvGroup, KvLayout, RowFault, RowOutput, SamplingParams, StateOp,
    StepOutput, TokenId, TokenLogprob, TokenLogprobs,
};
use pagedllm_kv::{BlockPool, KvShape};
use pagedllm_scheduler::{
    Event, PromptHashes, Refused, RequestId, RequestSpec, Scheduler, Sequence, StepBudget,
    StepLimits, StepPlan,
};

const BLOCK: usize = 4;

struct Bench {
    scheduler: Scheduler,
    pool: BlockPool,
    next: u64,
    max_prefill: Option<usize>,
    events: Vec<Event>,
}

struct Sizes {
    blocks: usize,
    tokens: usize,
    seqs: usize,
    rows: usize,
}

const ROOMY: Sizes = Sizes { blocks: 1000, tokens: 4096, seqs: 64, rows: 256 };

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() }
}

impl Bench {
    fn new(sizes: Sizes) -> Self {
        let layout =
            KvLayout { block_size: BLOCK, num_kv_heads: 1, head_dim: 1, dtype: DType::F32 };
        let groups = [KvGroup { layers: vec![0], layout, window: None }];
        let shape = KvShape::new(&groups, BLOCK, sizes.blocks);
        let limits = StepLimits::new(&shape, sizes.tokens, sizes.seqs, sizes.rows, 4096, 1000);
        let (scheduler, pool) = (Scheduler::new(limits), BlockPool::new(shape));
        Self { scheduler, pool, next: 0, max_prefill: None, events: Vec::new() }
    }
    fn spec(&mut self, prompt: Vec<TokenId>, params: SamplingParams) -> RequestSpec {
        params.check(1000).expect("valid");
        self.scheduler.limits().check(&prompt, &params).expect("fits");
        self.next += 1;
        RequestSpec {
            id: RequestId::new(self.next),
            hashes: PromptHashes::new(&prompt, b"", BLOCK),
            prompt,
            params,
            eos_token_ids: vec![2],
            priority: 0,
            seed: 0,
            caching: true,
        }
    }
    fn submit(&mut self, prompt: Vec<TokenId>, params: SamplingParams) -> RequestId {
        let spec = self.spec(prompt, params);
        let id = spec.id;
        self.scheduler.submit(spec);
        id
    }
    fn plan(&mut self) -> Option<StepPlan> {
        let budget = StepBudget {
            now: Duration::ZERO,
            max_num_batched_tokens: usize::MAX,
            max_num_prefill_tokens: self.max_prefill,
        };
        let plan = self.scheduler.schedule(&mut self.pool, budget);
        if let Some(plan) = &plan {
            plan.check(self.scheduler.limits().max_logit_rows);
        }
        self.check();
        plan
    }
    fn check(&self) {
        self.pool.check(self.scheduler.sequences().map(Sequence::blocks));
    }
    /// Every row draws `token`.
    fn commit(&mut self, plan: &StepPlan, token: TokenId) -> Vec<Event> {
        let chosen = TokenLogprob { token, logprob: -1.0 };
        let logprobs = Some(vec![TokenLogprobs { chosen, rank: 1, top: vec![] }]);
        let row = RowOutput { tokens: vec![token], logprobs, fault: None };
        self.commit_rows(plan, vec![row; plan.num_rows()])
    }
    fn commit_rows(&mut self, plan: &StepPlan, rows: Vec<RowOutput>) -> Vec<Event> {
        let events = self.scheduler.commit(&mut self.pool, plan, &StepOutput { rows });
        self.check();
        self.events.extend(events.iter().cloned());
        events
    }
    fn step(&mut self) -> Option<StepPlan> {
        let plan = self.plan()?;
        self.commit(&plan, 7);
        Some(plan)
    }
    fn run(&mut self) -> usize {
        let mut num_steps = 0;
        while self.step().is_some() {
            num_steps += 1;
            assert!(num_steps < 100_000, "it never ends");
        }
        assert!(self.scheduler.is_idle());
        assert_eq!(self.pool.stats().used, 0, "every block came back");
        num_steps
    }
    fn output(&self, id: RequestId) -> Vec<TokenId> {
        let token = |event: &Event| match event {
            Event::Token { request, token, .. } if *request == id => Some(*token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }
    fn end(&self, id: RequestId) -> Option<(FinishReason, usize)> {
        self.events.iter().find_map(|event| match event {
            Event::Finished { request, reason, usage, .. } if *request == id => {
                Some((*reason, usage.cached_tokens))
            }
            _ => None,
        })
    }
}

fn prompt(len: usize) -> Vec<TokenId> {
    (0..len as TokenId).map(|token| 10 + token % 900).collect()
}

#[test]
fn a_hit_leaves_a_token_to_compute() {
    for len in [BLOCK, 2 * BLOCK, 2 * BLOCK + 1] {
        for (max_tokens, n) in [(1, 1), (20, 1), (20, 3)] {
            let mut bench = Bench::new(ROOMY);
            let params = SamplingParams { n, best_of: n, ..greedy(max_tokens) };
            let first = bench.submit(prompt(len), params.clone());
            bench.run();
            let second = bench.submit(prompt(len), params);
            bench.run();
            assert_eq!(bench.output(first), bench.output(second));
            let (_, cached) = bench.end(second).expect("ended");
            assert_eq!(cached, (len - 1) / BLOCK * BLOCK, "{len} tokens, n = {n}");
            assert_eq!(bench.end(first).expect("ended").1, 0);
        }
    }
}

#[test]
fn only_the_same_salt_hits() {
    let mut bench = Bench::new(ROOMY);
    let mut cached = |salt: &[u8], caching| {
        let mut spec = bench.spec(prompt(40), greedy(1));
        spec.hashes = PromptHashes::new(&spec.prompt, salt, BLOCK);
        spec.caching = caching;
        let id = spec.id;
        bench.scheduler.submit(spec);
        bench.run();
        bench.end(id).expect("ended").1
    };
    assert_eq!(cached(b"a", true), 0);
    assert_eq!(cached(b"b", true), 0);
    assert_eq!(cached(b"a", true), 36);
    assert_eq!(cached(b"", true), 0);
    assert_eq!(cached(b"a", false), 0, "this one may not read");
    assert_eq!(cached(b"c", false), 0);
    assert_eq!(cached(b"c", true), 0, "nor was it written");
}

#[test]
fn a_prefix_that_is_evicted_while_its_request_waits_is_computed_again() {
    let mut bench = Bench::new(Sizes { blocks: 6, seqs: 1, ..ROOMY });
    bench.submit(prompt(9), greedy(1));
    bench.run();
    let filler: Vec<_> = prompt(20).iter().map(|token| token + 50).collect();
    bench.submit(filler, greedy(3));
    let late = bench.submit(prompt(9), greedy(1));
    bench.run();
    assert_eq!(bench.end(late), Some((FinishReason::Length, 0)));
}

#[test]
fn everything_ends_in_a_cache_for_one_and_a_bit() {
    // 40 tokens take 10 blocks.
    let mut bench = Bench::new(Sizes { blocks: 12, ..ROOMY });
    let ids: Vec<_> = (0..30).map(|_| bench.submit(prompt(8), greedy(32))).collect();
    let num_steps = bench.run();
    assert!(bench.scheduler.num_preemptions() > 0);
    assert!(num_steps < 30 * 60, "{num_steps} steps");
    for id in ids {
        assert_eq!(bench.output(id).len(), 32);
    }
}

#[test]
fn what_never_fits_is_refused() {
    let limits = |blocks| *Bench::new(Sizes { blocks, seqs: 4, ..ROOMY }).scheduler.limits();
    let small = limits(4);
    assert_eq!(small.check(&prompt(15), &greedy(100)), Ok(()), "it ends by length");
    assert_eq!(
        small.check(&prompt(16), &greedy(1)),
        Err(Refused::TooLargeForCache { needed: 5, num_blocks: 4 })
    );
    assert_eq!(small.check(&prompt(16), &greedy(0)), Ok(()), "scoring needs no room");
    let large = limits(2000);
    let too_long = Refused::TooLong { prompt: 4096, output: 1, max_model_len: 4096 };
    assert_eq!(large.check(&prompt(4096), &greedy(1)), Err(too_long));
    assert_eq!(large.check(&prompt(4095), &greedy(9)), Ok(()));
    assert_eq!(large.check(&[], &greedy(1)), Err(Refused::EmptyPrompt));
    let unknown = Refused::UnknownToken { token: 1000, vocab_size: 1000 };
    assert_eq!(large.check(&[1, 1000], &greedy(1)), Err(unknown));
    let many = SamplingParams { n: 5, best_of: 5, ..greedy(1) };
    let refused = Refused::TooManyChoices { choices: 5, max_num_seqs: 4 };
    assert_eq!(large.check(&[1], &many), Err(refused));
}

#[test]
fn a_sequence_that_fills_the_cache_ends_by_length() {
    let mut bench = Bench::new(Sizes { blocks: 4, ..ROOMY });
    let id = bench.submit(prompt(8), greedy(100));
    bench.run();
    assert_eq!(bench.output(id).len(), 8);
    assert_eq!(bench.end(id).expect("ended").0, FinishReason::Length);
}

#[test]
fn a_full_cache_costs_one_victim() {
    let mut bench = Bench::new(Sizes { blocks: 17, ..ROOMY });
    let ids: Vec<_> = (0..8).map(|_| bench.submit(prompt(7), greedy(5))).collect();
    // Two blocks each; at the ninth token everybody wants a third and one is free.
    let plans: Vec<_> = std::iter::from_fn(|| bench.step()).collect();
    let first = plans.iter().find(|plan| !plan.preempted.is_empty()).expect("it is full");
    assert_eq!(first.preempted.len(), 1);
    assert_eq!(first.preempted[0].request, ids[7], "the newest one");
    for id in ids {
        assert_eq!(bench.output(id), [7; 5]);
    }
}

#[test]
fn a_prompt_over_the_budget_runs_in_chunks() {
    let mut bench = Bench::new(Sizes { tokens: 512, ..ROOMY });
    let id = bench.submit(prompt(3000), greedy(1));
    let lens: Vec<_> = std::iter::from_fn(|| bench.step()).map(|plan| plan.num_tokens()).collect();
    assert_eq!(lens, [512, 512, 512, 512, 512, 440]);
    assert_eq!(bench.output(id).len(), 1);
}

#[test]
fn prefill_beside_decodes_is_bounded_and_advances() {
    let mut bench = Bench::new(ROOMY);
    bench.max_prefill = Some(30);
    let decoding = bench.submit(vec![1; 5], greedy(50));
    bench.step();
    bench.submit(prompt(300), greedy(1));
    for _ in 0..10 {
        let plan = bench.step().expect("work");
        assert_eq!(plan.num_tokens(), 31, "a decode and 30 tokens of prefill");
    }
    assert_eq!(bench.output(decoding).len(), 11, "a token every step");
    // Alone, it gets all the budget.
    bench.run();
    bench.submit((0..300).map(|token| token + 500).collect(), greedy(1));
    assert_eq!(bench.step().expect("work").num_tokens(), 300);
}

#[test]
fn lower_priority_values_run_first_and_are_preempted_last() {
    let mut bench = Bench::new(Sizes { seqs: 1, ..ROOMY });
    let mut order = Vec::new();
    for priority in [5, -1, 0] {
        let spec = RequestSpec { priority, ..bench.spec(prompt(4), greedy(1)) };
        order.push((priority, spec.id));
        bench.scheduler.submit(spec);
    }
    bench.run();
    order.sort_unstable();
    let ended = bench.events.iter().filter(|event| matches!(event, Event::Finished { .. }));
    let ended: Vec<_> = ended.map(|event| event.request()).collect();
    assert_eq!(ended, order.iter().map(|(_, id)| *id).collect::<Vec<_>>());

    let mut bench = Bench::new(Sizes { blocks: 5, ..ROOMY });
    let humble = RequestSpec { priority: 1, ..bench.spec(prompt(7), greedy(8)) };
    let humble_id = humble.id;
    bench.scheduler.submit(humble);
    bench.step();
    let urgent = RequestSpec { priority: 0, ..bench.spec(prompt(7), greedy(8)) };
    bench.scheduler.submit(urgent);
    let plans: Vec<_> = std::iter::from_fn(|| bench.step()).collect();
    let victims: Vec<_> = plans.iter().flat_map(|plan| &plan.preempted).collect();
    assert!(!victims.is_empty() && victims.iter().all(|victim| victim.request == humble_id));
}

/// Cancels in each state of a life, twice, and under a name that nobody has.
#[test]
fn cancelling_in_any_state_gives_everything_back() {
    type Reach = fn(&mut Bench) -> (RequestId, Option<StepPlan>);
    let states: [(&str, Reach); 7] = [
        ("queued", |bench| (bench.submit(prompt(9), greedy(9)), None)),
        ("in the middle of its prompt", |bench| {
            let id = bench.submit(prompt(60), greedy(9));
            bench.step();
            (id, None)
        }),
        ("decoding", |bench| {
            let id = bench.submit(prompt(9), greedy(9));
            bench.step();
            bench.step();
            (id, None)
        }),
        ("in flight", |bench| {
            let id = bench.submit(prompt(9), greedy(9));
            bench.step();
            (id, bench.plan())
        }),
        ("forked, nothing copied yet", |bench| {
            let params = SamplingParams { n: 3, best_of: 3, ..greedy(9) };
            let id = bench.submit(prompt(9), params);
            bench.step();
            (id, None)
        }),
        ("with copies in flight", |bench| {
            let params = SamplingParams { n: 3, best_of: 3, ..greedy(9) };
            let id = bench.submit(prompt(9), params);
            bench.step();
            let plan = bench.plan();
            assert_eq!(plan.as_ref().expect("work").copies.len(), 2);
            (id, plan)
        }),
        ("preempted", |bench| {
            let ids = [(); 3].map(|()| bench.submit(prompt(15), greedy(20)));
            while bench.step().expect("it gets full").preempted.is_empty() {}
            (ids[2], None)
        }),
    ];
    for (name, reach) in states {
        let mut bench = Bench::new(Sizes { blocks: 20, tokens: 32, ..ROOMY });
        let (id, in_flight) = reach(&mut bench);
        let choices = bench.scheduler.end(&mut bench.pool, id, None, FinishReason::Cancelled).len();
        assert!(choices > 0, "{name}");
        bench.check();
        assert!(bench.scheduler.end(&mut bench.pool, id, None, FinishReason::Cancelled).is_empty());
        let nobody = RequestId::new(999);
        let events = bench.scheduler.end(&mut bench.pool, nobody, None, FinishReason::Cancelled);
        assert!(events.is_empty());
        if let Some(plan) = in_flight {
            assert!(bench.commit(&plan, 7).is_empty(), "{name}: nothing follows the end");
        }
        bench.run();
    }
}

#[test]
fn a_choice_can_end_alone_even_before_it_exists() {
    let mut bench = Bench::new(ROOMY);
    let params = SamplingParams { n: 3, best_of: 3, ..greedy(4) };
    let id = bench.submit(prompt(6), params);
    let reason = FinishReason::StopString(0);
    assert!(bench.scheduler.end(&mut bench.pool, id, Some(1), reason).is_empty());
    bench.step();
    let early = bench.events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
    assert_eq!(early, 1);
    let events = bench.scheduler.end(&mut bench.pool, id, Some(2), reason);
    assert!(matches!(events[..], [Event::Finished { choice: 2, .. }]));
    bench.run();
    assert_eq!(bench.output(id).len(), 4 + 1, "all of choice 0, one token of choice 2");
}

/// With two steps in flight: a second plan is made before the first is committed.
#[test]
fn an_end_by_length_costs_no_extra_token() {
    let mut bench = Bench::new(ROOMY);
    let id = bench.submit(prompt(5), greedy(2));
    let first = bench.plan().expect("the prompt");
    let second = bench.plan().expect("the token that the first one draws");
    assert_eq!(second.chunks[0].sampled_by, Some(0));
    assert_eq!(second.chunks[0].tokens, 5..6);
    assert!(bench.plan_would_be_none_with_one_uncommitted(&first));
    bench.commit(&second, 7);
    assert_eq!(bench.end(id).expect("ended").0, FinishReason::Length);
    assert!(bench.scheduler.is_idle());
}

impl Bench {
    fn plan_would_be_none_with_one_uncommitted(&mut self, first: &StepPlan) -> bool {
        self.commit(first, 7);
        self.plan().is_none()
    }
}

#[test]
fn a_stop_token_is_found_one_step_late_and_its_extra_token_is_dropped() {
    let mut bench = Bench::new(ROOMY);
    let params = SamplingParams { ignore_eos: false, ..greedy(9) };
    let id = bench.submit(prompt(5), params);
    let first = bench.plan().expect("the prompt");
    let second = bench.plan().expect("the extra token");
    bench.commit(&first, 2);
    assert_eq!(bench.end(id).expect("ended").0, FinishReason::StopToken(2));
    assert_eq!(bench.pool.stats().used, 0);
    assert!(bench.commit(&second, 9).is_empty());
    assert_eq!(bench.output(id), [2]);
}

#[test]
fn a_token_that_may_be_extra_preempts_nobody() {
    let mut bench = Bench::new(Sizes { blocks: 4, ..ROOMY });
    bench.submit(prompt(7), greedy(9));
    bench.submit(prompt(7).iter().map(|token| token + 100).collect(), greedy(9));
    let first = bench.plan().expect("both prompts");
    // Each draws its eighth token; the one after it needs a new block, and none is free.
    let second = bench.plan().expect("both have a slot left");
    bench.commit(&first, 7);
    assert_eq!(bench.plan(), None, "waits for the step in flight");
    bench.commit(&second, 7);
    let third = bench.plan().expect("now it is certain");
    assert_eq!(third.preempted.len(), 1);
    assert_eq!(third.chunks.len(), 1);
}

#[test]
fn a_sequence_that_is_preempted_in_flight_keeps_its_token() {
    let mut bench = Bench::new(Sizes { blocks: 4, ..ROOMY });
    let old = bench.submit(prompt(7), greedy(9));
    bench.step();
    let young = bench.submit(prompt(5).iter().map(|token| token + 100).collect(), greedy(9));
    let mut in_flight = bench.plan().expect("work");
    let mut preempted_in_flight = 0;
    loop {
        let next = bench.plan();
        let victim = next.as_ref().and_then(|plan| plan.preempted.first()).copied();
        let draws = in_flight.chunks.iter().any(|chunk| {
            chunk.num_samples > 0 && victim.is_some_and(|victim| victim.sequence == chunk.sequence)
        });
        let before = bench.output(young).len();
        bench.commit(&in_flight, 7);
        if draws {
            preempted_in_flight += 1;
            assert_eq!(bench.output(young).len(), before + 1);
        }
        match next.or_else(|| bench.plan()) {
            Some(plan) => in_flight = plan,
            None => break,
        }
    }
    assert!(preempted_in_flight > 0);
    assert_eq!((bench.output(old).len(), bench.output(young).len()), (9, 9));
}

#[test]
fn choices_share_the_prompt_and_copy_only_what_they_write() {
    let mut bench = Bench::new(ROOMY);
    let params = SamplingParams { n: 4, best_of: 4, ..greedy(3) };
    bench.submit(prompt(2 * BLOCK + 1), params);
    let plan = bench.step().expect("the prompt");
    assert_eq!((plan.chunks[0].num_samples, plan.num_rows(), plan.num_logit_rows()), (4, 4, 1));
    assert_eq!(bench.pool.stats().used, 3, "four sequences on three blocks");
    let plan = bench.step().expect("a token each");
    assert_eq!(plan.copies.len(), 3, "the last holder writes in place");
    assert_eq!(bench.pool.stats().used, 6);
    bench.run();
}

#[test]
fn a_fault_ends_one_request_and_forgets_its_blocks() {
    let mut bench = Bench::new(ROOMY);
    let bad = bench.submit(prompt(9), greedy(5));
    bench.step();
    let good: Vec<_> =
        (0..7).map(|index| bench.submit(vec![index, index, 3, 4, 5], greedy(5))).collect();
    let plan = bench.plan().expect("work");
    let fine = RowOutput { tokens: vec![7], logprobs: None, fault: None };
    let broken = RowOutput { fault: Some(RowFault::NotANumber), ..RowOutput::default() };
    let rows = (0..plan.num_rows()).map(|row| if row == 0 { broken.clone() } else { fine.clone() });
    let events = bench.commit_rows(&plan, rows.collect());
    let fault = events.iter().find(|event| event.request() == bad).expect("it ends");
    let Event::Finished { reason: FinishReason::Fault, message: Some(message), .. } = fault else {
        panic!("{fault:?}");
    };
    assert!(message.contains("not numbers"));
    bench.run();
    assert!(good.iter().all(|&id| bench.output(id).len() == 5));
    let again = bench.submit(prompt(9), greedy(1));
    bench.run();
    assert_eq!(bench.end(again), Some((FinishReason::Length, 0)), "nothing of it was cached");
}

#[test]
fn ignore_eos_leaves_the_stop_tokens_of_the_request() {
    for (ignore_eos, stops, drawn, want) in [
        (true, vec![], 2, FinishReason::Length),
        (false, vec![], 2, FinishReason::StopToken(2)),
        (true, vec![9], 9, FinishReason::StopToken(9)),
        (true, vec![9], 2, FinishReason::Length),
    ] {
        let mut bench = Bench::new(ROOMY);
        let params = SamplingParams { ignore_eos, stop_token_ids: stops.clone(), ..greedy(50) };
        let id = bench.submit(prompt(3), params);
        while let Some(plan) = bench.plan() {
            bench.commit(&plan, drawn);
        }
        assert_eq!(bench.end(id).expect("ended").0, want, "{ignore_eos} {stops:?} {drawn}");
    }
}

#[test]
fn penalty_state_is_rebuilt_after_a_preemption() {
    let mut bench = Bench::new(Sizes { blocks: 5, ..ROOMY });
    let params = SamplingParams { frequency_penalty: 1.0, ..greedy(9) };
    bench.submit(prompt(7), params.clone());
    let young: Vec<TokenId> = prompt(7).iter().map(|token| token + 100).collect();
    bench.submit(young.clone(), params);
    let plans: Vec<_> = std::iter::from_fn(|| bench.step()).collect();
    let resets: Vec<_> = plans.iter().flat_map(|plan| &plan.state_ops).collect();
    let last = resets.last().expect("resets");
    let StateOp::Reset { prompt, output, .. } = last else { panic!("{last:?}") };
    assert_eq!(prompt, &young);
    assert!(!output.is_empty(), "what it had generated counts");
    assert_eq!(resets.len(), 2 + bench.scheduler.num_preemptions() as usize);
}

#[test]
fn prompt_logprobs_are_cut_to_the_logit_rows_and_skip_the_cache() {
    let mut bench = Bench::new(Sizes { rows: 8, seqs: 8, ..ROOMY });
    bench.submit(prompt(20), greedy(1));
    bench.run();
    let params = SamplingParams { prompt_logprobs: Some(0), ..greedy(2) };
    let id = bench.submit(prompt(20), params);
    let plans: Vec<_> = std::iter::from_fn(|| bench.step()).collect();
    assert!(plans.iter().all(|plan| plan.num_logit_rows() <= 8));
    let num_scores: usize = bench
        .events
        .iter()
        .map(|event| match event {
            Event::PromptLogprobs { logprobs, .. } => logprobs.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(num_scores, 19);
    assert_eq!(bench.end(id), Some((FinishReason::Length, 0)));
}

#[test]
fn zero_tokens_only_score_the_prompt() {
    let mut bench = Bench::new(ROOMY);
    let params = SamplingParams { prompt_logprobs: Some(1), ..greedy(0) };
    let id = bench.submit(prompt(10), params);
    let plan = bench.step().expect("the prompt");
    assert_eq!((plan.num_rows(), plan.chunks[0].num_samples), (9, 0));
    assert_eq!(bench.end(id).expect("ended").0, FinishReason::Length);
    assert!(bench.output(id).is_empty());
    bench.run();
}

#[test]
fn the_same_calls_give_the_same_plans() {
    let plans = || {
        let mut bench = Bench::new(Sizes { blocks: 30, tokens: 40, ..ROOMY });
        for len in [9, 30, 4, 17, 33, 8] {
            bench.submit(prompt(len), SamplingParams { n: 2, best_of: 2, ..greedy(20) });
        }
        std::iter::from_fn(|| bench.step()).collect::<Vec<_>>()
    };
    assert_eq!(plans(), plans());
}

#[test]
fn best_of_sums_log_probabilities() {
    let mut bench = Bench::new(ROOMY);
    let id = bench.submit(prompt(4), SamplingParams { best_of: 2, ..greedy(3) });
    bench.run();
    let sums = bench.events.iter().filter_map(|event| match event {
        Event::Finished { request, cumulative_logprob, .. } if *request == id => {
            *cumulative_logprob
        }
        _ => None,
    });
    assert_eq!(sums.collect::<Vec<_>>(), [-3.0, -3.0]);
}
