//! How events come from the engine's threads to those that read them: from a stream of its own, or
//! from the list of all streams that have something to say.
//!
//! It knows neither what an event is nor where it comes from.
//!
//! # Invariants
//! 1. An event is handed to one reader, the end of a stream on a list likewise.
//! 2. A stream that has something to say and whose reader has seen nothing of it is on its list,
//!    once; so a list is never longer than there are streams.
//! 3. The flag of a list is up while the list is not empty or a poll is to be interrupted.
//!
//! Tested by `tests/loom.rs`, which runs this file with loom's primitives through all orders in
//! which threads can meet here.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

/// Where the events of a stream come from.
pub(crate) trait Source: Send + 'static {
    /// What comes.
    type Event;
    /// The next event, or `None` after the last. Wakes when it is worth another try.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Self::Event>>;
    /// What readers of a list are told after the last event.
    fn end(&self) -> Self::Event;
}

/// Shows outside of the library that a list has something.
pub(crate) trait Flag: Send + Sync + 'static {
    /// Shows it.
    fn raise(&self);
    /// Shows it no more.
    fn lower(&self);
}

/// Why a wait ended without anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nothing {
    /// The time is up.
    TimedOut,
    /// Somebody wants the reader back.
    Interrupted,
}

/// The streams that have something to say.
pub(crate) struct Ready<S: Source, F: Flag> {
    state: Mutex<State<S, F>>,
    changed: Condvar,
    flag: F,
}

struct State<S: Source, F: Flag> {
    streams: VecDeque<Weak<Feed<S, F>>>,
    interrupted: bool,
}

impl<S: Source, F: Flag> Ready<S, F> {
    pub(crate) fn new(flag: F) -> Self {
        let state = State { streams: VecDeque::new(), interrupted: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), flag }
    }

    pub(crate) fn flag(&self) -> &F {
        &self.flag
    }

    fn lock(&self) -> MutexGuard<'_, State<S, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream that is not in the list.
    fn push(&self, stream: Weak<Feed<S, F>>) {
        let mut state = self.lock();
        if state.streams.is_empty() {
            self.flag.raise();
        }
        state.streams.push_back(stream);
        drop(state);
        self.changed.notify_one();
    }

    /// Takes the next stream that is alive.
    fn pop(&self) -> Option<Arc<Feed<S, F>>> {
        let mut state = self.lock();
        loop {
            let stream = state.streams.pop_front();
            if state.streams.is_empty() && !state.interrupted {
                self.flag.lower();
            }
            match stream?.upgrade() {
                Some(stream) => return Some(stream),
                None => continue,
            }
        }
    }

    /// Ends one wait, or the next one that finds nothing.
    pub(crate) fn interrupt(&self) {
        let mut state = self.lock();
        state.interrupted = true;
        self.flag.raise();
        drop(state);
        self.changed.notify_one();
    }

    fn wait(&self, until: Option<Instant>) -> Result<(), Nothing> {
        let mut state = self.lock();
        loop {
            if !state.streams.is_empty() {
                return Ok(());
            }
            if std::mem::take(&mut state.interrupted) {
                self.flag.lower();
                return Err(Nothing::Interrupted);
            }
            state = wait(&self.changed, state, until).ok_or(Nothing::TimedOut)?;
        }
    }

    /// Waits until there is an event, and takes up to `capacity`, stream after stream.
    pub(crate) fn poll(
        &self,
        capacity: usize,
        until: Option<Instant>,
    ) -> Result<Vec<S::Event>, Nothing> {
        let mut events = Vec::new();
        loop {
            while events.len() < capacity {
                let Some(stream) = self.pop() else { break };
                stream.collect(&mut events, capacity);
            }
            if !events.is_empty() {
                return Ok(events);
            }
            self.wait(until)?;
        }
    }
}

/// The events of one request, shared by its handle and the polls of its list.
pub(crate) struct Feed<S: Source, F: Flag> {
    source: Mutex<S>,
    signal: Arc<Signal<S, F>>,
    /// Whether the readers of the list were told that the stream has ended.
    end_was_told: AtomicBool,
}

