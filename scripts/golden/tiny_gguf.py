"""Makes tiny GGUF files with golden answers, and the table of dequantized blocks.

    python tiny_gguf.py

- `tests/golden/tiny/gguf_bf16/llama.BF16.gguf`: the weights, the tokenizer and so the answers of
  `tests/golden/tiny/llama`.
- `tests/golden/tiny/gguf_mixed/`: a model whose every matrix has another format, with answers from
  its dequantized weights.
- `tests/golden/gguf_blocks.json`: blocks of each format as bytes, and their values.
"""

import json

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from gguf import LlamaFileType as FileType
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import gguf_weights
import tiny
import tiny_tokenizer
from golden_json import write_json

LLAMA = tiny.ROOT / "llama"
BF16 = tiny.ROOT / "gguf_bf16"
MIXED = tiny.ROOT / "gguf_mixed"
BLOCKS = tiny.ROOT.parent / "gguf_blocks.json"
BLOCK_TYPES = [Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1, Quant.Q8_0, Quant.Q2_K, Quant.Q3_K,
               Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.IQ1_S, Quant.IQ1_M, Quant.IQ2_XXS,
               Quant.IQ2_XS, Quant.IQ2_S, Quant.IQ3_XXS, Quant.IQ3_S, Quant.IQ4_NL, Quant.IQ4_XS,
               Quant.MXFP4, Quant.BF16, Quant.F16]
VALUES_OF_A_TYPE = 512
LARGEST_VALUE = 1e4

# Rows of 256 values, as the K formats need; the formats that gguf cannot write are drawn as bytes.
MIXED_CONFIG = LlamaConfig(
    vocab_size=tiny.VOCAB_SIZE, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
    rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=False,
    rope_parameters=tiny.PLAIN, architectures=["LlamaForCausalLM"])
MIXED_TYPES = {"attn_q.weight": Quant.Q4_K, "attn_k.weight": Quant.Q5_K,
               "attn_v.weight": Quant.Q8_0, "attn_output.weight": Quant.Q3_K,
               "ffn_gate.weight": Quant.Q5_0, "ffn_up.weight": Quant.Q2_K,
               "ffn_down.weight": Quant.Q5_1, "token_embd.weight": Quant.Q4_0,
               "output.weight": Quant.Q6_K}
# Where a K format keeps its f16 scale and, if it has one, the scale of its offsets; then how much
# larger than the scale the offsets' one must be for values about zero.
K_SCALES = {Quant.Q2_K: (80, 82, 1.5), Quant.Q3_K: (108, None, 0.0), Quant.Q4_K: (0, 2, 7.5),
            Quant.Q5_K: (0, 2, 15.5), Quant.Q6_K: (208, None, 0.0)}


