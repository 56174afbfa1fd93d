"""The HTTP server inside of the program."""

import ctypes
import json

from . import _native as native


class Server:
    """An HTTP server over an engine, on threads of the library. Close it before the engine."""

    def __init__(self, engine, options):
        overlay, handle = json.dumps(options).encode(), ctypes.c_void_p()
        native.call("server_start", engine, overlay, len(overlay), ctypes.byref(handle))
        self._handle = handle
        self.address: str = native.text("server_address", handle)
        """Where it listens, as host:port; empty on a unix socket."""

    def close(self, timeout: float = 0.0):
        """Takes no more connections, gives those there are some seconds, and frees the server."""
        handle, self._handle = self._handle, None
        if handle is not None:
            native.call("server_stop", handle, native.milliseconds(timeout))
            native.LIBRARY.pagedllm_server_free(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
