//! The C interface of pagedllm as Zig declarations. Generated from include/pagedllm.abi.json by
//! `cargo xtask abi`; docs/c-api.md is its contract.

const std = @import("std");

/// First number of the version of this interface: it changes when old callers would break.
pub const PAGEDLLM_ABI_MAJOR: u32 = 1;

/// Second number of the version of this interface: it grows when something is added.
pub const PAGEDLLM_ABI_MINOR: u32 = 1;

/// A timeout that never passes.
pub const PAGEDLLM_FOREVER: u32 = 4294967295;

/// Result of a call: one of the PAGEDLLM_* codes below. Zero is success, 1 to 15 are no failures
/// and come without an error object, anything from 16 on is a failure. New codes may appear.
pub const pagedllm_status = i32;

/// Endpoint: /v1/completions.
pub const PAGEDLLM_ENDPOINT_COMPLETIONS: u32 = 1;
/// Endpoint: /v1/chat/completions.
pub const PAGEDLLM_ENDPOINT_CHAT_COMPLETIONS: u32 = 2;
/// Endpoint: /tokenize.
pub const PAGEDLLM_ENDPOINT_TOKENIZE: u32 = 3;
/// Endpoint: /detokenize.
pub const PAGEDLLM_ENDPOINT_DETOKENIZE: u32 = 4;

/// Event: new text, new tokens, or both, of one choice.
pub const PAGEDLLM_EVENT_TEXT: u32 = 1;
/// Event: a choice ended. finish_reason says why, output_tokens counts the choice's tokens.
pub const PAGEDLLM_EVENT_FINISHED: u32 = 2;
/// Event: the prompt was computed; tokens, logprobs and alternatives are those of the prompt.
pub const PAGEDLLM_EVENT_PROMPT: u32 = 3;
/// Event: text is a piece of JSON that an OpenAI client would get: the whole answer, or with
/// "stream": true one chunk, and "[DONE]" last.
pub const PAGEDLLM_EVENT_JSON: u32 = 4;
/// Event: an OpenAI answer failed; status says why, text is the JSON that a client would get.
pub const PAGEDLLM_EVENT_FAILED: u32 = 5;
/// Event, of completion queues only: the stream has ended. The counts are the whole request's.
pub const PAGEDLLM_EVENT_END: u32 = 6;

/// Finish reason: the choice has not finished.
pub const PAGEDLLM_FINISH_NONE: u32 = 0;
/// Finish reason: max_tokens or the context is used up.
pub const PAGEDLLM_FINISH_LENGTH: u32 = 1;
/// Finish reason: an end-of-sequence or stop token; stop is its id.
pub const PAGEDLLM_FINISH_STOP_TOKEN: u32 = 2;
/// Finish reason: a stop string; stop is its index in the request.
pub const PAGEDLLM_FINISH_STOP_STRING: u32 = 3;
/// Finish reason: cancelled.
pub const PAGEDLLM_FINISH_CANCELLED: u32 = 4;
/// Finish reason: the request's time was up.
pub const PAGEDLLM_FINISH_DEADLINE: u32 = 5;
/// Finish reason: a fault of this request or of the device; text says which.
pub const PAGEDLLM_FINISH_FAULT: u32 = 6;

/// Log level: something failed.
pub const PAGEDLLM_LOG_ERROR: u32 = 1;
/// Log level: something is odd.
pub const PAGEDLLM_LOG_WARN: u32 = 2;
/// Log level: what an operator wants to know.
pub const PAGEDLLM_LOG_INFO: u32 = 3;
/// Log level: what a developer wants to know.
pub const PAGEDLLM_LOG_DEBUG: u32 = 4;
/// Log level: everything.
pub const PAGEDLLM_LOG_TRACE: u32 = 5;

/// Metrics as Prometheus' text format.
pub const PAGEDLLM_METRICS_PROMETHEUS: u32 = 1;
/// Metrics as a JSON object of the most used counters.
pub const PAGEDLLM_METRICS_JSON: u32 = 2;

