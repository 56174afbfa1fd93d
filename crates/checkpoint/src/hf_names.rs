//! The prefixes under which Hugging Face directories keep one and the same text model.

/// Parts of a multimodal model that serving text does not need, and tables that old files carry
/// though they follow from the configuration.
fn is_extra(name: &str) -> bool {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    ["vision_tower.", "vision_model.", "visual.", "multi_modal_projector."]
        .iter()
        .any(|prefix| bare.starts_with(prefix))
        || [".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"]
            .iter()
            .any(|suffix| name.ends_with(suffix))
}

/// The name that models ask for, or `None` for a harmless extra.
pub(crate) fn canonical(name: &str) -> Option<String> {
    if is_extra(name) {
        return None;
    }
    for (prefix, replacement) in [
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
        ("layers.", "model.layers."),
        ("embed_tokens.", "model.embed_tokens."),
        ("norm.", "model.norm."),
    ] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return Some(format!("{replacement}{rest}"));
        }
    }
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn variants_meet_in_one_name() {
        let want = Some("model.layers.3.mlp.up_proj.weight".to_string());
        for prefix in ["model.", "", "language_model.model.", "model.language_model."] {
            assert_eq!(canonical(&format!("{prefix}layers.3.mlp.up_proj.weight")), want);
        }
        assert_eq!(canonical("norm.weight"), Some("model.norm.weight".into()));
        assert_eq!(canonical("language_model.lm_head.weight"), Some("lm_head.weight".into()));
        for extra in [
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "vision_tower.x",
            "model.visual.blocks.0.norm1.weight",
        ] {
            assert_eq!(canonical(extra), None);
        }
        assert_eq!(canonical("foo.weight"), Some("foo.weight".into()), "kept, not dropped");
    }
}
