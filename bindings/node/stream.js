'use strict';

const { call, frees } = require('./native.js');

/** Events of one request, for `for await`. It frees itself at its end. */
class Stream {
  #events = [];
  #ended = false;
  #wake = null;
  #handle = null;
  #signal;
  #abort = () => this.cancel();

  constructor(signal) {
    this.#signal = signal;
  }

  /** Ends the request soon; its events end with finishReason 'abort'. */
  cancel() {
    if (this.#handle !== null) call('stream_cancel', this.#handle);
    this.#wake?.();
  }

  _begin(handle) {
    this.#handle = handle;
    this.#signal?.addEventListener('abort', this.#abort, { once: true });
  }

  _push(event) {
    if (event.kind === 'end') {
      this.#ended = true;
      this.#signal?.removeEventListener('abort', this.#abort);
      frees.stream(this.#handle);
      this.#handle = null;
    } else {
      this.#events.push(event);
    }
    this.#wake?.();
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        this.#signal?.throwIfAborted();
        if (this.#events.length > 0) {
          yield this.#events.shift();
        } else if (this.#ended) {
          return;
        } else {
          await new Promise((resolve) => (this.#wake = resolve));
          this.#wake = null;
        }
      }
    } finally {
      this.cancel();
    }
  }

  /** The whole text of the first choice. */
  async text() {
    let text = '';
    for await (const event of this) {
      if (event.choice === 0 && (event.kind === 'text' || event.kind === 'json')) text += event.text;
    }
    return text;
  }
}

module.exports = { Stream };
