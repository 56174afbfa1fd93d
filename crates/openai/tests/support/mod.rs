//! A model without weights, behind the real engine, tokenizer and facade.
#![allow(dead_code)]

use std::path::PathBuf;
use std::time::Duration;

use pagedllm::{
    EngineConfig, Executor, ExecutorError, ExecutorShape, Llm, ModelDescription, Parts, StepTicket,
    TokenId, TokenLogprob, TokenLogprobs, Tokenizer,
};
use pagedllm_core::{
    DType, Draw, KvGroup, KvLayout, RowFault, RowOutput, RowTask, SamplingBatch, StepInput,
    StepOutput, TokenSource,
};

/// Longest sequence of the model.
pub const MAX_MODEL_LEN: usize = 2048;
/// Tokens of the tokenizer: 4 special ones, 256 bytes, 60 merges.
pub const VOCAB_SIZE: usize = 320;
/// Ends a sequence. Never drawn unless a bias asks for it.
pub const EOS: TokenId = 1;
/// A prompt that ends with this text makes the logits of its first token NaN.
pub const POISON: &str = "~";

/// The token after `last`: any but the special ones and the poison.
fn next_token(draw: &Draw, last: TokenId, poison: TokenId) -> TokenId {
    let favoured = draw.logit_bias.iter().find(|(_, bias)| *bias >= 100.0);
    if let Some((token, _)) = favoured.filter(|(token, _)| !draw.banned.contains(token)) {
        return *token;
    }
    let mut state = u64::from(last) * 31 + u64::from(draw.position) * 17 + 7;
    if draw.temperature > 0.0 && draw.top_k != 1 && draw.top_p > 0.0 {
        state = state.wrapping_add(draw.seed ^ (u64::from(draw.choice) << 40));
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    }
    loop {
        let token = 4 + (state % (VOCAB_SIZE as u64 - 4)) as TokenId;
        if token != poison && !draw.banned.contains(&token) {
            return token;
        }
        state += 1;
    }
}

/// Draws tokens by a formula. Each step takes `pace`, as a device would.
struct Formula {
    shape: ExecutorShape,
    pace: Duration,
    poison: TokenId,
    fails_at: Option<u64>,
    next: u64,
    step: Option<(StepInput, SamplingBatch)>,
}

impl Executor for Formula {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn submit(&mut self, input: StepInput) -> StepTicket {
        self.step = Some((input, SamplingBatch::default()));
        self.next += 1;
        StepTicket(self.next - 1)
    }

    fn sample(&mut self, _ticket: &StepTicket, sampling: SamplingBatch) {
        self.step.as_mut().expect("a step is in flight").1 = sampling;
    }

    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
        std::thread::sleep(self.pace);
        if self.fails_at.is_some_and(|step| ticket.0 >= step) {
            return Err(ExecutorError { message: "secret detail of the device".into() });
        }
        let (input, sampling) = self.step.take().expect("a step is in flight");
        let rows = sampling.rows.iter().map(|row| {
            let at = input.batch.logit_rows[row.logit_row as usize] as usize;
            let TokenSource::Known(last) = input.batch.token_ids[at] else {
                unreachable!("one step at a time")
            };
            let token = match &row.task {
                RowTask::Score { target } => *target,
                RowTask::Draw(_) if last == self.poison => {
                    let fault = Some(RowFault::NotANumber);
                    return RowOutput { fault, ..RowOutput::default() };
                }
                RowTask::Draw(draw) => next_token(draw, last, self.poison),
            };
            let logprobs = row.num_logprobs.map(|count| vec![logprobs(token, count)]);
            RowOutput { tokens: vec![token], logprobs, fault: None }
        });
        Ok(StepOutput { rows: rows.collect() })
    }
}

fn logprobs(token: TokenId, count: u32) -> TokenLogprobs {
    let logprob = |rank: u32| -0.5 - rank as f32;
    TokenLogprobs {
        chosen: TokenLogprob { token, logprob: logprob(0) },
        rank: 1,
        top: (0..count)
            .map(|rank| TokenLogprob {
                token: (token + rank) % VOCAB_SIZE as u32,
                logprob: logprob(rank),
            })
            .collect(),
    }
}

/// How the model behaves.
pub struct Behaviour {
    /// Time of a step.
    pub pace: Duration,
    /// The step that fails, and with it the device.
    pub fails_at: Option<u64>,
    /// Most requests that wait.
    pub max_num_queued: usize,
    /// Most sequences that run.
    pub max_num_seqs: usize,
    /// Whether special tokens inside content are plain text.
    pub isolates: bool,
    /// Whether there is no tokenizer, so that only token ids go in and out.
    pub is_textless: bool,
    /// What `generation_config.json` would say.
    pub description: fn(&mut ModelDescription),
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            pace: Duration::ZERO,
            fails_at: None,
            max_num_queued: 1024,
            max_num_seqs: 32,
            isolates: false,
            is_textless: false,
            description: |_| {},
        }
    }
}

/// An [`Llm`] of 320 tokens over the tiny tokenizer, whose template frames turns with special
/// tokens.
pub fn llm(behaviour: Behaviour) -> Llm {
    let folder =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tiny/llama"));
    let tokenizer = Tokenizer::from_files(
        &folder.join("tokenizer.json"),
        Some(&folder.join("tokenizer_config.json")),
    )
    .expect("the tiny tokenizer opens");
    let block_size = 16;
    let layout = KvLayout { block_size, num_kv_heads: 1, head_dim: 8, dtype: DType::F32 };
    let shape = ExecutorShape {
        groups: vec![KvGroup { layers: vec![0], layout, window: None }],
        block_size,
        num_blocks: 4096,
        vocab_size: VOCAB_SIZE,
        max_model_len: MAX_MODEL_LEN,
        max_num_batched_tokens: 4096,
        max_num_seqs: behaviour.max_num_seqs,
        max_logit_rows: 4096,
        max_steps_in_flight: 1,
    };
    let poison = *tokenizer
        .encode(
            POISON,
            pagedllm_tokenizer::EncodeOptions {
                add_special_tokens: false,
                isolate_special_tokens: false,
            },
        )
        .expect("it encodes")
        .last()
        .expect("a token");
    let mut description = ModelDescription::unnamed(vec![EOS]);
    description.model = "tiny".into();
    (behaviour.description)(&mut description);
    Llm::from_parts(Parts {
        executor: Box::new(Formula {
            shape,
            pace: behaviour.pace,
            poison,
            fails_at: behaviour.fails_at,
            next: 0,
            step: None,
        }),
        tokenizer: (!behaviour.is_textless).then_some(tokenizer),
        chat_template: None,
        isolate_special_tokens: behaviour.isolates,
        engine: EngineConfig {
            max_num_queued: behaviour.max_num_queued,
            ..EngineConfig::default()
        },
        description,
    })
}
