//! What callers have put for the engine's thread, and what it shows to them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pagedllm_core::FinishReason;
use pagedllm_scheduler::{RequestId, RequestSpec};

use crate::handle::{Health, Shutdown};
use crate::stream::EventSender;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{Constraint, EngineStats};

/// A request on its way to the step loop.
pub struct Submission {
    /// The request, checked.
    pub spec: RequestSpec,
    /// When it was made.
    pub arrival: Instant,
    /// When it must have ended.
    pub deadline: Option<Instant>,
    /// Where its events go.
    pub events: EventSender,
    /// Limits what may be drawn.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// A wish to end a request, or one choice of it.
pub(crate) type Ending = (RequestId, Option<u32>, FinishReason);

/// Everything that can reach the engine's thread. Bounded: submissions by the queue limit,
/// endings by the choices of live requests.
#[derive(Default)]
pub(crate) struct Inbox {
    submissions: VecDeque<Submission>,
    endings: HashMap<(RequestId, Option<u32>), FinishReason>,
    /// Requests that have been submitted and have not ended.
    live: HashSet<RequestId>,
    pub(crate) health: Health,
    shutdown: Option<Shutdown>,
    /// Requests that the engine has taken and not yet started.
    pub(crate) num_waiting: usize,
    /// Mean time between two requests that leave the queue.
    pub(crate) drain_interval: Duration,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("submissions", &self.submissions.len())
            .finish_non_exhaustive()
    }
}

/// What the engine's thread takes out at once.
#[derive(Default)]
pub(crate) struct Mail {
    pub(crate) submissions: VecDeque<Submission>,
    pub(crate) endings: Vec<Ending>,
    pub(crate) shutdown: Option<Shutdown>,
}

impl Inbox {
    pub(crate) fn submit(&mut self, submission: Submission) {
        assert!(self.live.insert(submission.spec.id), "{} is in use", submission.spec.id);
        self.submissions.push_back(submission);
    }
    pub(crate) fn end(&mut self, id: RequestId, choice: Option<u32>, reason: FinishReason) {
        if self.live.contains(&id) && choice.is_none_or(|choice| choice < 128) {
            self.endings.entry((id, choice)).or_insert(reason);
        }
    }
    pub(crate) fn forget(&mut self, ended: &mut Vec<RequestId>) {
        for id in ended.drain(..) {
            self.live.remove(&id);
        }
    }
    pub(crate) fn num_submitted(&self) -> usize {
        self.submissions.len()
    }
    pub(crate) fn num_queued(&self) -> usize {
        self.submissions.len() + self.num_waiting
    }
    /// Time in which the queue should drain, between 0.1 s and a minute.
    pub(crate) fn retry_after_ms(&self) -> u64 {
        let interval = self.drain_interval.as_secs_f64() * 1000.0;
        (interval * self.num_queued() as f64).clamp(100.0, 60_000.0) as u64
    }
    /// Of several wishes that wait, the most urgent one counts.
    pub(crate) fn shut_down(&mut self, mode: Shutdown) {
        if self.health == Health::Ready {
            self.health = Health::ShuttingDown;
        }
        self.shutdown = Some(self.shutdown.map_or(mode, |earlier| sooner(earlier, mode)));
    }
    /// Takes everything out.
    pub(crate) fn take(&mut self, mail: &mut Mail) {
        // They still wait, until the loop says otherwise.
        self.num_waiting += self.submissions.len();
        std::mem::swap(&mut mail.submissions, &mut self.submissions);
        mail.endings
            .extend(self.endings.drain().map(|((id, choice), reason)| (id, choice, reason)));
        mail.shutdown = self.shutdown.take();
    }
    fn is_empty(&self) -> bool {
        self.submissions.is_empty() && self.endings.is_empty() && self.shutdown.is_none()
    }
}

/// The wish that ends the engine sooner.
fn sooner(one: Shutdown, other: Shutdown) -> Shutdown {
    match (one, other) {
        (Shutdown::Drain { timeout: one }, Shutdown::Drain { timeout: other }) => {
            Shutdown::Drain { timeout: one.min(other) }
        }
        _ => Shutdown::Now,
    }
}

/// Shared between the handles and the engine's thread.
#[derive(Debug)]
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    mail: Condvar,
    stats: Arc<Mutex<EngineStats>>,
}

impl Shared {
    pub(crate) fn new(stats: Arc<Mutex<EngineStats>>) -> Self {
        Self { inbox: Mutex::new(Inbox::default()), mail: Condvar::new(), stats }
    }
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn stats(&self) -> MutexGuard<'_, EngineStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn wake(&self) {
        self.mail.notify_all();
    }
    /// Waits until there is something in the inbox.
    pub(crate) fn wait_for_mail<'a>(
        &self,
        mut inbox: MutexGuard<'a, Inbox>,
    ) -> MutexGuard<'a, Inbox> {
        while inbox.is_empty() {
            inbox = self.mail.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        inbox
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_wish_does_not_put_off_the_end() {
        let drain = |seconds| Shutdown::Drain { timeout: Duration::from_secs(seconds) };
        for (wishes, wanted) in [
            ([Shutdown::Now, drain(3600)], Shutdown::Now),
            ([drain(3600), Shutdown::Now], Shutdown::Now),
            ([drain(5), drain(3600)], drain(5)),
            ([drain(3600), drain(5)], drain(5)),
        ] {
            let (mut inbox, mut mail) = (Inbox::default(), Mail::default());
            for wish in wishes {
                inbox.shut_down(wish);
            }
            inbox.take(&mut mail);
            assert_eq!(mail.shutdown, Some(wanted), "{wishes:?}");
        }
    }
}
