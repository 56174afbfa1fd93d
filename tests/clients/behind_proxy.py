"""A stream through a proxy arrives in pieces: tokens are spread over the time of the answer."""

import time

import httpx

from settings import API_KEY, BASE_URL, MODEL


def main() -> None:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 100, "stream": True,
            "temperature": 0, "ignore_eos": True}
    times, lines = [], []
    start = time.perf_counter()
    with httpx.stream("POST", f"{BASE_URL}/v1/completions", json=body, timeout=300,
                      headers={"Authorization": f"Bearer {API_KEY}"}) as answer:
        assert answer.status_code == 200, answer.status_code
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                lines.append(line)
                times.append(time.perf_counter() - start)
    assert lines[-1] == "data: [DONE]", lines[-1]
    assert len(lines) > 50, f"only {len(lines)} events"
    assert times[0] < times[-1] / 2, f"first event at {times[0]:.3f} s of {times[-1]:.3f} s"
    print("behind_proxy: ok")


if __name__ == "__main__":
    main()
