"""Models of a known shape with random weights: for sizes and times of caches whose weights are not at hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import QualifyError, WorkloadError

__all__ = ["SHAPES", "Shape", "write_shape"]

_SEED = 36


class Shape(NamedTuple):
    """A dense model of the architecture qwen3."""

    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_vocab: int
    n_ctx: int


SHAPES = {
    # the vocabulary is cut: it bears on no cache, and its matrix would be half of the file
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 4096, 40960),
    # for tests
    "qwen3-tiny": Shape(2, 64, 2, 1, 64, 96, 64, 4096),
    "qwen3-odd-heads": Shape(2, 64, 2, 1, 48, 96, 64, 4096),
}


def write_shape(name: str, folder: Path) -> Path:
    """Write the GGUF file of a shape, the same one every time; a file that is there is kept.

    Raises:
        WorkloadError: no such shape.
        QualifyError: the package gguf is missing.
    """
    if name not in SHAPES:
        raise WorkloadError(f"{name} is not one of the shapes: {', '.join(sorted(SHAPES))}")
    path = folder / f"{name}-synthetic.gguf"
    if path.is_file():
        return path
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError:
        raise QualifyError(
            "the package gguf is missing; it writes models of random weights: pip install gguf"
        ) from None
    shape = SHAPES[name]
    rng = np.random.default_rng(_SEED)

    def weights(n_rows: int, n_columns: int, scale: float = 1.0) -> NDArray[np.float16]:
        values = rng.standard_normal((n_rows, n_columns), dtype=np.float32)
        values *= np.float32(scale / np.sqrt(n_columns))
        return values.astype(np.float16)

    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "qwen3")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor("token_embd.weight", weights(shape.n_vocab, shape.n_embd, 4.0))
    writer.add_tensor("output_norm.weight", np.ones(shape.n_embd, dtype=np.float32))
    writer.add_tensor("output.weight", weights(shape.n_vocab, shape.n_embd))
    n_q, n_kv = shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    for i in range(shape.n_layers):
        block = f"blk.{i}"
        for norm, size in (
            ("attn_norm", shape.n_embd),
            ("attn_q_norm", shape.head_size),
            ("attn_k_norm", shape.head_size),
            ("ffn_norm", shape.n_embd),
        ):
            writer.add_tensor(f"{block}.{norm}.weight", np.ones(size, dtype=np.float32))
        writer.add_tensor(f"{block}.attn_q.weight", weights(n_q, shape.n_embd))
        writer.add_tensor(f"{block}.attn_k.weight", weights(n_kv, shape.n_embd))
        writer.add_tensor(f"{block}.attn_v.weight", weights(n_kv, shape.n_embd))
        writer.add_tensor(f"{block}.attn_output.weight", weights(shape.n_embd, n_q))
        writer.add_tensor(f"{block}.ffn_gate.weight", weights(shape.n_ff, shape.n_embd))
        writer.add_tensor(f"{block}.ffn_up.weight", weights(shape.n_ff, shape.n_embd))
        writer.add_tensor(f"{block}.ffn_down.weight", weights(shape.n_embd, shape.n_ff))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)
    return path
