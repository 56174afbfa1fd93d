//! `pagedllm serve`: a model behind OpenAI's API until a signal comes.

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, Command};
use pagedllm::OPTIONS;
use pagedllm_server::{SERVER_OPTIONS, Server, ServerHandle, ServerOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::settings::Config;
use crate::{arguments, logging, open, settings};

/// After a second signal, what has not ended by then is left.
const IMPATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn command() -> Command {
    let command =
        Command::new("serve").about("Serve a model over HTTP with OpenAI's API").after_help(
            "Every option can also be set as PAGEDLLM_<OPTION> in the environment or in the \
             file of --config. The API key is also read from VLLM_API_KEY.",
        );
    arguments::with_options(arguments::with_model(command), "Server options", SERVER_OPTIONS)
}

pub(crate) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::open(matches)?;
    logging::start(matches, &config, "info")?;
    let known: Vec<&str> = OPTIONS
        .iter()
        .map(|spec| spec.name)
        .chain(SERVER_OPTIONS.iter().map(|spec| spec.name))
        .chain(["log-level"])
        .collect();
    config.check_names(&known)?;
    let options = settings::engine(matches, &config)?;
    let server = settings::server(matches, &config)?;
    check_address(&server)?;
    let llm = open::open(&options)?;
    let shutdown_timeout = server.shutdown_timeout;
    let warns = server.api_keys.is_empty() && !is_loopback(&server);
    let host = server.host.clone();
    let uds = server.uds.clone();
    // Before anybody is told that the server is there, and may end it.
    let signals = Signals::new()?;
    let handle = Server::start(llm, server)?;
    if warns {
        tracing::warn!("no API key is set and {host} is not loopback: anyone may use the model");
    }
    match (handle.local_addr(), uds) {
        (Some(address), _) => tracing::info!("listening on http://{address}"),
        (None, path) => tracing::info!("listening on {}", path.unwrap_or_default().display()),
    }
    signals.wait_for_the_end(handle, shutdown_timeout)
}

/// Finds a taken port before the model is loaded, which can take long.
fn check_address(options: &ServerOptions) -> anyhow::Result<()> {
    if options.uds.is_some() || options.port == 0 {
        return Ok(());
    }
    let host = if options.host.is_empty() { "0.0.0.0" } else { &options.host };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    TcpListener::bind((host, options.port))
        .map(drop)
        .with_context(|| format!("can't listen on {host}:{}", options.port))
}

fn is_loopback(options: &ServerOptions) -> bool {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    options.uds.is_some()
        || host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The signals that end the server, from when it was made.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (terminate, interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(entered);
        Ok(Self { runtime, terminate, interrupt })
    }

    /// SIGTERM or SIGINT drains; a second one ends at once.
    fn wait_for_the_end(self, handle: ServerHandle, timeout: Duration) -> anyhow::Result<()> {
        let Self { runtime, mut terminate, mut interrupt } = self;
        runtime.block_on(async {
            next_of(&mut terminate, &mut interrupt).await;
            tracing::info!("stopping: running requests have {timeout:?} to end");
            let handle = Arc::new(handle);
            let mut stopped = stop(&handle, timeout);
            tokio::select! {
                _ = &mut stopped => return Ok(()),
                () = next_of(&mut terminate, &mut interrupt) => {}
            }
            tracing::info!("stopping now");
            let at_once = stop(&handle, Duration::ZERO);
            let both = async { (stopped.await, at_once.await) };
            if tokio::time::timeout(IMPATIENCE, both).await.is_err() {
                anyhow::bail!("the engine did not stop within {IMPATIENCE:?}");
            }
            Ok(())
        })
    }
}

fn stop(handle: &Arc<ServerHandle>, timeout: Duration) -> tokio::task::JoinHandle<()> {
    let handle = Arc::clone(handle);
    tokio::task::spawn_blocking(move || handle.stop(timeout))
}

async fn next_of(first: &mut Signal, second: &mut Signal) {
    tokio::select! { _ = first.recv() => {}, _ = second.recv() => {} }
}
