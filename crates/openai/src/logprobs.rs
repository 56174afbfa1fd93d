//! Log-probabilities in the three shapes that clients know.

use std::collections::BTreeMap;
use std::fmt::Write;

use pagedllm::{Llm, TokenId, TokenLogprob, TokenLogprobs, TokenText};
use serde_json::{Map, Value};

use crate::wire::{ChatLogprob, ChatLogprobs, CompletionLogprobs};
use crate::wire::{PromptLogprob, PromptLogprobs, TopLogprob};

/// What stands for negative infinity, which JSON does not have.
const LOWEST: f32 = -9999.0;

/// Names tokens. Each is decoded alone, so that an alternative never borrows its neighbour's
/// bytes.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) llm: Llm,
    pub(crate) tokens_as_ids: bool,
}

impl Names {
    /// A name that no other token at the same place has by accident: bytes that are no text are
    /// spelled out.
    fn unambiguous(&self, token: TokenId) -> String {
        if self.tokens_as_ids {
            return id_name(token);
        }
        String::from_utf8(self.llm.token_bytes(token)).unwrap_or_else(|error| {
            error.as_bytes().iter().fold("bytes:".to_owned(), |mut name, byte| {
                let _ = write!(name, "\\x{byte:02x}");
                name
            })
        })
    }

    /// Name and bytes.
    fn with_bytes(&self, token: TokenId) -> (String, Vec<u8>) {
        let bytes = self.llm.token_bytes(token);
        let name = match self.tokens_as_ids {
            true => id_name(token),
            false => String::from_utf8_lossy(&bytes).into_owned(),
        };
        (name, bytes)
    }

    pub(crate) fn chat(&self, tokens: &[TokenText]) -> Option<ChatLogprobs> {
        let content: Vec<ChatLogprob> = tokens
            .iter()
            .filter_map(|token| Some(self.chat_entry(token.logprobs.as_ref()?)))
            .collect();
        (!content.is_empty()).then_some(ChatLogprobs { content })
    }

    fn chat_entry(&self, logprobs: &TokenLogprobs) -> ChatLogprob {
        let (token, bytes) = self.with_bytes(logprobs.chosen.token);
        let top_logprobs = logprobs
            .top
            .iter()
            .map(|top| {
                let (token, bytes) = self.with_bytes(top.token);
                TopLogprob { token, logprob: finite(top.logprob), bytes }
            })
            .collect();
        ChatLogprob { token, logprob: finite(logprobs.chosen.logprob), bytes, top_logprobs }
    }

    /// Adds one token to the lists. `offset` is where it begins, in characters, and moves on.
    pub(crate) fn add_completion(
        &self,
        lists: &mut CompletionLogprobs,
        offset: &mut usize,
        token: TokenId,
        logprobs: Option<&TokenLogprobs>,
    ) {
        lists.text_offset.push(*offset);
        lists.tokens.push(self.unambiguous(token));
        lists.token_logprobs.push(logprobs.map(|logprobs| finite(logprobs.chosen.logprob)));
        lists.top_logprobs.push(logprobs.map(|logprobs| {
            let mut top = Map::new();
            for entry in with_chosen(logprobs) {
                let name = self.unambiguous(entry.token);
                let name = if top.contains_key(&name) { id_name(entry.token) } else { name };
                top.insert(name, shortest(finite(entry.logprob)));
            }
            top
        }));
        // A character that several tokens share counts where it begins.
        let is_start = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
        *offset += self.llm.token_bytes(token).iter().filter(is_start).count();
    }

    /// vLLM's `prompt_logprobs`: one object a token, `null` for the first.
    pub(crate) fn prompt(&self, logprobs: &[Option<TokenLogprobs>]) -> Vec<Option<PromptLogprobs>> {
        logprobs
            .iter()
            .map(|logprobs| {
                let logprobs = logprobs.as_ref()?;
                let mut entries = BTreeMap::new();
                for (rank, entry) in (1..).zip(&logprobs.top) {
                    entries.insert(entry.token, self.prompt_entry(*entry, rank));
                }
                let chosen = logprobs.chosen;
                entries.insert(chosen.token, self.prompt_entry(chosen, logprobs.rank));
                Some(entries)
            })
            .collect()
    }

    fn prompt_entry(&self, entry: TokenLogprob, rank: u32) -> PromptLogprob {
        let (decoded_token, _) = self.with_bytes(entry.token);
        PromptLogprob { logprob: finite(entry.logprob), rank: Some(rank), decoded_token }
    }
}

/// A number with the digits that it has as `f32`, as in the lists beside the map.
fn shortest(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn id_name(token: TokenId) -> String {
    format!("token_id:{token}")
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST)
}

/// The most likely tokens, and the chosen one if it is none of them.
fn with_chosen(logprobs: &TokenLogprobs) -> impl Iterator<Item = TokenLogprob> + '_ {
    let chosen = logprobs.chosen;
    let is_listed = logprobs.top.iter().any(|top| top.token == chosen.token);
    logprobs.top.iter().copied().chain((!is_listed).then_some(chosen))
}
