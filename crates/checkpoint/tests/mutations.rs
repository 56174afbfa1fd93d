//! Random damage: whatever a file says, opening it ends without a panic, and without memory that
//! its size does not justify. The seed of a failure is printed; `PAGEDLLM_SEED` takes it back.

mod common;

use common::{TINY_CONFIG, TINY_TENSORS, safetensors_file, tiny_gguf};
use pagedllm_checkpoint::{Checkpoint, CheckpointError};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Damaged copies of each file.
const ROUNDS: u64 = 4000;
/// Memory that opening a file of a few kilobytes may take beside the file.
const MAX_BYTES: usize = 1 << 20;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number that tends to be an edge.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next(),
            1 => 1u64.checked_shl(self.below(66) as u32).unwrap_or(0),
            2 => u64::MAX >> self.below(64),
            _ => self.below(70) as u64,
        }
    }
}

/// One to four changes among the first `header` bytes of `file`.
fn damage(file: &[u8], header: usize, random: &mut Random) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(header.min(file.len()).max(1));
        match random.below(6) {
            0 => file.truncate(at),
            1 => {
                let bytes = random.number().to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                let end = (at + width).min(file.len());
                file[at..end].copy_from_slice(&bytes[..end - at]);
            }
            2 => {
                file.insert(at, random.next() as u8);
            }
            3 => {
                let end = (at + random.below(40)).min(file.len());
                file.drain(at..end);
            }
            4 => {
                let end = (at + random.below(40)).min(file.len());
                let piece = file[at..end].to_vec();
                let to = random.below(file.len().max(1)).min(file.len());
                file.splice(to..to, piece);
            }
            _ if at < file.len() => file[at] ^= 1 << random.below(8),
            _ => {}
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

/// Opens damaged copies of `file`, reads every tensor of those that still open, and counts them.
fn survive(
    what: &str,
    file: &[u8],
    header: usize,
    open: impl Fn(Vec<u8>) -> Result<Checkpoint, CheckpointError>,
) -> usize {
    let seed = std::env::var("PAGEDLLM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(0..ROUNDS, |seed: u64| seed..seed + 1);
    let mut opened = 0;
    for seed in seeds {
        let damaged = damage(file, header, &mut Random(seed));
        let size = damaged.len();
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let Ok(checkpoint) = open(damaged) else { return false };
            for name in checkpoint.names() {
                if let Ok(view) = checkpoint.tensor(name) {
                    assert_eq!(view.data.len(), view.rows * view.row_bytes(), "{name}");
                }
                checkpoint.release(name);
            }
            true
        }));
        let peak = MEMORY.peak_usage().saturating_sub(before);
        let result = result.unwrap_or_else(|_| panic!("{what} panicked: PAGEDLLM_SEED={seed}"));
        assert!(
            peak < MAX_BYTES + 16 * size,
            "{what} of {size} bytes took {peak} bytes: PAGEDLLM_SEED={seed}"
        );
        opened += usize::from(result);
    }
    opened
}

/// One test in this file, so that nothing else allocates meanwhile.
#[test]
fn damaged_files_never_panic_or_eat_memory() {
    let gguf = tiny_gguf("llama");
    let data: usize = gguf.tensors.iter().map(|tensor| tensor.data.len()).sum();
    let gguf = gguf.build();
    let opened = survive("gguf", &gguf, gguf.len() - data, Checkpoint::from_gguf);
    let file = safetensors_file(&TINY_TENSORS);
    let header = 8 + u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let opened_safetensors = survive("safetensors", &file, header, |bytes| {
        Checkpoint::from_safetensors(TINY_CONFIG, bytes)
    });
    let opened_config = survive("config", TINY_CONFIG.as_bytes(), TINY_CONFIG.len(), |bytes| {
        Checkpoint::from_safetensors(&String::from_utf8_lossy(&bytes), file.clone())
    });
    // If all or none still opened, the damage would test nothing.
    if std::env::var("PAGEDLLM_SEED").is_err() {
        for opened in [opened, opened_safetensors, opened_config] {
            assert!(opened > 10 && opened < ROUNDS as usize / 2, "{opened} of {ROUNDS} opened");
        }
    }
    // The harness can fail.
    let canary = || survive("canary", &[0; 64], 64, |bytes| panic!("{} bytes", bytes.len()));
    assert!(std::panic::catch_unwind(canary).is_err(), "a reader that panics went unseen");
    let glutton = || {
        survive("glutton", &[0; 64], 64, |_| {
            drop(std::hint::black_box(vec![1u8; 2 * MAX_BYTES]));
            Checkpoint::from_gguf(Vec::new())
        })
    };
    assert!(std::panic::catch_unwind(glutton).is_err(), "a reader that eats memory went unseen");
}
