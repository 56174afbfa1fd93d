//! The engine's thread: takes the mail, turns the loop, parks when there is nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pagedllm_core::FinishReason;

use crate::handle::Health;
use crate::inbox::{Mail, Shared};
use crate::step_loop::StepLoop;
use crate::{ExecutorError, Progress};

/// Runs until it is shut down or the device is gone. Whatever happens, every request ends.
pub(crate) fn run(mut step_loop: StepLoop, shared: &Shared) {
    let served = catch_unwind(AssertUnwindSafe(|| serve(&mut step_loop, shared)));
    let error = match served {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(panic) => ExecutorError { message: panic_text(&*panic) },
    };
    tracing::error!(%error, "the engine has failed");
    let mut mail = Mail::default();
    let mut inbox = shared.inbox();
    inbox.health = Health::Failed(error.clone());
    inbox.take(&mut mail);
    drop(inbox);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        for submission in mail.submissions.drain(..) {
            step_loop.submit(submission);
        }
        step_loop.fail_all(&error);
    }));
    if failed.is_err() {
        tracing::error!("the scheduler is in doubt; its requests are abandoned");
    }
    step_loop.abandon_all(&error);
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

fn serve(step_loop: &mut StepLoop, shared: &Shared) -> Result<(), ExecutorError> {
    let mut mail = Mail::default();
    let mut ended = Vec::new();
    // Whether to end once all requests have, and when those that have not are cancelled.
    let mut is_last_call = false;
    let mut last_turn: Option<Instant> = None;
    loop {
        let is_idle = step_loop.is_idle();
        step_loop.take_ended(&mut ended);
        let mut inbox = shared.inbox();
        inbox.forget(&mut ended);
        inbox.num_waiting = step_loop.scheduler().num_waiting();
        inbox.drain_interval = step_loop.drain_interval();
        if is_idle && !is_last_call {
            inbox = shared.wait_for_mail(inbox);
        }
        inbox.take(&mut mail);
        drop(inbox);
        for submission in mail.submissions.drain(..) {
            step_loop.submit(submission);
        }
        for (request, choice, reason) in mail.endings.drain(..) {
            step_loop.end(request, choice, reason);
        }
        // Before the step runs, so that the places of cancelled requests are free at once.
        shared.inbox().num_waiting = step_loop.scheduler().num_waiting();
        if let Some(wish) = mail.shutdown.take() {
            is_last_call = true;
            last_turn = last_turn.into_iter().chain(wish.last_turn()).min();
        }
        if last_turn.is_some_and(|last| Instant::now() >= last) {
            step_loop.end_all(FinishReason::Cancelled);
        }
        if step_loop.turn()? == Progress::Idle && is_last_call {
            return Ok(());
        }
    }
}
