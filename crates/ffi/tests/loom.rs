//! All orders in which threads can meet in `hand_over.rs`, by loom: an event that is lost, told
//! twice or never waited for shows as a failed assertion or as a deadlock. A model explores every
//! interleaving of its threads, so each is small.

#![allow(dead_code, reason = "the file under test has more than a model uses")]

/// Loom's primitives, under the names that the file under test uses.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

#[path = "../src/hand_over.rs"]
mod hand_over;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hand_over::{Feed, Flag, Nothing, Ready, Source};
use loom::thread;

/// Told after the last event of a stream on a list.
const END: u32 = 99;

/// What a stream reads from, as the facade's queue is: events, an end, and one waker.
#[derive(Clone)]
struct Pipe(Arc<sync::Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    events: VecDeque<u32>,
    ended: bool,
    waker: Option<Waker>,
}

impl Pipe {
    fn new() -> Self {
        Self(Arc::new(sync::Mutex::new(Inside::default())))
    }

    fn push(&self, event: Option<u32>) {
        let mut inside = self.0.lock().expect("lock");
        inside.events.extend(event);
        inside.ended |= event.is_none();
        let waker = inside.waker.take();
        drop(inside);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Source for Pipe {
    type Event = u32;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<u32>> {
        let mut inside = self.0.lock().expect("lock");
        if let Some(event) = inside.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if inside.ended {
            return Poll::Ready(None);
        }
        inside.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end(&self) -> u32 {
        END
    }
}

/// A file descriptor that can be waited for, as poll(2) does.
#[derive(Clone)]
struct Fd(Arc<(sync::Mutex<bool>, sync::Condvar)>);

impl Fd {
    fn new() -> Self {
        Self(Arc::new((sync::Mutex::new(false), sync::Condvar::new())))
    }

    fn is_up(&self) -> bool {
        *self.0.0.lock().expect("lock")
    }

    fn wait(&self) {
        let mut up = self.0.0.lock().expect("lock");
        while !*up {
            up = self.0.1.wait(up).expect("lock");
        }
    }
}

impl Flag for Fd {
    fn raise(&self) {
        *self.0.0.lock().expect("lock") = true;
        self.0.1.notify_all();
    }

    fn lower(&self) {
        *self.0.0.lock().expect("lock") = false;
    }
}

type List = Arc<Ready<Pipe, Fd>>;

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Polls until `ends` streams have ended.
fn read(list: &List, capacity: usize, mut ends: usize) -> Vec<u32> {
    let mut events = Vec::new();
    while ends > 0 {
        let taken = list.poll(capacity, None).expect("nobody interrupts");
        assert!(!taken.is_empty() && taken.len() <= capacity);
        ends -= taken.iter().filter(|&&event| event == END).count();
        events.extend(taken);
    }
    events
}

#[test]
fn a_poll_misses_no_event_and_tells_the_end_once() {
    explore(3, || {
        let (pipe, fd) = (Pipe::new(), Fd::new());
        let list: List = Arc::new(Ready::new(fd.clone()));
        let stream = Feed::new(pipe.clone(), Some(Arc::clone(&list)));
        let engine = thread::spawn(move || {
            pipe.push(Some(1));
            pipe.push(Some(2));
            pipe.push(None);
        });
        assert_eq!(read(&list, 2, 1), [1, 2, END]);
        engine.join().expect("the engine");
        assert_eq!(list.poll(1, Some(std::time::Instant::now())), Err(Nothing::TimedOut));
        assert!(!fd.is_up(), "nothing is left");
        drop(stream);
    });
}

#[test]
fn who_waits_for_the_flag_alone_misses_nothing() {
    explore(3, || {
        let (pipe, fd) = (Pipe::new(), Fd::new());
        let list: List = Arc::new(Ready::new(fd.clone()));
        let _stream = Feed::new(pipe.clone(), Some(Arc::clone(&list)));
        let engine = thread::spawn(move || {
            pipe.push(Some(1));
            pipe.push(None);
        });
        let mut events = Vec::new();
        while !events.contains(&END) {
            fd.wait();
            match list.poll(1, Some(std::time::Instant::now())) {
                Ok(taken) => events.extend(taken),
                Err(nothing) => assert_eq!(nothing, Nothing::TimedOut),
            }
        }
        assert_eq!(events, [1, END]);
        engine.join().expect("the engine");
    });
}

#[test]
fn streams_on_one_list_do_not_hide_each_other() {
    explore(2, || {
        let list: List = Arc::new(Ready::new(Fd::new()));
        let pipes = [Pipe::new(), Pipe::new()];
        let _streams = pipes.clone().map(|pipe| Feed::new(pipe, Some(Arc::clone(&list))));
        let engines = [(pipes[0].clone(), 1), (pipes[1].clone(), 2)].map(|(pipe, event)| {
            thread::spawn(move || {
                pipe.push(Some(event));
                pipe.push(None);
            })
        });
        let mut events = read(&list, 1, 2);
        events.sort_unstable();
        assert_eq!(events, [1, 2, END, END]);
        for engine in engines {
            engine.join().expect("an engine");
        }
    });
}

#[test]
fn two_pollers_share_the_events_and_one_hears_the_end() {
    explore(2, || {
        let pipe = Pipe::new();
        let list: List = Arc::new(Ready::new(Fd::new()));
        let _stream = Feed::new(pipe.clone(), Some(Arc::clone(&list)));
        pipe.push(Some(1));
        let other = Arc::clone(&list);
        let poller = thread::spawn(move || {
            let mut events = Vec::new();
            while let Ok(taken) = other.poll(1, None) {
                events.extend(taken);
            }
            events
        });
        pipe.push(None);
        let mut events = Vec::new();
        while let Ok(taken) = list.poll(1, Some(std::time::Instant::now())) {
            events.extend(taken);
        }
        // What was taken out and not yet looked at is the other poller's.
        list.interrupt();
        events.extend(poller.join().expect("the other poller"));
        events.sort_unstable();
        assert_eq!(events, [1, END]);
    });
}

#[test]
fn the_end_is_told_once_where_a_cancel_meets_two_pollers() {
    explore(3, || {
        let list: List = Arc::new(Ready::new(Fd::new()));
        let feed = Feed::new(Pipe::new(), Some(Arc::clone(&list)));
        let other = Arc::clone(&list);
        let now = Some(std::time::Instant::now());
        let poller = thread::spawn(move || other.poll(1, now).unwrap_or_default());
        feed.change(|pipe| pipe.0.lock().expect("lock").ended = true);
        let mut events = list.poll(1, now).unwrap_or_default();
        events.extend(poller.join().expect("the other poller"));
        assert_eq!(events, [END]);
    });
}

#[test]
fn an_interrupt_is_not_lost_behind_an_event() {
    explore(3, || {
        let (pipe, fd) = (Pipe::new(), Fd::new());
        let list: List = Arc::new(Ready::new(fd.clone()));
        let _feed = Feed::new(pipe.clone(), Some(Arc::clone(&list)));
        pipe.push(Some(1));
        let other = Arc::clone(&list);
        let host = thread::spawn(move || other.interrupt());
        let (mut events, mut is_interrupted) = (Vec::new(), false);
        while events.is_empty() || !is_interrupted {
            fd.wait();
            match list.poll(2, Some(std::time::Instant::now())) {
                Ok(taken) => events.extend(taken),
                Err(nothing) => is_interrupted |= nothing == Nothing::Interrupted,
            }
        }
        assert_eq!(events, [1]);
        host.join().expect("the host");
    });
}

#[test]
fn an_interrupt_ends_one_wait_and_lowers_the_flag() {
    explore(3, || {
        let fd = Fd::new();
        let list: List = Arc::new(Ready::new(fd.clone()));
        let other = Arc::clone(&list);
        let host = thread::spawn(move || other.interrupt());
        assert_eq!(list.poll(1, None), Err(Nothing::Interrupted));
        host.join().expect("the host");
        assert!(!fd.is_up());
        assert_eq!(list.poll(1, Some(std::time::Instant::now())), Err(Nothing::TimedOut));
    });
}

#[test]
fn a_stream_that_is_freed_while_it_is_listed_is_passed_over() {
    explore(3, || {
        let (pipe, fd) = (Pipe::new(), Fd::new());
        let list: List = Arc::new(Ready::new(fd.clone()));
        let stream = Feed::new(pipe.clone(), Some(Arc::clone(&list)));
        let engine = thread::spawn(move || pipe.push(Some(1)));
        let host = thread::spawn(move || drop(stream));
        let taken = list.poll(1, Some(std::time::Instant::now()));
        assert!(taken == Ok(vec![1]) || taken == Err(Nothing::TimedOut));
        engine.join().expect("the engine");
        host.join().expect("the host");
        assert_eq!(list.poll(1, Some(std::time::Instant::now())), Err(Nothing::TimedOut));
        assert!(!fd.is_up(), "nothing is left");
    });
}

#[test]
fn two_readers_of_a_stream_share_its_events_and_both_see_the_end() {
    explore(2, || {
        let pipe = Pipe::new();
        let stream = Feed::<Pipe, Fd>::new(pipe.clone(), None);
        let other = Arc::clone(&stream);
        let read = |stream: &Feed<Pipe, Fd>| {
            let mut events = Vec::new();
            while let Some(event) = stream.next(None).expect("no time limit") {
                events.push(event);
            }
            events
        };
        let reader = thread::spawn(move || read(&other));
        let engine = thread::spawn(move || {
            pipe.push(Some(1));
            pipe.push(None);
        });
        let mut events = read(&stream);
        events.extend(reader.join().expect("the other reader"));
        assert_eq!(events, [1]);
        engine.join().expect("the engine");
    });
}

#[test]
fn a_cancel_wakes_the_reader_that_waits() {
    explore(3, || {
        let stream = Feed::<Pipe, Fd>::new(Pipe::new(), None);
        let other = Arc::clone(&stream);
        let host = thread::spawn(move || {
            other.change(|pipe| pipe.0.lock().expect("lock").ended = true);
        });
        assert_eq!(stream.next(None), Ok(None));
        host.join().expect("the host");
    });
}
