//! The HTTP server inside of the host.

use std::ffi::c_char;
use std::time::Duration;

use pagedllm_server::{Server as HttpServer, ServerHandle};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::{Error, Failure};
use crate::handle::{self, Opaque};
use crate::options::Overlay;
use crate::panic::guard;
use crate::signals::with_sigpipe_blocked;
use crate::status::{PAGEDLLM_OK, Status};
use crate::text::{Text, text_record};

/// An HTTP server over one engine.
pub struct Server {
    _opaque: [u8; 0],
}

impl Opaque for Server {
    type Object = ServerHandle;
    const MAGIC: u32 = u32::from_le_bytes(*b"pSrv");
}

/// Serves the engine over HTTP with OpenAI's API, on threads of the library. The options are a
/// JSON object, named as on the command line ({"host": "127.0.0.1", "port": 0}); NULL takes those
/// that the engine was opened with. No signal handler is set: the host decides when to stop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_server_start(
    engine: *const Engine,
    options: *const c_char,
    options_len: usize,
    out: *mut *mut Server,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        let out = caller.out(out, "out")?;
        let overlay = Overlay::parse(caller.text(options, options_len, "options")?)?;
        let server = tracing::dispatcher::with_default(&engine.log.dispatch, || {
            let mut options = engine.server_options.clone();
            overlay.apply_to_server(&mut options)?;
            let llm = engine.llm().clone();
            Ok::<_, Failure>(with_sigpipe_blocked(|| HttpServer::start(llm, options))?)
        })?;
        out.set(handle::new::<Server>(server));
        Ok(PAGEDLLM_OK)
    })
}

/// Where the server listens, as host:port; empty on a unix socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_server_address(
    server: *const Server,
    out: *mut *const Text,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let server = caller.enter(server, "server")?;
        let out = caller.out(out, "out")?;
        out.set(text_record(server.local_addr().map_or_else(String::new, |at| at.to_string())));
        Ok(PAGEDLLM_OK)
    })
}

/// Accepts no more connections and waits for timeout_ms at most until those there are have
/// closed. The engine runs on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_server_stop(
    server: *const Server,
    timeout_ms: u32,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        caller.enter(server, "server")?.close(Duration::from_millis(timeout_ms.into()));
        Ok(PAGEDLLM_OK)
    })
}

/// Stops a server at once and frees it; connections that are left are cut. NULL is fine.
/// PAGEDLLM_BUSY while another call uses the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_server_free(server: *mut Server) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(std::ptr::null_mut()) }, |_| handle::free(server, "server"))
}
