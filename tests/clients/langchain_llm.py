"""A LangChain `LLM` of one's own that posts to /v1/completions.

The body is the one that such classes have sent for years: every field is present, some with their
default, `best_of` beside `n`, and `logprobs` as null.
"""

from typing import Any

import requests
from langchain_core.language_models.llms import LLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate

from settings import BASE_URL, MODEL, API_KEY


class CompletionsLLM(LLM):
    """Text completion over HTTP."""

    base_url: str
    model: str
    temperature: float = 0.0
    max_tokens: int = 32
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    best_of: int = 1
    n: int = 1

    @property
    def _llm_type(self) -> str:
        return "completions"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature}

    def _call(self, prompt: str, stop: list[str] | None = None, run_manager: Any = None,
              **kwargs: Any) -> str:
        body = {
            "model": self.model, "prompt": prompt, "temperature": self.temperature,
            "max_tokens": self.max_tokens, "stop": stop, "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty, "best_of": self.best_of, "n": self.n,
            "logprobs": None, **kwargs,
        }
        response = requests.post(f"{self.base_url}/v1/completions", json=body, timeout=120,
                                 headers={"Authorization": f"Bearer {API_KEY}"})
        response.raise_for_status()
        answer = response.json()
        usage, choice = answer["usage"], answer["choices"][0]
        assert answer["object"] == "text_completion", answer
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
        assert choice["finish_reason"] in ("stop", "length"), choice
        return choice["text"]


def main() -> None:
    llm = CompletionsLLM(base_url=BASE_URL, model=MODEL)
    first = llm.invoke("The capital of France is")
    assert first and first == llm.invoke("The capital of France is"), "greedy answers differ"

    word = first.split()[0]
    cut = llm.invoke("The capital of France is", stop=[word])
    assert word not in cut, f"stop string {word!r} is in {cut!r}"

    chain = PromptTemplate.from_template("Q: {question}\nA:") | llm | StrOutputParser()
    assert isinstance(chain.invoke({"question": "What is water?"}), str)
    answers = llm.batch(["One", "Two", "Three", "Four"])
    assert len(answers) == 4 and all(answers), answers

    sampled = CompletionsLLM(base_url=BASE_URL, model=MODEL, temperature=0.8, top_p=0.9, best_of=3,
                             frequency_penalty=0.5, presence_penalty=0.5)
    assert sampled.invoke("Once upon a time")
    print("langchain_llm: ok")


if __name__ == "__main__":
    main()
