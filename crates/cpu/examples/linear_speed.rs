//! Speed of the products, by format, rows and shape, beside the memory bandwidth of this machine.
//!
//! ```text
//! linear_speed [threads] [isa] [float32] [format]
//! ```
//!
//! With one thread the clock is the time on the processor, so that other processes disturb less.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use half::f16;
use pagedllm_backend::Backend;
use pagedllm_backend::conformance::Probe;
use pagedllm_core::{
    DType, GroupTables, KvGroup, KvLayout, LinearPart, RaggedBatch, Split, StepInput, TokenSource,
    WeightFormat, WeightView,
};
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions, Isa, physical_cores};

/// `[outputs, inputs]` of the matrices of SmolLM2-135M.
const SHAPES: [(usize, usize); 5] =
    [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)];
const ROWS: [usize; 4] = [1, 8, 32, 512];
/// Weights that one measurement goes through at least, so that they come from memory.
const TOTAL_WEIGHTS: usize = 64 << 20;

/// Bytes a second that `threads` threads read from memory.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1u64; 32 << 20];
    let best = (0..3).map(|_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(words.len() / threads) {
                scope.spawn(move || {
                    let sums = part.chunks_exact(8).fold([0u64; 8], |mut sums, words| {
                        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum ^= word);
                        sums
                    });
                    black_box(sums);
                });
            }
        });
        (words.len() * 8) as f64 / start.elapsed().as_secs_f64()
    });
    best.fold(0.0, f64::max)
}

/// Seconds on some clock: of this thread on the processor where only it works, else of the day.
fn now(threads: usize, start: Instant) -> f64 {
    let on_cpu = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let wall = || start.elapsed().as_secs_f64();
    if threads == 1 { on_cpu().map_or_else(wall, |ns| ns / 1e9) } else { wall() }
}

fn weight(format: WeightFormat, rows: usize, cols: usize) -> WeightView<'static> {
    let mut state = 1u32;
    let mut data = vec![0u8; rows * format.row_bytes(cols).expect("whole blocks")];
    for block in data.chunks_exact_mut(format.block_bytes()) {
        for byte in block.iter_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let scale = if format == WeightFormat::Q6K { 208 } else { 0 };
        match format {
            WeightFormat::F32 => block.copy_from_slice(&0.5f32.to_le_bytes()),
            WeightFormat::BF16 => block[1] = 0x3f,
            _ => block[scale..scale + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes()),
        }
    }
    WeightView { name: "weight".into(), format, rows, cols, data: data.into() }
}

/// A step of `rows` chunks of one token; products don't look at it.
fn step(rows: usize) -> StepInput {
    let rows32 = u32::try_from(rows).expect("few rows");
    let batch = RaggedBatch {
        token_ids: vec![TokenSource::Known(0); rows],
        positions: vec![0; rows],
        query_starts: (0..=rows32).collect(),
        seq_lens: vec![1; rows],
        logit_rows: Vec::new(),
        groups: vec![GroupTables {
            slot_mapping: vec![0; rows],
            block_tables: vec![0; rows],
            max_blocks: 1,
        }],
    };
    StepInput { batch, ..StepInput::default() }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let num_threads = arguments.first().and_then(|a| a.parse().ok()).unwrap_or_else(physical_cores);
    let isa = Isa::ALL.into_iter().find(|isa| arguments.contains(&isa.to_string()));
    let dtype =
        if arguments.iter().any(|a| a == "float32") { CpuDType::Float32 } else { CpuDType::Fast };
    let mut backend = CpuBackend::new(CpuOptions { num_threads, dtype, isa })?;
    let bandwidth = read_bandwidth(num_threads) / 1e9;
    println!("{} {dtype:?}, {num_threads} threads, memory read {bandwidth:.1} GB/s", backend.isa());
    println!("each cell: GB/s of weights, GOP/s");
    let layout = KvLayout { block_size: 16, num_kv_heads: 1, head_dim: 16, dtype: DType::F32 };
    let group = KvGroup { layers: vec![0], layout, window: None };
    let mut kv = backend.allocate_kv_cache(&[group], 1)?;
    let wanted = |format: &WeightFormat| {
        let named = |f: WeightFormat| arguments.contains(&f.to_string());
        named(*format) || !WeightFormat::ALL.into_iter().any(named)
    };
    let clock = Instant::now();
    for format in WeightFormat::ALL.into_iter().filter(wanted) {
        println!("{format:<6} {}", ROWS.map(|rows| format!("{rows:>18} rows")).concat());
        for (outputs, cols) in SHAPES {
            let cols = cols.next_multiple_of(format.block_len());
            let copies = (TOTAL_WEIGHTS / (outputs * cols)).clamp(1, 64);
            let weight = weight(format, outputs, cols);
            let bytes = weight.data.len() as f64;
            let part = LinearPart { weight, bias: None };
            let linears = (0..copies)
                .map(|_| backend.load_linear(std::slice::from_ref(&part), Split::Whole))
                .collect::<Result<Vec<_>, _>>()?;
            let mut line = format!("{:>12}", format!("{outputs}x{cols}"));
            for rows in ROWS {
                let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.37).sin()).collect();
                let x = backend.upload(rows, cols, &values);
                let step = backend.begin_step(&mut kv, &step(rows));
                // The processor's clock is coarse, so enough is done between two looks at it.
                let mut times = Vec::new();
                for _ in 0..3 {
                    let (start, mut products) = (now(num_threads, clock), 0);
                    let mut elapsed = 0.0;
                    while elapsed < 0.04 {
                        for w in &linears[..copies.min(4096 / rows)] {
                            black_box(&*backend.linear(&x, w, &step));
                            products += 1;
                        }
                        elapsed = now(num_threads, clock) - start;
                    }
                    times.push(elapsed / f64::from(products));
                }
                let best = times.into_iter().fold(f64::INFINITY, f64::min);
                let operations = 2.0 * (rows * outputs * cols) as f64;
                line += &format!("{:>13.1} {:>7.0}", bytes / best / 1e9, operations / best / 1e9);
            }
            println!("{line}");
        }
    }
    Ok(())
}
