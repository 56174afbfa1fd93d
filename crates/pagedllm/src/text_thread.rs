//! The one thread of an engine that turns tokens into text: it detokenizes, matches stop strings,
//! cuts, counts, ranks the choices of `best_of`, and fills the streams. The engine never waits
//! for it, and it never waits for a reader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagedllm_core::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
use pagedllm_engine::{EngineHandle, Event, EventReceiver, RequestId};
use pagedllm_tokenizer::{Detokenizer, StopMatcher};

use crate::stream::{ChoiceUsage, StreamQueue, TextEvent, TokenText, Usage};

/// Requests whose tokens are still coming.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    requests: Mutex<HashMap<RequestId, Transcript>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Transcript>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn add(&self, id: RequestId, transcript: Transcript) {
        self.lock().insert(id, transcript);
    }
    /// Forgets a request that the engine did not take.
    pub(crate) fn remove(&self, id: RequestId) {
        self.lock().remove(&id);
    }
}

/// Runs until every sender of events is gone.
pub(crate) fn run(registry: &Registry, engine: &EngineHandle, events: &EventReceiver) {
    while let Some(batch) = events.recv() {
        let mut requests = registry.lock();
        for event in batch {
            let id = event.request();
            let Some(transcript) = requests.get_mut(&id) else { continue };
            if let Some((choice, reason)) = transcript.take(event) {
                engine.finish(id, choice, reason);
            }
            if transcript.open_choices == 0 {
                requests.remove(&id);
            }
        }
    }
    // The engine is gone; whoever still waits must not wait for ever.
    for (_, mut transcript) in registry.lock().drain() {
        transcript.abandon();
    }
}

/// The text of one request as it grows.
#[derive(Debug)]
pub(crate) struct Transcript {
    queue: Arc<StreamQueue>,
    choices: Vec<Choice>,
    stop_tokens: Vec<TokenId>,
    shown_stop_tokens: Vec<TokenId>,
    prompt: Option<Vec<Option<TokenLogprobs>>>,
    n: usize,
    usage: Usage,
    /// Choices that the engine still runs.
    open_choices: usize,
    /// Choices whose end the reader has not been told.
    unfinished: usize,
}

#[derive(Debug)]
struct Choice {
    /// `None` without a tokenizer.
    detokenizer: Option<Detokenizer>,
    stop: StopMatcher,
    output_tokens: usize,
    cumulative_logprob: Option<f64>,
    ended: bool,
    /// Events kept back until the best choices are known; `None` where all are returned.
    kept: Option<Vec<TextEvent>>,
}

/// What a transcript is made of.
pub(crate) struct TranscriptParts<'a> {
    pub queue: Arc<StreamQueue>,
    pub params: &'a SamplingParams,
    pub eos_token_ids: &'a [TokenId],
    pub detokenizer: Option<Detokenizer>,
    pub stop: StopMatcher,
    pub shows_stop: bool,
}

impl Transcript {
    pub(crate) fn new(parts: TranscriptParts<'_>) -> Self {
        let params = parts.params;
        let mut stop_tokens = params.stop_token_ids.clone();
        let shown_stop_tokens = if parts.shows_stop { stop_tokens.clone() } else { Vec::new() };
        if !params.ignore_eos {
            stop_tokens.extend(parts.eos_token_ids);
        }
        let best_of = params.best_of as usize;
        let choice = || Choice {
            detokenizer: parts.detokenizer.clone(),
            stop: parts.stop.clone(),
            output_tokens: 0,
            cumulative_logprob: None,
            ended: false,
            kept: (params.best_of > params.n).then(Vec::new),
        };
        Self {
            queue: parts.queue,
            choices: (0..best_of).map(|_| choice()).collect(),
            stop_tokens,
            shown_stop_tokens,
            prompt: params.prompt_logprobs.map(|_| vec![None]),
            n: params.n as usize,
            usage: Usage::default(),
            open_choices: best_of,
            unfinished: best_of,
        }
    }