/// Done.
pub const PAGEDLLM_OK: pagedllm_status = 0;
/// Nothing happened in the time given.
pub const PAGEDLLM_TIMED_OUT: pagedllm_status = 1;
/// The stream has ended and everything of it was read.
pub const PAGEDLLM_END: pagedllm_status = 2;
/// pagedllm_queue_interrupt was called.
pub const PAGEDLLM_INTERRUPTED: pagedllm_status = 3;
/// A pointer that must not be NULL is NULL, or an argument has no meaning.
pub const PAGEDLLM_INVALID_ARGUMENT: pagedllm_status = 16;
/// A pointer is no handle of the kind asked for, or its handle was freed.
pub const PAGEDLLM_INVALID_HANDLE: pagedllm_status = 17;
/// struct_size is smaller than the first version of the struct, or says that fields are set
/// which this library does not know.
pub const PAGEDLLM_INVALID_STRUCT_SIZE: pagedllm_status = 18;
/// A text is not UTF-8.
pub const PAGEDLLM_INVALID_UTF8: pagedllm_status = 19;
/// An option is unknown or its value is wrong; the error's param names it.
pub const PAGEDLLM_INVALID_OPTION: pagedllm_status = 20;
/// A request is wrong; the error's param names the field.
pub const PAGEDLLM_INVALID_REQUEST: pagedllm_status = 21;
/// Prompt and output do not fit the context.
pub const PAGEDLLM_CONTEXT_LENGTH: pagedllm_status = 22;
/// The request names a model that is not served.
pub const PAGEDLLM_MODEL_NOT_FOUND: pagedllm_status = 23;
/// The model could not be opened.
pub const PAGEDLLM_MODEL_ERROR: pagedllm_status = 24;
/// The progress callback cancelled the load.
pub const PAGEDLLM_LOAD_CANCELLED: pagedllm_status = 25;
/// The queue of requests is full; the error's retry_after_ms says when a place is likely.
pub const PAGEDLLM_QUEUE_FULL: pagedllm_status = 26;
/// The engine takes no more requests.
pub const PAGEDLLM_SHUTTING_DOWN: pagedllm_status = 27;
/// The engine failed and must be opened again.
pub const PAGEDLLM_ENGINE_FAILED: pagedllm_status = 28;
/// The handle is in use by another call, or a callback tried to free something.
pub const PAGEDLLM_BUSY: pagedllm_status = 29;
/// The handle was made before fork, by the parent.
pub const PAGEDLLM_USED_AFTER_FORK: pagedllm_status = 30;
/// The server can't listen there.
pub const PAGEDLLM_LISTEN_FAILED: pagedllm_status = 31;
/// The system has no threads, memory or file descriptors left.
pub const PAGEDLLM_OUT_OF_RESOURCES: pagedllm_status = 32;
/// The answer was cancelled before its end.
pub const PAGEDLLM_CANCELLED: pagedllm_status = 33;
/// The request's time was up before the answer ended.
pub const PAGEDLLM_DEADLINE: pagedllm_status = 34;
/// This build or platform can't do that.
pub const PAGEDLLM_UNSUPPORTED: pagedllm_status = 35;
/// A fault of this library; please report it.
pub const PAGEDLLM_INTERNAL: pagedllm_status = 36;

/// A model that answers: usable from all threads at once.
pub const pagedllm_engine = opaque {};

/// A completion queue: events of all streams that were made with it.
pub const pagedllm_queue = opaque {};

/// An HTTP server over one engine.
pub const pagedllm_server = opaque {};

/// The answer to one request.
pub const pagedllm_stream = opaque {};

/// Receives a line of the log: a level (PAGEDLLM_LOG_*), the part that speaks, and the line. The
/// texts are UTF-8 without NUL at their ends and live during the call. It may run on any thread,
/// on several at once, and must neither free a handle nor throw.
pub const pagedllm_log_callback = ?*const fn (user_data: ?*anyopaque, level: u32, target: [*c]const u8, target_len: usize, message: [*c]const u8, message_len: usize) callconv(.c) void;

