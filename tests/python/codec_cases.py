"""Helpers of the codec tests: instruction sets, random planes, native rows of a type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from llama_cachegen.codec import Kind, Plane
from llama_cachegen.codec._lib import ffi, lib
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray
from parity import NATIVE

ISAS = {"scalar": 0, "avx2": 1, "avx512": 2, "neon": 3}
TYPES = [GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0, GgmlType.Q4_0]


def available_isas() -> list[str]:
    """Instruction sets of this processor and build."""
    before = lib.cachegen_isa_active()
    names = [name for name, number in ISAS.items() if lib.cachegen_isa_select(number) == 0]
    assert lib.cachegen_isa_select(before) == 0
    return names


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this processor and build, one after the other."""
    before = lib.cachegen_isa_active()
    assert lib.cachegen_isa_select(ISAS[request.param]) == 0
    yield request.param
    assert lib.cachegen_isa_select(before) == 0


def implementation() -> str:
    """Name of the active instruction set in the table of comparisons."""
    return NATIVE[lib.cachegen_isa_active()]


def as_rows(plane: Plane) -> NDArray[np.uint8]:
    """Rows [n_rows, row bytes] of a plane in any layout."""
    if not plane.transposed:
        return np.ascontiguousarray(plane.data).view(np.uint8)
    size = plane.type.block_bytes
    rows = plane.data.view(np.uint8).reshape(plane.n_channels, -1, size).transpose(1, 0, 2)
    return rows.reshape(-1, plane.n_channels * size)


def transposed_rows(rows: NDArray[np.uint8], type_: GgmlType) -> NDArray[np.uint8]:
    """The transposed layout [n_channels, n_tokens * element bytes] of native rows."""
    elements = rows.reshape(len(rows), -1, type_.block_bytes).transpose(1, 0, 2)
    return elements.reshape(elements.shape[0], -1).copy()


def native_rows(values: NDArray[np.float32], type_: GgmlType) -> NDArray[np.uint8]:
    """Native bytes [n_tokens, row bytes] of values [n_tokens, n_channels]."""
    n_tokens, n_channels = values.shape
    out = np.zeros((n_tokens, type_.row_bytes(n_channels)), dtype=np.uint8)
    if n_tokens:
        store(values, Plane(out, type_, n_channels))
    return out


def store(values: NDArray[np.float32], plane: Plane) -> None:
    """cachegen_store_rows of all tokens."""
    rows = ffi.new("struct cachegen_rows *")
    plane._fill(rows, is_written=True)
    source = np.ascontiguousarray(values, dtype=np.float32)
    assert (
        lib.cachegen_store_rows(rows, 0, len(source), ffi.cast("float *", source.__array_interface__["data"][0])) == 0
    )


def load(plane: Plane, n_tokens: int) -> NDArray[np.float32]:
    """cachegen_load_rows of all tokens."""
    rows = ffi.new("struct cachegen_rows *")
    plane._fill(rows, is_written=False)
    out = np.zeros((n_tokens, plane.n_channels), dtype=np.float32)
    assert lib.cachegen_load_rows(rows, 0, n_tokens, ffi.cast("float *", out.__array_interface__["data"][0])) == 0
    return out


def kv_like(rng: np.random.Generator, n_tokens: int, n_channels: int) -> NDArray[np.float32]:
    """Values like a cache's: channels of different spread and mean, that change slowly from token to token."""
    spread = np.exp(rng.normal(0, 0.8, n_channels))
    steps = rng.normal(0, 1, (n_tokens, n_channels))
    for t in range(1, n_tokens):
        steps[t] = 0.7 * steps[t - 1] + 0.7 * steps[t]
    return np.asarray(steps * spread + rng.normal(0, 1, n_channels), dtype=np.float32)


def random_planes(
    seed: int, n_tokens: int, *, types: list[GgmlType] | None = None, n_channels: int = 64, transposed: bool = False
) -> list[Plane]:
    """A K and a V plane of each type."""
    rng = np.random.default_rng(seed)
    planes = []
    for layer, type_ in enumerate(types or TYPES):
        for kind in (Kind.K, Kind.V):
            rows = native_rows(kv_like(rng, n_tokens, n_channels), type_)
            if transposed and type_.block_size == 1:
                planes.append(Plane(transposed_rows(rows, type_), type_, n_channels, layer, kind, transposed=True))
            else:
                planes.append(Plane(rows, type_, n_channels, layer, kind))
    return planes


def damaged_copies(data: bytes) -> list[bytes]:
    """Every truncation, one byte too many, and three flips of every byte."""
    flips = [(at, mask) for at in range(len(data)) for mask in (0x01, 0x80, 0xFF)]
    return [
        *(data[:n] for n in range(len(data))),
        data + b"\0",
        *(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :] for at, mask in flips),
    ]
