'use strict';

// The JavaScript API: promises, async iterators and AbortSignal over the C library. While streams
// are open, one thread of koffi's waits for the events of all of them.

const native = require('./native.js');
const { Load, Log, levelOf } = require('./opening.js');
const { Server } = require('./server.js');
const { Stream } = require('./stream.js');
const { PagedLLMError, STATUS, call, frees } = native;

const KINDS = { 1: 'text', 2: 'finished', 3: 'prompt', 4: 'json', 5: 'failed', 6: 'end' };
const REASONS = { 1: 'length', 2: 'stop', 3: 'stop', 4: 'abort', 5: 'deadline', 6: 'error' };
const ENDPOINTS = { completions: 1, chatCompletions: 2, tokenize: 3, detokenize: 4 };
const CAPACITY = 64;
// A wait ends this soon, so that a worker can be torn down.
const WAIT_MS = 100;

/** A model that answers. */
class Engine {
  #handle;
  #queue;
  #streams = new Map();
  #nextTag = 0;
  #polling = false;
  #log;

  constructor(handle, log) {
    this.#handle = handle;
    this.#log = log;
    this.#queue = native.handle('queue_new');
  }

  /** Loads a model. Options are named as on the command line. */
  static async open(model, options = {}, { log, logLevel = 'info', progress, signal } = {}) {
    signal?.throwIfAborted();
    const level = levelOf(logLevel);
    const path = Buffer.from(model);
    const overlay = Buffer.from(JSON.stringify(options));
    const lines = log && new Log(log);
    const load = new Load(progress, signal);
    const given = {
      struct_size: native.koffi.sizeof(native.EngineOptions),
      model: path, model_len: path.length, options: overlay, options_len: overlay.length,
      log: null, log_data: null, log_level: 0, reserved: 0,
      ...lines?.fields(level), ...load.fields(),
    };
    const out = native.place();
    try {
      await native.callAsync('engine_open', given, out);
    } catch (error) {
      lines?.close();
      throw signal?.aborted && error.status === STATUS.LOAD_CANCELLED ? signal.reason : error;
    } finally {
      load.end();
    }
    const engine = new Engine(native.pointerIn(out), lines);
    if (signal?.aborted) {
      engine.close();
      throw signal.reason;
    }
    return engine;
  }

  /** Continues a text or token ids. */
  generate(prompt, params = {}, { signal } = {}) {
    if (typeof prompt === 'string') {
      const text = Buffer.from(prompt);
      return this.#submit({ text: text.length ? text : Buffer.alloc(1), text_len: text.length }, params, signal);
    }
    return this.#submit({ tokens: Uint32Array.from(prompt), tokens_len: prompt.length }, params, signal);
  }

  /** Answers a conversation. */
  chat(messages, params = {}, { signal } = {}) {
    const chat = Buffer.from(JSON.stringify(messages));
    return this.#submit({ chat, chat_len: chat.length }, params, signal);
  }

  /** Answers an OpenAI body with the JSON that the server would send. */
  complete(endpoint, body, { signal } = {}) {
    const bytes = Buffer.from(JSON.stringify(body));
    const code = ENDPOINTS[endpoint] ?? 0;
    return this.#start(signal, (tag) =>
      native.handle('complete', this.#open(), code, bytes, bytes.length, tag, this.#queue));
  }

  #submit(prompt, params, signal) {
    const given = Buffer.from(JSON.stringify(params));
    return this.#start(signal, (tag) => {
      const request = {
        struct_size: native.koffi.sizeof(native.Request),
        text: null, text_len: 0, tokens: null, tokens_len: 0, chat: null, chat_len: 0,
        ...prompt,
        params: given, params_len: given.length, tag, timeout_ms: 0, reserved: 0,
      };
      return native.handle('generate', this.#open(), request, this.#queue);
    });
  }

  #start(signal, begin) {
    signal?.throwIfAborted();
    const stream = new Stream(signal);
    const tag = ++this.#nextTag;
    stream._begin(begin(tag));
    this.#streams.set(tag, stream);
    if (!this.#polling) this.#poll();
    return stream;
  }

  async #poll() {
    this.#polling = true;
    const events = Buffer.alloc(8 * CAPACITY);
    const count = native.place();
    while (this.#streams.size > 0) {
      const status = await native.callAsync('queue_poll', this.#queue, WAIT_MS, events, CAPACITY, count);
      if (status !== STATUS.OK) continue;
      for (let i = 0; i < native.pointerIn(count); i++) {
        const { tag, ...event } = native.takeEvent(native.pointerIn(events, i));
        event.kind = KINDS[event.kind] ?? 'unknown';
        event.finishReason = REASONS[event.finishReason] ?? null;
        const stream = this.#streams.get(tag);
        if (event.kind === 'end') this.#streams.delete(tag);
        stream?._push(event);
      }
    }
    this.#polling = false;
    if (this.#handle === null) this.#freeQueue();
  }

  #open() {
    if (this.#handle === null) {
      throw new PagedLLMError(STATUS.SHUTTING_DOWN, 'the engine is closed', '', 0);
    }
    return this.#handle;
  }

  tokenize(text, addSpecialTokens = false) {
    const bytes = Buffer.from(text);
    return native.tokensOf(
      native.span('tokens', 4, 'tokenize', this.#open(), bytes, bytes.length, addSpecialTokens ? 1 : 0));
  }

  detokenize(tokens, skipSpecialTokens = true) {
    const ids = Uint32Array.from(tokens);
    return native.span('text', 1, 'detokenize', this.#open(), ids, ids.length, skipSpecialTokens ? 1 : 0).toString();
  }

  /** The prompt of a conversation, as the model's template writes it. */
  renderChat(messages) {
    const chat = Buffer.from(JSON.stringify(messages));
    return native.span('text', 1, 'render_chat', this.#open(), chat, chat.length).toString();
  }

  /** Serves the engine over HTTP with OpenAI's API. */
  serve(options = {}) {
    const overlay = Buffer.from(JSON.stringify(options));
    return new Server(native.handle('server_start', this.#open(), overlay, overlay.length));
  }

  /** The most used counters at this moment. */
  stats() {
    return JSON.parse(native.span('text', 1, 'engine_metrics', this.#open(), 2).toString());
  }

  /** Throws where the engine takes no more requests. */
  checkHealth() {
    native.call('engine_health', this.#open());
  }

  /** Takes no more requests, gives those that run some time, and ends the rest. */
  async shutdown(timeoutMs = 0) {
    await native.callAsync('engine_shutdown', this.#open(), timeoutMs);
  }

  /** Counters in Prometheus' text format. */
  metrics() {
    return native.span('text', 1, 'engine_metrics', this.#open(), 1).toString();
  }

  /** What was loaded. */
  info() {
    return JSON.parse(native.span('text', 1, 'engine_info', this.#open()).toString());
  }

  /** Ends all requests and frees the engine; streams can be read to their end. */
  close() {
    if (this.#handle === null) return;
    if (frees.engine(this.#handle) === STATUS.BUSY) {
      throw new PagedLLMError(STATUS.BUSY, 'the engine is in use by another call', '', 0);
    }
    this.#handle = null;
    this.#log?.close();
    if (!this.#polling) this.#freeQueue();
  }

  #freeQueue() {
    frees.queue(this.#queue);
    this.#queue = null;
  }
}

module.exports = { Engine, PagedLLMError, STATUS, Server, Stream };