/// Is told how many bytes of the weights are loaded, on the thread that opens the engine. Returns
/// 0 to go on; anything else cancels.
pub const pagedllm_progress_callback = ?*const fn (user_data: ?*anyopaque, done_bytes: u64, total_bytes: u64) callconv(.c) i32;

/// What to open. All bytes that are not set must be 0.
pub const pagedllm_engine_options = extern struct {
    /// sizeof(pagedllm_engine_options), as the caller compiled it.
    struct_size: usize = @sizeOf(pagedllm_engine_options),
    /// UTF-8 path of a GGUF file, or of a directory with config.json.
    model: [*c]const u8 = null,
    /// Bytes of model.
    model_len: usize = 0,
    /// JSON object of options, named as on the command line: {"max-num-seqs": 8}. May be NULL.
    options: [*c]const u8 = null,
    /// Bytes of options.
    options_len: usize = 0,
    /// Receives the engine's log; NULL drops it. Not called after pagedllm_engine_free returned.
    log: pagedllm_log_callback = null,
    /// Passed to log as it is.
    log_data: ?*anyopaque = null,
    /// The finest level that is logged (PAGEDLLM_LOG_*); 0 is PAGEDLLM_LOG_INFO.
    log_level: u32 = 0,
    /// Must be 0.
    reserved: u32 = 0,
    /// Is told how the load goes, and can cancel it; may be NULL.
    progress: pagedllm_progress_callback = null,
    /// Passed to progress as it is.
    progress_data: ?*anyopaque = null,
};

/// Why a call failed. Made by the library, freed with pagedllm_error_free. Both texts end with a
/// NUL that their lengths do not count.
pub const pagedllm_error = extern struct {
    /// Size of this struct in the library; fields may be added at its end.
    struct_size: usize = @sizeOf(pagedllm_error),
    /// The status that the call returned.
    status: pagedllm_status = 0,
    /// When trying again makes sense, in milliseconds; 0 if that is unknown.
    retry_after_ms: u32 = 0,
    /// What is wrong and what would be right.
    message: [*c]const u8 = null,
    /// Bytes of message.
    message_len: usize = 0,
    /// The option, field or argument to blame; empty where there is none.
    param: [*c]const u8 = null,
    /// Bytes of param.
    param_len: usize = 0,
};

/// A request. All bytes that are not set must be 0. Exactly one of text, tokens and chat is set.
pub const pagedllm_request = extern struct {
    /// sizeof(pagedllm_request), as the caller compiled it.
    struct_size: usize = @sizeOf(pagedllm_request),
    /// A prompt as UTF-8.
    text: [*c]const u8 = null,
    /// Bytes of text.
    text_len: usize = 0,
    /// A prompt as token ids.
    tokens: [*c]const u32 = null,
    /// Number of tokens.
    tokens_len: usize = 0,
    /// A conversation as JSON: a list of messages, or an object with "messages" and for example
    /// "tools".
    chat: [*c]const u8 = null,
    /// Bytes of chat.
    chat_len: usize = 0,
    /// Parameters as a JSON object, named as in OpenAI's API and vLLM's: {"max_tokens": 16,
    /// "temperature": 0}. Unknown ones are errors. May be NULL.
    params: [*c]const u8 = null,
    /// Bytes of params.
    params_len: usize = 0,
    /// Comes back in each event; any value.
    tag: u64 = 0,
    /// The request ends with PAGEDLLM_FINISH_DEADLINE after this time; 0 sets no limit.
    timeout_ms: u32 = 0,
    /// Must be 0.
    reserved: u32 = 0,
};

/// A token and the natural logarithm of its probability.
pub const pagedllm_logprob = extern struct {
    /// The token.
    token: u32 = 0,
    /// Finite or negative infinity.
    logprob: f32 = 0,
};