/// Tells readers that there may be something. It does not hold the stream, since the stream's
/// source holds it.
struct Signal<S: Source, F: Flag> {
    wakes: Mutex<u64>,
    changed: Condvar,
    link: Option<Link<S, F>>,
}

struct Link<S: Source, F: Flag> {
    ready: Arc<Ready<S, F>>,
    stream: Weak<Feed<S, F>>,
    is_listed: AtomicBool,
}

impl<S: Source, F: Flag> Link<S, F> {
    /// Lists the stream, unless it is.
    fn list(&self) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            self.ready.push(Weak::clone(&self.stream));
        }
    }
}

impl<S: Source, F: Flag> Signal<S, F> {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a wake after the `seen`-th.
    fn wait(&self, seen: u64, until: Option<Instant>) -> Result<(), Nothing> {
        let mut wakes = self.lock();
        while *wakes == seen {
            wakes = wait(&self.changed, wakes, until).ok_or(Nothing::TimedOut)?;
        }
        Ok(())
    }
}

impl<S: Source, F: Flag> Wake for Signal<S, F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.lock() += 1;
        self.changed.notify_all();
        if let Some(link) = &self.link {
            link.list();
        }
    }
}

impl<S: Source, F: Flag> Feed<S, F> {
    /// A stream; with a list its events go to those who poll that.
    pub(crate) fn new(source: S, list: Option<Arc<Ready<S, F>>>) -> Arc<Self> {
        let stream = Arc::new_cyclic(|stream| Self {
            source: Mutex::new(source),
            signal: Arc::new(Signal {
                wakes: Mutex::new(0),
                changed: Condvar::new(),
                link: list.map(|ready| Link {
                    ready,
                    stream: Weak::clone(stream),
                    is_listed: AtomicBool::new(false),
                }),
            }),
            end_was_told: AtomicBool::new(false),
        });
        // The first poll of the stream leaves the waker behind.
        if let Some(link) = &stream.signal.link {
            link.list();
        }
        stream
    }

    /// Whether its events go to a list.
    pub(crate) fn is_on_a_list(&self) -> bool {
        self.signal.link.is_some()
    }

    /// Changes the source, and lets readers look at it again.
    pub(crate) fn change(&self, change: impl FnOnce(&mut S)) {
        change(&mut *self.source());
        self.signal.wake_by_ref();
    }

    fn source(&self) -> MutexGuard<'_, S> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) -> Poll<Option<S::Event>> {
        let waker = Waker::from(Arc::clone(&self.signal));
        self.source().poll(&mut Context::from_waker(&waker))
    }

    /// Waits for the next event; `None` at the end.
    pub(crate) fn next(&self, until: Option<Instant>) -> Result<Option<S::Event>, Nothing> {
        loop {
            let seen = *self.signal.lock();
            if let Poll::Ready(event) = self.poll() {
                return Ok(event);
            }
            self.signal.wait(seen, until)?;
        }
    }

    /// Moves events into the answer of a poll of the list, up to `capacity` in all.
    fn collect(&self, events: &mut Vec<S::Event>, capacity: usize) {
        let Some(link) = &self.signal.link else { return };
        // From here on a wake lists the stream again.
        link.is_listed.store(false, Ordering::Release);
        loop {
            if events.len() >= capacity {
                return link.list();
            }
            match self.poll() {
                Poll::Pending => return,
                Poll::Ready(Some(event)) => events.push(event),
                Poll::Ready(None) => {
                    if !self.end_was_told.swap(true, Ordering::AcqRel) {
                        events.push(self.source().end());
                    }
                    return;
                }
            }
        }
    }
}

/// Waits for a change; `None` when the time is up.
fn wait<'g, T>(
    changed: &Condvar,
    guard: MutexGuard<'g, T>,
    until: Option<Instant>,
) -> Option<MutexGuard<'g, T>> {
    let Some(until) = until else {
        return Some(changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
    };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    Some(changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0)
}
