//! Counters and histograms as plain data. Units end the names; the buckets are vLLM's.

/// Everything that is counted since the engine started.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStats {
    /// Sequences that run.
    pub num_running: usize,
    /// Sequences that wait, preempted ones included.
    pub num_waiting: usize,
    /// KV blocks of the pool.
    pub num_blocks: usize,
    /// Token slots in a block.
    pub block_size: usize,
    /// Blocks that sequences hold.
    pub num_blocks_used: usize,
    /// Free blocks that still hold a cached prefix.
    pub num_blocks_cached: usize,
    /// Held slots, summed over steps.
    pub slots_allocated_total: u64,
    /// Of these, slots without a token, summed over steps.
    pub slots_wasted_total: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries_tokens_total: u64,
    /// Of these, tokens found.
    pub prefix_hits_tokens_total: u64,
    /// Sequences that lost their blocks.
    pub preemptions_total: u64,
    /// Prompt tokens of requests whose prompt was computed.
    pub prompt_tokens_total: u64,
    /// Of these, tokens taken from the prefix cache.
    pub prompt_tokens_cached_total: u64,
    /// Tokens generated.
    pub generation_tokens_total: u64,
    /// Steps run.
    pub steps_total: u64,
    /// Choices that ended, by reason.
    pub finished_total: FinishCounts,
    /// Requests that were turned away because the queue was full.
    pub rejected_queue_full_total: u64,
    /// Requests that were turned away because they can never run.
    pub rejected_refused_total: u64,
    /// Requests that ended because their logits were not numbers or allowed no token.
    pub corrupted_requests_total: u64,
    /// Submit to first token, seconds.
    pub time_to_first_token_seconds: Histogram,
    /// Between two tokens of a choice, seconds.
    pub inter_token_latency_seconds: Histogram,
    /// Mean time of a token after the first, seconds, one sample a choice.
    pub time_per_output_token_seconds: Histogram,
    /// Submit to end, seconds.
    pub e2e_latency_seconds: Histogram,
    /// Submit to first step, seconds.
    pub queue_time_seconds: Histogram,
    /// First step to end, seconds.
    pub inference_time_seconds: Histogram,
    /// First step to first token, seconds.
    pub prefill_time_seconds: Histogram,
    /// First token to end, seconds.
    pub decode_time_seconds: Histogram,
    /// Prompt tokens of a request.
    pub request_prompt_tokens: Histogram,
    /// Generated tokens of a choice.
    pub request_generation_tokens: Histogram,
    /// Generated tokens of the longest choice of a request.
    pub request_max_num_generation_tokens: Histogram,
    /// `n` of a request.
    pub request_params_n: Histogram,
    /// `max_tokens` of a request.
    pub request_params_max_tokens: Histogram,
    /// Preemptions of a request.
    pub request_num_preemptions: Histogram,
    /// Prompt tokens of a request that had to be computed.
    pub request_prefill_kv_computed_tokens: Histogram,
    /// Tokens of a step.
    pub iteration_tokens: Histogram,
    /// Time that the engine itself spends on a step, seconds: planning, building, committing.
    pub host_step_seconds: Histogram,
}

/// Choices that ended, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinishCounts {
    /// A stop token or a stop string.
    pub stop: u64,
    /// `max_tokens` or the context is used up.
    pub length: u64,
    /// Cancelled, or its deadline passed.
    pub abort: u64,
    /// A fault.
    pub error: u64,
}

/// A histogram with fixed upper bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, inclusive, ascending; one more bucket, without a bound, follows.
    pub bounds: Vec<f64>,
    /// Samples in each bucket (not cumulative); one more than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all samples.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new(bounds: &[f64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }
    /// Adds a sample.
    pub fn record(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }
    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const ITERATION: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: &[f64] = &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0];
const HOST: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1,
];

/// 1, 2, 5, 10, 20, 50 and so on, up to `max_model_len`.
fn token_bounds(max_model_len: usize) -> Vec<f64> {
    let mut bounds = Vec::new();
    let mut power = 1usize;
    loop {
        for factor in [1, 2, 5] {
            let Some(bound) = power.checked_mul(factor).filter(|&b| b <= max_model_len) else {
                return bounds;
            };
            bounds.push(bound as f64);
        }
        let Some(next) = power.checked_mul(10) else { return bounds };
        power = next;
    }
}

impl EngineStats {
    /// All zero.
    #[must_use]
    pub fn new(num_blocks: usize, block_size: usize, max_model_len: usize) -> Self {
        let tokens = Histogram::new(&token_bounds(max_model_len));
        let latency = Histogram::new(LATENCY);
        Self {
            num_running: 0,
            num_waiting: 0,
            num_blocks,
            block_size,
            num_blocks_used: 0,
            num_blocks_cached: 0,
            slots_allocated_total: 0,
            slots_wasted_total: 0,
            prefix_queries_tokens_total: 0,
            prefix_hits_tokens_total: 0,
            preemptions_total: 0,
            prompt_tokens_total: 0,
            prompt_tokens_cached_total: 0,
            generation_tokens_total: 0,
            steps_total: 0,
            finished_total: FinishCounts::default(),
            rejected_queue_full_total: 0,
            rejected_refused_total: 0,
            corrupted_requests_total: 0,
            time_to_first_token_seconds: Histogram::new(FIRST_TOKEN),
            inter_token_latency_seconds: Histogram::new(INTER_TOKEN),
            time_per_output_token_seconds: Histogram::new(INTER_TOKEN),
            e2e_latency_seconds: latency.clone(),
            queue_time_seconds: latency.clone(),
            inference_time_seconds: latency.clone(),
            prefill_time_seconds: latency.clone(),
            decode_time_seconds: latency,
            request_prompt_tokens: tokens.clone(),
            request_generation_tokens: tokens.clone(),
            request_max_num_generation_tokens: tokens.clone(),
            request_params_n: Histogram::new(CHOICES),
            request_params_max_tokens: tokens.clone(),
            request_num_preemptions: Histogram::new(PREEMPTIONS),
            request_prefill_kv_computed_tokens: tokens,
            iteration_tokens: Histogram::new(ITERATION),
            host_step_seconds: Histogram::new(HOST),
        }
    }
    /// Share of the blocks that sequences hold, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        self.num_blocks_used as f64 / self.num_blocks.max(1) as f64
    }
    /// Share of held slots without a token, over all steps, 0 to 1.
    #[must_use]
    pub fn kv_waste(&self) -> f64 {
        self.slots_wasted_total as f64 / self.slots_allocated_total.max(1) as f64
    }
}