/// Something that happened to a request. Made by the library, freed with pagedllm_event_free;
/// everything in it lives until then.
pub const pagedllm_event = extern struct {
    /// Size of this struct in the library; fields may be added at its end.
    struct_size: usize = @sizeOf(pagedllm_event),
    /// The request's tag.
    tag: u64 = 0,
    /// PAGEDLLM_EVENT_*; kinds that a caller does not know are to be skipped.
    kind: u32 = 0,
    /// Number of the choice, from 0 up to n.
    choice: u32 = 0,
    /// PAGEDLLM_FINISH_*.
    finish_reason: u32 = 0,
    /// Status of a failed answer, else PAGEDLLM_OK.
    status: pagedllm_status = 0,
    /// Text to append; never ends inside of a character, and a NUL follows it.
    text: [*c]const u8 = null,
    /// Bytes of text.
    text_len: usize = 0,
    /// The tokens of this event.
    tokens: [*c]const u32 = null,
    /// Number of tokens.
    tokens_len: usize = 0,
    /// Log-probability of each token (NaN where there is none), or NULL where not asked for.
    logprobs: [*c]const f32 = null,
    /// The most likely tokens at each place, best first, or NULL where not asked for: those of
    /// token i are alternatives[alternatives_ends[i - 1] .. alternatives_ends[i]].
    alternatives: [*c]const pagedllm_logprob = null,
    /// See alternatives; tokens_len entries.
    alternatives_ends: [*c]const usize = null,
    /// The stop token or the index of the stop string, else -1.
    stop: i64 = 0,
    /// Tokens of the prompt.
    prompt_tokens: u64 = 0,
    /// Of these, found in the prefix cache; known at the end.
    cached_tokens: u64 = 0,
    /// Tokens generated.
    output_tokens: u64 = 0,
    /// Sum of the log-probabilities of a finished choice, or NaN.
    cumulative_logprob: f64 = 0,
};

/// A text that the library made, freed with pagedllm_text_free. A NUL follows its bytes.
pub const pagedllm_text = extern struct {
    /// UTF-8.
    data: [*c]const u8 = null,
    /// Bytes of data.
    len: usize = 0,
};

/// Token ids that the library made, freed with pagedllm_tokens_free.
pub const pagedllm_tokens = extern struct {
    /// The ids.
    data: [*c]const u32 = null,
    /// How many.
    len: usize = 0,
};

/// How far a load is, for pagedllm_progress_to_memory. All bytes are 0 at first.
pub const pagedllm_load_state = extern struct {
    /// Bytes of the weights that are loaded.
    done_bytes: u64 = 0,
    /// Bytes of the weights; 0 until that is known.
    total_bytes: u64 = 0,
    /// The host sets it to 1 to cancel.
    cancel: u32 = 0,
    /// Must be 0.
    reserved: u32 = 0,
};

/// Writes the version of the interface that this library has. A program compiled with the header
/// of version (major, minor) works with a library of the same major and at least its minor.
/// Either pointer may be NULL.
pub extern fn pagedllm_abi_version(major: [*c]u32, minor: [*c]u32) void;

/// Name of a status code, such as "PAGEDLLM_QUEUE_FULL". The text ends with NUL and lives for
/// ever; unknown codes are "PAGEDLLM_UNKNOWN".
pub extern fn pagedllm_status_name(status: pagedllm_status) [*c]const u8;

/// A pagedllm_log_callback that writes each line to a file descriptor, as
/// {"level":"info","target":"pagedllm","message":"..."} and a newline, 4096 bytes at most. log_data
/// is the descriptor's number, cast to a pointer. It stays the caller's, and open until
/// pagedllm_engine_free returned. A line that a socket or a pipe that does not block has no room
/// for is dropped.
pub extern fn pagedllm_log_to_fd(user_data: ?*anyopaque, level: u32, target: [*c]const u8, target_len: usize, message: [*c]const u8, message_len: usize) void;

/// A pagedllm_progress_callback that keeps a pagedllm_load_state up to date, which
/// progress_data points to. The host looks at it from another thread and may cancel.
pub extern fn pagedllm_progress_to_memory(user_data: ?*anyopaque, done_bytes: u64, total_bytes: u64) i32;

