'use strict';

// The C library through koffi: structs, calls and errors, and nothing else. The library is that
// of PAGEDLLM_LIBRARY, or the one beside this file, or the system's.

const fs = require('node:fs');
const path = require('node:path');
const koffi = require('koffi');

const ABI_MAJOR = 1;
const beside = path.join(__dirname, 'libpagedllm.so');
const library = koffi.load(
  process.env.PAGEDLLM_LIBRARY || (fs.existsSync(beside) ? beside : `libpagedllm.so.${ABI_MAJOR}`),
);

const STATUS = Object.freeze({
  OK: 0, TIMED_OUT: 1, END: 2, INTERRUPTED: 3, INVALID_ARGUMENT: 16, INVALID_HANDLE: 17,
  INVALID_STRUCT_SIZE: 18, INVALID_UTF8: 19, INVALID_OPTION: 20, INVALID_REQUEST: 21,
  CONTEXT_LENGTH: 22, MODEL_NOT_FOUND: 23, MODEL_ERROR: 24, LOAD_CANCELLED: 25, QUEUE_FULL: 26,
  SHUTTING_DOWN: 27, ENGINE_FAILED: 28, BUSY: 29, USED_AFTER_FORK: 30, LISTEN_FAILED: 31,
  OUT_OF_RESOURCES: 32, CANCELLED: 33, DEADLINE: 34, UNSUPPORTED: 35, INTERNAL: 36,
});

const ErrorStruct = koffi.struct({
  struct_size: 'size_t', status: 'int32_t', retry_after_ms: 'uint32_t',
  message: 'void *', message_len: 'size_t', param: 'void *', param_len: 'size_t',
});
const EngineOptions = koffi.struct('pagedllm_engine_options', {
  struct_size: 'size_t', model: 'void *', model_len: 'size_t', options: 'void *',
  options_len: 'size_t', log: 'void *', log_data: 'void *', log_level: 'uint32_t',
  reserved: 'uint32_t', progress: 'void *', progress_data: 'void *',
});
const Request = koffi.struct('pagedllm_request', {
  struct_size: 'size_t', text: 'void *', text_len: 'size_t', tokens: 'void *',
  tokens_len: 'size_t', chat: 'void *', chat_len: 'size_t', params: 'void *',
  params_len: 'size_t', tag: 'uint64_t', timeout_ms: 'uint32_t', reserved: 'uint32_t',
});
const Event = koffi.struct({
  struct_size: 'size_t', tag: 'uint64_t', kind: 'uint32_t', choice: 'uint32_t',
  finish_reason: 'uint32_t', status: 'int32_t', text: 'void *', text_len: 'size_t',
  tokens: 'void *', tokens_len: 'size_t', logprobs: 'void *', alternatives: 'void *',
  alternatives_ends: 'void *', stop: 'int64_t', prompt_tokens: 'uint64_t',
  cached_tokens: 'uint64_t', output_tokens: 'uint64_t', cumulative_logprob: 'double',
});
const Span = koffi.struct({ data: 'void *', len: 'size_t' });

const signatures = {
  engine_open: 'pagedllm_engine_options *options, void *out',
  engine_info: 'void *engine, void *out',
  engine_metrics: 'void *engine, uint32_t format, void *out',
  engine_health: 'void *engine',
  engine_shutdown: 'void *engine, uint32_t timeout_ms',
  server_start: 'void *engine, void *options, size_t len, void *out',
  server_address: 'void *server, void *out',
  server_stop: 'void *server, uint32_t timeout_ms',
  generate: 'void *engine, pagedllm_request *request, void *queue, void *out',
  complete: 'void *engine, uint32_t endpoint, void *body, size_t len, uint64_t tag, void *queue, void *out',
  stream_cancel: 'void *stream',
  queue_new: 'void *out',
  queue_poll: 'void *queue, uint32_t timeout_ms, void *events, size_t capacity, void *count',
  tokenize: 'void *engine, void *text, size_t len, uint32_t special, void *out',
  detokenize: 'void *engine, void *tokens, size_t len, uint32_t skip, void *out',
  render_chat: 'void *engine, void *chat, size_t len, void *out',
};
const functions = {};
for (const [name, list] of Object.entries(signatures)) {
  functions[name] = library.func(`int32_t pagedllm_${name}(${list}, void *error)`);
}
const frees = {};
for (const name of ['engine', 'stream', 'queue', 'server']) {
  frees[name] = library.func(`int32_t pagedllm_${name}_free(void *handle)`);
}
for (const name of ['error', 'event', 'text', 'tokens']) {
  frees[name] = library.func(`void pagedllm_${name}_free(void *record)`);
}
// Callbacks of the library's own: none of JavaScript is ever handed to it.
const callbacks = {
  logToFd: library.symbol('pagedllm_log_to_fd'),
  progressToMemory: library.symbol('pagedllm_progress_to_memory'),
};

