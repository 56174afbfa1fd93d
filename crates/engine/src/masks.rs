//! Grammar masks, filled on threads of their own while the forward pass runs.
//!
//! A constraint that fails, panics or is late ends its own request. A thread that a late one
//! holds is replaced, up to a limit, and joins the others again when it comes back.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use pagedllm_core::{RowTask, SamplingBatch, TokenId};
use pagedllm_scheduler::{Event, RequestId, Scheduler, StepPlan};
use tracing::dispatcher::Dispatch;

use crate::{Constraint, EngineConfig};

/// Most threads that late constraints may hold; after that, masks wait until one comes back, and
/// end their requests if that takes too long.
const MAX_LOST_THREADS: usize = 32;

type Key = (RequestId, u32);

struct Constrained {
    /// Absent while a thread works on it.
    constraint: Option<Box<dyn Constraint>>,
    /// Tokens drawn since the last mask.
    drawn: Vec<TokenId>,
}

struct Job {
    number: u64,
    key: Key,
    constraint: Box<dyn Constraint>,
    drawn: Vec<TokenId>,
    num_words: usize,
}

struct Done {
    number: u64,
    key: Key,
    constraint: Box<dyn Constraint>,
    mask: Result<Vec<u32>, String>,
}

/// Rows of one step that share a mask.
pub(crate) struct MaskedRows {
    key: Key,
    rows: Range<usize>,
}

/// A request that its constraint has ended, and why.
pub(crate) type Failure = (RequestId, String);

/// The constraints of all live requests, and the threads that run them.
pub(crate) struct Masks {
    constrained: HashMap<Key, Constrained>,
    workers: Option<Workers>,
    num_threads: usize,
    num_words: usize,
    time_limit: Duration,
    dispatch: Dispatch,
    /// Counts rounds, so that late results are told from those of this round.
    number: u64,
    num_lost: usize,
}

struct Workers {
    jobs: Sender<Job>,
    queue: Receiver<Job>,
    done: Receiver<Done>,
    done_sender: Sender<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Masks {
    pub(crate) fn new(config: &EngineConfig, vocab_size: usize) -> Self {
        Self {
            constrained: HashMap::new(),
            workers: None,
            num_threads: config.num_mask_threads.max(1),
            num_words: vocab_size.div_ceil(32),
            time_limit: config.mask_time_limit,
            dispatch: config.dispatch.clone(),
            number: 0,
            num_lost: 0,
        }
    }

    pub(crate) fn open(&mut self, request: RequestId, constraint: Box<dyn Constraint>) {
        let constrained = Constrained { constraint: Some(constraint), drawn: Vec::new() };
        self.constrained.insert((request, 0), constrained);
    }

    /// Takes note of drawn tokens and of ends.
    pub(crate) fn happened(&mut self, event: &Event) -> Option<Failure> {
        if self.constrained.is_empty() {
            return None;
        }
        match *event {
            Event::Token { request, choice, token, .. } => {
                if choice > 0 && !self.constrained.contains_key(&(request, choice)) {
                    return self.fork(request, choice, token);
                }
                if let Some(constrained) = self.constrained.get_mut(&(request, choice)) {
                    constrained.drawn.push(token);
                }
                None
            }
            Event::Finished { request, choice, .. } => {
                // The first choice stays until its siblings have been forked from it.
                if let Some(constrained) = self.constrained.get_mut(&(request, choice)) {
                    constrained.drawn.clear();
                }
                if choice > 0 {
                    self.constrained.remove(&(request, choice));
                }
                None
            }
            Event::PromptLogprobs { .. } => None,
        }
    }

    /// The request has ended.
    pub(crate) fn close(&mut self, request: RequestId) {
        if !self.constrained.is_empty() {
            self.constrained.retain(|key, _| key.0 != request);
        }
    }

    /// A choice's first token: until now it had the constraint of the first choice, which has
    /// not been shown any token yet.
    fn fork(&mut self, request: RequestId, choice: u32, token: TokenId) -> Option<Failure> {
        let parent = self.constrained.get(&(request, 0))?;
        let constraint = parent.constraint.as_ref()?;
        match catch_unwind(AssertUnwindSafe(|| constraint.fork())) {
            Ok(constraint) => {
                let fork = Constrained { constraint: Some(constraint), drawn: vec![token] };
                self.constrained.insert((request, choice), fork);
                None
            }
            Err(_) => Some((request, "the constraint panicked".to_owned())),
        }
    }

    /// The rows of a plan that need masks.
    pub(crate) fn rows_of(&self, plan: &StepPlan, scheduler: &Scheduler) -> Vec<MaskedRows> {
        if self.constrained.is_empty() {
            return Vec::new();
        }
        let mut masked = Vec::new();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.num_samples > 0) {
            let sequence = scheduler.sequence(chunk.slot);
            let key = (sequence.terms().id, sequence.choice());
            if self.constrained.contains_key(&key) {
                let first = chunk.first_row + chunk.scores.len();
                masked.push(MaskedRows { key, rows: first..first + chunk.num_samples });
            }
        }
        masked
    }

