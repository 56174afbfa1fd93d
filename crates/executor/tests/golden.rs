//! Greedy tokens and logits against transformers, through the whole engine: one at a time, all
//! at once, in small chunks, with prefix hits, and with preemption. On the scalar reference and
//! on the CPU backend in float32.

mod common;

use common::{Golden, Limits, Serving, cpu, every_tiny, reference};

/// Ways to schedule the same requests; none may change a token.
const WAYS: [(&str, Limits); 4] = [
    ("one at a time", Limits { max_num_seqs: 1, max_num_batched_tokens: 512, num_blocks: 64 }),
    ("all at once", Limits { max_num_seqs: 16, max_num_batched_tokens: 512, num_blocks: 256 }),
    ("in chunks of 5", Limits { max_num_seqs: 5, max_num_batched_tokens: 5, num_blocks: 256 }),
    ("on few blocks", Limits { max_num_seqs: 16, max_num_batched_tokens: 64, num_blocks: 12 }),
];

fn greedy_tokens_are_the_same_every_way(make: impl Fn(&Golden, Limits) -> Serving) {
    for golden in every_tiny() {
        for (way, limits) in WAYS {
            let serving = make(&golden, limits);
            for round in ["cold", "prefix cached"] {
                golden.check_greedy(&serving, &format!("{way}, {round}"));
            }
            if way == "on few blocks" {
                serving.finish();
            }
        }
    }
}

#[test]
fn the_reference_gives_the_tokens_of_transformers() {
    greedy_tokens_are_the_same_every_way(reference);
}

#[test]
fn the_cpu_gives_the_tokens_of_transformers() {
    greedy_tokens_are_the_same_every_way(cpu);
}

#[cfg(feature = "cuda")]
#[test]
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn the_gpu_gives_the_tokens_and_logits_of_transformers() {
    if !pagedllm_cuda::available() {
        println!("skipped: no CUDA device");
        return;
    }
    greedy_tokens_are_the_same_every_way(common::cuda);
    for golden in every_tiny() {
        golden.check_logits(&common::cuda(&golden, WAYS[1].1));
    }
}

/// A token of the vocabularies of the tiny models that few of their prompts have.
const POISON: u32 = 300;

fn numbers_that_are_none_stay_with_their_request(
    make: impl Fn(&pagedllm_checkpoint::Checkpoint, Limits) -> Serving,
) {
    let poisoned = every_tiny().filter_map(|golden| {
        let checkpoint = golden.poisoned(POISON)?;
        Some((golden, checkpoint))
    });
    let mut count = 0;
    for (golden, checkpoint) in poisoned {
        for (_, limits) in &WAYS[1..3] {
            golden.check_containment(&make(&checkpoint, *limits), POISON);
        }
        count += 1;
    }
    assert!(count >= 3, "only {count} models have a head of their own");
}

#[test]
fn the_cpu_contains_what_is_no_number() {
    numbers_that_are_none_stay_with_their_request(common::cpu_of);
}

#[cfg(feature = "cuda")]
#[test]
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn the_gpu_contains_what_is_no_number() {
    if !pagedllm_cuda::available() {
        println!("skipped: no CUDA device");
        return;
    }
    numbers_that_are_none_stay_with_their_request(common::cuda_of);
}

#[test]
fn few_blocks_preempt() {
    let golden = every_tiny().next().expect("a golden");
    let serving = cpu(&golden, WAYS[3].1);
    golden.check_greedy(&serving, "preempted");
    assert!(serving.stats().preemptions_total > 0, "12 blocks are too many for this test");
}

#[test]
fn logprobs_are_those_of_the_golden_logits() {
    for golden in every_tiny() {
        golden.check_logits(&cpu(&golden, WAYS[1].1));
        golden.check_logits(&reference(&golden, WAYS[1].1));
    }
}
