"""What goes into a request and what comes out, in the shape of vLLM's offline API."""

import dataclasses
import json
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _native as native

_KINDS = {1: "text", 2: "finished", 3: "prompt", 4: "json", 5: "failed", 6: "end"}
_STOP_TOKEN, _STOP_STRING = 2, 3
_REASONS = {
    0: None,
    1: "length",
    _STOP_TOKEN: "stop",
    _STOP_STRING: "stop",
    4: "abort",
    5: "deadline",
    6: "error",
}

Prompt = Union[str, Sequence[int], Dict[str, Any]]
"""A text, token ids, or a dict with "prompt" or "prompt_token_ids"."""


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
    logprobs: Optional[int] = None
    extra: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self, is_chat: bool = False) -> bytes:
        """The parameters as the library reads them."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        extra = fields.pop("extra")
        given = {name: value for name, value in fields.items() if value is not None}
        if is_chat and "logprobs" in given:
            given.update(logprobs=True, top_logprobs=self.logprobs)
        return json.dumps({**given, **extra}).encode()


@dataclasses.dataclass
class Logprob:
    """Natural logarithm of a token's probability."""

    logprob: float


@dataclasses.dataclass
class Event:
    """Something that happened to one choice of a request."""

    kind: str
    choice: int
    text: str
    token_ids: List[int]
    logprobs: Optional[List[Dict[int, Logprob]]]
    finish_reason: Optional[str]
    stop_token: Optional[int]
    """The token that ended the choice."""
    stop_string: Optional[int]
    """Index of the stop string that ended the choice."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's tokens, found in the prefix cache; known at the end."""
    output_tokens: int
    cumulative_logprob: Optional[float]

    @classmethod
    def _of(cls, raw):
        tokens = raw.tokens[: raw.tokens_len] if raw.tokens_len else []
        cumulative = raw.cumulative_logprob
        return cls(
            kind=_KINDS.get(raw.kind, "unknown"),
            choice=raw.choice,
            text=native.string(raw.text, raw.text_len),
            token_ids=tokens,
            logprobs=_logprobs(raw, tokens) if raw.logprobs else None,
            finish_reason=_REASONS.get(raw.finish_reason, "unknown"),
            stop_token=raw.stop if raw.finish_reason == _STOP_TOKEN else None,
            stop_string=raw.stop if raw.finish_reason == _STOP_STRING else None,
            prompt_tokens=raw.prompt_tokens,
            cached_tokens=raw.cached_tokens,
            output_tokens=raw.output_tokens,
            cumulative_logprob=cumulative if cumulative == cumulative else None,
        )


def _logprobs(raw, tokens):
    places, start = [], 0
    for index, token in enumerate(tokens):
        end = raw.alternatives_ends[index] if raw.alternatives else start
        place = {raw.alternatives[i].token: raw.alternatives[i].logprob for i in range(start, end)}
        place[token] = raw.logprobs[index]
        places.append({token: Logprob(value) for token, value in place.items()})
        start = end
    return places


@dataclasses.dataclass
class CompletionOutput:
    """One choice of an answer."""

    index: int
    text: str = ""
    token_ids: List[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    """The token or the string that ended it."""


@dataclasses.dataclass
class RequestOutput:
    """The answer to one prompt."""

    request_id: str
    prompt: Any
    outputs: List[CompletionOutput]
    finished: bool = True
    num_cached_tokens: int = 0


def collect(request_id, prompt, params, stream):
    """Reads a stream to its end."""
    outputs: Dict[int, CompletionOutput] = {}
    cached = 0
    for event in stream:
        cached = max(cached, event.cached_tokens)
        if event.kind not in ("text", "finished"):
            continue
        output = outputs.setdefault(event.choice, CompletionOutput(event.choice))
        output.text += event.text
        output.token_ids += event.token_ids
        if event.logprobs is not None:
            output.logprobs = (output.logprobs or []) + event.logprobs
        if event.kind == "finished":
            output.finish_reason = event.finish_reason
            output.cumulative_logprob = event.cumulative_logprob
            output.stop_reason = _stop_reason(event, params)
    ordered = [outputs[index] for index in sorted(outputs)]
    return RequestOutput(request_id, prompt, ordered, num_cached_tokens=cached)


def _stop_reason(event, params):
    if event.stop_string is None:
        return event.stop_token
    return params.stop if isinstance(params.stop, str) else params.stop[event.stop_string]
