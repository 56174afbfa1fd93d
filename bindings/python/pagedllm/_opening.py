"""What goes on beside a load, and after it: the log, and the progress that can cancel."""

import json
import logging
import os
import socket
import threading

from . import _native as native

_TRACE = 5
_LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": _TRACE,
}


class Log:
    """Brings the lines that the library writes to a socket to `logging`."""

    def __init__(self, logger):
        self._logger = logger
        ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(
            target=self._read, args=(ours,), name="pagedllm-log", daemon=True
        )
        self._thread.start()

    def fields(self):
        """The fields of the options that belong to it."""
        effective = self._logger.getEffectiveLevel()
        level = sum(1 for value in _LEVELS.values() if value >= effective)
        return {"log": native.LOG_TO_FD, "log_data": self._theirs.fileno(), "log_level": level or 1}

    def _read(self, ours):
        with ours.makefile(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                entry = json.loads(line)
                level = _LEVELS[entry["level"]]
                self._logger.log(level, "%s: %s", entry["target"], entry["message"])
        ours.close()

    def close(self):
        """To be called when the library writes no more; waits for the last line."""
        # Not only closed: a child after fork may hold the socket too.
        self._theirs.shutdown(socket.SHUT_WR)
        self._theirs.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Load:
    """Tells a function how the load goes. What that raises, also Ctrl-C, cancels the load."""

    def __init__(self, progress):
        self._progress = progress
        self.raised = None
        self.callback = native.PROGRESS(self._call)

    def _call(self, _data, done, total):
        try:
            if self._progress is not None and self._progress(done, total) is False:
                return 1
        except BaseException as raised:
            self.raised = raised
            return 1
        return 0


def open_engine(model, options, log, progress):
    """Opens an engine on this thread; returns its handle."""
    path, overlay = os.fspath(model).encode(), json.dumps(options).encode()
    load = Load(progress)
    given = native.EngineOptions(
        struct_size=native.ctypes.sizeof(native.EngineOptions),
        model=path,
        model_len=len(path),
        options=overlay,
        options_len=len(overlay),
        progress=load.callback,
        **log.fields(),
    )
    engine = native.c_void_p()
    try:
        native.call("engine_open", native.ctypes.byref(given), native.ctypes.byref(engine))
    except native.PagedLLMError:
        if load.raised is not None:
            raise load.raised from None
        raise
    return engine
