"""Makes tiny random checkpoints of the llama family, each with golden answers beside it.

    python tiny.py              # all
    python tiny.py llama yarn   # some

Weights are drawn from a fixed seed, rounded to bf16 (so a file is small and every reader sees the
same values), and the answers are computed in f32 from the rounded weights.
"""

import argparse
import json
import random
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import reference
import tiny_tokenizer
from golden_json import write_json

ROOT = Path(__file__).resolve().parents[2] / "tests/golden/tiny"
NUM_OUTPUT = 32
# Seeds are tried in turn until no greedy choice is closer than this, so that a test may ask for
# equal tokens without a list of exceptions.
MIN_GAP = 2e-3
FIRST_SEED = 1000
NOISE = ("_name_or_path", "chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder",
         "output_attentions", "output_hidden_states", "problem_type", "return_dict")
PROMPT_LENGTHS = (1, 2, 7, 8, 9, 17, 40, 100)
ROW_LENGTHS = (1, 9, 40, 100)
VOCAB_SIZE = 320

SMALL = dict(vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=80, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
             rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, pad_token_id=1)
MEDIUM = dict(SMALL, hidden_size=64, intermediate_size=112, head_dim=16)


def rope(kind: str, **values) -> dict:
    """`rope_parameters` of transformers 5."""
    return {"rope_type": kind, "rope_theta": 10000.0, **values}


PLAIN = rope("default")
VARIANTS = {
    "llama": LlamaConfig(**MEDIUM, rope_parameters=PLAIN, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**dict(MEDIUM, num_hidden_layers=3), rope_parameters=PLAIN,
                              tie_word_embeddings=True),
    "llama_bias": LlamaConfig(**SMALL, rope_parameters=PLAIN, attention_bias=True, mlp_bias=True,
                              tie_word_embeddings=False),
    "llama_wide_heads": LlamaConfig(**dict(SMALL, head_dim=32), rope_parameters=PLAIN,
                                    tie_word_embeddings=False),
    "llama_one_kv_head": LlamaConfig(**dict(SMALL, num_key_value_heads=1), rope_parameters=PLAIN,
                                     tie_word_embeddings=False),
    "llama_all_kv_heads": LlamaConfig(**dict(SMALL, num_key_value_heads=4), rope_parameters=PLAIN,
                                      tie_word_embeddings=False),
    "llama3_rope": LlamaConfig(
        **dict(MEDIUM, num_hidden_layers=2), tie_word_embeddings=True,
        rope_parameters=rope("llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64)),
    "linear_rope": LlamaConfig(**SMALL, tie_word_embeddings=True,
                               rope_parameters=rope("linear", factor=4.0)),
    "yarn_rope": LlamaConfig(
        **SMALL, tie_word_embeddings=True,
        rope_parameters=rope("yarn", factor=8.0, original_max_position_embeddings=64)),
    "mistral": MistralConfig(**MEDIUM, rope_parameters=PLAIN, sliding_window=8,
                             tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SMALL, rope_parameters=rope("default", rope_theta=1000000.0),
                         tie_word_embeddings=False),
    "qwen3": Qwen3Config(**dict(SMALL, head_dim=16),
                         rope_parameters=rope("default", rope_theta=1000000.0),
                         tie_word_embeddings=True),
}
WITH_TOKENIZER = ("llama",)


def fill(model, seed: int) -> None:
    """Draws every parameter so that logits are well spread, and rounds it to bf16."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        draw = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * draw
        elif name.endswith("bias"):
            values = 0.1 * draw
        elif "embed_tokens" in name or "lm_head" in name:
            values = draw * 3.0 / parameter.shape[-1] ** 0.5
        else:
            values = draw / parameter.shape[-1] ** 0.5
        writes_back = name.endswith(("o_proj.weight", "down_proj.weight"))
        if model.config.tie_word_embeddings and writes_back:
            # Otherwise a token's own embedding wins, and every answer repeats its last token.
            values = values * 3.0
        parameter.data.copy_(values.to(torch.bfloat16).float())


def write_config(directory: Path, config) -> None:
    """config.json with both spellings of the rope fields, as files of either age have them."""
    values = config.to_dict()
    for name in NOISE:
        values.pop(name, None)
    values["dtype"] = values["torch_dtype"] = "bfloat16"
    scaling = dict(values["rope_parameters"])
    values["rope_theta"] = scaling.pop("rope_theta")
    values["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    (directory / "config.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def prompts_of(name: str) -> list[list[int]]:
    """One random prompt of each length; ids 0 and 1 (begin, end) are left out."""
    draw = random.Random(f"prompts of {name}")
    return [[draw.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in PROMPT_LENGTHS]


def golden_of(name: str, model) -> dict:
    """Greedy continuations of all prompts, whole logit rows of some."""
    greedy, logits = [], []
    for token_ids in prompts_of(name):
        output, gaps = reference.greedy(model, token_ids, NUM_OUTPUT)
        greedy.append({"prompt_ids": token_ids, "output_ids": output, "gaps": gaps})
        if len(token_ids) in ROW_LENGTHS:
            rows = reference.logits_of(model, token_ids)
            logits.append({"prompt_ids": token_ids, "argmax": [int(i) for i in rows.argmax(-1)],
                           "last_row": reference.rounded(rows[-1])})
    return {
        "model": name,
        "made_with": reference.made_with(),
        "dtype": "float32",
        "greedy": greedy,
        "logits": logits,
    }


def well_spread(name: str, model, seed: int) -> dict:
    """Fills the model from the first seed that leaves no near tie, and returns its answers."""
    while True:
        fill(model, seed)
        golden = golden_of(name, model)
        if min(min(entry["gaps"]) for entry in golden["greedy"]) >= MIN_GAP:
            return {"seed": seed, **golden}
        seed += 1


def make(name: str) -> None:
    """One variant: checkpoint and answers."""
    config = VARIANTS[name]
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    golden = well_spread(name, model, FIRST_SEED)
    directory = ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {n: p.data.to(torch.bfloat16).contiguous() for n, p in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_config(directory, config)
    if name in WITH_TOKENIZER:
        tiny_tokenizer.write(directory, VOCAB_SIZE)
    write_json(directory / "golden.json", golden)
    size = (directory / "model.safetensors").stat().st_size
    print(name, size, golden["seed"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(VARIANTS))
    torch.set_num_threads(1)
    for name in parser.parse_args().names:
        make(name)


if __name__ == "__main__":
    main()
