//! A seeded simulator of serving: traffic, faults, invariants.
//!
//! A seed decides everything. [`run_seed`] serves its world twice, with one and with two steps in
//! flight, and compares every answer with a generator that knows no blocks, batches or schedules.

#![forbid(unsafe_code)]

pub mod fake_executor;
pub mod host;
pub mod instant;
pub mod model;
pub mod options;
pub mod random;
pub mod traffic;
pub mod waste;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fake_executor::Bug;
use options::Options;
use world::Report;

/// Runs one seed at both depths.
///
/// # Errors
/// What was wrong, with everything that is needed to see it again.
pub fn run_seed(seed: u64, bug: Option<Bug>) -> Result<[Report; 2], String> {
    let options = Options::new(seed);
    let run = |depth| {
        catch_unwind(AssertUnwindSafe(|| world::run(&options, depth, bug))).map_err(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            format!("seed {seed}, {depth} in flight: {text}\n{options:#?}")
        })
    };
    let reports = [run(1)?, run(2)?];
    for id in reports[0].owed.intersection(&reports[1].owed) {
        let of = |report: &Report| {
            let choices = report.outcomes.range((*id, 0)..=(*id, u32::MAX));
            choices.map(|(_, outcome)| outcome.clone()).collect::<Vec<_>>()
        };
        if of(&reports[0]) != of(&reports[1]) {
            return Err(format!("seed {seed}: {id} differs between the depths\n{options:#?}"));
        }
    }
    Ok(reports)
}
