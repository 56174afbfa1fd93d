"""The C library through ctypes: structs, calls and errors, and nothing else.

The library is that of PAGEDLLM_LIBRARY, or the one beside this file, or the system's.
"""

import ctypes
import enum
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI_MAJOR = 1
FOREVER = 0xFFFFFFFF


class Status(enum.IntEnum):
    """Codes that programs decide by; a test holds them against the header."""

    OK = 0
    TIMED_OUT = 1
    END = 2
    INTERRUPTED = 3
    INVALID_ARGUMENT = 16
    INVALID_HANDLE = 17
    INVALID_STRUCT_SIZE = 18
    INVALID_UTF8 = 19
    INVALID_OPTION = 20
    INVALID_REQUEST = 21
    CONTEXT_LENGTH = 22
    MODEL_NOT_FOUND = 23
    MODEL_ERROR = 24
    LOAD_CANCELLED = 25
    QUEUE_FULL = 26
    SHUTTING_DOWN = 27
    ENGINE_FAILED = 28
    BUSY = 29
    USED_AFTER_FORK = 30
    LISTEN_FAILED = 31
    OUT_OF_RESOURCES = 32
    CANCELLED = 33
    DEADLINE = 34
    UNSUPPORTED = 35
    INTERNAL = 36


class PagedLLMError(Exception):
    """Why a call failed: `status`, `param` (the field to blame) and `retry_after` in seconds."""

    def __init__(self, status, message, param="", retry_after=0.0):
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after = retry_after


class Error(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("retry_after_ms", c_uint32),
        ("message", c_void_p),
        ("message_len", c_size_t),
        ("param", c_void_p),
        ("param_len", c_size_t),
    ]


PROGRESS = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)


class EngineOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("model_len", c_size_t),
        ("options", c_char_p),
        ("options_len", c_size_t),
        ("log", c_void_p),
        ("log_data", c_void_p),
        ("log_level", c_uint32),
        ("reserved", c_uint32),
        ("progress", PROGRESS),
        ("progress_data", c_void_p),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("tokens_len", c_size_t),
        ("chat", c_char_p),
        ("chat_len", c_size_t),
        ("params", c_char_p),
        ("params_len", c_size_t),
        ("tag", c_uint64),
        ("timeout_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class Logprob(ctypes.Structure):
    _fields_ = [("token", c_uint32), ("logprob", c_float)]


class Event(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tag", c_uint64),
        ("kind", c_uint32),
        ("choice", c_uint32),
        ("finish_reason", c_uint32),
        ("status", c_int32),
        ("text", c_void_p),
        ("text_len", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("tokens_len", c_size_t),
        ("logprobs", POINTER(c_float)),
        ("alternatives", POINTER(Logprob)),
        ("alternatives_ends", POINTER(c_size_t)),
        ("stop", c_int64),
        ("prompt_tokens", c_uint64),
        ("cached_tokens", c_uint64),
        ("output_tokens", c_uint64),
        ("cumulative_logprob", c_double),
    ]


class Text(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class Tokens(ctypes.Structure):
    _fields_ = [("data", POINTER(c_uint32)), ("len", c_size_t)]


_FAILING = {
    "engine_open": [POINTER(EngineOptions), POINTER(c_void_p)],
    "engine_shutdown": [c_void_p, c_uint32],
    "engine_health": [c_void_p],
    "engine_info": [c_void_p, POINTER(POINTER(Text))],
    "engine_metrics": [c_void_p, c_uint32, POINTER(POINTER(Text))],
    "generate": [c_void_p, POINTER(Request), c_void_p, POINTER(c_void_p)],
    "complete": [c_void_p, c_uint32, c_char_p, c_size_t, c_uint64, c_void_p, POINTER(c_void_p)],
    "stream_cancel": [c_void_p],
    "server_start": [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)],
    "server_address": [c_void_p, POINTER(POINTER(Text))],
    "server_stop": [c_void_p, c_uint32],
    "queue_new": [POINTER(c_void_p)],
    "queue_poll": [
        c_void_p,
        c_uint32,
        POINTER(POINTER(Event)),
        c_size_t,
        POINTER(c_size_t),
    ],
    "queue_interrupt": [c_void_p],
    "tokenize": [c_void_p, c_char_p, c_size_t, c_uint32, POINTER(POINTER(Tokens))],
    "detokenize": [c_void_p, POINTER(c_uint32), c_size_t, c_uint32, POINTER(POINTER(Text))],
    "render_chat": [c_void_p, c_char_p, c_size_t, POINTER(POINTER(Text))],
}
_HANDLES = ("engine_free", "stream_free", "queue_free", "server_free")
_RECORDS = {
    "error_free": POINTER(Error),
    "text_free": POINTER(Text),
    "tokens_free": POINTER(Tokens),
}


def _load():
    beside = Path(__file__).with_name("libpagedllm.so")
    path = os.environ.get("PAGEDLLM_LIBRARY") or (str(beside) if beside.exists() else None)
    library = ctypes.CDLL(path or f"libpagedllm.so.{ABI_MAJOR}")
    for name, arguments in _FAILING.items():
        function = getattr(library, f"pagedllm_{name}")
        function.argtypes = [*arguments, POINTER(POINTER(Error))]
        function.restype = c_int32
    for name in _HANDLES:
        function = getattr(library, f"pagedllm_{name}")
        function.argtypes, function.restype = [c_void_p], c_int32
    for name, argument in _RECORDS.items():
        function = getattr(library, f"pagedllm_{name}")
        function.argtypes, function.restype = [argument], None
    major, minor = c_uint32(), c_uint32()
    library.pagedllm_abi_version(ctypes.byref(major), ctypes.byref(minor))
    if major.value != ABI_MAJOR:
        raise ImportError(f"libpagedllm has interface {major.value}, and {ABI_MAJOR} is needed")
    return library


LIBRARY = _load()

# Called for each event: not worth giving the interpreter to another thread and asking it back.
free_event = ctypes.PyDLL(LIBRARY._name).pagedllm_event_free
free_event.argtypes, free_event.restype = [POINTER(Event)], None

# The library's own callback for logs: no thread of its own ever runs Python.
LOG_TO_FD = ctypes.cast(LIBRARY.pagedllm_log_to_fd, c_void_p).value


def call(name, *arguments):
    """Calls `pagedllm_<name>`; returns the status, or raises PagedLLMError."""
    error = POINTER(Error)()
    status = getattr(LIBRARY, f"pagedllm_{name}")(*arguments, ctypes.byref(error))
    if status < Status.INVALID_ARGUMENT:
        return status
    message, param, retry_after = "", "", 0.0
    if error:
        message = string(error.contents.message, error.contents.message_len)
        param = string(error.contents.param, error.contents.param_len)
        retry_after = error.contents.retry_after_ms / 1000
        LIBRARY.pagedllm_error_free(error)
    raise PagedLLMError(status, message, param, retry_after)


def milliseconds(seconds):
    """A timeout; None waits for ever."""
    return FOREVER if seconds is None else min(max(int(seconds * 1000), 0), FOREVER - 1)


def string(data, length):
    """A text of the library."""
    return ctypes.string_at(data, length).decode() if length else ""


def text(name, *arguments):
    """Calls a function that writes a text."""
    out = POINTER(Text)()
    call(name, *arguments, ctypes.byref(out))
    try:
        return string(out.contents.data, out.contents.len)
    finally:
        LIBRARY.pagedllm_text_free(out)
