"""LLM inference in process: the offline class of vLLM's shape, and streams for asyncio.

    from pagedllm import LLM, SamplingParams
    llm = LLM("model.gguf")
    for output in llm.generate(["Hello", "Bonjour"], SamplingParams(max_tokens=16)):
        print(output.outputs[0].text)
"""

from ._native import PagedLLMError, Status
from ._llm import LLM
from ._outputs import CompletionOutput, Event, Logprob, RequestOutput, SamplingParams
from ._server import Server
from ._stream import Stream

__all__ = [
    "LLM",
    "CompletionOutput",
    "Event",
    "Logprob",
    "PagedLLMError",
    "RequestOutput",
    "SamplingParams",
    "Server",
    "Status",
    "Stream",
]
