//! The one thread of an engine that turns tokens into text: it detokenizes, matches stop strings,
//! cuts, counts, ranks the choices of `best_of`, and fills the streams. The engine never waits
//! for it, and it never waits for a reader. A panic over one request ends that request alone.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
            match take(&mut requests, event) {
                Some(Ending::Choice(choice, reason)) => engine.finish(id, choice, reason),
                Some(Ending::Request) => engine.cancel(id),
                None => {}
            }
        }
    }
    // The engine is gone; whoever still waits must not wait for ever.
    for (_, mut transcript) in registry.lock().drain() {
        transcript.abandon(FinishReason::Cancelled, None);
    }
}

/// What ended here, before the engine knows.
#[derive(Debug, PartialEq)]
enum Ending {
    Choice(u32, FinishReason),
    Request,
}

/// Passes an event to its transcript, and forgets transcripts that are complete.
fn take(requests: &mut HashMap<RequestId, Transcript>, event: Event) -> Option<Ending> {
    let id = event.request();
    let transcript = requests.get_mut(&id)?;
    let Ok(ended) = catch_unwind(AssertUnwindSafe(|| transcript.take(event))) else {
        tracing::error!(%id, "the text of an answer could not be made");
        let fault = "the text of the answer could not be made";
        transcript.abandon(FinishReason::Fault, Some(fault));
        requests.remove(&id);
        return Some(Ending::Request);
    };
    if transcript.open_choices == 0 {
        requests.remove(&id);
    }
    ended.map(|(choice, reason)| Ending::Choice(choice, reason))
}

