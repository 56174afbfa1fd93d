//! A pool of threads that runs one parallel loop at a time, and the ways to hand disjoint pieces
//! of a slice to its tasks.
//!
//! The calling thread is worker 0. Tasks are shared out in equal runs, one a worker, and a worker
//! whose run is done takes from the others, because the cores are shared with the rest of the
//! process. Between loops workers spin for [`SPIN_ROUNDS`], then park, so that an idle process
//! takes no CPU time and a busy one pays far less than a microsecond for a loop.
//!
//! Invariants:
//! 1. A worker reads the job only between a successful `enter` and its `leave`; the caller
//!    changes the job only while the gate is closed and nobody is inside.
//! 2. Each task index of a loop is claimed once.
#![allow(unsafe_code)] // A job borrows the caller's stack, and parts of a slice go to threads.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crossbeam::utils::CachePadded;

use crate::workspace::Scratch;

/// Rounds of `spin_loop` before a waiting worker parks: some 50 microseconds.
const SPIN_ROUNDS: u32 = 3_000;
/// Rounds of `spin_loop` before the caller, waiting for the last task, yields its core.
const YIELD_ROUNDS: u32 = 2_000;
/// Bit of `gate` that says that no loop is open; the bits below count the workers inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Tasks that one worker starts with.
#[derive(Default)]
struct Cursor {
    next: AtomicUsize,
    end: AtomicUsize,
}

struct Shared {
    gate: CachePadded<AtomicUsize>,
    /// Counts loops, so that a waiting worker sees a new one.
    epoch: CachePadded<AtomicUsize>,
    job: UnsafeCell<Option<*const Body<'static>>>,
    cursors: Vec<CachePadded<Cursor>>,
    asleep: Vec<CachePadded<AtomicBool>>,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written by the caller alone and read under invariant 1; all else is atomic.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed under invariant 1.
unsafe impl Send for Shared {}

impl Shared {
    /// Takes tasks until none is left, own ones first.
    fn work(&self, worker: usize, body: &Body<'_>) {
        let workers = self.cursors.len();
        for offset in 0..workers {
            let cursor = &self.cursors[(worker + offset) % workers];
            loop {
                let task = cursor.next.fetch_add(1, Ordering::Relaxed);
                if task >= cursor.end.load(Ordering::Relaxed) {
                    break;
                }
                body(task, worker);
            }
        }
    }

    /// Joins the open loop, if there is one.
    fn join(&self, worker: usize) {
        if self.gate.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            // SAFETY: invariant 1; the gate is open and counts this worker until `fetch_sub`.
            let job = unsafe { *self.job.get() };
            if let Some(body) = job {
                // SAFETY: the caller keeps the body alive until the gate counts nobody.
                let body = unsafe { &*body };
                if catch_unwind(AssertUnwindSafe(|| self.work(worker, body))).is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
            }
        }
        self.gate.fetch_sub(1, Ordering::Release);
    }

    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let mut rounds = 0;
            loop {
                let epoch = self.epoch.load(Ordering::SeqCst);
                if epoch != seen {
                    seen = epoch;
                    break;
                }
                if rounds < SPIN_ROUNDS {
                    rounds += 1;
                    std::hint::spin_loop();
                    continue;
                }
                self.asleep[worker].store(true, Ordering::SeqCst);
                // Looked at again after the flag: either this sees the new loop, or the caller
                // sees the flag and wakes this thread.
                if self.epoch.load(Ordering::SeqCst) == seen {
                    std::thread::park();
                }
                self.asleep[worker].store(false, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.join(worker);
        }
    }
}

/// Closes the gate and waits for those inside, also when the caller's own task panics.
struct Gate<'a>(&'a Shared);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_or(CLOSED, Ordering::AcqRel);
        let mut rounds = 0;
        while self.0.gate.load(Ordering::Acquire) != CLOSED {
            rounds += 1;
            if rounds < YIELD_ROUNDS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// The pool. Dropping it ends its threads.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    scratch: Vec<CachePadded<UnsafeCell<Scratch>>>,
}

