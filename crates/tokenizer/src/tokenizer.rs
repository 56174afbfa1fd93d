//! The tokenizer: text to ids, and the tables for the way back.
//!
//! Merging and pre-tokenizing is the `tokenizers` crate's; this file loads, checks limits, and
//! keeps beside it the token table of `decode.rs`.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use pagedllm_core::{TokenId, VocabSpec};
use serde_json::Value;

use crate::config::{NamedTemplate, SpecialTokens, TokenizerConfig};
use crate::decode::{DecodeRule, TokenTable};
use crate::gguf;
use crate::{ChatTemplate, Detokenizer, TemplateError, TokenizerError};

/// The longest text that is encoded, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 20;
/// The largest tokenizer file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// One past the highest token id that a file may name.
const MAX_VOCAB: usize = 1 << 24;

/// How to encode a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add what the model expects around a plain text, such as a beginning of sequence. A
    /// rendered chat already has it: encode that without.
    pub add_special_tokens: bool,
    /// Treat the spelling of a special token in the text as plain text, so that a user can't
    /// forge the end of a turn. Off, it becomes that token, as transformers does.
    pub isolate_special_tokens: bool,
}

/// A model's tokenizer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: tokenizers::Tokenizer,
    /// The same, with special tokens as plain text; made when first asked for.
    isolated: OnceLock<Box<tokenizers::Tokenizer>>,
    table: Arc<TokenTable>,
    frame: Frame,
    special_tokens: SpecialTokens,
    templates: Vec<NamedTemplate>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    unk: Option<TokenId>,
}

/// What `add_special_tokens` adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    /// Whether the post-processor of `tokenizer.json` is asked.
    pub(crate) asks_post_processor: bool,
    /// Before the text, and before what the post-processor adds.
    pub(crate) prefix: Vec<TokenId>,
    /// After it.
    pub(crate) suffix: Vec<TokenId>,
}