/// The text of one request as it grows.
#[derive(Debug)]
pub(crate) struct Transcript {
    queue: Arc<StreamQueue>,
    choices: Vec<Choice>,
    stop_tokens: Vec<TokenId>,
    shown_stop_tokens: Vec<TokenId>,
    prompt: Option<Vec<Option<TokenLogprobs>>>,
    /// Whether the caller asked for log-probabilities; the engine also computes them to rank.
    shows_logprobs: bool,
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
    /// The stop string that ended the text; the engine's end, with its counts, is still to come.
    stopped: Option<usize>,
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
            stopped: None,
            ended: false,
            kept: (params.best_of > params.n).then(Vec::new),
        };
        Self {
            queue: parts.queue,
            choices: (0..best_of).map(|_| choice()).collect(),
            stop_tokens,
            shown_stop_tokens,
            prompt: params.prompt_logprobs.map(|_| vec![None]),
            shows_logprobs: params.logprobs.is_some(),
            n: params.n as usize,
            usage: Usage::default(),
            open_choices: best_of,
            unfinished: best_of,
        }
    }

    /// Takes an event of the engine. Returns a choice whose text ended, by a stop string, before
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
                ended.cumulative_logprob = ended.cumulative_logprob.or(cumulative_logprob);
                let stopped = ended.stopped.map(FinishReason::StopString);
                self.finish(choice, stopped.unwrap_or(reason), message);
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
        if choice.stopped.is_some() {
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
        let logprobs = logprobs.filter(|_| self.shows_logprobs);
        let tokens = vec![TokenText { token, logprobs }];
        self.emit(index, TextEvent::Text { choice: index, text: step.release, tokens });
        let matched = step.matched?;
        self.choices[index as usize].stopped = Some(matched);
        Some((index, FinishReason::StopString(matched)))
    }

    fn emit(&mut self, index: u32, event: TextEvent) {
        match &mut self.choices[index as usize].kept {
            Some(kept) => kept.push(event),
            None => self.queue.push([event], self.usage, false),
        }
    }

    fn finish(&mut self, index: u32, mut reason: FinishReason, fault: Option<String>) {
        let choice = &mut self.choices[index as usize];
        choice.ended = true;
        if !matches!(reason, FinishReason::StopString(_)) {
            let tail = choice.detokenizer.as_mut().map_or_else(String::new, Detokenizer::finish);
            let step = choice.stop.push(&tail);
            let mut text = step.release;
            match (step.matched, reason) {
                (None, _) => text.push_str(&choice.stop.finish()),
                (Some(stop), FinishReason::Length | FinishReason::StopToken(_)) => {
                    reason = FinishReason::StopString(stop);
                }
                (Some(_), _) => {}
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

    /// Ends everything that is open, because no event will be taken any more.
    fn abandon(&mut self, reason: FinishReason, fault: Option<&str>) {
        let is_ranked = self.choices.iter().any(|choice| choice.kept.is_some());
        let shown = if is_ranked { self.n } else { self.choices.len() };
        let mut ends = Vec::new();
        for (index, choice) in (0..).zip(&self.choices[..shown]) {
            if is_ranked || !choice.ended {
                let usage = ChoiceUsage {
                    output_tokens: choice.output_tokens,
                    cumulative_logprob: choice.cumulative_logprob,
                };
                let fault = fault.map(str::to_owned);
                ends.push(TextEvent::Finished { choice: index, reason, fault, usage });
            }
        }
        if self.unfinished > 0 {
            self.unfinished = 0;
            self.queue.push(ends, self.usage, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagedllm_core::{PreTokenizer, TokenKind, TokenLogprob, VocabModel, VocabSpec};
    use pagedllm_tokenizer::Tokenizer;

    use super::*;

    /// The first two are the first bytes of `é` and its last one.
    const SPELLINGS: [&str; 4] = ["\u{c3}", "\u{a9}", "a", "b"];

    fn tokenizer() -> Tokenizer {
        let vocab = VocabSpec {
            model: VocabModel::Bpe { merges: Vec::new(), pre: PreTokenizer(Some("gpt-2".into())) },
            tokens: SPELLINGS.map(str::to_owned).to_vec(),
            kinds: vec![TokenKind::Normal; SPELLINGS.len()],
            bos: None,
            eos: None,
            other_ends: Vec::new(),
            unk: None,
            pad: None,
            add_bos: false,
            add_eos: false,
            chat_template: None,
        };
        Tokenizer::from_vocab(&vocab).expect("a vocabulary")
    }

    fn transcript(params: &SamplingParams, stop: &[&str]) -> (Arc<StreamQueue>, Transcript) {
        let queue = Arc::new(StreamQueue::default());
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let transcript = Transcript::new(TranscriptParts {
            queue: Arc::clone(&queue),
            params,
            eos_token_ids: &[],
            detokenizer: Some(tokenizer().detokenizer(&[2], true)),
            stop: StopMatcher::new(&stop, false).expect("stop strings"),
            shows_stop: false,
        });
        (queue, transcript)
    }

    fn token(choice: u32, token: TokenId, logprob: f32) -> Event {
        let chosen = TokenLogprob { token, logprob };
        let logprobs = Some(TokenLogprobs { chosen, rank: 1, top: Vec::new() });
        Event::Token { request: RequestId::new(0), choice, token, logprobs }
    }

    fn finished(choice: u32) -> Event {
        Event::Finished {
            request: RequestId::new(0),
            choice,
            reason: FinishReason::Length,
            usage: pagedllm_engine::Usage::default(),
            cumulative_logprob: None,
            message: None,
        }
    }

    #[test]
    fn the_best_choice_shows_no_logprobs_that_nobody_asked_for() {
        for asked in [None, Some(0)] {
            let params =
                SamplingParams { best_of: 2, logprobs: asked, ..SamplingParams::default() };
            let (queue, mut transcript) = transcript(&params, &[]);
            for event in [token(0, 2, -3.0), token(1, 3, -1.0), finished(0), finished(1)] {
                transcript.take(event);
            }
            let (events, ended) = queue.take_all();
            assert!(ended && events.len() == 2, "one text and its end: {events:?}");
            let TextEvent::Text { choice: 0, text, tokens } = &events[0] else {
                panic!("{events:?}");
            };
            assert_eq!((text.as_str(), tokens[0].logprobs.is_some()), ("b", asked.is_some()));
        }
    }

    #[test]
    fn a_stop_in_half_a_character_is_the_reason_of_the_end() {
        let (queue, mut transcript) = transcript(&SamplingParams::default(), &["\u{FFFD}"]);
        for event in [token(0, 2, 0.0), token(0, 0, 0.0), finished(0)] {
            transcript.take(event);
        }
        let (events, _) = queue.take_all();
        let TextEvent::Finished { reason, .. } = events.last().expect("an end") else {
            panic!("{events:?}");
        };
        assert_eq!(*reason, FinishReason::StopString(0));
    }

    #[test]
    fn a_panic_ends_its_request_alone_and_its_reader_does_not_hang() {
        for (best_of, ends) in [(1, 1), (3, 1)] {
            let params = SamplingParams { best_of, ..SamplingParams::default() };
            let (queue, broken) = transcript(&params, &[]);
            let mut requests = HashMap::from([(RequestId::new(0), broken)]);
            assert_eq!(take(&mut requests, token(0, 2, 0.0)), None);
            assert_eq!(take(&mut requests, token(9, 2, 0.0)), Some(Ending::Request));
            assert_eq!(take(&mut requests, token(0, 2, 0.0)), None, "it is forgotten");
            let (events, ended) = queue.take_all();
            let is_fault = |event: &&TextEvent| {
                matches!(event, TextEvent::Finished { reason: FinishReason::Fault, .. })
            };
            assert!(ended);
            assert_eq!(events.iter().filter(is_fault).count(), ends);
        }
    }
}
