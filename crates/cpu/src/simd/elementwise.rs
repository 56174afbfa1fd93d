//! Loops over single rows, written once in plain Rust with fixed-size lanes that the compiler
//! turns into vector code, and compiled once for each instruction set by [`table!`].

use pagedllm_backend::Activation;

/// Lanes of the accumulators: two AVX2 registers, one of AVX-512.
const LANES: usize = 16;

type Quantize = unsafe fn(&[f32], &mut [i8], &mut [f32], &mut [f32]);

/// One entry for each loop; see the methods of `Kernels` for their meaning.
#[derive(Clone, Copy)]
pub struct Table {
    pub quantize: Quantize,
    pub round_to_bf16: unsafe fn(&[f32], &mut [u16]),
    pub normalize: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub add: unsafe fn(&[f32], &mut [f32]),
    pub gate: unsafe fn(Activation, &[f32], &[f32], &mut [f32]),
    pub scale: unsafe fn(&mut [f32], f32),
    pub soft_cap: unsafe fn(&mut [f32], f32),
    pub max: unsafe fn(&[f32]) -> f32,
    pub exp_sum: unsafe fn(&mut [f32], f32) -> f32,
    pub argmax: unsafe fn(&[f32]) -> Option<usize>,
}

/// A [`Table`] whose loops are compiled with the given target features.
macro_rules! table {
    ($(#[$feature:meta])*) => {{
        use $crate::simd::elementwise as plain;
        use pagedllm_backend::Activation;
        $(#[$feature])*
        unsafe fn quantize(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
            plain::quantize(x, q, scales, sums);
        }
        $(#[$feature])*
        unsafe fn round_to_bf16(x: &[f32], out: &mut [u16]) {
            plain::round_to_bf16(x, out);
        }
        $(#[$feature])*
        unsafe fn normalize(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
            plain::normalize(x, gain, eps, out);
        }
        $(#[$feature])*
        unsafe fn add(x: &[f32], to: &mut [f32]) {
            plain::add(x, to);
        }
        $(#[$feature])*
        unsafe fn gate(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
            plain::gate(activation, gate, up, out);
        }
        $(#[$feature])*
        unsafe fn scale(x: &mut [f32], factor: f32) {
            plain::scale(x, factor);
        }
        $(#[$feature])*
        unsafe fn soft_cap(x: &mut [f32], cap: f32) {
            plain::soft_cap(x, cap);
        }
        $(#[$feature])*
        unsafe fn max(x: &[f32]) -> f32 {
            plain::max(x)
        }
        $(#[$feature])*
        unsafe fn exp_sum(x: &mut [f32], max: f32) -> f32 {
            plain::exp_sum(x, max)
        }
        $(#[$feature])*
        unsafe fn argmax(x: &[f32]) -> Option<usize> {
            plain::argmax(x)
        }
        plain::Table {
            quantize,
            round_to_bf16,
            normalize,
            add,
            gate,
            scale,
            soft_cap,
            max,
            exp_sum,
            argmax,
        }
    }};
}
pub(super) use table;

/// Adds 1.5 * 2^23 and takes it away: rounds to the nearest integer without a call.
const ROUND: f32 = 12_582_912.0;

/// `exp`, to about two units in the last place; 0 below -87, large above 88.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // NaN stays NaN: `max` and `min` would drop it.
    let clamped = if x < -87.0 { -87.0 } else { x };
    let clamped = if clamped > 88.0 { 88.0 } else { clamped };
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts, the first exact in few bits (Cody and Waite).
    let r = clamped - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    // The integer sits in the low bits of the shifted sum.
    let power = ((n + ROUND).to_bits().wrapping_sub(ROUND.to_bits())).wrapping_add(127) << 23;
    let result = value * f32::from_bits(power);
    if x < -87.0 { 0.0 } else { result }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

#[inline(always)]
pub fn quantize(x: &[f32], ints: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
    let blocks = x.chunks_exact(32).zip(ints.chunks_exact_mut(32));
    for ((x, ints), (scale, sums)) in blocks.zip(scales.iter_mut().zip(sums.chunks_exact_mut(2))) {
        let (mut largest, mut unsound) = ([0.0f32; LANES], [0.0f32; LANES]);
        for x in x.chunks_exact(LANES) {
            for i in 0..LANES {
                let size = x[i].abs();
                largest[i] = if size > largest[i] { size } else { largest[i] };
                unsound[i] += x[i] * 0.0;
            }
        }
        let largest = largest.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
        // A NaN or an infinity must reach the logits, where the row's fault is found.
        let sound = lane_sum(&unsound) == 0.0;
        *scale = if sound { largest / 127.0 } else { f32::NAN };
        let inverse = if largest > 0.0 && sound { 127.0 / largest } else { 0.0 };
        for ((x, ints), sum) in
            x.chunks_exact(16).zip(ints.chunks_exact_mut(16)).zip(sums.iter_mut())
        {
            let mut total = 0i32;
            for (x, int) in x.iter().zip(ints.iter_mut()) {
                let q =
                    ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
                *int = q as i8;
                total += q;
            }
            *sum = *scale * total as f32;
        }
    }
}

#[inline(always)]
pub fn round_to_bf16(x: &[f32], out: &mut [u16]) {
    for (out, x) in out.iter_mut().zip(x) {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        // Rounding could turn a NaN into an infinity.
        *out = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
    }
}

#[inline(always)]
fn lane_sum(lanes: &[f32; LANES]) -> f32 {
    let mut half = [0.0; 8];
    for (i, half) in half.iter_mut().enumerate() {
        *half = lanes[i] + lanes[i + 8];
    }
    half.iter().sum()
}

#[inline(always)]
pub fn normalize(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let mut squares = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for x in chunks {
        for (square, x) in squares.iter_mut().zip(x) {
            *square += x * x;
        }
    }
    let mean = (lane_sum(&squares) + rest) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for ((out, x), gain) in out.iter_mut().zip(x).zip(gain) {
        *out = x * factor * gain;
    }
}

#[inline(always)]
pub fn add(x: &[f32], to: &mut [f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += x;
    }
}

#[inline(always)]
pub fn gate(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => {
            for ((out, &x), up) in out.iter_mut().zip(gate).zip(up) {
                *out = x / (1.0 + exp(-x)) * up;
            }
        }
        Activation::GeluTanh => {
            const FACTOR: f32 = 0.797_884_6; // sqrt(2 / pi)
            for ((out, &x), up) in out.iter_mut().zip(gate).zip(up) {
                let inner = FACTOR * (x + 0.044_715 * x * x * x);
                *out = 0.5 * x * (1.0 + tanh(inner)) * up;
            }
        }
    }
}

#[inline(always)]
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
pub fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * tanh(*x / cap);
    }
}

#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for x in chunks {
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

#[inline(always)]
pub fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for x in &mut chunks {
        for (sum, x) in sums.iter_mut().zip(x) {
            *x = exp(*x - max);
            *sum += *x;
        }
    }
    let mut rest = 0.0;
    for x in chunks.into_remainder() {
        *x = exp(*x - max);
        rest += *x;
    }
    lane_sum(&sums) + rest
}

#[inline(always)]
pub fn argmax(x: &[f32]) -> Option<usize> {
    let best = max(x);
    // A NaN times zero is NaN, and so is an infinity: negative ones are looked at again.
    let mut unsound = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for x in chunks {
        for (lane, x) in unsound.iter_mut().zip(x) {
            *lane += x * 0.0;
        }
    }
    let suspicious = unsound.iter().any(|lane| lane.is_nan());
    if !best.is_finite() || rest.iter().any(|x| x.is_nan()) {
        return None;
    }
    if suspicious && x.iter().any(|x| x.is_nan()) {
        return None;
    }
    x.iter().position(|&x| x == best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        for step in -8_700..8_800 {
            let x = step as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "{x}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_saturates() {
        assert_eq!(tanh(100.0), 1.0);
        assert_eq!(tanh(-100.0), -1.0);
        assert!((tanh(0.5) - 0.5f32.tanh()).abs() < 1e-6);
    }

    #[test]
    fn argmax_takes_the_first_and_finds_nan() {
        let mut x = vec![0.0f32; 40];
        x[7] = 3.0;
        x[39] = 3.0;
        x[3] = f32::NEG_INFINITY;
        assert_eq!(argmax(&x), Some(7));
        x[20] = f32::NAN;
        assert_eq!(argmax(&x), None);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 20]), None);
    }

    #[test]
    fn quantized_values_are_within_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 * 1.7).sin()).collect();
        let (mut ints, mut scales, mut sums) = ([0i8; 64], [0.0; 2], [0.0; 4]);
        quantize(&x, &mut ints, &mut scales, &mut sums);
        for (i, x) in x.iter().enumerate() {
            assert!((scales[i / 32] * f32::from(ints[i]) - x).abs() <= scales[i / 32] * 0.501);
        }
        let sum: f32 = ints[16..32].iter().map(|&q| f32::from(q)).sum();
        assert!((sums[1] - sum * scales[0]).abs() < 1e-5);
    }
}