    /// Takes an event of the engine. Returns a choice that ended here, by a stop string, before
    /// the engine knows.
    fn take(&mut self, event: Event) -> Option<(u32, FinishReason)> {
        match event {
            Event::PromptLogprobs { logprobs, .. } => {
                if let Some(prompt) = &mut self.prompt {
                    prompt.extend(logprobs.into_iter().map(Some));
                }
                None
            }
            Event::Token { choice, token, logprobs, .. } => {
                self.emit_prompt();
                self.token(choice, token, logprobs)
            }
            Event::Finished { choice, reason, usage, message, cumulative_logprob, .. } => {
                self.emit_prompt();
                self.open_choices -= 1;
                self.usage.cached_tokens = usage.cached_tokens;
                let ended = &mut self.choices[choice as usize];
                if !ended.ended {
                    ended.cumulative_logprob = ended.cumulative_logprob.or(cumulative_logprob);
                    self.finish(choice, reason, message);
                }
                None
            }
        }
    }

    fn emit_prompt(&mut self) {
        if let Some(logprobs) = self.prompt.take() {
            self.queue.push([TextEvent::Prompt { logprobs }], self.usage, false);
        }
    }

    fn token(
        &mut self,
        index: u32,
        token: TokenId,
        logprobs: Option<TokenLogprobs>,
    ) -> Option<(u32, FinishReason)> {
        let choice = &mut self.choices[index as usize];
        if choice.ended {
            return None;
        }
        choice.output_tokens += 1;
        self.usage.output_tokens += 1;
        if let Some(logprobs) = &logprobs {
            let sum = choice.cumulative_logprob.unwrap_or(0.0);
            choice.cumulative_logprob = Some(sum + f64::from(logprobs.chosen.logprob));
        }
        let hidden = self.stop_tokens.contains(&token) && !self.shown_stop_tokens.contains(&token);
        let text = match &mut choice.detokenizer {
            Some(detokenizer) if !hidden => detokenizer.push(token),
            _ => String::new(),
        };
        let step = choice.stop.push(&text);
        let tokens = vec![TokenText { token, logprobs }];
        self.emit(index, TextEvent::Text { choice: index, text: step.release, tokens });
        let reason = FinishReason::StopString(step.matched?);
        self.finish(index, reason, None);
        Some((index, reason))
    }

    fn emit(&mut self, index: u32, event: TextEvent) {
        match &mut self.choices[index as usize].kept {
            Some(kept) => kept.push(event),
            None => self.queue.push([event], self.usage, false),
        }
    }

    fn finish(&mut self, index: u32, reason: FinishReason, fault: Option<String>) {
        let choice = &mut self.choices[index as usize];
        choice.ended = true;
        if !matches!(reason, FinishReason::StopString(_)) {
            let tail = choice.detokenizer.as_mut().map_or_else(String::new, Detokenizer::finish);
            let step = choice.stop.push(&tail);
            let mut text = step.release;
            if step.matched.is_none() {
                text.push_str(&choice.stop.finish());
            }
            if !text.is_empty() {
                self.emit(index, TextEvent::Text { choice: index, text, tokens: Vec::new() });
            }
        }
        let choice = &self.choices[index as usize];
        let usage = ChoiceUsage {
            output_tokens: choice.output_tokens,
            cumulative_logprob: choice.cumulative_logprob,
        };
        self.emit(index, TextEvent::Finished { choice: index, reason, fault, usage });
        self.unfinished -= 1;
        if self.unfinished == 0 {
            let best = self.best_choices();
            self.queue.push(best, self.usage, true);
        }
    }

    /// Events of the best `n` choices by mean log-probability, renumbered; nothing where all
    /// choices were passed on at once.
    fn best_choices(&mut self) -> Vec<TextEvent> {
        let mean = |choice: &Choice| {
            choice.cumulative_logprob.unwrap_or(f64::NEG_INFINITY)
                / choice.output_tokens.max(1) as f64
        };
        let mut order: Vec<usize> =
            (0..self.choices.len()).filter(|&c| self.choices[c].kept.is_some()).collect();
        order.sort_by(|&a, &b| mean(&self.choices[b]).total_cmp(&mean(&self.choices[a])));
        order.truncate(self.n);
        let mut events = Vec::new();
        for (place, index) in order.into_iter().enumerate() {
            for mut event in self.choices[index].kept.take().unwrap_or_default() {
                match &mut event {
                    TextEvent::Prompt { .. } => {}
                    TextEvent::Text { choice, .. } | TextEvent::Finished { choice, .. } => {
                        *choice = place as u32;
                    }
                }
                events.push(event);
            }
        }
        events
    }

    /// Ends everything that is open, because no event will come any more.
    fn abandon(&mut self) {
        for index in 0..self.choices.len() as u32 {
            if !self.choices[index as usize].ended {
                self.finish(index, FinishReason::Cancelled, None);
            }
        }
    }
}
