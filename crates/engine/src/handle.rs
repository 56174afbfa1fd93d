//! The way in: checks on the caller's thread, an inbox, and the life of the engine's thread.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagedllm_core::{FinishReason, InvalidParams};
use pagedllm_scheduler::{PromptHashes, Refused, RequestId, RequestSpec, StepLimits};

use crate::inbox::{Inbox, Shared};
use crate::step_loop::StepLoop;
use crate::stream::{EventSender, TokenStream, event_channel};
use crate::{
    EngineConfig, EngineStats, Executor, ExecutorError, ExecutorShape, Rejected, Request,
    Submission,
};

/// One engine: a thread that owns the executor, the scheduler and the KV blocks.
#[derive(Debug)]
pub struct Engine;

/// How to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Take no more requests; cancel those that have not ended after `timeout`.
    Drain {
        /// How long to wait.
        timeout: Duration,
    },
    /// Cancel everything at once.
    Now,
}

impl Shutdown {
    /// When what has not ended is cancelled; `None` where that is past all time.
    pub(crate) fn last_turn(self) -> Option<Instant> {
        match self {
            Self::Now => Some(Instant::now()),
            Self::Drain { timeout } => Instant::now().checked_add(timeout),
        }
    }
}

/// Whether the engine can serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    #[default]
    Ready,
    /// It takes no more requests.
    ShuttingDown,
    /// The device failed.
    Failed(ExecutorError),
}

/// Access to an engine, from any thread. The engine shuts down when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct EngineHandle(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    shape: ExecutorShape,
    limits: StepLimits,
    config: EngineConfig,
    next_id: AtomicU64,
    entropy: RandomState,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the engine's thread.
    ///
    /// # Panics
    /// If the system can't start a thread.
    #[must_use]
    pub fn spawn(executor: Box<dyn Executor>, config: EngineConfig) -> EngineHandle {
        let shape = executor.shape().clone();
        let step_loop = StepLoop::new(executor, &config, Box::new(Instant::now));
        let limits = *step_loop.scheduler().limits();
        let shared = Arc::new(Shared::new(Arc::clone(step_loop.stats())));
        let for_thread = Arc::clone(&shared);
        let dispatch = config.dispatch.clone();
        let thread = std::thread::Builder::new()
            .name("pagedllm-engine".into())
            .spawn(move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    crate::engine::run(step_loop, &for_thread);
                });
            })
            .expect("the system starts threads");
        EngineHandle(Arc::new(Owner {
            shared,
            shape,
            limits,
            config,
            next_id: AtomicU64::new(0),
            entropy: RandomState::new(),
            thread: Mutex::new(Some(thread)),
        }))
    }
}

impl EngineHandle {
    /// A name for the next request, so that its reader can be set up before it is submitted.
    #[must_use]
    pub fn new_request_id(&self) -> RequestId {
        RequestId::new(self.0.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a request; its events go to `events`. Never waits.
    ///
    /// # Errors
    /// It can never run, too many wait, or the engine is going or gone.
    ///
    /// # Panics
    /// If `id` is in use: each comes from [`new_request_id`](Self::new_request_id) and serves
    /// once.
    pub fn generate(
        &self,
        id: RequestId,
        request: Request,
        events: &EventSender,
    ) -> Result<(), Rejected> {
        let owner = &*self.0;
        let refused = request
            .params
            .check(owner.shape.vocab_size)
            .map_err(Into::into)
            .and_then(|()| owner.limits.check(&request.prompt, &request.params))
            .and_then(|()| owner.check_priority(request.priority));
        if let Err(refused) = refused {
            owner.shared.stats().rejected_refused_total += 1;
            return Err(refused.into());
        }
        // Looked at before the prompt is hashed, which costs time; decided below.
        owner.room(&owner.shared.inbox())?;
        let hashes =
            PromptHashes::new(&request.prompt, &request.cache_salt, owner.shape.block_size);
        let given_seed = request.params.seed.map(i64::cast_unsigned).or(owner.config.seed);
        let seed = given_seed.unwrap_or_else(|| owner.draw_seed(id));
        let arrival = Instant::now();
        let submission = Submission {
            arrival,
            deadline: request.deadline.and_then(|limit| arrival.checked_add(limit)),
            events: events.clone(),
            constraint: request.constraint,
            spec: RequestSpec {
                id,
                prompt: request.prompt,
                hashes,
                params: request.params,
                eos_token_ids: request.eos_token_ids,
                priority: request.priority,
                seed,
                caching: request.caching && owner.config.prefix_caching,
            },
        };
        let mut inbox = owner.shared.inbox();
        owner.room(&inbox)?;
        inbox.submit(submission);
        drop(inbox);
        owner.shared.wake();
        Ok(())
    }

    /// As [`generate`](Self::generate), with a stream of its own.
    ///
    /// # Errors
    /// As for `generate`.
    pub fn stream(&self, request: Request) -> Result<TokenStream, Rejected> {
        let (sender, receiver) = event_channel();
        let choices = request.params.best_of;
        let id = self.new_request_id();
        self.generate(id, request, &sender)?;
        Ok(TokenStream::new(self.clone(), id, receiver, choices))
    }

    /// Ends all choices of a request. Does nothing if it has ended or never was.
    pub fn cancel(&self, id: RequestId) {
        self.0.shared.inbox().end(id, None, FinishReason::Cancelled);
        self.0.shared.wake();
    }

    /// Ends one choice for a reason that the caller saw, such as a stop string.
    pub fn finish(&self, id: RequestId, choice: u32, reason: FinishReason) {
        self.0.shared.inbox().end(id, Some(choice), reason);
        self.0.shared.wake();
    }

    /// A copy of all counters.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let num_submitted = self.0.shared.inbox().num_submitted();
        let mut stats = self.0.shared.stats().clone();
        stats.num_waiting += num_submitted;
        stats
    }

    /// Whether the engine can serve.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.shared.inbox().health.clone()
    }

    /// What the executor can take.
    #[must_use]
    pub fn shape(&self) -> &ExecutorShape {
        &self.0.shape
    }

    /// Stops the engine and waits until its thread has ended. A second call may shorten a drain.
    pub fn shutdown(&self, mode: Shutdown) {
        self.0.shutdown(mode);
    }
}

impl Owner {
    fn room(&self, inbox: &MutexGuard<'_, Inbox>) -> Result<(), Rejected> {
        match &inbox.health {
            Health::Ready => {}
            Health::ShuttingDown => return Err(Rejected::ShuttingDown),
            Health::Failed(error) => return Err(Rejected::Failed(error.clone())),
        }
        if inbox.num_queued() >= self.config.max_num_queued {
            self.shared.stats().rejected_queue_full_total += 1;
            return Err(Rejected::QueueFull {
                max_num_queued: self.config.max_num_queued,
                retry_after_ms: inbox.retry_after_ms(),
            });
        }
        Ok(())
    }

    fn check_priority(&self, priority: i32) -> Result<(), Refused> {
        if priority == 0 || self.config.sorts_by_priority {
            return Ok(());
        }
        let message = format!("{priority} has no effect; start with --scheduling-policy priority");
        Err(Refused::Params(InvalidParams { param: "priority", message }))
    }

    fn draw_seed(&self, id: RequestId) -> u64 {
        let mut hasher = self.entropy.build_hasher();
        hasher.write_u64(id.get());
        hasher.finish()
    }

    fn shutdown(&self, mode: Shutdown) {
        self.shared.inbox().shut_down(mode);
        self.shared.wake();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // The thread catches its panics and reports them as a failed device.
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Now);
    }
}