/// Opens an engine; blocks until the model is loaded.
pub extern fn pagedllm_engine_open(options: [*c]const pagedllm_engine_options, out: [*c]?*pagedllm_engine, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Queues a request and hands out its stream. Never waits for the engine. With a queue (which may
/// be NULL) the events go there, tagged, and the stream serves to cancel and to free.
pub extern fn pagedllm_generate(engine: ?*const pagedllm_engine, request: [*c]const pagedllm_request, queue: ?*const pagedllm_queue, out: [*c]?*pagedllm_stream, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Answers the body of an OpenAI request (PAGEDLLM_ENDPOINT_*) with the bytes that the server
/// would send, as events of kind PAGEDLLM_EVENT_JSON. Otherwise like pagedllm_generate.
pub extern fn pagedllm_complete(engine: ?*const pagedllm_engine, endpoint: u32, body: [*c]const u8, body_len: usize, tag: u64, queue: ?*const pagedllm_queue, out: [*c]?*pagedllm_stream, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Whether the engine takes requests: PAGEDLLM_OK, PAGEDLLM_SHUTTING_DOWN or
/// PAGEDLLM_ENGINE_FAILED.
pub extern fn pagedllm_engine_health(engine: ?*const pagedllm_engine, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Takes no more requests, waits for timeout_ms at most until those that run have ended, and ends
/// the rest. Other calls go on meanwhile.
pub extern fn pagedllm_engine_shutdown(engine: ?*const pagedllm_engine, timeout_ms: u32, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Shuts an engine down at once and frees it. Its requests end as cancelled; their streams can
/// still be read, and are freed on their own. NULL is fine. PAGEDLLM_BUSY while another call uses
/// the engine.
pub extern fn pagedllm_engine_free(engine: ?*pagedllm_engine) pagedllm_status;

/// Frees an error. NULL is fine.
pub extern fn pagedllm_error_free(@"error": [*c]const pagedllm_error) void;

/// Frees an event. NULL is fine.
pub extern fn pagedllm_event_free(event: [*c]const pagedllm_event) void;

/// Makes a completion queue.
pub extern fn pagedllm_queue_new(out: [*c]?*pagedllm_queue, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Waits until there are events, for timeout_ms at most (PAGEDLLM_FOREVER waits without limit),
/// and writes up to `capacity` of them to `events` and their number to `count`. Each is freed
/// with pagedllm_event_free. The events of one stream come in their order if one thread polls.
/// Returns PAGEDLLM_OK with one event or more, PAGEDLLM_TIMED_OUT or PAGEDLLM_INTERRUPTED.
pub extern fn pagedllm_queue_poll(queue: ?*const pagedllm_queue, timeout_ms: u32, events: [*c][*c]const pagedllm_event, capacity: usize, count: [*c]usize, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Makes one poll that waits, or else the next one that finds nothing, return
/// PAGEDLLM_INTERRUPTED.
pub extern fn pagedllm_queue_interrupt(queue: ?*const pagedllm_queue, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// The file descriptor of a queue, for poll, epoll and the like: readable while a poll would not
/// wait. It stays the queue's: not to be read, written or closed.
pub extern fn pagedllm_queue_fd(queue: ?*const pagedllm_queue, out: [*c]c_int, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Frees a queue; its streams live on, and nobody reads them any more. NULL is fine.
/// PAGEDLLM_BUSY while another thread polls.
pub extern fn pagedllm_queue_free(queue: ?*pagedllm_queue) pagedllm_status;

/// Serves the engine over HTTP with OpenAI's API, on threads of the library. The options are a
/// JSON object, named as on the command line ({"host": "127.0.0.1", "port": 0}); NULL takes those
/// that the engine was opened with. No signal handler is set: the host decides when to stop.
pub extern fn pagedllm_server_start(engine: ?*const pagedllm_engine, options: [*c]const u8, options_len: usize, out: [*c]?*pagedllm_server, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Where the server listens, as host:port; empty on a unix socket.
pub extern fn pagedllm_server_address(server: ?*const pagedllm_server, out: [*c][*c]const pagedllm_text, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Accepts no more connections and waits for timeout_ms at most until those there are have
/// closed. The engine runs on.
pub extern fn pagedllm_server_stop(server: ?*const pagedllm_server, timeout_ms: u32, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Stops a server at once and frees it; connections that are left are cut. NULL is fine.
/// PAGEDLLM_BUSY while another call uses the server.
pub extern fn pagedllm_server_free(server: ?*pagedllm_server) pagedllm_status;

/// Waits for the next event, for timeout_ms at most (0 does not wait, PAGEDLLM_FOREVER waits
/// without limit). The event is freed with pagedllm_event_free. Returns PAGEDLLM_OK with an
/// event, PAGEDLLM_TIMED_OUT, or PAGEDLLM_END after the last. Several threads may wait; each
/// event goes to one of them. Not for streams of a completion queue.
pub extern fn pagedllm_stream_next(stream: ?*const pagedllm_stream, timeout_ms: u32, out: [*c][*c]const pagedllm_event, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Ends the request soon. Its choices finish with PAGEDLLM_FINISH_CANCELLED; an OpenAI answer
/// just ends. Events that came before can still be read. Cancelling twice, or after the end, does
/// nothing.
pub extern fn pagedllm_stream_cancel(stream: ?*const pagedllm_stream, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Frees a stream and cancels what has not ended. NULL is fine. PAGEDLLM_BUSY while another
/// thread waits in pagedllm_stream_next: cancel first, and free when that has returned.
pub extern fn pagedllm_stream_free(stream: ?*pagedllm_stream) pagedllm_status;

/// Frees a text. NULL is fine.
pub extern fn pagedllm_text_free(text: [*c]const pagedllm_text) void;

/// Frees token ids. NULL is fine.
pub extern fn pagedllm_tokens_free(tokens: [*c]const pagedllm_tokens) void;

/// Token ids of a text. add_special_tokens other than 0 adds what the model wants before a
/// prompt.
pub extern fn pagedllm_tokenize(engine: ?*const pagedllm_engine, text: [*c]const u8, text_len: usize, add_special_tokens: u32, out: [*c][*c]const pagedllm_tokens, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Text of token ids. skip_special_tokens other than 0 leaves out the model's markers.
pub extern fn pagedllm_detokenize(engine: ?*const pagedllm_engine, tokens: [*c]const u32, tokens_len: usize, skip_special_tokens: u32, out: [*c][*c]const pagedllm_text, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// The prompt of a conversation (JSON, as in pagedllm_request), as the model's template writes it.
pub extern fn pagedllm_render_chat(engine: ?*const pagedllm_engine, chat: [*c]const u8, chat_len: usize, out: [*c][*c]const pagedllm_text, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// What was loaded, as a JSON object; names may be added to it.
pub extern fn pagedllm_engine_info(engine: ?*const pagedllm_engine, out: [*c][*c]const pagedllm_text, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

/// Counters of the engine at this moment, in a format (PAGEDLLM_METRICS_*).
pub extern fn pagedllm_engine_metrics(engine: ?*const pagedllm_engine, format: u32, out: [*c][*c]const pagedllm_text, @"error": [*c][*c]const pagedllm_error) pagedllm_status;

comptime {
    if (@sizeOf(usize) == 8) {
        std.debug.assert(@sizeOf(pagedllm_engine_options) == 80);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "struct_size") == 0);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "model") == 8);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "model_len") == 16);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "options") == 24);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "options_len") == 32);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "log") == 40);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "log_data") == 48);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "log_level") == 56);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "reserved") == 60);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "progress") == 64);
        std.debug.assert(@offsetOf(pagedllm_engine_options, "progress_data") == 72);
        std.debug.assert(@sizeOf(pagedllm_error) == 48);
        std.debug.assert(@offsetOf(pagedllm_error, "struct_size") == 0);
        std.debug.assert(@offsetOf(pagedllm_error, "status") == 8);
        std.debug.assert(@offsetOf(pagedllm_error, "retry_after_ms") == 12);
        std.debug.assert(@offsetOf(pagedllm_error, "message") == 16);
        std.debug.assert(@offsetOf(pagedllm_error, "message_len") == 24);
        std.debug.assert(@offsetOf(pagedllm_error, "param") == 32);
        std.debug.assert(@offsetOf(pagedllm_error, "param_len") == 40);
        std.debug.assert(@sizeOf(pagedllm_request) == 88);
        std.debug.assert(@offsetOf(pagedllm_request, "struct_size") == 0);
        std.debug.assert(@offsetOf(pagedllm_request, "text") == 8);
        std.debug.assert(@offsetOf(pagedllm_request, "text_len") == 16);
        std.debug.assert(@offsetOf(pagedllm_request, "tokens") == 24);
        std.debug.assert(@offsetOf(pagedllm_request, "tokens_len") == 32);
        std.debug.assert(@offsetOf(pagedllm_request, "chat") == 40);
        std.debug.assert(@offsetOf(pagedllm_request, "chat_len") == 48);
        std.debug.assert(@offsetOf(pagedllm_request, "params") == 56);
        std.debug.assert(@offsetOf(pagedllm_request, "params_len") == 64);
        std.debug.assert(@offsetOf(pagedllm_request, "tag") == 72);
        std.debug.assert(@offsetOf(pagedllm_request, "timeout_ms") == 80);
        std.debug.assert(@offsetOf(pagedllm_request, "reserved") == 84);
        std.debug.assert(@sizeOf(pagedllm_logprob) == 8);
        std.debug.assert(@offsetOf(pagedllm_logprob, "token") == 0);
        std.debug.assert(@offsetOf(pagedllm_logprob, "logprob") == 4);
        std.debug.assert(@sizeOf(pagedllm_event) == 128);
        std.debug.assert(@offsetOf(pagedllm_event, "struct_size") == 0);
        std.debug.assert(@offsetOf(pagedllm_event, "tag") == 8);
        std.debug.assert(@offsetOf(pagedllm_event, "kind") == 16);
        std.debug.assert(@offsetOf(pagedllm_event, "choice") == 20);
        std.debug.assert(@offsetOf(pagedllm_event, "finish_reason") == 24);
        std.debug.assert(@offsetOf(pagedllm_event, "status") == 28);
        std.debug.assert(@offsetOf(pagedllm_event, "text") == 32);
        std.debug.assert(@offsetOf(pagedllm_event, "text_len") == 40);
        std.debug.assert(@offsetOf(pagedllm_event, "tokens") == 48);
        std.debug.assert(@offsetOf(pagedllm_event, "tokens_len") == 56);
        std.debug.assert(@offsetOf(pagedllm_event, "logprobs") == 64);
        std.debug.assert(@offsetOf(pagedllm_event, "alternatives") == 72);
        std.debug.assert(@offsetOf(pagedllm_event, "alternatives_ends") == 80);
        std.debug.assert(@offsetOf(pagedllm_event, "stop") == 88);
        std.debug.assert(@offsetOf(pagedllm_event, "prompt_tokens") == 96);
        std.debug.assert(@offsetOf(pagedllm_event, "cached_tokens") == 104);
        std.debug.assert(@offsetOf(pagedllm_event, "output_tokens") == 112);
        std.debug.assert(@offsetOf(pagedllm_event, "cumulative_logprob") == 120);
        std.debug.assert(@sizeOf(pagedllm_text) == 16);
        std.debug.assert(@offsetOf(pagedllm_text, "data") == 0);
        std.debug.assert(@offsetOf(pagedllm_text, "len") == 8);
        std.debug.assert(@sizeOf(pagedllm_tokens) == 16);
        std.debug.assert(@offsetOf(pagedllm_tokens, "data") == 0);
        std.debug.assert(@offsetOf(pagedllm_tokens, "len") == 8);
        std.debug.assert(@sizeOf(pagedllm_load_state) == 24);
        std.debug.assert(@offsetOf(pagedllm_load_state, "done_bytes") == 0);
        std.debug.assert(@offsetOf(pagedllm_load_state, "total_bytes") == 8);
        std.debug.assert(@offsetOf(pagedllm_load_state, "cancel") == 16);
        std.debug.assert(@offsetOf(pagedllm_load_state, "reserved") == 20);
    }
}