// SAFETY: a worker's scratch is used by the one thread that runs as that worker.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// A pool of `num_threads` workers, the caller included.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        let workers = num_threads.max(1);
        let shared = Arc::new(Shared {
            gate: CachePadded::new(AtomicUsize::new(CLOSED)),
            epoch: CachePadded::default(),
            job: UnsafeCell::new(None),
            cursors: (0..workers).map(|_| CachePadded::default()).collect(),
            asleep: (0..workers).map(|_| CachePadded::default()).collect(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let scratch = (0..workers).map(|_| CachePadded::new(UnsafeCell::default())).collect();
        let mut pool = Self { shared, threads: Vec::with_capacity(workers - 1), scratch };
        for worker in 1..workers {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("pagedllm-cpu-{worker}"));
            pool.threads.push(builder.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Workers, the caller included.
    #[must_use]
    pub fn num_threads(&self) -> usize {
        self.scratch.len()
    }

    /// Makes room in every worker's scratch.
    pub fn reserve_scratch(&mut self, mut reserve: impl FnMut(&mut Scratch)) {
        for scratch in &mut self.scratch {
            reserve(scratch.get_mut());
        }
    }

    /// Runs `body(task, worker)` for each task in `0..tasks` and returns when all are done.
    fn run(&mut self, tasks: usize, body: &Body<'_>) {
        if tasks == 0 {
            return;
        }
        let workers = self.num_threads();
        if workers == 1 || tasks == 1 {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        }
        let shared = &*self.shared;
        for (worker, cursor) in shared.cursors.iter().enumerate() {
            cursor.next.store(tasks * worker / workers, Ordering::Relaxed);
            cursor.end.store(tasks * (worker + 1) / workers, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime changes; the gate below is closed and empty before `body`'s
        // borrow ends (`Gate` waits, on panic too).
        let erased = unsafe { std::mem::transmute::<&Body<'_>, &Body<'static>>(body) };
        // SAFETY: the gate is closed and counts nobody who read it open (invariant 1).
        unsafe { *shared.job.get() = Some(std::ptr::from_ref(erased)) };
        shared.gate.fetch_and(!CLOSED, Ordering::AcqRel);
        let gate = Gate(shared);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (worker, thread) in self.threads.iter().enumerate() {
            if shared.asleep[worker + 1].load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        shared.work(0, body);
        drop(gate);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("a task of the thread pool panicked"));
        }
    }

    /// Runs `body(index, part, scratch)` for each part of `parts`, in any order, in parallel.
    pub fn for_parts<P: Parts>(
        &mut self,
        parts: P,
        body: impl Fn(usize, P::Part, &mut Scratch) + Sync,
    ) {
        let scratch = Shareable(self.scratch.as_ptr());
        let parts = &parts;
        let run = |task: usize, worker: usize| {
            // SAFETY: `worker` is below the number of scratches, and one thread at a time runs as
            // that worker (the caller as 0, each thread of the pool as its own).
            let scratch = unsafe { &mut *(*scratch.get().add(worker)).get() };
            // SAFETY: each index is claimed once (invariant 2), and `part` borrows from `parts`.
            let part = unsafe { parts.part(task) };
            body(task, part, scratch);
        };
        self.run(parts.num_parts(), &run);
    }

    /// Runs `body(index, scratch)` for each index below `tasks`, in parallel.
    pub fn for_each(&mut self, tasks: usize, body: impl Fn(usize, &mut Scratch) + Sync) {
        self.for_parts(Indices(tasks), |index, (), scratch| body(index, scratch));
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker catches the panics of its tasks, so there is no error to report.
            let _ = thread.join();
        }
    }
}

struct Shareable<T>(*const T);
// SAFETY: `for_parts` gives each worker its own element.
unsafe impl<T> Sync for Shareable<T> {}
impl<T> Shareable<T> {
    const fn get(&self) -> *const T {
        self.0
    }
}

/// Something that falls into disjoint parts.
///
/// # Safety
/// Parts of different indices never overlap.
pub unsafe trait Parts: Sync {
    /// One part.
    type Part;
    /// How many there are.
    fn num_parts(&self) -> usize;
    /// The part at `index`.
    ///
    /// # Safety
    /// `index < num_parts`, and a part is never held twice at the same time.
    unsafe fn part(&self, index: usize) -> Self::Part;
}

/// Parts that carry nothing but their index.
pub struct Indices(pub usize);

// SAFETY: there is nothing to overlap.
unsafe impl Parts for Indices {
    type Part = ();
    fn num_parts(&self) -> usize {
        self.0
    }
    unsafe fn part(&self, _index: usize) {}
}

/// A slice cut into runs of `len` elements; the last may be shorter.
pub struct Chunks<'a, T> {
    data: *mut T,
    total: usize,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are disjoint `&mut [T]`, and `T: Send`.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Cuts `data`.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn new(data: &'a mut [T], len: usize) -> Self {
        assert!(len > 0, "chunks of no elements");
        Self { data: data.as_mut_ptr(), total: data.len(), len, borrow: PhantomData }
    }
}

// SAFETY: part `i` is the range from `i * len`, at most `len` long.
unsafe impl<'a, T: Send> Parts for Chunks<'a, T> {
    type Part = &'a mut [T];
    fn num_parts(&self) -> usize {
        self.total.div_ceil(self.len)
    }
    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        let start = index * self.len;
        let len = self.len.min(self.total - start);
        // SAFETY: within the borrowed slice, and disjoint from the other parts.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}

macro_rules! parts_of_tuples {
    ($($name:ident)+) => {
        // SAFETY: the parts of each member are disjoint.
        unsafe impl<$($name: Parts),+> Parts for ($($name,)+) {
            type Part = ($($name::Part,)+);
            fn num_parts(&self) -> usize {
                #[allow(non_snake_case)]
                let ($($name,)+) = self;
                let all = [$($name.num_parts()),+];
                assert!(all.iter().all(|&n| n == all[0]), "as many parts of each: {all:?}");
                all[0]
            }
            unsafe fn part(&self, index: usize) -> Self::Part {
                #[allow(non_snake_case)]
                let ($($name,)+) = self;
                // SAFETY: the caller's, member by member.
                ($(unsafe { $name.part(index) },)+)
            }
        }
    };
}
parts_of_tuples!(A B);
parts_of_tuples!(A B C);
parts_of_tuples!(A B C D);

/// A shared slice cut into runs of `len` elements; the last may be shorter.
pub struct Shares<'a, T> {
    data: &'a [T],
    len: usize,
}

impl<'a, T> Shares<'a, T> {
    /// Cuts `data`.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn new(data: &'a [T], len: usize) -> Self {
        assert!(len > 0, "shares of no elements");
        Self { data, len }
    }
}

// SAFETY: the parts are shared references.
unsafe impl<'a, T: Sync> Parts for Shares<'a, T> {
    type Part = &'a [T];
    fn num_parts(&self) -> usize {
        self.data.len().div_ceil(self.len)
    }
    unsafe fn part(&self, index: usize) -> &'a [T] {
        let start = index * self.len;
        &self.data[start..self.data.len().min(start + self.len)]
    }
}

