"""The Python API over the C library: one thread per LLM reads the events of all its streams."""

import ctypes
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _native as native
from ._native import LIBRARY, Status
from ._opening import Log, open_engine
from ._outputs import Event, Prompt, RequestOutput, SamplingParams, collect
from ._server import Server
from ._stream import Stream

_ENDPOINTS = {"completions": 1, "chat_completions": 2, "tokenize": 3, "detokenize": 4}
_PROMETHEUS, _JSON = 1, 2


class LLM:
    """A model that answers. Options are named as on the command line, with `_` for `-`.

    The log goes to `logger`, by default that of `logging` named "pagedllm", at the level which
    that has now. `progress` is called with the bytes loaded and their total while the model loads;
    it cancels the load by returning False or by raising.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        *,
        logger: Optional[logging.Logger] = None,
        progress: Optional[Callable[[int, int], Any]] = None,
        **options: Any,
    ):
        self._lock = threading.Lock()
        self._streams: Dict[int, Stream] = {}
        self._next_tag = 0
        self._closing = False
        self._process = os.getpid()
        self._engine = None
        self._log = Log(logger or logging.getLogger("pagedllm"))
        try:
            self._engine = open_engine(model, options, self._log, progress)
        except BaseException:
            self._log.close()
            raise
        queue = ctypes.c_void_p()
        native.call("queue_new", ctypes.byref(queue))
        self._queue = queue
        self._thread = threading.Thread(target=self._dispatch, name="pagedllm", daemon=True)
        self._thread.start()

    def close(self):
        """Ends all requests and frees the engine; streams can be read to their end."""
        with self._lock:
            engine, self._engine = self._engine, None
            self._closing = True
        # A child after fork has the parent's handles, but nothing to close.
        if engine is None or self._process != os.getpid():
            return
        # Calls of other threads that are under way are short; none begins any more.
        while LIBRARY.pagedllm_engine_free(engine) == Status.BUSY:
            time.sleep(0.001)
        native.call("queue_interrupt", self._queue)
        self._thread.join()
        LIBRARY.pagedllm_queue_free(self._queue)
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def generate(
        self,
        prompts: Union[Prompt, Sequence[Prompt]],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
    ) -> List[RequestOutput]:
        """Continues each prompt, a text or token ids, all of them batched."""
        is_one = isinstance(prompts, (str, dict)) or (
            len(prompts) > 0 and isinstance(prompts[0], int)
        )
        prompts = [prompts] if is_one else list(prompts)
        return self._run(prompts, sampling_params, self.stream)

    def chat(
        self,
        messages: Union[List[Dict[str, Any]], List[List[Dict[str, Any]]]],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
    ) -> List[RequestOutput]:
        """Answers a conversation, or each of several."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        return self._run(conversations, sampling_params, self.stream_chat)

    def _run(self, prompts, sampling_params, start):
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, {len(sampling_params)} sampling_params")
        streams = []
        try:
            for prompt, params in zip(prompts, sampling_params):
                streams.append(start(prompt, params))
            return [
                collect(str(index), prompt, params, stream)
                for index, (prompt, params, stream) in enumerate(
                    zip(prompts, sampling_params, streams)
                )
            ]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None) -> Stream:
        """Continues a prompt; the events come as they are generated."""
        if isinstance(prompt, dict):
            tokens = prompt.get("prompt_token_ids")
            prompt = prompt["prompt"] if tokens is None else tokens
        params = (sampling_params or SamplingParams()).to_json()
        if isinstance(prompt, str):
            data = prompt.encode()
            return self._submit(params, text=data, text_len=len(data))
        tokens = (ctypes.c_uint32 * max(len(prompt), 1))(*prompt)
        pointer = ctypes.cast(tokens, ctypes.POINTER(ctypes.c_uint32))
        return self._submit(params, tokens=pointer, tokens_len=len(prompt))

    def stream_chat(
        self, messages: List[Dict[str, Any]], sampling_params: Optional[SamplingParams] = None
    ) -> Stream:
        """Answers a conversation; the events come as they are generated."""
        chat = json.dumps(messages).encode()
        params = (sampling_params or SamplingParams()).to_json(is_chat=True)
        return self._submit(params, chat=chat, chat_len=len(chat))

    def complete(self, endpoint: str, body: Union[str, bytes, Dict[str, Any]]) -> Stream:
        """Answers an OpenAI body with the JSON that the server would send. The endpoint is
        "completions", "chat_completions", "tokenize" or "detokenize"."""
        data = json.dumps(body) if isinstance(body, dict) else body
        data = data.encode() if isinstance(data, str) else data
        code = _ENDPOINTS.get(endpoint, 0)
        return self._start(
            lambda tag, out: native.call(
                "complete", self._engine, code, data, len(data), tag, self._queue, out
            )
        )

    def _submit(self, params, **prompt):
        request = native.Request(
            struct_size=ctypes.sizeof(native.Request),
            params=params,
            params_len=len(params),
            **prompt,
        )

        def begin(tag, out):
            request.tag = tag
            native.call("generate", self._engine, ctypes.byref(request), self._queue, out)

        return self._start(begin)

    def _start(self, begin):
        stream, handle = Stream(), ctypes.c_void_p()
        with self._lock:
            if self._engine is None:
                raise native.PagedLLMError(Status.SHUTTING_DOWN, "the engine is closed")
            self._next_tag += 1
            tag = self._next_tag
            self._streams[tag] = stream
        try:
            begin(tag, ctypes.byref(handle))
        except BaseException:
            with self._lock:
                del self._streams[tag]
            raise
        stream._begin(handle)
        return stream

    def tokenize(self, text: str, add_special_tokens: bool = False) -> List[int]:
        """Token ids of a text."""
        data, out = text.encode(), ctypes.POINTER(native.Tokens)()
        native.call(
            "tokenize", self._engine, data, len(data), add_special_tokens, ctypes.byref(out)
        )
        try:
            return out.contents.data[: out.contents.len]
        finally:
            LIBRARY.pagedllm_tokens_free(out)

    def detokenize(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        array = (ctypes.c_uint32 * len(tokens))(*tokens)
        return native.text("detokenize", self._engine, array, len(tokens), skip_special_tokens)

    def render_chat(self, messages: List[Dict[str, Any]]) -> str:
        """The prompt of a conversation, as the model's template writes it."""
        chat = json.dumps(messages).encode()
        return native.text("render_chat", self._engine, chat, len(chat))

    def serve(self, **options: Any) -> Server:
        """Serves the engine over HTTP with OpenAI's API; `host="127.0.0.1", port=0` listens on a
        free port of this machine."""
        return Server(self._engine, options)

    def metrics(self) -> str:
        """Counters in Prometheus' text format."""
        return native.text("engine_metrics", self._engine, _PROMETHEUS)

    def stats(self) -> Dict[str, Any]:
        """The most used counters at this moment."""
        return json.loads(native.text("engine_metrics", self._engine, _JSON))

    def info(self) -> Dict[str, Any]:
        """What was loaded."""
        return json.loads(native.text("engine_info", self._engine))

    def check_health(self):
        """Raises where the engine takes no more requests."""
        native.call("engine_health", self._engine)

    def shutdown(self, timeout: Optional[float] = 0.0):
        """Takes no more requests, gives those that run some seconds, and ends the rest."""
        native.call("engine_shutdown", self._engine, native.milliseconds(timeout))

    def _dispatch(self):
        events = (ctypes.POINTER(native.Event) * 64)()
        count = ctypes.c_size_t()
        while True:
            status = native.call(
                "queue_poll", self._queue, native.FOREVER, events, 64, ctypes.byref(count)
            )
            for event in events[: count.value] if status == Status.OK else ():
                tag, made = event.contents.tag, Event._of(event.contents)
                native.free_event(event)
                with self._lock:
                    ended = made.kind == "end"
                    stream = self._streams.pop(tag, None) if ended else self._streams.get(tag)
                if stream is not None:
                    stream._push(made)
            with self._lock:
                if self._closing and not self._streams:
                    return
