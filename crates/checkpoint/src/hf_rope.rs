//! Rotary positions of config.json, in the spellings of transformers 4 and 5.

use crate::CheckpointError;
use crate::config::{RopeConfig, RopeScaling};
use crate::fields::Fields;
use crate::quote::quote;

/// Reads `rope_theta`, `rope_scaling` and `rope_parameters`.
pub(crate) fn read(
    config: Fields<'_>,
    is_gemma3: bool,
    head_dim: usize,
    max_positions: usize,
) -> Result<RopeConfig, CheckpointError> {
    let parameters = config.object("rope_parameters")?;
    let (whole, local) = match parameters {
        // One set of parameters a layer type.
        Some(object) if object.get("full_attention").is_some_and(serde_json::Value::is_object) => {
            let by_type = Fields::new(object, "rope_parameters.");
            (by_type.object("full_attention")?, by_type.object("sliding_attention")?)
        }
        other => (other, None),
    };
    let scaling = match whole {
        Some(object) => Some(Fields::new(object, "rope_parameters.")),
        None => config.object("rope_scaling")?.map(|map| Fields::new(map, "rope_scaling.")),
    };
    let inner = |field| scaling.map_or(Ok(None), |scaling| scaling.float(field));
    let theta = match (inner("rope_theta")?, config.float("rope_theta")?) {
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) if is_gemma3 => 1_000_000.0,
        (None, None) => 10_000.0,
    };
    let local_theta = match local {
        Some(local) => {
            Fields::new(local, "rope_parameters.sliding_attention.").float("rope_theta")?
        }
        None if is_gemma3 => Some(config.float("rope_local_base_freq")?.unwrap_or(10_000.0)),
        None => None,
    };
    let share = match (inner("partial_rotary_factor")?, config.float("partial_rotary_factor")?) {
        (Some(share), _) | (None, Some(share)) => share,
        (None, None) => 1.0,
    };
    let scaling = match scaling {
        Some(fields) => read_scaling(config, fields, max_positions)?,
        None => None,
    };
    let dim = (head_dim as f64 * share) as usize;
    Ok(RopeConfig { theta, local_theta, dim, scaling, freq_factors: None })
}

fn read_scaling(
    config: Fields<'_>,
    scaling: Fields<'_>,
    max_positions: usize,
) -> Result<Option<RopeScaling>, CheckpointError> {
    let (old, new) = (scaling.text("type")?, scaling.text("rope_type")?);
    // `rope_type` is the current key; files that carry both may keep a coarser word in `type`.
    let kind = match new.or(old) {
        Some(kind) => kind,
        None if scaling.get("factor").is_none() => return Ok(None),
        None => return Err(scaling.wrong("rope_type", "is absent")),
    };
    let needed =
        |field: &str| scaling.float(field)?.ok_or_else(|| scaling.wrong(field, "is absent"));
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = match scaling.count(ORIGINAL)? {
        Some(original) => Some(original),
        None => config.count(ORIGINAL)?,
    };
    let original_max = original.unwrap_or(max_positions);
    let attention_factor = scaling.float("attention_factor")?;
    Ok(Some(match kind {
        "default" => return Ok(None),
        "linear" => RopeScaling::Linear { factor: needed("factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: needed("factor")?, original_max },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_max: original.ok_or_else(|| scaling.wrong(ORIGINAL, "is absent"))?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: needed("factor")?,
            original_max,
            beta_fast: scaling.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: scaling.float("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            mscale: scaling.float("mscale")?,
            mscale_all_dim: scaling.float("mscale_all_dim")?,
            truncate: scaling.flag("truncate")?.unwrap_or(true),
        },
        "longrope" | "su" => {
            let factors = |field: &str| {
                scaling.floats(field)?.ok_or_else(|| scaling.wrong(field, "is absent"))
            };
            // Where the configuration tells the trained positions, the extension follows from
            // them; otherwise the file must say it.
            let factor = match original {
                Some(original) => max_positions as f64 / original.max(1) as f64,
                None => needed("factor")?,
            };
            RopeScaling::LongRope {
                short_factor: factors("short_factor")?,
                long_factor: factors("long_factor")?,
                original_max,
                factor,
                attention_factor,
            }
        }
        other => {
            let reason = format!(
                "`{}` is unknown; known are default, linear, dynamic, llama3, yarn, longrope",
                quote(other)
            );
            return Err(scaling.wrong("rope_type", reason));
        }
    }))
}
