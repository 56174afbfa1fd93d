"""Weights of a llama or qwen2 GGUF file as Hugging Face names them, and back.

For the llama architecture, llama.cpp stores the rows of the query and key projections in another
order: a head's rows `0 .. D/2` and `D/2 .. D` (the two halves that Hugging Face rotates together)
are interleaved, so that the pairs which are rotated together lie side by side. `undo_rotated_order`
gives the Hugging Face order and `rotated_order` the file's.
"""

from pathlib import Path

import gguf
import numpy as np

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BIAS_NAMES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a tensor that the file calls `gguf_name`."""
    if gguf_name in TOP_NAMES:
        return TOP_NAMES[gguf_name]
    prefix, layer, rest = gguf_name.split(".", 2)
    known = LAYER_NAMES | BIAS_NAMES
    if prefix != "blk" or rest not in known:
        raise KeyError(f"no Hugging Face name for tensor {gguf_name}")
    return f"model.layers.{layer}.{known[rest]}"


def gguf_names(num_layers: int, untied_head: bool) -> list[str]:
    """Every tensor name of a llama file, in the order in which files have them."""
    names = ["token_embd.weight"]
    names += [f"blk.{layer}.{name}" for layer in range(num_layers) for name in LAYER_NAMES]
    return names + ["output_norm.weight"] + ["output.weight"] * untied_head


def undo_rotated_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """`[H*D, in]` from the file's row order to Hugging Face's."""
    rows, inputs = weight.shape
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, inputs)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, inputs))


def rotated_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """`[H*D, in]` from Hugging Face's row order to the file's."""
    rows, inputs = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, inputs)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, inputs))


def field(reader: gguf.GGUFReader, name: str, default=None):
    """The value of one metadata field."""
    found = reader.get_field(name)
    return default if found is None else found.contents()


def heads_of(reader: gguf.GGUFReader, gguf_name: str) -> int | None:
    """How many heads the rows of a rotated query or key projection hold; else None."""
    if field(reader, "general.architecture") != "llama":
        return None
    if gguf_name.endswith("attn_q.weight"):
        return field(reader, "llama.attention.head_count")
    if gguf_name.endswith("attn_k.weight"):
        return field(reader, "llama.attention.head_count_kv")
    return None


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of the file, dequantized exactly to f32, in Hugging Face's names and order."""
    reader = gguf.GGUFReader(path)
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        # The file lists the fastest axis first.
        values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        heads = heads_of(reader, tensor.name)
        if heads is not None:
            values = undo_rotated_order(values, heads)
        weights[hf_name(tensor.name)] = values
    return weights


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copies every metadata field but the ones that the writer sets by itself."""
    own = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name in own:
            continue
        kind = found.types[0]
        element = found.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, found.contents(), kind, sub_type=element)


def write_gguf(source: Path, target: Path, file_type: gguf.LlamaFileType,
               matrix_type: gguf.GGMLQuantizationType) -> None:
    """Writes the weights of `source` again with every matrix as `matrix_type`.

    Norms stay f32, as every converter leaves them. The tensors keep the order and the row order
    of `source`, whose metadata are copied.
    """
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, field(reader, "general.architecture"))
    copy_metadata(reader, writer)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        kind = matrix_type if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
