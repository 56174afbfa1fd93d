//! Means, medians and percentiles of samples.

use serde_json::{Value, json};

/// The value below which `percent` of the samples lie, between neighbours if need be.
pub(super) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = percent / 100.0 * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// Samples in order.
pub(super) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}

pub(super) fn median(samples: &[f64]) -> f64 {
    percentile(&sorted(samples.to_vec()), 50.0)
}

pub(super) fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// Percentiles as vLLM's benchmarks name them.
pub(super) fn percentiles(samples: &[f64]) -> Value {
    let sorted = sorted(samples.to_vec());
    json!({
        "10": percentile(&sorted, 10.0), "25": percentile(&sorted, 25.0),
        "50": percentile(&sorted, 50.0), "75": percentile(&sorted, 75.0),
        "90": percentile(&sorted, 90.0), "99": percentile(&sorted, 99.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let samples = sorted(vec![4.0, 1.0, 3.0, 2.0]);
        for (percent, expected) in [(0.0, 1.0), (50.0, 2.5), (100.0, 4.0), (25.0, 1.75)] {
            assert_eq!(percentile(&samples, percent), expected);
        }
        assert_eq!(percentile(&[], 50.0), 0.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert_eq!(mean(&[]), 0.0);
    }
}
