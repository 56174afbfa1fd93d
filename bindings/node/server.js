'use strict';

const native = require('./native.js');

/** An HTTP server over an engine, on threads of the library. */
class Server {
  #handle;
  #address;

  constructor(handle) {
    this.#handle = handle;
    this.#address = native.span('text', 1, 'server_address', handle).toString();
  }

  /** Where it listens, as host:port; empty on a unix socket. */
  get address() {
    return this.#address;
  }

  /** Takes no more connections, gives those there are some time, and frees the server. */
  async close(timeoutMs = 0) {
    const handle = this.#handle;
    this.#handle = null;
    if (handle === null) return;
    await native.callAsync('server_stop', handle, timeoutMs);
    await native.onThread(native.frees.server, handle);
  }
}

module.exports = { Server };
