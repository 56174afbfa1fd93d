//! Small vocabularies: what needs no downloaded file.

mod support;

use pagedllm_core::{PreTokenizer, TokenKind, VocabModel, VocabSpec};
use pagedllm_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use support::{Random, golden, ids};

const PLAIN: EncodeOptions =
    EncodeOptions { add_special_tokens: false, isolate_special_tokens: false };

fn spec(model: VocabModel, tokens: Vec<(String, TokenKind)>) -> VocabSpec {
    let (tokens, kinds) = tokens.into_iter().unzip();
    VocabSpec {
        model,
        tokens,
        kinds,
        bos: Some(1),
        eos: Some(2),
        other_ends: Vec::new(),
        unk: Some(0),
        pad: None,
        add_bos: true,
        add_eos: false,
        chat_template: None,
    }
}

fn sentencepiece(tokens: &[(&str, f32, TokenKind)], add_space_prefix: bool) -> Tokenizer {
    let scores = tokens.iter().map(|token| token.1).collect();
    let tokens = tokens.iter().map(|token| (token.0.to_owned(), token.2)).collect();
    let spec = spec(VocabModel::SentencePiece { scores, add_space_prefix }, tokens);
    Tokenizer::from_vocab(&spec).unwrap()
}

/// Every byte as a byte token, after the three usual ones.
fn byte_vocab(extra: &[(&'static str, f32, TokenKind)]) -> Vec<(&'static str, f32, TokenKind)> {
    let mut tokens = vec![
        ("<unk>", 0.0, TokenKind::Unknown),
        ("<s>", 0.0, TokenKind::Control),
        ("</s>", 0.0, TokenKind::Control),
    ];
    for byte in 0..=255u8 {
        let text: &'static str = Box::leak(format!("<0x{byte:02X}>").into_boxed_str());
        tokens.push((text, 0.0, TokenKind::Byte));
    }
    tokens.extend(extra);
    tokens
}

fn byte_id(byte: u8) -> u32 {
    u32::from(byte) + 3
}

fn streamed(tokenizer: &Tokenizer, prompt: &[u32], tokens: &[u32]) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(prompt, true);
    let mut pieces: Vec<String> = tokens.iter().map(|&token| detokenizer.push(token)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

// T07: sentencepiece itself made these ids.
#[test]
fn scores_give_the_ids_of_sentencepiece() {
    let golden = golden("sentencepiece.json");
    let mut tokens = Vec::new();
    let mut scores = Vec::new();
    for token in golden["tokens"].as_array().unwrap() {
        let kind = match token[2].as_u64().unwrap() {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        tokens.push((token[0].as_str().unwrap().to_owned(), kind));
        scores.push(token[1].as_f64().unwrap() as f32);
    }
    let spec = spec(VocabModel::SentencePiece { scores, add_space_prefix: true }, tokens);
    let tokenizer = Tokenizer::from_vocab(&spec).unwrap();
    let rows = golden["ids"].as_array().unwrap();
    assert!(rows.len() > 150);
    for row in rows {
        let (text, expected) = (row[0].as_str().unwrap(), ids(&row[1]));
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        // A mark in the text is a space for a SentencePiece vocabulary.
        assert_eq!(tokenizer.decode(&expected, true), text.replace('\u{2581}', " "));
    }
}

// T01, T06, T23.
#[test]
fn bytes_become_whole_characters() {
    let tokenizer = sentencepiece(&byte_vocab(&[("\u{FFFD}", -1.0, TokenKind::Normal)]), false);
    let smile: Vec<u32> = "\u{1F642}".bytes().map(byte_id).collect();
    assert_eq!(streamed(&tokenizer, &[], &smile), ["", "", "", "\u{1F642}", ""]);
    let korean: Vec<u32> = "\u{D55C}".bytes().map(byte_id).collect();
    assert_eq!(streamed(&tokenizer, &[], &korean), ["", "", "\u{D55C}", ""]);
    assert_eq!(streamed(&tokenizer, &[], &[byte_id(b'\n')]), ["\n", ""]);
    assert_eq!(streamed(&tokenizer, &[], &[259]), ["\u{FFFD}", ""]);
    let invalid = [byte_id(0xE4), byte_id(b'a'), byte_id(0xFF)];
    assert_eq!(streamed(&tokenizer, &[], &invalid), ["", "\u{FFFD}a", "\u{FFFD}", ""]);
    assert_eq!(streamed(&tokenizer, &[], &smile[..2]), ["", "", "\u{FFFD}\u{FFFD}"]);
    assert_eq!(streamed(&tokenizer, &smile[..3], &smile[3..]), ["\u{1F642}", ""]);
    assert_eq!(streamed(&tokenizer, &[], &[999_999]), ["", ""]);
}

// T05.
#[test]
fn only_the_first_word_loses_its_space() {
    let words = [
        ("\u{2581}", -1.0, TokenKind::Normal),
        ("\u{2581}a", -2.0, TokenKind::Normal),
        ("a", -3.0, TokenKind::Normal),
        ("\u{2581}\u{2581}a", -4.0, TokenKind::Normal),
    ];
    let tokenizer = sentencepiece(&byte_vocab(&words), true);
    let (space, word, bare, spaced) = (259, 260, 261, 262);
    assert_eq!(streamed(&tokenizer, &[], &[1, word, word]).concat(), "a a");
    assert_eq!(streamed(&tokenizer, &[], &[spaced, word]).concat(), " a a");
    assert_eq!(streamed(&tokenizer, &[1], &[word]).concat(), "a");
    assert_eq!(streamed(&tokenizer, &[1, bare], &[word, space]).concat(), " a ");
    assert_eq!(tokenizer.token_text(word), " a");
    let framed = EncodeOptions { add_special_tokens: true, ..PLAIN };
    assert_eq!(tokenizer.encode("a", framed).unwrap(), [1, word]);
    assert_eq!(tokenizer.encode("<s>a", framed).unwrap(), [1, 1, word]);
}

// T06, T07, T08.
#[test]
fn bytes_unknowns_and_whole_tokens_go_by_kind() {
    let whole = [
        ("<0x0A>", 0.0, TokenKind::Normal),
        ("x", -1.0, TokenKind::Normal),
        ("[CTRL]", -1000.0, TokenKind::Control),
        ("shown", -1000.0, TokenKind::UserDefined),
    ];
    let mut tokens = byte_vocab(&[])[..3].to_vec();
    tokens.extend(whole);
    let tokenizer = sentencepiece(&tokens, false);
    assert_eq!(tokenizer.decode(&[3], false), "\n");
    assert_eq!(tokenizer.encode("x\nx", PLAIN).unwrap(), [4, 3, 4]);
    assert_eq!(tokenizer.encode("xyzx", PLAIN).unwrap(), [4, 0, 4], "no byte, so unknown");
    assert_eq!(tokenizer.encode("x[CTRL]shown</s>", PLAIN).unwrap(), [4, 5, 6, 2]);
    assert_eq!(tokenizer.decode(&[4, 5, 6, 2], true), "xshown");
}

#[test]
fn random_tokens_stream_as_they_decode() {
    let mut random = Random::new();
    let words = [
        ("\u{2581}a", -1.0, TokenKind::Normal),
        ("\u{2581}", -2.0, TokenKind::Normal),
        ("\u{E9}", -3.0, TokenKind::Normal),
    ];
    let tokenizer = sentencepiece(&byte_vocab(&words), true);
    for _ in 0..5_000 {
        let count = random.below(12);
        let tokens: Vec<u32> = (0..count)
            .map(|_| match random.below(3) {
                0 => u32::try_from(random.below(265)).unwrap(),
                1 => byte_id(u8::try_from(0x80 + random.below(0x80)).unwrap()),
                _ => 259 + u32::try_from(random.below(3)).unwrap(),
            })
            .collect();
        let bytes: Vec<u8> = tokens
            .iter()
            .filter(|&&token| !tokenizer.is_special(token))
            .flat_map(|&token| tokenizer.token_bytes(token))
            .collect();
        let text = tokenizer.decode(&tokens, true);
        assert_eq!(streamed(&tokenizer, &[], &tokens).concat(), text);
        if let Ok(expected) = String::from_utf8(bytes) {
            assert_eq!(text, expected.strip_prefix(' ').unwrap_or(&expected), "{tokens:?}");
        }
        let cut = random.below(count + 1);
        let head = tokenizer.decode(&tokens[..cut], true);
        let tail = streamed(&tokenizer, &tokens[..cut], &tokens[cut..]).concat();
        let is_whole = !head.ends_with('\u{FFFD}');
        assert!(!is_whole || format!("{head}{tail}") == text, "{tokens:?} cut at {cut}");
    }
}

// I10: a vocabulary that contradicts itself is an error.
#[test]
fn contradictions_are_errors() {
    let bpe = |merges: &[&str]| VocabModel::Bpe {
        merges: merges.iter().map(|merge| (*merge).to_owned()).collect(),
        pre: PreTokenizer(Some("gpt-2".to_owned())),
    };
    let tokens = || ["a", "b", "ab"].map(|token| (token.to_owned(), TokenKind::Normal)).to_vec();
    let error = |spec: &VocabSpec| Tokenizer::from_vocab(spec).unwrap_err().to_string();
    assert!(Tokenizer::from_vocab(&spec(bpe(&["a b"]), tokens())).is_ok());
    assert!(error(&spec(bpe(&["ab"]), tokens())).contains("merges[0]"));
    assert!(error(&spec(bpe(&["a c"]), tokens())).contains("merges"));
    let mut wrong = spec(bpe(&[]), tokens());
    wrong.eos = Some(3);
    assert!(error(&wrong).contains("eos_token_id is 3"));
    let mut wrong = spec(bpe(&[]), tokens());
    wrong.kinds.pop();
    assert!(error(&wrong).contains("token_type has 2"));
    let scores = VocabModel::SentencePiece { scores: vec![0.0], add_space_prefix: true };
    assert!(error(&spec(scores, tokens())).contains("scores has 1"));
}

fn load(json: &Value, config: &Value, template: Option<&str>) -> Result<Tokenizer, String> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("pagedllm-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (tokenizer, settings) = (folder.join("tokenizer.json"), folder.join("config.json"));
    std::fs::write(&tokenizer, json.to_string()).unwrap();
    std::fs::write(&settings, config.to_string()).unwrap();
    if let Some(source) = template {
        std::fs::write(folder.join("chat_template.jinja"), source).unwrap();
    }
    let loaded = Tokenizer::from_files(&tokenizer, Some(&settings));
    std::fs::remove_dir_all(&folder).unwrap();
    loaded.map_err(|error| error.to_string())
}

fn tiny_json(decoder: &Value) -> Value {
    json!({"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true}, "decoder": decoder, "truncation": {"max_length": 1, "stride": 0,
        "strategy": "LongestFirst", "direction": "Right"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})
}

// T18.
#[test]
fn configurations_of_every_spelling_load() {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let map = json!({"bos_token": {"__type": "AddedToken", "content": "<s>"}, "eos_token": null,
        "model_max_length": 1e30, "added_tokens_decoder": {"2": {"content": "<s>"}},
        "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]});
    let tokenizer = load(&tiny_json(&byte_level), &map, None).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(2), None));
    assert_eq!(tokenizer.chat_templates()[1].source, "B");
    assert!(tokenizer.chat_template(Some("rag")).is_none());
    assert_eq!(tokenizer.encode("ab", PLAIN).unwrap(), [0, 1], "not cut to one token");
    let text = json!({"bos_token": "<s>", "chat_template": "{{ broken"});
    let tokenizer = load(&tiny_json(&byte_level), &text, None).unwrap();
    assert!(tokenizer.chat_template(None).unwrap().is_err());
    let tokenizer = load(&tiny_json(&byte_level), &text, Some("file")).unwrap();
    assert_eq!(tokenizer.chat_templates()[0].source, "file");
    let error = load(&tiny_json(&byte_level), &json!({"bos_token": 5}), None).unwrap_err();
    assert!(error.contains("bos_token"), "{error}");
    let error = load(&tiny_json(&byte_level), &json!({"chat_template": 5}), None).unwrap_err();
    assert!(error.contains("chat_template"), "{error}");
    let wordpiece = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let error = load(&tiny_json(&wordpiece), &json!({}), None).unwrap_err();
    assert!(error.contains("WordPiece"), "{error}");
}
