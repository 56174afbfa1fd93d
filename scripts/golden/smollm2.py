"""Makes checkpoints and golden answers of SmolLM2-135M-Instruct from its Q4_1 GGUF file.

    python smollm2.py checkpoints    # Hugging Face directories (f32, sharded bf16) and other GGUFs
    python smollm2.py goldens        # tests/golden/smollm2.json

The weights are the file's own, dequantized exactly, so the F32 checkpoints, the F32 GGUF and the
Q4_1 file itself stand for one and the same function.
"""

import argparse
import json
import os
from pathlib import Path

import gguf
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import pre_tokenizers

import gguf_weights
import prompts
import reference
from golden_json import write_json

MODELS = Path(os.environ.get("PAGEDLLM_MODELS", Path.home() / ".cache/pagedllm/models"))
NAME = "SmolLM2-135M-Instruct"
SOURCE = MODELS / f"{NAME}.Q4_1.gguf"
F32_DIR = MODELS / f"{NAME}-f32"
BF16_DIR = MODELS / f"{NAME}-bf16-sharded"
GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/smollm2.json"
NUM_OUTPUT = 64
NUM_SHARDS = 2

GGUF_VARIANTS = {
    "F32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32),
    "F16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16),
    "BF16": (gguf.LlamaFileType.MOSTLY_BF16, gguf.GGMLQuantizationType.BF16),
    "Q8_0": (gguf.LlamaFileType.MOSTLY_Q8_0, gguf.GGMLQuantizationType.Q8_0),
    "Q4_0": (gguf.LlamaFileType.MOSTLY_Q4_0, gguf.GGMLQuantizationType.Q4_0),
}


