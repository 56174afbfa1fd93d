//! The way to the end: readiness flips first, then new requests are refused, then running ones
//! end or are ended, then connections close.

use tokio::sync::watch;

/// How far the server is on its way to the end.
#[derive(Debug)]
pub(crate) struct Stage {
    stopping: watch::Sender<bool>,
    closed: watch::Sender<bool>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { stopping: watch::Sender::new(false), closed: watch::Sender::new(false) }
    }

    /// From now on requests are refused, and connections close after their answer.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// From now on no connection is accepted.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Resolves when the server begins to stop.
    pub(crate) async fn stopping(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Resolves when no more connections are to be accepted.
    pub(crate) async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }
}
