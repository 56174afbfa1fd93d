//! Seeds that must pass, and mistakes that must be seen.

use pagedllm_sim::fake_executor::Bug;
use pagedllm_sim::{run_seed, waste};

#[test]
fn every_request_gets_the_answer_of_the_naive_generator() {
    for seed in 0..100 {
        run_seed(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The canary: a simulator that sees none of these would prove nothing.
#[test]
fn each_deliberate_mistake_is_seen() {
    for bug in Bug::ALL {
        let seen = (0..100).any(|seed| run_seed(seed, Some(bug)).is_err());
        assert!(seen, "{bug:?} was not seen in 100 seeds");
    }
}

#[test]
fn less_than_four_percent_of_the_cache_is_wasted() {
    let stats = waste::serve(200);
    assert!(stats.kv_waste() < 0.04, "{}", stats.kv_waste());
    assert_eq!(stats.finished_total.length, 200);
    assert_eq!(stats.generation_tokens_total, 200 * 128);
}
