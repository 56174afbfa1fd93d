"""Streams: what a request gives, for `for` and for `async for`."""

import asyncio
import collections
import threading

from . import _native as native
from ._outputs import Event


class Stream:
    """Events of one request, for `for` and for `async for`. It frees itself at its end."""

    def __init__(self):
        self._condition = threading.Condition()
        self._events = collections.deque()
        self._ended = False
        self._handle = None
        self._waiters = []

    def cancel(self):
        """Ends the request soon; its events end with a finish reason of "abort"."""
        with self._condition:
            if self._handle is not None:
                native.call("stream_cancel", self._handle)

    def text(self) -> str:
        """Reads to the end: the text of the first choice, or the JSON of an answer."""
        return "".join(e.text for e in self if e.choice == 0 and e.kind in ("text", "json"))

    def _begin(self, handle):
        with self._condition:
            if not self._ended:
                self._handle = handle
                return
        native.LIBRARY.pagedllm_stream_free(handle)

    def _push(self, event):
        with self._condition:
            handle = None
            if event.kind == "end":
                self._ended = True
                handle, self._handle = self._handle, None
            else:
                self._events.append(event)
            waiters, self._waiters = self._waiters, []
            self._condition.notify_all()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                pass  # That loop was closed.
        if handle is not None:
            native.LIBRARY.pagedllm_stream_free(handle)

    def __iter__(self):
        return self

    def __next__(self) -> Event:
        with self._condition:
            while not self._events:
                if self._ended:
                    raise StopIteration
                self._condition.wait()
            return self._events.popleft()

    def __aiter__(self):
        return self

    async def __anext__(self) -> Event:
        while True:
            with self._condition:
                if self._events:
                    return self._events.popleft()
                if self._ended:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._waiters.append((loop, future))
            try:
                await future
            except asyncio.CancelledError:
                self.cancel()
                raise

    async def aclose(self):
        """Cancels what has not ended."""
        self.cancel()


def _wake(future):
    if not future.done():
        future.set_result(None)
