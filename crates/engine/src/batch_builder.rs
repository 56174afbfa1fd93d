//! A plan and the block tables of its sequences become what the executor takes.

use pagedllm_core::{
    Draw, GroupTables, RaggedBatch, RowTask, SamplingBatch, SamplingRow, StepInput, TokenSource,
};
use pagedllm_kv::KvShape;
use pagedllm_scheduler::{Chunk, Scheduler, Sequence, StepPlan};

/// Builds the input of the forward pass. Must be called before the scheduler changes again.
pub(crate) fn step_input(plan: &StepPlan, scheduler: &Scheduler, shape: &KvShape) -> StepInput {
    let (num_tokens, num_seqs) = (plan.num_tokens(), plan.chunks.len());
    let mut batch = RaggedBatch {
        token_ids: Vec::with_capacity(num_tokens),
        positions: Vec::with_capacity(num_tokens),
        query_starts: Vec::with_capacity(num_seqs + 1),
        seq_lens: Vec::with_capacity(num_seqs),
        logit_rows: Vec::with_capacity(plan.num_logit_rows()),
        groups: Vec::with_capacity(shape.num_groups()),
    };
    batch.query_starts.push(0);
    for chunk in &plan.chunks {
        push_chunk(&mut batch, chunk, scheduler.sequence(chunk.slot));
    }
    for group in 0..shape.num_groups() {
        batch.groups.push(group_tables(plan, scheduler, shape, group));
    }
    StepInput { batch, copies: plan.copies.clone(), state_ops: plan.state_ops.clone() }
}

fn push_chunk(batch: &mut RaggedBatch, chunk: &Chunk, sequence: &Sequence) {
    let first = batch.token_ids.len();
    let tokens = sequence.tokens();
    let num_known = chunk.tokens.end - usize::from(chunk.sampled_by.is_some());
    let known = &tokens[chunk.tokens.start..num_known];
    batch.token_ids.extend(known.iter().map(|&token| TokenSource::Known(token)));
    batch.token_ids.extend(chunk.sampled_by.map(|row| TokenSource::SampledBy { row }));
    batch.positions.extend(chunk.tokens.clone().map(|position| position as u32));
    batch.query_starts.push(batch.token_ids.len() as u32);
    batch.seq_lens.push(chunk.tokens.end as u32);
    let row_of = |position: usize| (first + position - chunk.tokens.start) as u32;
    batch.logit_rows.extend(chunk.scores.clone().map(row_of));
    if chunk.num_samples > 0 {
        batch.logit_rows.push(row_of(chunk.tokens.end - 1));
    }
}

fn group_tables(
    plan: &StepPlan,
    scheduler: &Scheduler,
    shape: &KvShape,
    group: usize,
) -> GroupTables {
    let block_size = shape.block_size();
    let longest = plan.chunks.iter().map(|chunk| chunk.tokens.end).max().unwrap_or(0);
    let max_blocks = longest.div_ceil(block_size);
    let mut slot_mapping = Vec::with_capacity(plan.num_tokens());
    let mut block_tables = vec![0; plan.chunks.len() * max_blocks];
    for (chunk, row) in plan.chunks.iter().zip(block_tables.chunks_exact_mut(max_blocks)) {
        let table = &scheduler.sequence(chunk.slot).blocks().tables()[group];
        for (entry, block) in row[table.num_released()..].iter_mut().zip(table.blocks()) {
            *entry = block.get();
        }
        slot_mapping
            .extend(chunk.tokens.clone().map(|position| table.slot_of(position, block_size)));
    }
    GroupTables { slot_mapping, block_tables, max_blocks }
}

/// Builds the sampling rows. Rows of constrained requests get no mask yet. Must be called before
/// the scheduler changes again.
pub(crate) fn sampling_batch(plan: &StepPlan, scheduler: &Scheduler) -> SamplingBatch {
    let mut rows = Vec::with_capacity(plan.num_rows());
    let mut logit_row = 0;
    for chunk in &plan.chunks {
        let sequence = scheduler.sequence(chunk.slot);
        let terms = sequence.terms();
        for position in chunk.scores.clone() {
            let target = sequence.tokens()[position + 1];
            let num_logprobs = terms.params.prompt_logprobs;
            rows.push(SamplingRow { logit_row, task: RowTask::Score { target }, num_logprobs });
            logit_row += 1;
        }
        if chunk.num_samples == 0 {
            continue;
        }
        let num_logprobs = match terms.params.logprobs {
            None if terms.params.best_of > terms.params.n => Some(0),
            asked => asked,
        };
        for sample in 0..chunk.num_samples {
            let task = RowTask::Draw(draw(sequence, chunk, sample));
            rows.push(SamplingRow { logit_row, task, num_logprobs });
        }
        logit_row += 1;
    }
    SamplingBatch { rows, masks: Vec::new() }
}

fn draw(sequence: &Sequence, chunk: &Chunk, sample: usize) -> Draw {
    let terms = sequence.terms();
    let params = &terms.params;
    let num_output = chunk.tokens.end - terms.prompt_len;
    let may_stop = num_output >= params.min_tokens as usize;
    Draw {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        logit_bias: params.logit_bias.clone(),
        banned: if may_stop { Vec::new() } else { terms.stop_tokens.clone() },
        allowed: params.allowed_token_ids.clone(),
        mask: None,
        seed: terms.seed,
        choice: sequence.choice() + sample as u32,
        position: chunk.tokens.end as u32,
        state_row: params.has_penalties().then(|| sequence.state_rows()[sample]),
    }
}
