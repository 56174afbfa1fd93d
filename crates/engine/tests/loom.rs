//! All orders in which callers and the engine's thread can meet in the inbox, by loom: mail that is
//! lost, or that nobody is woken for, shows as a failed assertion or as a deadlock.

#![allow(dead_code, reason = "the file under test has more than a model uses")]

/// Loom's primitives, under the names that the file under test uses.
mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}
mod handle {
    pub(crate) use pagedllm_engine::{Health, Shutdown};
}
mod stream {
    pub(crate) use pagedllm_engine::EventSender;
}
pub(crate) use pagedllm_engine::Constraint;

/// Nothing here counts.
#[derive(Debug)]
struct EngineStats;

#[path = "../src/inbox.rs"]
mod inbox;

use std::sync::Arc;
use std::time::Instant;

use inbox::{Mail, Shared, Submission};
use loom::thread;
use pagedllm_core::{FinishReason, SamplingParams};
use pagedllm_engine::{Health, PromptHashes, RequestId, RequestSpec, Shutdown, event_channel};

fn submission(id: u64) -> Submission {
    let spec = RequestSpec {
        id: RequestId::new(id),
        prompt: vec![1],
        hashes: PromptHashes::new(&[1], &[], 16),
        params: SamplingParams::default(),
        eos_token_ids: Vec::new(),
        priority: 0,
        seed: 0,
        caching: true,
    };
    let (arrival, events) = (Instant::now(), event_channel().0);
    Submission { spec, arrival, deadline: None, events, constraint: None }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared::new(Arc::new(sync::Mutex::new(EngineStats))))
}

/// What the engine's thread has seen when it is told to stop.
#[derive(Default)]
struct Seen {
    submitted: Vec<u64>,
    ended: Vec<u64>,
}

/// Takes mail as the engine's thread does, until it is shut down.
fn serve(shared: &Shared) -> Seen {
    let (mut mail, mut seen) = (Mail::default(), Seen::default());
    loop {
        let mut inbox = shared.wait_for_mail(shared.inbox());
        inbox.take(&mut mail);
        drop(inbox);
        seen.submitted.extend(mail.submissions.drain(..).map(|one| one.spec.id.get()));
        seen.ended.extend(mail.endings.drain(..).map(|(id, ..)| id.get()));
        if mail.shutdown.take().is_some() {
            return seen;
        }
    }
}

#[test]
fn all_mail_arrives_and_wakes() {
    explore(|| {
        let shared = shared();
        let callers = [1, 2].map(|id| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.inbox().submit(submission(id));
                shared.wake();
            })
        });
        let for_engine = Arc::clone(&shared);
        let engine = thread::spawn(move || serve(&for_engine));
        for caller in callers {
            caller.join().expect("a caller");
        }
        shared.inbox().shut_down(Shutdown::Now);
        shared.wake();
        let mut seen = engine.join().expect("the engine");
        seen.submitted.sort_unstable();
        assert_eq!(seen.submitted, [1, 2]);
        assert_eq!(shared.inbox().health, Health::ShuttingDown);
    });
}

#[test]
fn a_request_and_its_cancel_come_in_order_or_together() {
    explore(|| {
        let shared = shared();
        let for_engine = Arc::clone(&shared);
        let engine = thread::spawn(move || serve(&for_engine));
        shared.inbox().submit(submission(7));
        shared.wake();
        shared.inbox().end(RequestId::new(7), None, FinishReason::Cancelled);
        shared.wake();
        shared.inbox().shut_down(Shutdown::Now);
        shared.wake();
        let seen = engine.join().expect("the engine");
        assert_eq!((seen.submitted, seen.ended), (vec![7], vec![7]));
    });
}
