//! Listening, accepting, and the life of a connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pagedllm::{EngineStats, Llm};
use pagedllm_openai::Service;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, lookup_host};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ServerOptions;
use crate::auth::Keys;
use crate::limits::BodyMemory;
use crate::metrics::HttpStats;
use crate::routes::{self, State};
use crate::shutdown::Stage;

/// Connections that the system may hold before they are accepted.
const BACKLOG: u32 = 4096;
/// Largest head of a request; a larger one gets 431.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request; more get 431.
const MAX_HEADERS: usize = 100;
/// Threads that read large bodies, beside those that serve connections.
const BODY_THREADS: usize = 4;
/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may take to send what is left after the engine has stopped.
const LAST_WRITES: Duration = Duration::from_secs(5);
const STATS_INTERVAL: Duration = Duration::from_secs(10);

/// Why a server can't start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nothing can listen there.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system has no threads left.
    #[error("can't start threads: {0}")]
    Threads(std::io::Error),
}

/// An HTTP server.
#[derive(Debug)]
pub struct Server;

/// A server that runs. Dropping it stops it at once.
#[derive(Debug)]
pub struct ServerHandle {
    state: Arc<State>,
    runtime: Option<Runtime>,
    connections: Arc<Semaphore>,
    local_addr: Option<SocketAddr>,
    uds: Option<PathBuf>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Server {
    /// Starts to serve a model on threads of its own. Port 0 takes a free port, see
    /// [`ServerHandle::local_addr`].
    ///
    /// # Errors
    /// The address is taken or unknown, or the system has no threads left.
    pub fn start(llm: Llm, options: ServerOptions) -> Result<ServerHandle, ServerError> {
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.http_threads)
            .max_blocking_threads(BODY_THREADS)
            .thread_name("pagedllm-http")
            // The log of whoever starts the server, for as long as the thread lives.
            .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&dispatch)))
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let listener = runtime.block_on(listen(&options))?;
        let local_addr = match &listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        };
        let uds = options.uds.clone();
        let connections = Arc::new(Semaphore::new(options.max_connections));
        let state = Arc::new(State {
            service: Service::new(llm, options.service.clone()),
            keys: Keys::new(&options.api_keys),
            http: HttpStats::default(),
            body_memory: BodyMemory::new(options.max_request_body_bytes),
            stage: Stage::new(),
            options,
        });
        runtime.spawn(accept_all(Arc::clone(&state), listener, Arc::clone(&connections)));
        if state.options.log_stats {
            runtime.spawn(log_stats(Arc::clone(&state)));
        }
        Ok(ServerHandle { state, runtime: Some(runtime), connections, local_addr, uds })
    }
}

impl ServerHandle {
    /// Where the server listens; `None` on a unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// Stops: `/ready` turns to 503 and new requests are refused at once; running ones may end
    /// for `timeout`, then they are ended with an error; then connections close. Blocks until all
    /// that is done. A second call, from another thread, with a shorter time cuts the first short.
    pub fn stop(&self, timeout: Duration) {
        let stage = &self.state.stage;
        stage.stop();
        self.state.service.llm().shutdown(timeout);
        stage.close();
        self.wait_for_connections(LAST_WRITES);
    }

    /// Stops serving and leaves the engine running: accepts no more connections, and waits for
    /// `timeout` at most until those there are have closed. What is left ends when the handle is
    /// dropped.
    pub fn close(&self, timeout: Duration) {
        let stage = &self.state.stage;
        stage.stop();
        stage.close();
        self.wait_for_connections(timeout);
    }

    fn wait_for_connections(&self, timeout: Duration) {
        let Some(runtime) = &self.runtime else { return };
        let all = u32::try_from(self.state.options.max_connections).unwrap_or(u32::MAX);
        // When every permit is back, every connection has closed.
        let closed = self.connections.acquire_many(all);
        let _ = runtime.handle().block_on(async { tokio::time::timeout(timeout, closed).await });
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.state.stage.stop();
        self.state.stage.close();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if let Some(path) = &self.uds {
            // It may be gone already, which is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn listen(options: &ServerOptions) -> Result<Listener, ServerError> {
    if let Some(path) = &options.uds {
        let failed = |source| ServerError::Listen { address: path.display().to_string(), source };
        remove_stale(path);
        return UnixListener::bind(path).map(Listener::Unix).map_err(failed);
    }
    let host = if options.host.is_empty() { "0.0.0.0" } else { &options.host };
    let address = format!("{host}:{}", options.port);
    let failed = |source| ServerError::Listen { address: address.clone(), source };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut last = std::io::Error::other("the name has no address");
    for candidate in lookup_host((bare, options.port)).await.map_err(failed)? {
        match listen_on(candidate) {
            Ok(listener) => return Ok(Listener::Tcp(listener)),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn listen_on(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket file that nobody listens on is left over from a crash.
fn remove_stale(path: &Path) {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

async fn accept_all(state: Arc<State>, listener: Listener, connections: Arc<Semaphore>) {
    let mut closed = pin!(state.stage.closed());
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = &mut closed => return,
            accepted = accept(&listener) => accepted,
        };
        match accepted {
            Ok(Stream::Tcp(stream)) => {
                // Without it the kernel may hold back a token's few bytes.
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(Arc::clone(&state), stream, permit));
            }
            Ok(Stream::Unix(stream)) => {
                tokio::spawn(serve(Arc::clone(&state), stream, permit));
            }
            Err(error) => {
                // Out of file descriptors, or the client went away: neither ends the loop.
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> std::io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
        Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
    }
}

/// Serves one connection to its end.
async fn serve<S>(state: Arc<State>, stream: S, _permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = {
        let state = Arc::clone(&state);
        service_fn(move |request| {
            let answer = routes::answer(Arc::clone(&state), request);
            async move { Ok::<_, Infallible>(answer.await) }
        })
    };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(state.options.keep_alive_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
    );
    // A connection that comes while the server stops is told so; only older ones are wound down.
    if state.stage.is_stopping() {
        let _ = connection.await;
        return;
    }
    // Errors of a connection are its client's; the answer that was due is dropped with it.
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = state.stage.stopping() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A line of throughput every ten seconds, while there is any.
async fn log_stats(state: Arc<State>) {
    let mut before = state.service.stats();
    let mut at = Instant::now();
    let mut was_busy = false;
    loop {
        tokio::select! {
            () = state.stage.closed() => return,
            () = tokio::time::sleep(STATS_INTERVAL) => {}
        }
        let stats = state.service.stats();
        let is_busy = stats.num_running + stats.num_waiting > 0
            || stats.generation_tokens_total != before.generation_tokens_total;
        if is_busy || was_busy {
            log_line(&before, &stats, at.elapsed());
        }
        (was_busy, before, at) = (is_busy, stats, Instant::now());
    }
}

fn log_line(before: &EngineStats, stats: &EngineStats, time: Duration) {
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / time.as_secs_f64();
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    tracing::info!(
        "prompt {:.1} tokens/s, generation {:.1} tokens/s, running {}, waiting {}, \
         KV cache {:.1}%, prefix cache hits {:.1}%",
        rate(stats.prompt_tokens_total, before.prompt_tokens_total),
        rate(stats.generation_tokens_total, before.generation_tokens_total),
        stats.num_running,
        stats.num_waiting,
        100.0 * stats.kv_usage(),
        share(stats.prefix_hits_tokens_total, stats.prefix_queries_tokens_total),
    );
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("service", &self.service).finish_non_exhaustive()
    }
}
