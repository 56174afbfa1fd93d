'use strict';

// What goes on beside a load, and after it: the log, which the library writes to a socket, and the
// progress, which it writes to memory that a timer looks at.

const net = require('node:net');
const { callbacks, koffi } = require('./native.js');

const LEVELS = { error: 1, warn: 2, info: 3, debug: 4, trace: 5 };
const AF_UNIX = 1;
const SOCK_STREAM_CLOEXEC = 0o2000001;
const SHUT_WR = 1;
const LOOK_EVERY_MS = 50;

const system = koffi.load(null);
const socketpair = system.func('int socketpair(int domain, int type, int protocol, void *fds)');
const shutdown = system.func('int shutdown(int fd, int how)');
const closeFd = system.func('int close(int fd)');

/** The log of one engine: calls onEntry for each line until the engine is freed. */
class Log {
  #fd;

  constructor(onEntry) {
    const fds = Buffer.alloc(8);
    if (socketpair(AF_UNIX, SOCK_STREAM_CLOEXEC, 0, fds) !== 0) {
      throw new Error(`no socket for the log: errno ${koffi.errno()}`);
    }
    this.#fd = fds.readInt32LE(0);
    const socket = new net.Socket({ fd: fds.readInt32LE(4), readable: true, writable: false });
    // A log alone keeps no process alive.
    socket.unref();
    socket.setEncoding('utf8');
    let rest = '';
    socket.on('data', (text) => {
      const lines = (rest + text).split('\n');
      rest = lines.pop();
      for (const line of lines) onEntry(JSON.parse(line));
    });
    socket.on('error', () => socket.destroy());
  }

  /** The fields of the options that belong to it. */
  fields(level) {
    return { log: callbacks.logToFd, log_data: BigInt(this.#fd), log_level: level };
  }

  /** To be called when the library writes no more: after the engine was freed, or never opened. */
  close() {
    // Not only closed: a child process may hold the socket too.
    shutdown(this.#fd, SHUT_WR);
    closeFd(this.#fd);
  }
}

/** The number of a level's name. */
function levelOf(name) {
  const level = LEVELS[name];
  if (level === undefined) throw new TypeError(`logLevel must be one of ${Object.keys(LEVELS)}`);
  return level;
}

/** Watches a load, and cancels it when the signal says so. */
class Load {
  // struct pagedllm_load_state, outside of the heap that moves.
  #state = Buffer.from(new ArrayBuffer(24));
  #progress;
  #signal;
  #timer;
  #abort = () => this.#state.writeUInt32LE(1, 16);

  constructor(progress, signal) {
    this.#progress = progress;
    this.#signal = signal;
    signal?.addEventListener('abort', this.#abort, { once: true });
    if (progress) this.#timer = setInterval(() => this.#report(), LOOK_EVERY_MS);
  }

  fields() {
    return { progress: callbacks.progressToMemory, progress_data: this.#state };
  }

  #report() {
    const [done, total] = [0, 8].map((at) => Number(this.#state.readBigUInt64LE(at)));
    if (total > 0) this.#progress(done, total);
  }

  /** Ends the watch; a load that was not cancelled is reported once more. */
  end() {
    clearInterval(this.#timer);
    this.#signal?.removeEventListener('abort', this.#abort);
    if (this.#progress && !this.#signal?.aborted) this.#report();
  }
}

module.exports = { Load, Log, levelOf };