const version = [Buffer.alloc(4), Buffer.alloc(4)];
library.func('void pagedllm_abi_version(void *major, void *minor)')(...version);
if (version[0].readUInt32LE() !== ABI_MAJOR) {
  throw new Error(`libpagedllm has interface ${version[0].readUInt32LE()}, not ${ABI_MAJOR}`);
}

/** Why a call failed. */
class PagedLLMError extends Error {
  constructor(status, message, param, retryAfterMs) {
    super(message);
    this.name = 'PagedLLMError';
    this.status = status;
    this.param = param;
    this.retryAfterMs = retryAfterMs;
  }
}

// Some ten times as fast as koffi's own ways to read memory, and needs no external buffers.
const memcpy = koffi.load(null).func('void memcpy(void *to, void *from, size_t bytes)');

/** A copy of memory of the library. */
function copy(pointer, bytes) {
  const buffer = Buffer.allocUnsafe(bytes);
  if (bytes > 0) memcpy(buffer, pointer, bytes);
  return buffer;
}

const place = () => Buffer.alloc(8);
const pointerIn = (buffer, index = 0) => buffer.readBigUInt64LE(8 * index);

function check(status, errorPlace) {
  if (status < STATUS.INVALID_ARGUMENT) return status;
  const pointer = pointerIn(errorPlace);
  const error = koffi.decode(pointer, ErrorStruct);
  const message = copy(error.message, Number(error.message_len)).toString();
  const param = copy(error.param, Number(error.param_len)).toString();
  frees.error(pointer);
  throw new PagedLLMError(status, message, param, error.retry_after_ms);
}

/** Calls pagedllm_<name>; returns the status or throws. */
function call(name, ...args) {
  const error = place();
  return check(functions[name](...args, error), error);
}

/** Runs a function of the library on a thread of koffi's; resolves to what it returns. */
function onThread(run, ...args) {
  return new Promise((resolve, reject) => {
    run.async(...args, (failure, result) => (failure ? reject(failure) : resolve(result)));
  });
}

/** As call, on a thread of koffi's. */
async function callAsync(name, ...args) {
  const error = place();
  return check(await onThread(functions[name], ...args, error), error);
}

/** Calls a function that writes a handle. */
function handle(name, ...args) {
  const out = place();
  call(name, ...args, out);
  return pointerIn(out);
}

/** Calls a function that writes a text or tokens; returns their bytes. */
function span(kind, elementBytes, name, ...args) {
  const pointer = handle(name, ...args);
  const { data, len } = koffi.decode(pointer, Span);
  const bytes = copy(data, Number(len) * elementBytes);
  frees[kind](pointer);
  return bytes;
}

function tokensOf(bytes) {
  return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readUInt32LE(4 * i));
}

function floatsOf(bytes) {
  return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readFloatLE(4 * i));
}

const rawEvent = Buffer.alloc(koffi.sizeof(Event));
const at = {};
for (const { name, offset } of Object.values(Event.members)) at[name] = offset;

const word = (name) => rawEvent.readUInt32LE(at[name]);
// Counts stay far below 2 ** 53.
const count = (name) => word(name) + 2 ** 32 * rawEvent.readUInt32LE(at[name] + 4);

/** What a pointer of rawEvent points to. */
function list(name, bytes) {
  return copy(rawEvent.readBigUInt64LE(at[name]), bytes);
}

/** An event, copied and freed. */
function takeEvent(pointer) {
  memcpy(rawEvent, pointer, rawEvent.length);
  const tokensBytes = 4 * count('tokens_len');
  const event = {
    tag: count('tag'),
    kind: word('kind'),
    choice: word('choice'),
    text: list('text', count('text_len')).toString(),
    tokens: tokensOf(list('tokens', tokensBytes)),
    logprobs: count('logprobs') ? floatsOf(list('logprobs', tokensBytes)) : null,
    finishReason: word('finish_reason'),
    status: rawEvent.readInt32LE(at.status),
    promptTokens: count('prompt_tokens'),
    cachedTokens: count('cached_tokens'),
    outputTokens: count('output_tokens'),
  };
  frees.event(pointer);
  return event;
}

module.exports = {
  EngineOptions, PagedLLMError, Request, STATUS, call, callAsync, callbacks, frees, handle, koffi,
  onThread, place, pointerIn, span, takeEvent, tokensOf,
};