def metadata(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    """The fields that every llama file has."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def tokenizer(writer: gguf.GGUFWriter, directory) -> None:
    """The vocabulary of `directory`'s tokenizer.json as a byte-level BPE."""
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    names = sorted(model["vocab"], key=model["vocab"].get)
    special = set(tiny_tokenizer.SPECIAL)
    kinds = [gguf.TokenType.CONTROL if n in special else gguf.TokenType.NORMAL for n in names]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_tokenizer.TEMPLATE)


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes everything and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama() -> None:
    """The directory `llama` as one BF16 file; its weights are bf16 already, so nothing is lost."""
    BF16.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig.from_pretrained(LLAMA)
    weights = {n: w.float().numpy() for n, w in load_file(LLAMA / "model.safetensors").items()}
    writer = gguf.GGUFWriter(BF16 / "llama.BF16.gguf", "llama")
    writer.add_file_type(FileType.MOSTLY_BF16)
    metadata(writer, config)
    tokenizer(writer, LLAMA)
    heads = {"attn_q.weight": config.num_attention_heads,
             "attn_k.weight": config.num_key_value_heads}
    for name in gguf_weights.gguf_names(config.num_hidden_layers, untied_head=True):
        values = weights[gguf_weights.hf_name(name)]
        if (of_layer := name.split(".", 2)[-1]) in heads:
            values = gguf_weights.rotated_order(values, heads[of_layer])
        kind = Quant.BF16 if values.ndim == 2 else Quant.F32
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def k_blocks(kind: Quant, shape: tuple[int, int], wanted: float,
             draw: np.random.Generator) -> np.ndarray:
    """`[rows, bytes]` random blocks of a K format whose values have `wanted` times the spread that
    keeps the size of what they multiply."""
    values_of_block, bytes_of_block = gguf.GGML_QUANT_SIZES[kind]
    rows, inputs = shape
    blocks = draw.integers(0, 256, (rows, inputs // values_of_block, bytes_of_block), np.uint8)
    scale_at, offset_at, factor = K_SCALES[kind]

    def set_scale(at: int, value: float) -> None:
        blocks[:, :, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    def set_scales(scale: float) -> None:
        set_scale(scale_at, scale)
        if offset_at is not None:
            set_scale(offset_at, scale * factor)

    set_scales(1e-3)
    spread = gguf.dequantize(blocks.reshape(rows, -1), kind).std()
    set_scales(1e-3 * wanted / spread / inputs ** 0.5)
    return blocks.reshape(rows, -1)


def write_mixed(seed: int) -> None:
    """The model of many formats from one seed."""
    draw = np.random.default_rng(seed)
    config, path = MIXED_CONFIG, MIXED / "mixed.gguf"
    shapes = {n: tuple(p.shape) for n, p in LlamaForCausalLM(config).named_parameters()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(FileType.MOSTLY_Q4_K_M)
    metadata(writer, config)
    tokenizer(writer, LLAMA)
    for name in gguf_weights.gguf_names(config.num_hidden_layers, untied_head=True):
        shape = shapes[gguf_weights.hf_name(name)]
        kind = MIXED_TYPES.get(name.removeprefix("blk.0."), Quant.F32)
        spread = 3.0 if name in ("token_embd.weight", "output.weight") else 1.0
        values = draw.standard_normal(shape, np.float32)
        if kind in K_SCALES:
            writer.add_tensor(name, k_blocks(kind, shape, spread, draw), raw_dtype=kind)
        elif kind == Quant.F32:
            writer.add_tensor(name, 1 + values * np.float32(0.2), raw_dtype=kind)
        else:
            scaled = values * np.float32(spread / shape[-1] ** 0.5)
            writer.add_tensor(name, gguf.quantize(scaled, kind), raw_dtype=kind)
    finish(writer)


def make_mixed() -> None:
    """Draws files until one has no near tie, and writes its answers."""
    MIXED.mkdir(parents=True, exist_ok=True)
    config = MIXED_CONFIG
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    for seed in range(tiny.FIRST_SEED, tiny.FIRST_SEED + 100):
        write_mixed(seed)
        weights = gguf_weights.read_weights(MIXED / "mixed.gguf")
        model.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()}, strict=False)
        golden = tiny.golden_of("gguf_mixed", model)
        if min(min(entry["gaps"]) for entry in golden["greedy"]) >= tiny.MIN_GAP:
            write_json(MIXED / "golden.json", {"seed": seed, **golden})
            return
    raise SystemExit("no seed without a near tie")


def make_blocks() -> None:
    """Random blocks of every format whose values are of a usable size, as hex, with the values."""
    draw, entries = np.random.default_rng(tiny.FIRST_SEED), []
    for kind in BLOCK_TYPES:
        values_of_block, bytes_of_block = gguf.GGML_QUANT_SIZES[kind]
        data, values = b"", []
        while len(values) < VALUES_OF_A_TYPE // (8 if values_of_block <= 32 else 1):
            block = draw.integers(0, 256, bytes_of_block, np.uint8)
            with np.errstate(all="ignore"):
                found = gguf.dequantize(block, kind).astype(np.float32)
            if np.isfinite(found).all() and 1e-4 < np.abs(found).max() < LARGEST_VALUE:
                data += block.tobytes()
                values += [float(str(value)) for value in found]
        entries.append({"type": kind.name, "id": int(kind), "block_values": values_of_block,
                        "block_bytes": bytes_of_block, "data": data.hex(), "values": values})
    write_json(BLOCKS, {"made_with": {"gguf": "0.19.0"}, "blocks": entries})


def main() -> None:
    torch.set_num_threads(1)
    write_llama()
    make_mixed()
    make_blocks()


if __name__ == "__main__":
    main()