/// A matrix `[rows, cols]` cut into tiles: runs of rows times runs of columns. Part
/// `rows_index * num_col_runs + col_index`.
pub struct Tiles<'a> {
    data: *mut f32,
    cols: usize,
    row_starts: &'a [usize],
    col_starts: &'a [usize],
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: parts are disjoint.
unsafe impl Sync for Tiles<'_> {}

impl<'a> Tiles<'a> {
    /// Cuts `data`, `[rows, cols]`, at ascending `row_starts` and `col_starts`, which begin with
    /// 0 and end with `rows` and `cols`.
    ///
    /// # Panics
    /// If the starts don't say so.
    pub fn new(
        data: &'a mut [f32],
        cols: usize,
        row_starts: &'a [usize],
        col_starts: &'a [usize],
    ) -> Self {
        let rows = data.len() / cols;
        for (starts, end) in [(row_starts, rows), (col_starts, cols)] {
            assert!(starts.is_sorted(), "starts ascend");
            assert!(starts.first() == Some(&0) && starts.last() == Some(&end), "starts cover");
        }
        Self { data: data.as_mut_ptr(), cols, row_starts, col_starts, borrow: PhantomData }
    }
}

// SAFETY: runs of rows and of columns don't overlap, since their starts ascend.
unsafe impl<'a> Parts for Tiles<'a> {
    type Part = TileMut<'a>;
    fn num_parts(&self) -> usize {
        (self.row_starts.len() - 1) * (self.col_starts.len() - 1)
    }
    unsafe fn part(&self, index: usize) -> TileMut<'a> {
        let col_runs = self.col_starts.len() - 1;
        let (rows, cols) = (index / col_runs, index % col_runs);
        let (row, col) = (self.row_starts[rows], self.col_starts[cols]);
        TileMut {
            // SAFETY: the offset is within the borrowed matrix.
            data: unsafe { self.data.add(row * self.cols + col) },
            first_row: row,
            rows: self.row_starts[rows + 1] - row,
            first_col: col,
            cols: self.col_starts[cols + 1] - col,
            stride: self.cols,
            borrow: PhantomData,
        }
    }
}

/// A tile of a matrix.
pub struct TileMut<'a> {
    data: *mut f32,
    /// Row of the matrix that the tile begins with.
    pub first_row: usize,
    /// Rows.
    pub rows: usize,
    /// Column of the matrix that the tile begins with.
    pub first_col: usize,
    /// Columns.
    pub cols: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

