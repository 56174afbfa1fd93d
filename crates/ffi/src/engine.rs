//! Opening an engine and asking it.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagedllm::{Llm, LoadProgress, Options};
use pagedllm_openai::{Caller as Client, Endpoint, HostPrompt, Service};
use pagedllm_server::ServerOptions;

use crate::caller::{Caller, Filled, invalid};
use crate::error::{Error, Failure};
use crate::handle::{self, Opaque};
use crate::log::{Log, LogCallback, as_callback};
use crate::options::Overlay;
use crate::panic::{guard, silence};
use crate::queue::{Queue, Ready};
use crate::signals::with_sigpipe_blocked;
use crate::status::{PAGEDLLM_INVALID_ARGUMENT, PAGEDLLM_LOAD_CANCELLED, PAGEDLLM_OK, Status};
use crate::stream::{self, Source, Stream};

/// A model that answers: usable from all threads at once.
pub struct Engine {
    _opaque: [u8; 0],
}

impl Opaque for Engine {
    type Object = EngineObject;
    const MAGIC: u32 = u32::from_le_bytes(*b"pEng");
}

/// What an engine's handle holds.
pub struct EngineObject {
    pub(crate) service: Service,
    /// Where a server of this engine begins.
    pub(crate) server_options: ServerOptions,
    pub(crate) log: Log,
}

impl EngineObject {
    pub(crate) fn llm(&self) -> &Llm {
        self.service.llm()
    }
}

impl Drop for EngineObject {
    fn drop(&mut self) {
        self.llm().shutdown(Duration::ZERO);
        self.log.close();
    }
}

/// Is told how many bytes of the weights are loaded, on the thread that opens the engine. Returns
/// 0 to go on; anything else cancels.
pub type ProgressCallback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, done_bytes: u64, total_bytes: u64) -> i32>;

/// What to open. All bytes that are not set must be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EngineOptions {
    /// sizeof(pagedllm_engine_options), as the caller compiled it.
    pub struct_size: usize,
    /// UTF-8 path of a GGUF file, or of a directory with config.json.
    pub model: *const c_char,
    /// Bytes of model.
    pub model_len: usize,
    /// JSON object of options, named as on the command line: {"max-num-seqs": 8}. May be NULL.
    pub options: *const c_char,
    /// Bytes of options.
    pub options_len: usize,
    /// Receives the engine's log; NULL drops it. Not called after pagedllm_engine_free returned.
    pub log: LogCallback,
    /// Passed to log as it is.
    pub log_data: *mut c_void,
    /// The finest level that is logged (PAGEDLLM_LOG_*); 0 is PAGEDLLM_LOG_INFO.
    pub log_level: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Is told how the load goes, and can cancel it; may be NULL.
    pub progress: ProgressCallback,
    /// Passed to progress as it is.
    pub progress_data: *mut c_void,
}

// SAFETY: repr(C), a usize first; NULL, 0 and no callback are zero bits.
unsafe impl Filled for EngineOptions {
    const FIRST_SIZE: usize = offset_of!(EngineOptions, log);
}

/// A request. All bytes that are not set must be 0. Exactly one of text, tokens and chat is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    /// sizeof(pagedllm_request), as the caller compiled it.
    pub struct_size: usize,
    /// A prompt as UTF-8.
    pub text: *const c_char,
    /// Bytes of text.
    pub text_len: usize,
    /// A prompt as token ids.
    pub tokens: *const u32,
    /// Number of tokens.
    pub tokens_len: usize,
    /// A conversation as JSON: a list of messages, or an object with "messages" and for example
    /// "tools".
    pub chat: *const c_char,
    /// Bytes of chat.
    pub chat_len: usize,
    /// Parameters as a JSON object, named as in OpenAI's API and vLLM's: {"max_tokens": 16,
    /// "temperature": 0}. Unknown ones are errors. May be NULL.
    pub params: *const c_char,
    /// Bytes of params.
    pub params_len: usize,
    /// Comes back in each event; any value.
    pub tag: u64,
    /// The request ends with PAGEDLLM_FINISH_DEADLINE after this time; 0 sets no limit.
    pub timeout_ms: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), a usize first, pointers and integers.
unsafe impl Filled for Request {
    const FIRST_SIZE: usize = offset_of!(Request, tag);
}

/// Endpoint: /v1/completions.
pub const PAGEDLLM_ENDPOINT_COMPLETIONS: u32 = 1;
/// Endpoint: /v1/chat/completions.
pub const PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS: u32 = 2;
/// Endpoint: /tokenize.
pub const PAGEDLLM_ENDPOINT_TOKENIZE: u32 = 3;
/// Endpoint: /detokenize.
pub const PAGEDLLM_ENDPOINT_DETOKENIZE: u32 = 4;