    /// Sets the threads to work on these rows. Ended requests are skipped.
    pub(crate) fn start(&mut self, masked: &[MaskedRows]) {
        self.number += 1;
        if self.workers.is_none() {
            self.workers = Some(Workers::spawn(self.num_threads, &self.dispatch));
        }
        let workers = self.workers.as_ref().expect("just started");
        for rows in masked {
            if let Some(constrained) = self.constrained.get_mut(&rows.key)
                && let Some(constraint) = constrained.constraint.take()
            {
                let drawn = std::mem::take(&mut constrained.drawn);
                let (number, key, num_words) = (self.number, rows.key, self.num_words);
                // The threads live as long as the sender.
                let _ = workers.jobs.send(Job { number, key, constraint, drawn, num_words });
            }
        }
    }

    /// Waits for the masks of [`start`](Self::start) and puts them into the batch. Gives the
    /// requests whose mask failed or is late.
    pub(crate) fn collect(
        &mut self,
        masked: &[MaskedRows],
        batch: &mut SamplingBatch,
    ) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut masks: HashMap<Key, Vec<u32>> = HashMap::new();
        let end = Instant::now() + self.time_limit;
        let is_out = |this: &Self, rows: &MaskedRows| {
            this.constrained.get(&rows.key).is_some_and(|one| one.constraint.is_none())
        };
        let mut num_out = masked.iter().filter(|rows| is_out(self, rows)).count();
        while num_out > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let workers = self.workers.as_ref().expect("jobs are out");
            let Ok(done) = workers.done.recv_timeout(left) else { break };
            if done.number != self.number {
                self.num_lost = self.num_lost.saturating_sub(1);
                continue;
            }
            num_out -= 1;
            if let Some(constrained) = self.constrained.get_mut(&done.key) {
                constrained.constraint = Some(done.constraint);
            }
            match done.mask {
                Ok(mask) => drop(masks.insert(done.key, mask)),
                Err(message) => failures.push((done.key.0, message)),
            }
        }
        for rows in masked {
            if let Some(mask) = masks.get(&rows.key) {
                let index = (batch.masks.len() / self.num_words) as u32;
                batch.masks.extend_from_slice(mask);
                for row in &mut batch.rows[rows.rows.clone()] {
                    if let RowTask::Draw(draw) = &mut row.task {
                        draw.mask = Some(index);
                    }
                }
            } else if is_out(self, rows) {
                let limit = self.time_limit.as_millis();
                failures.push((rows.key.0, format!("the constraint took longer than {limit} ms")));
                self.replace_thread();
            }
        }
        failures
    }

    fn replace_thread(&mut self) {
        self.num_lost += 1;
        if self.num_lost <= MAX_LOST_THREADS
            && let Some(workers) = &mut self.workers
        {
            workers.threads.retain(|thread| !thread.is_finished());
            workers.add_thread(&self.dispatch);
        }
    }
}

impl Workers {
    fn spawn(num_threads: usize, dispatch: &Dispatch) -> Self {
        let (jobs, queue) = unbounded();
        let (done_sender, done) = unbounded();
        let mut workers = Self { jobs, queue, done, done_sender, threads: Vec::new() };
        for _ in 0..num_threads {
            workers.add_thread(dispatch);
        }
        workers
    }

    fn add_thread(&mut self, dispatch: &Dispatch) {
        let (queue, done) = (self.queue.clone(), self.done_sender.clone());
        let dispatch = dispatch.clone();
        let thread = std::thread::Builder::new().name("pagedllm-mask".into()).spawn(move || {
            tracing::dispatcher::with_default(&dispatch, || {
                for job in queue {
                    if done.send(job.run()).is_err() {
                        return;
                    }
                }
            });
        });
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "no thread for grammar masks"),
        }
    }
}

impl Job {
    fn run(self) -> Done {
        let Self { number, key, mut constraint, drawn, num_words } = self;
        let mut mask = vec![0; num_words];
        let result = catch_unwind(AssertUnwindSafe(|| {
            for token in drawn {
                constraint.accept(token);
            }
            constraint.mask(&mut mask)
        }));
        let mask = match result {
            Ok(Ok(())) => Ok(mask),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the constraint panicked".to_owned()),
        };
        Done { number, key, constraint, mask }
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        let Some(Workers { jobs, queue, done, done_sender, threads }) = self.workers.take() else {
            return;
        };
        drop((jobs, queue, done_sender));
        let end = Instant::now() + self.time_limit;
        loop {
            match done.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!("a constraint does not return; its thread is left behind");
                    return;
                }
            }
        }
        for thread in threads {
            // The threads catch the panics of their jobs.
            let _ = thread.join();
        }
    }
}