impl TileMut<'_> {
    /// Columns of one row of the tile.
    ///
    /// # Panics
    /// If the tile has no such row.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the tile alone borrows these columns of these rows.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride), self.cols) }
    }
    /// First element and elements from one row to the next, for kernels. Each row has `cols`.
    pub const fn as_mut_ptr(&mut self) -> (*mut f32, usize) {
        (self.data, self.stride)
    }
    /// The part of the tile with rows from `row` and columns from `col`.
    ///
    /// # Panics
    /// If the tile ends before.
    pub fn window(&mut self, row: usize, rows: usize, col: usize, cols: usize) -> TileMut<'_> {
        assert!(row + rows <= self.rows && col + cols <= self.cols, "a window within the tile");
        TileMut {
            // SAFETY: within the tile.
            data: unsafe { self.data.add(row * self.stride + col) },
            first_row: self.first_row + row,
            rows,
            first_col: self.first_col + col,
            cols,
            stride: self.stride,
            borrow: PhantomData,
        }
    }
}

/// Runs of `len` elements dealt out in turn: run `i` belongs to part `i % num_parts`.
pub struct Dealt<'a, T> {
    data: *mut T,
    total: usize,
    len: usize,
    num_parts: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are disjoint, and `T: Send`.
unsafe impl<T: Send> Sync for Dealt<'_, T> {}

impl<'a, T> Dealt<'a, T> {
    /// Deals out `data`.
    pub fn new(data: &'a mut [T], len: usize, num_parts: usize) -> Self {
        assert!(num_parts > 0 && len > 0, "parts of something");
        Self { data: data.as_mut_ptr(), total: data.len(), len, num_parts, borrow: PhantomData }
    }
}

// SAFETY: a part gives out only the runs that are its own.
unsafe impl<'a, T: Send> Parts for Dealt<'a, T> {
    type Part = Hand<'a, T>;
    fn num_parts(&self) -> usize {
        self.num_parts
    }
    unsafe fn part(&self, index: usize) -> Hand<'a, T> {
        let Self { data, total, len, num_parts, borrow } = *self;
        Hand { data, total, len, num_parts, index, borrow }
    }
}

/// The runs of one part of [`Dealt`].
pub struct Hand<'a, T> {
    data: *mut T,
    total: usize,
    len: usize,
    num_parts: usize,
    index: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Hand<'_, T> {
    /// Run `run`, if it is one of this part's.
    ///
    /// # Panics
    /// If there is no such run.
    pub fn run(&mut self, run: usize) -> Option<&mut [T]> {
        assert!((run + 1) * self.len <= self.total, "run {run} is not there");
        (run % self.num_parts == self.index).then(|| {
            // SAFETY: within the borrowed slice; no other part gives this run out, and this one
            // only under its own exclusive borrow.
            unsafe { std::slice::from_raw_parts_mut(self.data.add(run * self.len), self.len) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once() {
        for workers in [1, 2, 5] {
            let mut pool = ThreadPool::new(workers).unwrap();
            for tasks in [0, 1, 2, 3, 7, 100] {
                let mut counts = vec![0u32; tasks];
                for _ in 0..200 {
                    pool.for_parts(Chunks::new(&mut counts, 1), |_, part, _| part[0] += 1);
                }
                assert!(counts.iter().all(|&count| count == 200), "{workers} {tasks} {counts:?}");
            }
        }
    }

    #[test]
    fn tiles_cover_a_matrix() {
        let mut pool = ThreadPool::new(3).unwrap();
        let mut data = vec![0.0; 5 * 7];
        let tiles = Tiles::new(&mut data, 7, &[0, 2, 5], &[0, 3, 4, 7]);
        pool.for_parts(tiles, |index, mut tile, _| {
            for row in 0..tile.rows {
                tile.row(row).iter_mut().for_each(|value| *value += 1.0 + index as f32);
            }
        });
        assert!(data.iter().all(|&value| value >= 1.0));
        assert_eq!(data[3 * 7 + 6], 6.0, "the last tile");
    }

    #[test]
    fn a_hand_keeps_to_its_own_runs() {
        let mut pool = ThreadPool::new(2).unwrap();
        let mut data = vec![0u8; 12];
        pool.for_parts(Dealt::new(&mut data, 2, 4), |index, mut hand, _| {
            for run in 0..6 {
                if let Some(run) = hand.run(run) {
                    run.fill(index as u8);
                }
            }
        });
        assert_eq!(data, [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = ThreadPool::new(2).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(64, |index, _| assert_ne!(index, 50));
        }));
        assert!(panic.is_err());
        let mut counts = [0; 8];
        pool.for_parts(Chunks::new(&mut counts, 1), |_, part, _| part[0] += 1);
        assert_eq!(counts, [1; 8]);
    }
}