/// A tokenizer, taken apart, as a loader gives it.
pub(crate) struct Parts {
    pub(crate) model: tokenizers::Tokenizer,
    pub(crate) rule: DecodeRule,
    pub(crate) frame: Frame,
    pub(crate) special_tokens: SpecialTokens,
    pub(crate) templates: Vec<NamedTemplate>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, where given, `tokenizer_config.json`. A `chat_template.jinja`
    /// beside the latter (or beside the former) wins over the template in it, as in transformers.
    ///
    /// # Errors
    /// If a file can't be read or parsed, is too large, or has a decoder that can't be streamed.
    pub fn from_files(
        tokenizer_json: &Path,
        tokenizer_config_json: Option<&Path>,
    ) -> Result<Self, TokenizerError> {
        let bytes = read_limited(tokenizer_json)?;
        let mut model = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| {
            TokenizerError::Parse { path: tokenizer_json.to_owned(), message: error.to_string() }
        })?;
        // A tokenizer.json may cut or fill every text to one length; an engine does neither.
        model.with_padding(None);
        if model.with_truncation(None).is_err() {
            unreachable!("no truncation is always accepted");
        }
        let mut config = match tokenizer_config_json {
            Some(path) => TokenizerConfig::parse(&parse_json(path)?, path)?,
            None => TokenizerConfig::default(),
        };
        let beside = tokenizer_config_json.unwrap_or(tokenizer_json);
        config.add_template_files(beside, read_limited)?;
        let rule = DecodeRule::of(model.get_decoder())?;
        let frame = frame_of(&model, &config);
        let TokenizerConfig { special_tokens, templates, .. } = config;
        Self::assemble(Parts { model, rule, frame, special_tokens, templates })
    }

    /// Runs a vocabulary that a weight file embeds.
    ///
    /// # Errors
    /// If its pre-tokenizer is unknown, or if it contradicts itself.
    pub fn from_vocab(spec: &VocabSpec) -> Result<Self, TokenizerError> {
        Self::assemble(gguf::parts(spec)?)
    }

    fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        let Parts { model, rule, frame, special_tokens, templates } = parts;
        let added = model.get_added_tokens_decoder();
        let vocab = model.get_vocab(true);
        let highest = vocab.values().chain(added.keys()).copied().max();
        let size = highest.map_or(0, |id| id as usize + 1);
        if size > MAX_VOCAB {
            let message = format!("token id {} is past the limit of {MAX_VOCAB}", size - 1);
            return Err(TokenizerError::InvalidVocab { message });
        }
        let mut tokens: Vec<Option<(String, bool)>> = vec![None; size];
        for (text, id) in vocab {
            tokens[id as usize] = Some((text, false));
        }
        for (id, token) in added {
            tokens[id as usize] = Some((token.content, token.special));
        }
        let table = Arc::new(TokenTable::new(rule, &tokens));
        let id_of = |name| special_tokens.get(name).and_then(|text| model.token_to_id(text));
        let (bos, eos, unk) = (id_of("bos_token"), id_of("eos_token"), id_of("unk_token"));
        let isolated = OnceLock::new();
        let inner =
            Inner { model, isolated, table, frame, special_tokens, templates, bos, eos, unk };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// If the text is longer than 64 MiB, or if the model has no token for a part of it.
    pub fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            let (bytes, limit) = (text.len(), MAX_TEXT_BYTES);
            return Err(TokenizerError::TextTooLong { bytes, limit });
        }
        let inner = &*self.inner;
        let model = if options.isolate_special_tokens { inner.isolated() } else { &inner.model };
        let asks_post_processor = options.add_special_tokens && inner.frame.asks_post_processor;
        let encoding = model
            .encode_fast(text, asks_post_processor)
            .map_err(|error| TokenizerError::Encode { message: error.to_string() })?;
        let mut tokens = encoding.get_ids().to_vec();
        let is_forged = |&id: &TokenId| inner.table.is_special(id) && Some(id) != inner.unk;
        if options.isolate_special_tokens && !asks_post_processor && tokens.iter().any(is_forged) {
            let message = "a special token in it can't be isolated".to_owned();
            return Err(TokenizerError::Encode { message });
        }
        if options.add_special_tokens {
            tokens.splice(0..0, inner.frame.prefix.iter().copied());
            tokens.extend(&inner.frame.suffix);
        }
        Ok(tokens)
    }

    /// The text of `tokens`; U+FFFD only where their bytes are no text.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> String {
        let mut detokenizer = self.detokenizer(&[], skip_special_tokens);
        let mut text: String = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// A decoder of what follows a prompt whose last tokens are `prompt_tail`. A few tokens are
    /// enough: they say whether the text has begun and whether a character is unfinished.
    #[must_use]
    pub fn detokenizer(&self, prompt_tail: &[TokenId], skip_special_tokens: bool) -> Detokenizer {
        let mut detokenizer = Detokenizer::new(Arc::clone(&self.inner.table), skip_special_tokens);
        for &token in prompt_tail {
            detokenizer.push(token);
        }
        detokenizer
    }

    /// The text of one token on its own, with its leading space; U+FFFD for part of a character.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.inner.table.bytes(token)).into_owned()
    }

    /// The bytes of one token, with its leading space; nothing for an id that is not used.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.inner.table.bytes(token).to_vec()
    }

    /// One past the highest id. Logits may be wider: a model's table is often padded.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.table.len()
    }

    /// Beginning of sequence.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.inner.bos
    }

    /// End of sequence.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.inner.eos
    }

    /// Whether `skip_special_tokens` hides a token.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.inner.table.is_special(token)
    }

    /// The token that is spelled so in the vocabulary.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.inner.model.token_to_id(token)
    }

    /// The special tokens that the configuration names.
    #[must_use]
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.special_tokens
    }

    /// The model's chat templates, not compiled.
    #[must_use]
    pub fn chat_templates(&self) -> &[NamedTemplate] {
        &self.inner.templates
    }

    /// Compiles the chat template called `name`, or else the one transformers would take: the
    /// only one, or `default`. `None` if there is none. Loading does not compile, so a model with
    /// a broken template still completes plain text.
    #[must_use]
    pub fn chat_template(&self, name: Option<&str>) -> Option<Result<ChatTemplate, TemplateError>> {
        let templates = &self.inner.templates;
        let wanted = name.unwrap_or("default");
        let only = if name.is_none() && templates.len() == 1 { templates.first() } else { None };
        let found = templates.iter().find(|template| template.name == wanted).or(only)?;
        Some(ChatTemplate::compile(&found.source, &self.inner.special_tokens))
    }
}

impl Inner {
    fn isolated(&self) -> &tokenizers::Tokenizer {
        self.isolated.get_or_init(|| {
            let mut model = self.model.clone();
            model.set_encode_special_tokens(true);
            Box::new(model)
        })
    }
}

/// The post-processor, and what `add_bos_token` and `add_eos_token` ask for beyond it.
fn frame_of(model: &tokenizers::Tokenizer, config: &TokenizerConfig) -> Frame {
    let framed = model.encode_fast("", true).map_or_else(|_| Vec::new(), |e| e.get_ids().to_vec());
    let missing = |asks: Option<bool>, name: &str, present: Option<&TokenId>| {
        let id = model.token_to_id(config.special_tokens.get(name)?)?;
        (asks == Some(true) && present != Some(&id)).then_some(id)
    };
    Frame {
        asks_post_processor: true,
        prefix: missing(config.add_bos, "bos_token", framed.first()).into_iter().collect(),
        suffix: missing(config.add_eos, "eos_token", framed.last()).into_iter().collect(),
    }
}

fn read_limited(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let fail = |source| TokenizerError::Io { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(fail)?.len();
    if bytes > MAX_FILE_BYTES {
        let (path, limit) = (path.to_owned(), MAX_FILE_BYTES);
        return Err(TokenizerError::FileTooLarge { path, bytes, limit });
    }
    std::fs::read(path).map_err(fail)
}

fn parse_json(path: &Path) -> Result<Value, TokenizerError> {
    serde_json::from_slice(&read_limited(path)?).map_err(|error| TokenizerError::Parse {
        path: path.to_owned(),
        message: error.to_string(),
    })
}
