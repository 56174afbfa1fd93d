//! Rotary frequencies, from a configuration to the numbers that a backend turns by. The formulas
//! are those of transformers' `modeling_rope_utils`; YaRN is Peng et al. 2023, section 3.

use pagedllm_backend::Rope;
use pagedllm_checkpoint::{ModelConfig, RopeScaling};

use crate::LoadError;

/// Frequencies of one layer. `windowed` layers may have a base of their own.
///
/// LongRoPE's factors are chosen once, by whether `max_model_len` passes the trained positions,
/// so that cached keys never mix two sets.
///
/// # Errors
/// Dynamic scaling past the trained positions: its base changes with the length, and cached keys
/// would no longer fit.
pub fn rope_of(
    config: &ModelConfig,
    windowed: bool,
    max_model_len: usize,
) -> Result<Rope, LoadError> {
    let rope = &config.rope;
    let local_theta = if windowed { rope.local_theta } else { None };
    let theta = local_theta.unwrap_or(rope.theta);
    let plain: Vec<f64> =
        (0..rope.dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / rope.dim as f64)).collect();
    let (inv_freq, attention_factor) = if local_theta.is_some() {
        (plain, 1.0)
    } else {
        scaled(config, plain, theta, max_model_len)?
    };
    Ok(Rope {
        inv_freq: inv_freq.into_iter().map(|f| f as f32).collect(),
        attention_factor: attention_factor as f32,
        max_positions: max_model_len,
    })
}

fn scaled(
    config: &ModelConfig,
    mut plain: Vec<f64>,
    theta: f64,
    max_model_len: usize,
) -> Result<(Vec<f64>, f64), LoadError> {
    let rope = &config.rope;
    if let Some(factors) = &rope.freq_factors {
        for (freq, &factor) in plain.iter_mut().zip(factors) {
            *freq /= f64::from(factor);
        }
    }
    match &rope.scaling {
        None => Ok((plain, 1.0)),
        Some(RopeScaling::Linear { factor }) => {
            Ok((plain.into_iter().map(|f| f / factor).collect(), 1.0))
        }
        Some(RopeScaling::Dynamic { original_max, .. }) => {
            if max_model_len > *original_max {
                return Err(LoadError::UnsupportedConfig {
                    field: "rope_scaling",
                    reason: format!(
                        "dynamic scaling past {original_max} positions; set max-model-len to at \
                         most {original_max}"
                    ),
                });
            }
            Ok((plain, 1.0))
        }
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max }) => {
            let original_max = *original_max as f64;
            let scale = |freq: f64| {
                let wavelength = 2.0 * std::f64::consts::PI / freq;
                if wavelength < original_max / high_freq_factor {
                    freq
                } else if wavelength > original_max / low_freq_factor {
                    freq / factor
                } else {
                    let smooth = (original_max / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * freq / factor + smooth * freq
                }
            };
            Ok((plain.into_iter().map(scale).collect(), 1.0))
        }
        Some(yarn @ RopeScaling::Yarn { .. }) => Ok(yarn_scaled(yarn, &plain, theta, rope.dim)),
        Some(RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max,
            factor,
            attention_factor,
        }) => {
            let factors = if max_model_len > *original_max { long_factor } else { short_factor };
            let attention_factor = attention_factor.unwrap_or_else(|| {
                if *factor <= 1.0 {
                    1.0
                } else {
                    (1.0 + factor.ln() / (*original_max as f64).ln()).sqrt()
                }
            });
            let scaled = plain.iter().zip(factors).map(|(freq, &f)| freq / f64::from(f));
            Ok((scaled.collect(), attention_factor))
        }
    }
}

fn yarn_scaled(yarn: &RopeScaling, plain: &[f64], theta: f64, dim: usize) -> (Vec<f64>, f64) {
    let RopeScaling::Yarn {
        factor,
        original_max,
        beta_fast,
        beta_slow,
        attention_factor,
        mscale,
        mscale_all_dim,
        truncate,
    } = yarn
    else {
        unreachable!("called for yarn alone");
    };
    let magnitude = |scale: f64, mscale: f64| {
        if scale <= 1.0 { 1.0 } else { 0.1 * mscale * scale.ln() + 1.0 }
    };
    let attention_factor = attention_factor.unwrap_or_else(|| match (mscale, mscale_all_dim) {
        (Some(mscale), Some(all)) => magnitude(*factor, *mscale) / magnitude(*factor, *all),
        _ => magnitude(*factor, 1.0),
    });
    let turns_at = |turns: f64| {
        dim as f64 * (*original_max as f64 / (turns * 2.0 * std::f64::consts::PI)).ln()
            / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (turns_at(*beta_fast), turns_at(*beta_slow));
    if *truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
    let high = if low == high { high + 0.001 } else { high };
    let scaled = plain.iter().enumerate().map(|(pair, freq)| {
        let interpolated = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        freq / factor * interpolated + freq * (1.0 - interpolated)
    });
    (scaled.collect(), attention_factor)
}