def config_of(reader: gguf.GGUFReader, dtype: str) -> transformers.LlamaConfig:
    """The Hugging Face configuration that the file's metadata describe."""
    def get(name: str):
        return gguf_weights.field(reader, name)

    return transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=get("llama.vocab_size"),
        hidden_size=get("llama.embedding_length"),
        intermediate_size=get("llama.feed_forward_length"),
        num_hidden_layers=get("llama.block_count"),
        num_attention_heads=get("llama.attention.head_count"),
        num_key_value_heads=get("llama.attention.head_count_kv"),
        head_dim=get("llama.rope.dimension_count"),
        max_position_embeddings=get("llama.context_length"),
        rms_norm_eps=float(f"{get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": get("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=get("tokenizer.ggml.bos_token_id"),
        eos_token_id=get("tokenizer.ggml.eos_token_id"),
        pad_token_id=get("tokenizer.ggml.padding_token_id"),
        dtype=dtype,
    )


def write_side_files(directory: Path, reader: gguf.GGUFReader, dtype: str) -> None:
    """config.json, generation_config.json and the tokenizer's files."""
    config_of(reader, dtype).save_pretrained(directory)
    # Readers of before 5.0 look for the base at the top level, and both spellings are in use.
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    config["torch_dtype"] = config["dtype"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    transformers.GenerationConfig(
        bos_token_id=config["bos_token_id"],
        eos_token_id=config["eos_token_id"],
        pad_token_id=config["pad_token_id"],
    ).save_pretrained(directory)
    write_tokenizer(directory, reader)


def write_tokenizer(directory: Path, reader: gguf.GGUFReader) -> None:
    """tokenizer.json and tokenizer_config.json as the model's authors publish them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SOURCE.parent, gguf_file=SOURCE.name)
    # transformers converts every `gpt2` vocabulary alike and so loses what the file's
    # `tokenizer.ggml.pre = smollm` says: each digit stands alone.
    assert gguf_weights.field(reader, "tokenizer.ggml.pre") == "smollm"
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.chat_template = gguf_weights.field(reader, "tokenizer.chat_template")
    tokenizer.save_pretrained(directory, save_jinja_files=False)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for name in ("backend", "is_local", "local_files_only"):
        config.pop(name, None)
    config["add_bos_token"] = gguf_weights.field(reader, "tokenizer.ggml.add_bos_token")
    config["add_prefix_space"] = gguf_weights.field(reader, "tokenizer.ggml.add_space_prefix")
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = gguf_weights.field(reader, "llama.context_length")
    # Readers of every age take tokenizer.json as it is under this name.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def shards_of(weights: dict[str, torch.Tensor], num_shards: int) -> list[dict[str, torch.Tensor]]:
    """The tensors in name order, cut where a shard has its part of all bytes."""
    total = sum(weight.nbytes for weight in weights.values())
    shards, seen = [{} for _ in range(num_shards)], 0
    for name, weight in sorted(weights.items()):
        shards[min(seen * num_shards // total, num_shards - 1)][name] = weight
        seen += weight.nbytes
    return shards


def save_sharded(directory: Path, weights: dict[str, torch.Tensor]) -> None:
    """Several safetensors files and the index that names them."""
    where = {}
    for number, shard in enumerate(shards_of(weights, NUM_SHARDS), start=1):
        file_name = f"model-{number:05}-of-{NUM_SHARDS:05}.safetensors"
        save_file(shard, directory / file_name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, file_name))
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make_checkpoints() -> None:
    """Everything in the model cache that is made from the source file."""
    reader = gguf.GGUFReader(SOURCE)
    weights = {k: torch.from_numpy(v) for k, v in gguf_weights.read_weights(SOURCE).items()}
    F32_DIR.mkdir(exist_ok=True)
    write_side_files(F32_DIR, reader, "float32")
    save_file(weights, F32_DIR / "model.safetensors", metadata={"format": "pt"})
    BF16_DIR.mkdir(exist_ok=True)
    write_side_files(BF16_DIR, reader, "bfloat16")
    save_sharded(BF16_DIR, {k: v.to(torch.bfloat16) for k, v in weights.items()})
    for name, (file_type, matrix_type) in GGUF_VARIANTS.items():
        gguf_weights.write_gguf(SOURCE, MODELS / f"{NAME}.{name}.gguf", file_type, matrix_type)
        print(f"wrote {NAME}.{name}.gguf", flush=True)


def open_model(directory: Path):
    """The model in f32 arithmetic, whatever the file stores."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager").eval()


def make_goldens() -> None:
    """Runs the reference and writes the golden file."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(F32_DIR)
    model = open_model(F32_DIR)
    texts = dict(prompts.PROMPTS)
    entries = []
    for name, prompt in prompts.PROMPTS:
        entries.append(reference.greedy_entry(model, tokenizer, name, prompt, NUM_OUTPUT))
        print(name, len(entries[-1]["prompt_ids"]), min(entries[-1]["gaps"]), flush=True)
    ids = {entry["name"]: entry["prompt_ids"] for entry in entries}
    golden = {
        "model": NAME,
        "source": {"file": SOURCE.name, "sha256_prefix": "b179c952"},
        "made_with": reference.made_with(),
        "dtype": "float32",
        "greedy": entries,
        "logits": [{"name": n, **reference.logit_row(reference.logits_of(model, ids[n])[-1])}
                   for n in prompts.LOGIT_PROMPTS],
        "prompt_logprobs": [{"name": n, **reference.prompt_logprobs(model, ids[n])}
                            for n in prompts.LOGPROB_PROMPTS],
    }
    del model
    model = open_model(BF16_DIR)
    golden["greedy_bf16_weights"] = [
        reference.greedy_entry(model, tokenizer, n, texts[n], NUM_OUTPUT)
        for n in prompts.BF16_PROMPTS]
    write_json(GOLDEN, golden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["checkpoints", "goldens"])
    torch.set_num_threads(int(os.environ.get("GOLDEN_THREADS", "1")))
    {"checkpoints": make_checkpoints, "goldens": make_goldens}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
