"""The Python API over the C library: one thread per LLM reads the events of all its streams."""

import asyncio
import collections
import ctypes
import dataclasses
import json
import os
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _native as native
from ._native import LIBRARY, Status

_KINDS = {1: "text", 2: "finished", 3: "prompt", 4: "json", 5: "failed", 6: "end"}
_REASONS = {
    0: None,
    1: "length",
    2: "stop",
    3: "stop",
    4: "abort",
    5: "deadline",
    6: "error",
}
Prompt = Union[str, Sequence[int]]


@dataclasses.dataclass
class SamplingParams:
    """How to sample and when to stop. None takes the model's default; `extra` holds any other
    parameter of OpenAI's API or vLLM's."""

    max_tokens: Optional[int] = 16
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    n: Optional[int] = None
    seed: Optional[int] = None
    stop: Union[None, str, List[str]] = None
    stop_token_ids: Optional[List[int]] = None
    ignore_eos: Optional[bool] = None
    min_tokens: Optional[int] = None
    extra: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> bytes:
        """The parameters as the library reads them."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        extra = fields.pop("extra")
        given = {name: value for name, value in fields.items() if value is not None}
        return json.dumps({**given, **extra}).encode()


@dataclasses.dataclass
class Event:
    """Something that happened to one choice of a request."""

    kind: str
    choice: int
    text: str
    token_ids: List[int]
    finish_reason: Optional[str]
    prompt_tokens: int
    output_tokens: int


@dataclasses.dataclass
class CompletionOutput:
    """One choice of an answer."""

    index: int
    text: str = ""
    token_ids: List[int] = dataclasses.field(default_factory=list)
    finish_reason: Optional[str] = None


@dataclasses.dataclass
class RequestOutput:
    """The answer to one prompt."""

    prompt: Any
    outputs: List[CompletionOutput]
    finished: bool = True


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

    def _begin(self, handle):
        with self._condition:
            if not self._ended:
                self._handle = handle
                return
        LIBRARY.pagedllm_stream_free(handle)

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
            LIBRARY.pagedllm_stream_free(handle)

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


class LLM:
    """A model that answers. Options are named as on the command line, with `_` for `-`."""

    def __init__(self, model: Union[str, "os.PathLike[str]"], **options: Any):
        self._lock = threading.Lock()
        self._streams: Dict[int, Stream] = {}
        self._next_tag = 0
        self._closing = False
        self._engine = self._queue = None
        path, overlay = os.fspath(model).encode(), json.dumps(options).encode()
        given = native.EngineOptions(
            struct_size=ctypes.sizeof(native.EngineOptions),
            model=path,
            model_len=len(path),
            options=overlay,
            options_len=len(overlay),
        )
        engine, queue = ctypes.c_void_p(), ctypes.c_void_p()
        native.call("engine_open", ctypes.byref(given), ctypes.byref(engine))
        self._engine = engine
        native.call("queue_new", ctypes.byref(queue))
        self._queue = queue
        self._thread = threading.Thread(target=self._dispatch, name="pagedllm", daemon=True)
        self._thread.start()

    def close(self):
        """Ends all requests and frees the engine; streams can be read to their end."""
        with self._lock:
            engine, self._engine = self._engine, None
            self._closing = True
        if engine is None:
            return
        # Calls of other threads that are under way are short; none begins any more.
        while LIBRARY.pagedllm_engine_free(engine) == Status.BUSY:
            time.sleep(0.001)
        native.call("queue_interrupt", self._queue)
        self._thread.join()
        LIBRARY.pagedllm_queue_free(self._queue)

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
        is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
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
            sampling_params = [sampling_params] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, {len(sampling_params)} sampling_params")
        streams = []
        try:
            for prompt, params in zip(prompts, sampling_params):
                streams.append(start(prompt, params))
            return [_collect(prompt, stream) for prompt, stream in zip(prompts, streams)]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None) -> Stream:
        """Continues a prompt; the events come as they are generated."""
        if isinstance(prompt, str):
            data = prompt.encode()
            return self._submit(sampling_params, text=data, text_len=len(data))
        tokens = (ctypes.c_uint32 * max(len(prompt), 1))(*prompt)
        pointer = ctypes.cast(tokens, ctypes.POINTER(ctypes.c_uint32))
        return self._submit(sampling_params, tokens=pointer, tokens_len=len(prompt))

    def stream_chat(self, messages, sampling_params: Optional[SamplingParams] = None) -> Stream:
        """Answers a conversation; the events come as they are generated."""
        chat = json.dumps(messages).encode()
        return self._submit(sampling_params, chat=chat, chat_len=len(chat))

    def _submit(self, sampling_params, **prompt):
        params = (sampling_params or SamplingParams()).to_json()
        stream, handle = Stream(), ctypes.c_void_p()
        with self._lock:
            if self._engine is None:
                raise native.PagedLLMError(Status.SHUTTING_DOWN, "the engine is closed")
            self._next_tag += 1
            tag = self._next_tag
            self._streams[tag] = stream
        request = native.Request(
            struct_size=ctypes.sizeof(native.Request),
            params=params,
            params_len=len(params),
            tag=tag,
            **prompt,
        )
        try:
            native.call(
                "generate", self._engine, ctypes.byref(request), self._queue, ctypes.byref(handle)
            )
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

    def metrics(self) -> str:
        """Counters in Prometheus' text format."""
        return native.text("engine_metrics", self._engine, 1)

    def info(self) -> Dict[str, Any]:
        """What was loaded."""
        return json.loads(native.text("engine_info", self._engine))

    def _dispatch(self):
        events = (ctypes.POINTER(native.Event) * 64)()
        count = ctypes.c_size_t()
        while True:
            status = native.call(
                "queue_poll", self._queue, native.FOREVER, events, 64, ctypes.byref(count)
            )
            for event in events[: count.value] if status == Status.OK else ():
                tag, made = event.contents.tag, _event(event.contents)
                LIBRARY.pagedllm_event_free(event)
                with self._lock:
                    ended = made.kind == "end"
                    stream = self._streams.pop(tag, None) if ended else self._streams.get(tag)
                if stream is not None:
                    stream._push(made)
            with self._lock:
                if self._closing and not self._streams:
                    return


def _event(raw):
    return Event(
        kind=_KINDS.get(raw.kind, "unknown"),
        choice=raw.choice,
        text=native.string(raw.text, raw.text_len),
        token_ids=raw.tokens[: raw.tokens_len] if raw.tokens_len else [],
        finish_reason=_REASONS.get(raw.finish_reason, "unknown"),
        prompt_tokens=raw.prompt_tokens,
        output_tokens=raw.output_tokens,
    )


def _collect(prompt, stream):
    outputs: Dict[int, CompletionOutput] = {}
    for event in stream:
        output = outputs.setdefault(event.choice, CompletionOutput(event.choice))
        if event.kind == "text":
            output.text += event.text
            output.token_ids += event.token_ids
        elif event.kind == "finished":
            output.finish_reason = event.finish_reason
    return RequestOutput(prompt, [outputs[index] for index in sorted(outputs)])
