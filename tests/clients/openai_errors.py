"""The official `openai` client must raise its own error for each mistake, with its parameter."""

import openai

from settings import API_KEY, BASE_URL, MODEL

LONG_PROMPT = "word " * 200_000


def rejected(kind: type[openai.APIStatusError], call, **values) -> openai.APIStatusError:
    """The error that `call` must raise."""
    try:
        call(**values)
    except kind as error:
        assert isinstance(error.body, dict), error.body
        assert error.body.get("message") and error.body.get("type"), error.body
        return error
    raise AssertionError(f"no {kind.__name__} for {str(values)[:200]}")


def main() -> None:
    client = openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key=API_KEY, max_retries=0, timeout=120)
    complete, chat = client.completions.create, client.chat.completions.create
    bad, hello = openai.BadRequestError, [{"role": "user", "content": "hello"}]

    missing = rejected(openai.NotFoundError, complete, model="no-such-model", prompt="x")
    assert "no-such-model" in missing.body["message"], missing.body
    for name, value in [("temperature", -1), ("temperature", 2.5), ("top_p", -0.1), ("top_p", 1.5),
                        ("n", 0), ("max_tokens", -5), ("presence_penalty", 3),
                        ("frequency_penalty", -3), ("stop", [""]), ("logprobs", 1000)]:
        error = rejected(bad, complete, model=MODEL, prompt="x", **{name: value})
        assert name in str(error.body), (name, error.body)
    rejected(bad, chat, model=MODEL, messages=[])
    rejected(bad, chat, model=MODEL, messages="not a list")
    rejected(bad, complete, model=MODEL, prompt=[-1])
    rejected(bad, complete, model=MODEL, prompt=[10_000_000])
    rejected(bad, complete, model=MODEL, prompt="x", n=2, best_of=1)

    for error in (rejected(bad, complete, model=MODEL, prompt=LONG_PROMPT),
                  rejected(bad, chat, model=MODEL,
                           messages=[{"role": "user", "content": LONG_PROMPT}])):
        assert error.code == "context_length_exceeded", error.body

    rejected(openai.NotFoundError, client.models.retrieve, model="no-such-model")
    assert chat(model=MODEL, messages=hello, max_tokens=1).choices
    print("openai_errors: ok")


if __name__ == "__main__":
    main()
