"""Reference answers of a causal model in transformers: greedy tokens, logits, logprobs.

Everything is computed in f32, one sequence at a time, with eager attention. Values are rounded for
the file; the place of every near tie is kept as the gap between the two largest logits.
"""

import numpy as np
import torch
import transformers

SAMPLE_SIZE = 64
TOP_SIZE = 20
GAP_DIGITS = 4


def rounded(values, digits: int = 4) -> list[float]:
    """Plain floats, short enough for a committed file."""
    return [round(float(value), digits) for value in values]


@torch.inference_mode()
def logits_of(model, token_ids: list[int]) -> torch.Tensor:
    """`[T, V]` logits of every position, f32."""
    return model(torch.tensor([token_ids])).logits[0].float()


@torch.inference_mode()
def greedy(model, token_ids: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    """The argmax continuation, past any end token, and the gap of the top two at each position."""
    inputs, cache = torch.tensor([token_ids]), None
    output, gaps = [], []
    for _ in range(num_tokens):
        answer = model(inputs, cache=cache, use_cache=True)
        cache = answer.cache
        values, ids = answer.logits[0, -1].float().topk(2)
        output.append(int(ids[0]))
        gaps.append(float(values[0] - values[1]))
        inputs = ids[:1].reshape(1, 1)
    return output, rounded(gaps, GAP_DIGITS)


def token_ids_of(tokenizer, prompt) -> list[int]:
    """Ids of a text, or of a chat with the assistant's turn opened."""
    if isinstance(prompt, str):
        return tokenizer(prompt, add_special_tokens=False)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def greedy_entry(model, tokenizer, name: str, prompt, num_tokens: int) -> dict:
    """One prompt with its continuation, as golden files have it."""
    token_ids = token_ids_of(tokenizer, prompt)
    output, gaps = greedy(model, token_ids, num_tokens)
    key = "prompt" if isinstance(prompt, str) else "messages"
    return {"name": name, key: prompt, "prompt_ids": token_ids, "output_ids": output,
            "output_text": tokenizer.decode(output), "gaps": gaps}


def made_with() -> dict[str, str]:
    """The versions that a golden file depends on."""
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
            "numpy": np.__version__}


def logit_row(logits: torch.Tensor) -> dict:
    """What the file keeps of one `[V]` row: the best ids, the norm, and a strided sample."""
    values, ids = logits.topk(min(TOP_SIZE, logits.numel()))
    stride = max(logits.numel() // SAMPLE_SIZE, 1)
    return {
        "top_ids": [int(i) for i in ids],
        "top_logits": rounded(values),
        "norm": round(float(np.linalg.norm(logits.double().numpy())), 3),
        "sample_stride": stride,
        "sample_logits": rounded(logits[::stride][:SAMPLE_SIZE]),
    }


def prompt_logprobs(model, token_ids: list[int]) -> dict:
    """Of each prompt token but the first: its logprob, its rank (1 is best), and the best id."""
    logprobs = torch.log_softmax(logits_of(model, token_ids), dim=-1)
    rows = logprobs[:-1]
    targets = torch.tensor(token_ids[1:])
    chosen = rows.gather(1, targets[:, None])
    return {
        "logprobs": rounded(chosen[:, 0]),
        "ranks": [int(rank) + 1 for rank in (rows > chosen).sum(dim=1)],
        "best_ids": [int(i) for i in rows.argmax(dim=1)],
        "best_logprobs": rounded(rows.max(dim=1).values),
    }