/// Opens an engine; blocks until the model is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_open(
    options: *const EngineOptions,
    out: *mut *mut Engine,
    error: *mut *const Error,
) -> Status {
    silence();
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let out = caller.out(out, "out")?;
        let given = caller.sized(options, "options")?;
        let model = caller.text(given.model, given.model_len, "model")?;
        let overlay = Overlay::parse(caller.text(given.options, given.options_len, "options")?)?;
        let log = Log::new(given.log, given.log_data, given.log_level);
        let dispatch = log.dispatch.clone();
        let engine = tracing::dispatcher::with_default(&dispatch, || {
            with_sigpipe_blocked(|| open(model, &overlay, &given, log))
        })?;
        out.set(handle::new::<Engine>(engine));
        Ok(PAGEDLLM_OK)
    })
}

fn open(
    model: &str,
    overlay: &Overlay,
    given: &EngineOptions,
    log: Log,
) -> Result<EngineObject, Failure> {
    let (mut options, mut server_options) = (Options::new(model), ServerOptions::default());
    overlay.apply(&mut options, &mut server_options)?;
    let llm = open_llm(&options, given)?;
    if server_options.service.served_model_names.is_empty() {
        server_options.service.served_model_names = llm.description().names();
    }
    let service = Service::new(llm, server_options.service.clone());
    Ok(EngineObject { service, server_options, log })
}

fn open_llm(options: &Options, given: &EngineOptions) -> Result<Llm, Failure> {
    #[cfg(feature = "test-executor")]
    if let Some(llm) = crate::test_executor::open(options)? {
        return Ok(llm);
    }
    let mut is_cancelled = false;
    let mut progress = |progress: LoadProgress| {
        is_cancelled |= !goes_on(given, progress);
        !is_cancelled
    };
    let opened = Llm::open(options, &mut progress);
    if is_cancelled {
        return Err(Failure::new(PAGEDLLM_LOAD_CANCELLED, "the load was cancelled"));
    }
    Ok(opened?)
}

fn goes_on(given: &EngineOptions, progress: LoadProgress) -> bool {
    let Some(callback) = given.progress else { return true };
    let LoadProgress { done_bytes, total_bytes } = progress;
    // SAFETY: the host gave this callback for this.
    as_callback(|| unsafe { callback(given.progress_data, done_bytes, total_bytes) }) == 0
}

/// Queues a request and hands out its stream. Never waits for the engine. With a queue (which may
/// be NULL) the events go there, tagged, and the stream serves to cancel and to free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_generate(
    engine: *const Engine,
    request: *const Request,
    queue: *const Queue,
    out: *mut *mut Stream,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        let out = caller.out(out, "out")?;
        let given = caller.sized(request, "request")?;
        let queue = ready(caller, queue)?;
        let params = caller.text(given.params, given.params_len, "params")?;
        let mut request = engine.service.host_request(&prompt(caller, &given)?, params)?;
        if given.timeout_ms > 0 {
            let limit = Duration::from_millis(given.timeout_ms.into());
            request.deadline = Instant::now().checked_add(limit);
        }
        let source = Source::Text(engine.llm().generate(request)?);
        out.set(stream::open(source, given.tag, queue));
        Ok(PAGEDLLM_OK)
    })
}

fn prompt<'c>(caller: &'c Caller, given: &Request) -> Result<HostPrompt<'c>, Failure> {
    match (given.text.is_null(), given.tokens.is_null(), given.chat.is_null()) {
        (false, true, true) => {
            caller.text(given.text, given.text_len, "text").map(HostPrompt::Text)
        }
        (true, false, true) => {
            caller.slice(given.tokens, given.tokens_len, "tokens").map(HostPrompt::TokenIds)
        }
        (true, true, false) => {
            caller.text(given.chat, given.chat_len, "chat").map(HostPrompt::Chat)
        }
        _ => Err(invalid("request", "must set exactly one of text, tokens and chat")),
    }
}

fn ready(caller: &Caller, queue: *const Queue) -> Result<Option<Arc<Ready>>, Failure> {
    if queue.is_null() {
        return Ok(None);
    }
    caller.enter(queue, "queue").map(|queue| Some(Arc::clone(&queue)))
}

/// Answers the body of an OpenAI request (PAGEDLLM_ENDPOINT_*) with the bytes that the server
/// would send, as events of kind PAGEDLLM_EVENT_JSON. Otherwise like pagedllm_generate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_complete(
    engine: *const Engine,
    endpoint: u32,
    body: *const c_char,
    body_len: usize,
    tag: u64,
    queue: *const Queue,
    out: *mut *mut Stream,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        let out = caller.out(out, "out")?;
        let queue = ready(caller, queue)?;
        let endpoint = match endpoint {
            PAGEDLLM_ENDPOINT_COMPLETIONS => Endpoint::Completions,
            PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS => Endpoint::ChatCompletions,
            PAGEDLLM_ENDPOINT_TOKENIZE => Endpoint::Tokenize,
            PAGEDLLM_ENDPOINT_DETOKENIZE => Endpoint::Detokenize,
            other => {
                let message = format!("endpoint {other} is unknown");
                return Err(Failure::new(PAGEDLLM_INVALID_ARGUMENT, message).about("endpoint"));
            }
        };
        let body = caller.text(body, body_len, "body")?;
        let answer = engine.service.complete(endpoint, body.as_bytes(), &Client::default())?;
        out.set(stream::open(answer.body.into(), tag, queue));
        Ok(PAGEDLLM_OK)
    })
}

