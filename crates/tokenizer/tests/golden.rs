//! Real tokenizers against the ids and texts that Hugging Face gives for the corpus.

mod support;

use std::collections::HashMap;

use pagedllm_core::{PreTokenizer, TokenKind, VocabModel, VocabSpec};
use pagedllm_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;
use support::{NAMES, cached, golden, ids, smollm2, texts, tokenizer};

const PLAIN: EncodeOptions =
    EncodeOptions { add_special_tokens: false, isolate_special_tokens: false };

fn assert_ids(name: &str, tokenizer: &Tokenizer, golden: &Value) {
    let lines = texts(&support::golden("corpus.json")["lines"]);
    let wrong: Vec<_> = lines
        .iter()
        .zip(golden["ids"].as_array().unwrap())
        .map(|(line, expected)| (line, tokenizer.encode(line, PLAIN).unwrap(), ids(expected)))
        .filter(|(_, found, expected)| found != expected)
        .collect();
    assert!(
        wrong.is_empty(),
        "{name}: {} lines differ: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
}

// T24, T09.
#[test]
fn corpus_gives_the_same_ids() {
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { continue };
        assert_ids(name, &tokenizer, &golden(&format!("{name}.json")));
    }
}

// T01, T05, T23.
#[test]
fn ids_give_the_same_text_at_once_and_streamed() {
    let lines = texts(&golden("corpus.json")["lines"]);
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { continue };
        let golden = golden(&format!("{name}.json"));
        let mut shown = lines.clone();
        let replace = |shown: &mut Vec<String>, key: &str| {
            for row in golden[key].as_array().unwrap() {
                shown[row[0].as_u64().unwrap() as usize] = row[1].as_str().unwrap().to_owned();
            }
        };
        replace(&mut shown, "changed");
        for skips in [false, true] {
            if skips {
                replace(&mut shown, "skipped");
            }
            for (row, expected) in golden["ids"].as_array().unwrap().iter().zip(&shown) {
                let row = ids(row);
                assert_eq!(&tokenizer.decode(&row, skips), expected, "{name} {row:?} {skips}");
                let mut detokenizer = tokenizer.detokenizer(&[], skips);
                let mut text = String::new();
                for token in row {
                    text.push_str(&detokenizer.push(token));
                }
                text.push_str(&detokenizer.finish());
                assert_eq!(&text, expected, "{name}");
            }
        }
    }
}

// T10.
#[test]
fn special_tokens_are_added_when_asked() {
    let framed = EncodeOptions { add_special_tokens: true, isolate_special_tokens: false };
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { continue };
        let mut expected = ids(&golden(&format!("{name}.json"))["framed"]);
        if name == "deepseek_v3" {
            // Its configuration asks for a beginning that its tokenizer.json lacks.
            expected.insert(0, tokenizer.bos().unwrap());
        }
        assert_eq!(tokenizer.encode("Hello", framed).unwrap(), expected, "{name}");
    }
}

// T20.
#[test]
fn vocabulary_covers_added_tokens() {
    let Some(tokenizer) = tokenizer("qwen3") else { return };
    assert_eq!(tokenizer.vocab_size(), 151_669);
    assert_eq!(tokenizer.eos(), Some(151_645));
    assert!(tokenizer.is_special(151_645));
    assert_eq!(tokenizer.token_bytes(151_645), b"<|im_end|>");
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(151_645));
    assert!(tokenizer.token_bytes(151_935).is_empty());
}

// T11.
#[test]
fn isolated_text_has_no_special_tokens() {
    let isolated = EncodeOptions { isolate_special_tokens: true, ..PLAIN };
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { continue };
        let special: String = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| tokenizer.is_special(id))
            .take(300)
            .map(|id| format!("x{} ", tokenizer.token_text(id)))
            .collect();
        let ids = tokenizer.encode(&special, isolated).unwrap();
        assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{name}");
        assert_eq!(tokenizer.decode(&ids, true), special, "{name}");
        assert!(
            tokenizer.encode(&special, PLAIN).unwrap().iter().any(|&id| tokenizer.is_special(id))
        );
    }
}

