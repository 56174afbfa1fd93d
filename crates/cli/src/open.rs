//! Opening a model, with progress on a terminal and one line of what it took.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use pagedllm::{Llm, Options};

/// Opens a model.
pub(crate) fn open(options: &Options) -> anyhow::Result<Llm> {
    let start = Instant::now();
    let shows_progress = std::io::stderr().is_terminal();
    let mut shown = u64::MAX;
    let llm = Llm::open(options, &mut |progress| {
        let gib = |count: u64| count as f64 / f64::from(1 << 30);
        let percent = (100 * progress.done_bytes).checked_div(progress.total_bytes);
        let step = percent.unwrap_or(progress.done_bytes >> 27);
        if shows_progress && step != shown {
            shown = step;
            match percent {
                Some(percent) => eprint!(
                    "\rloading {percent}% of {:.2} GiB, {:.2} GiB/s",
                    gib(progress.total_bytes),
                    gib(progress.done_bytes) / start.elapsed().as_secs_f64().max(1e-3),
                ),
                None => eprint!("\rmaking up weights, {:.2} GiB", gib(progress.done_bytes)),
            }
            let _ = std::io::stderr().flush();
        }
        true
    });
    if shows_progress && shown != u64::MAX {
        eprint!("\r\x1b[K");
    }
    let llm = llm?;
    let model = llm.description();
    let times: Vec<String> = model
        .load_times
        .iter()
        .map(|(part, time)| format!("{part} {:.2} s", time.as_secs_f64()))
        .collect();
    tracing::info!(
        "loaded {} ({}, {}) on {} in {:.2} s: {}",
        model.model,
        model.architecture,
        bytes(model.weight_bytes),
        model.device,
        start.elapsed().as_secs_f64(),
        times.join(", "),
    );
    let tokens = model.num_blocks * model.block_size;
    tracing::info!(
        "KV cache: {} blocks of {} tokens ({}), {} tokens; {:.1} sequences of {} tokens fit; \
         at most {} run at once, {} tokens a step",
        model.num_blocks,
        model.block_size,
        bytes(model.block_bytes.saturating_mul(model.num_blocks as u64)),
        tokens,
        tokens as f64 / model.max_model_len.max(1) as f64,
        model.max_model_len,
        model.max_num_seqs,
        model.max_num_batched_tokens,
    );
    Ok(llm)
}

/// Bytes in a unit that reads well.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..0x10_0000 => format!("{:.1} KiB", count as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", count as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", count as f64 / f64::from(1 << 30)),
    }
}