/// Whether the engine takes requests: PAGEDLLM_OK, PAGEDLLM_SHUTTING_DOWN or
/// PAGEDLLM_ENGINE_FAILED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_health(
    engine: *const Engine,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        caller.enter(engine, "engine")?.llm().health()?;
        Ok(PAGEDLLM_OK)
    })
}

/// Takes no more requests, waits for timeout_ms at most until those that run have ended, and ends
/// the rest. Other calls go on meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_shutdown(
    engine: *const Engine,
    timeout_ms: u32,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        engine.llm().shutdown(Duration::from_millis(timeout_ms.into()));
        Ok(PAGEDLLM_OK)
    })
}

/// Shuts an engine down at once and frees it. Its requests end as cancelled; their streams can
/// still be read, and are freed on their own. NULL is fine. PAGEDLLM_BUSY while another call uses
/// the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_free(engine: *mut Engine) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(std::ptr::null_mut()) }, |_| handle::free(engine, "engine"))
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use pagedllm::{
        EngineConfig, Executor, ExecutorError, ExecutorShape, ModelDescription, Parts, StepTicket,
    };
    use pagedllm_core::{SamplingBatch, StepInput, StepOutput};
    use pagedllm_sim::options::shape;

    use super::*;
    use crate::event::{
        Event, PAGEDLLM_EVENT_FINISHED, PAGEDLLM_FINISH_FAULT, pagedllm_event_free,
    };
    use crate::status::{PAGEDLLM_END, PAGEDLLM_ENGINE_FAILED};
    use crate::stream::{PAGEDLLM_FOREVER, pagedllm_stream_free, pagedllm_stream_next};

    struct Panics(ExecutorShape);

    impl Executor for Panics {
        fn shape(&self) -> &ExecutorShape {
            &self.0
        }
        fn submit(&mut self, _: StepInput) -> StepTicket {
            StepTicket(0)
        }
        fn sample(&mut self, _: &StepTicket, _: SamplingBatch) {}
        fn wait(&mut self, _: StepTicket) -> Result<StepOutput, ExecutorError> {
            panic!("a bug")
        }
    }

    fn opened() -> *mut Engine {
        silence();
        let llm = Llm::from_parts(Parts {
            executor: Box::new(Panics(shape(&[None], 16, 64, 100))),
            tokenizer: None,
            chat_template: None,
            isolate_special_tokens: false,
            engine: EngineConfig::default(),
            description: ModelDescription::unnamed(Vec::new()),
        });
        let server_options = ServerOptions::default();
        let service = Service::new(llm, server_options.service.clone());
        handle::new::<Engine>(EngineObject {
            service,
            server_options,
            log: Log::new(None, null_mut(), 0),
        })
    }

    // C01.
    #[test]
    fn a_panic_of_the_engines_thread_is_a_fault() {
        let engine = opened();
        // SAFETY: all bits zero is a value, see `Filled`.
        let mut request: Request = unsafe { std::mem::zeroed() };
        let prompt = [1u32, 2, 3];
        request.struct_size = size_of::<Request>();
        (request.tokens, request.tokens_len) = (prompt.as_ptr(), prompt.len());
        let mut stream = null_mut();
        let mut event: *const Event = std::ptr::null();
        // SAFETY: all pointers are valid, and each handle and event is freed once.
        unsafe {
            let (ready, none) = (std::ptr::null(), null_mut());
            let status =
                pagedllm_generate(engine, &raw const request, ready, &raw mut stream, none);
            assert_eq!(status, PAGEDLLM_OK);
            let next = |event: &mut *const Event| {
                pagedllm_stream_next(stream, PAGEDLLM_FOREVER, event, null_mut())
            };
            assert_eq!(next(&mut event), PAGEDLLM_OK);
            assert_eq!((*event).kind, PAGEDLLM_EVENT_FINISHED);
            assert_eq!((*event).finish_reason, PAGEDLLM_FINISH_FAULT);
            pagedllm_event_free(event);
            assert_eq!(next(&mut event), PAGEDLLM_END);
            assert_eq!(pagedllm_engine_health(engine, null_mut()), PAGEDLLM_ENGINE_FAILED);
            assert_eq!(pagedllm_stream_free(stream), PAGEDLLM_OK);
            assert_eq!(pagedllm_engine_free(engine), PAGEDLLM_OK);
        }
    }
}