/// A `tokenizer.json` as a GGUF file would carry it.
fn as_vocab(name: &str, spec: impl Fn(&Value, &[String]) -> VocabModel) -> Option<Tokenizer> {
    let path = cached(&format!("tokenizers/{name}/tokenizer.json"))?;
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let id = |value: &Value| value.as_u64().unwrap() as usize;
    let size = vocab.values().map(id).chain(added.iter().map(|token| id(&token["id"]))).max();
    let mut tokens = vec![String::new(); size.unwrap() + 1];
    let mut kinds = vec![TokenKind::Unused; tokens.len()];
    for (text, at) in vocab {
        tokens[id(at)].clone_from(text);
        let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        kinds[id(at)] = if is_byte { TokenKind::Byte } else { TokenKind::Normal };
    }
    for token in added {
        let at = id(&token["id"]);
        token["content"].as_str().unwrap().clone_into(&mut tokens[at]);
        let is_special = token["special"] == true;
        kinds[at] = if is_special { TokenKind::Control } else { TokenKind::UserDefined };
    }
    let model = spec(&json, &tokens);
    let spec = VocabSpec {
        model,
        tokens,
        kinds,
        bos: None,
        eos: None,
        other_ends: Vec::new(),
        unk: None,
        pad: None,
        add_bos: false,
        add_eos: false,
        chat_template: None,
    };
    Some(Tokenizer::from_vocab(&spec).unwrap())
}

// T09, T24: byte-level vocabularies.
#[test]
fn embedded_byte_level_vocabularies_give_the_same_ids() {
    let merges = |json: &Value| {
        let merge = |merge: &Value| match merge.as_str() {
            Some(text) => text.to_owned(),
            None => format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()),
        };
        json["model"]["merges"].as_array().unwrap().iter().map(merge).collect::<Vec<_>>()
    };
    let pres = [
        ("qwen3", "qwen2"),
        ("llama3", "llama-bpe"),
        ("llama3_1", "llama-bpe"),
        ("deepseek_v3", "deepseek-v3"),
        ("gptoss", "gpt-4o"),
    ];
    for (name, pre) in pres {
        let pre = || PreTokenizer(Some(pre.to_owned()));
        let model =
            |json: &Value, _: &[String]| VocabModel::Bpe { merges: merges(json), pre: pre() };
        let Some(tokenizer) = as_vocab(name, model) else { continue };
        assert_ids(name, &tokenizer, &golden(&format!("{name}.json")));
    }
}

// T07, T24: vocabularies with scores.
#[test]
fn embedded_scores_give_the_same_ids() {
    for (name, add_space_prefix) in [("llama2", true), ("gemma3", false)] {
        // A piece's score is the negative rank of the first merge that makes it.
        let model = |json: &Value, tokens: &[String]| {
            let mut ranks = HashMap::new();
            for (rank, merge) in json["model"]["merges"].as_array().unwrap().iter().enumerate() {
                let piece = match merge.as_str() {
                    Some(text) => text.replace(' ', ""),
                    None => format!("{}{}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()),
                };
                ranks.entry(piece).or_insert(rank);
            }
            let score = |token: &String| ranks.get(token).map_or(0.0, |&rank| -(rank as f32));
            VocabModel::SentencePiece {
                scores: tokens.iter().map(score).collect(),
                add_space_prefix,
            }
        };
        let Some(tokenizer) = as_vocab(name, model) else { continue };
        assert_ids(name, &tokenizer, &golden(&format!("{name}.json")));
    }
}

// T09.
#[test]
fn pre_tokenizer_must_be_known() {
    let Some(mut spec) = smollm2() else { return };
    let rename = |spec: &mut VocabSpec, name: Option<&str>| {
        let VocabModel::Bpe { pre, .. } = &mut spec.model else { unreachable!() };
        pre.0 = name.map(str::to_owned);
    };
    rename(&mut spec, Some("nonsense"));
    let error = Tokenizer::from_vocab(&spec).unwrap_err().to_string();
    assert!(error.contains("\"nonsense\"") && error.contains("tokenizer.ggml.pre"), "{error}");
    rename(&mut spec, None);
    let fallback = Tokenizer::from_vocab(&spec).unwrap();
    rename(&mut spec, Some("gpt-2"));
    let named = Tokenizer::from_vocab(&spec).unwrap();
    let text = "I'm 1234567 à la 你好  \n\n x";
    assert_eq!(fallback.encode(text, PLAIN).unwrap(), named.encode(text, PLAIN).unwrap());
}
