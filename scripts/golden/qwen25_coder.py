"""Golden answers of Qwen2.5-Coder-0.5B-Instruct from a GGUF file of mixed formats.

    python qwen25_coder.py     # tests/golden/qwen25_coder.json

The file (Q5_0, Q8_0, Q4_K and Q6_K matrices, biases on q, k and v, an untied Q8_0 head) is
dequantized exactly; the answers are those of the dequantized weights in f32.
"""

from pathlib import Path

import gguf
import torch
import transformers

import gguf_weights
import reference
from fetch_model import MODELS, QWEN, fetch
from golden_json import write_json
from prompts import CHINESE, CODE, RUST, STORY, chat

NAME = "Qwen2.5-Coder-0.5B-Instruct"
GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/qwen25_coder.json"
NUM_OUTPUT = 32
PROMPTS = [
    ("one_token", "import"),
    ("count", "1, 2, 3, 4, 5, 6, 7,"),
    ("python", CODE),
    ("rust", RUST),
    ("chinese", CHINESE),
    ("story", STORY),
    ("chat", chat("Write a function that reverses a string in Go.")),
    ("chat_system", [{"role": "system", "content": "You answer in one word."},
                     {"role": "user", "content": "What is the capital of Italy?"}]),
]
LOGIT_PROMPTS = ("one_token", "python", "chat")


def open_model(reader: gguf.GGUFReader, path: Path):
    """The model in f32 with the file's weights."""
    def get(name: str):
        return gguf_weights.field(reader, f"qwen2.{name}")

    weights = gguf_weights.read_weights(path)
    config = transformers.Qwen2Config(
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"), num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        max_position_embeddings=get("context_length"),
        rms_norm_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")},
        tie_word_embeddings="lm_head.weight" not in weights)
    config._attn_implementation = "eager"
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()},
                          strict=not config.tie_word_embeddings)
    return model


def main() -> None:
    torch.set_num_threads(1)
    path = fetch(QWEN)
    reader = gguf.GGUFReader(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS, gguf_file=path.name)
    tokenizer.chat_template = gguf_weights.field(reader, "tokenizer.chat_template")
    model = open_model(reader, path)
    entries = []
    for name, prompt in PROMPTS:
        entries.append(reference.greedy_entry(model, tokenizer, name, prompt, NUM_OUTPUT))
        print(name, entries[-1]["output_text"][:60], min(entries[-1]["gaps"]), flush=True)
    ids = {entry["name"]: entry["prompt_ids"] for entry in entries}
    write_json(GOLDEN, {
        "model": NAME,
        "source": {"file": path.name, "sha256": QWEN.sha256},
        "made_with": reference.made_with(),
        "dtype": "float32",
        "greedy": entries,
        "logits": [{"name": n, **reference.logit_row(reference.logits_of(model, ids[n])[-1])}
                   for n in LOGIT_PROMPTS],
    })


if __name__ == "__main__":
    main()
