#!/usr/bin/env python3
"""Make the committed corpus of the fuzz targets: tiny archives and tiles of every mode and type, and pages to encode.

Run it with the Python of .venv. With --merge, after scripts/fuzz, what the fuzzer found is added: the inputs that reach
something new, the smallest first, as far as the limits go.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from llama_cachegen import codec
from llama_cachegen.codec import Kind, Plane, Profile, Span
from llama_cachegen.codec._lib import ffi, lib
from llama_cachegen.codec.legacy import Ckg1Kind, Ckg1Part, encode_ckg1, encode_tile
from llama_cachegen.ggml_types import GgmlType
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
FOUND = ROOT / "build" / "fuzz"
MAX_FILES = 200
MAX_BYTES = 200_000

TYPES = [GgmlType.F16, GgmlType.Q8_0, GgmlType.F32, GgmlType.BF16, GgmlType.Q4_0]

# the first byte of an input, as fuzz-lcg3.h has it
RESEAL, RESIZE, RANGE, ROTATE, OTHERS, NATIVE, BEST_ISA, SECOND_USE = (1 << bit for bit in range(8))
BY_PARTS = ENCODE = SECOND_USE

# the same of fuzz-ckg1-decode.cpp
SIZES, TABLES, COVER, BACKWARDS, CELLS, LATER, TILE_OTHERS = (1 << bit for bit in range(7))


def kv_like(rng: np.random.Generator, n_tokens: int, n_channels: int) -> NDArray[np.float32]:
    steps = rng.normal(0, 1, (n_tokens, n_channels))
    for t in range(1, n_tokens):
        steps[t] = 0.8 * steps[t - 1] + 0.3 * steps[t]
    return np.asarray(steps * np.exp(rng.normal(0, 0.8, n_channels)), dtype=np.float32)


def plane(values: NDArray[np.float32], type_: GgmlType, **more: object) -> Plane:
    n_tokens, n_channels = values.shape
    res = Plane(np.zeros((n_tokens, type_.row_bytes(n_channels)), np.uint8), type_, n_channels, **more)  # type: ignore[arg-type]
    rows = ffi.new("struct cachegen_rows *")
    res._fill(rows, is_written=True)
    values = np.ascontiguousarray(values)
    status = lib.cachegen_store_rows(rows, 0, n_tokens, ffi.cast("float *", values.__array_interface__["data"][0]))
    assert status == 0
    return res


def profile(n_key: int, n_value: int | None = None, **more: object) -> Profile:
    return Profile("fuzz", (Span(0, None, n_key),), (Span(0, None, n_value or n_key),), **more)  # type: ignore[arg-type]


def with_models(data: bytes, n_models: int) -> bytes:
    """The same archive with every symbol set's first model n_models times, the channels taking turns."""
    metadata_bytes, n_tokens, n_exact, block_tokens, n_planes, n_sets = struct.unpack_from("<Q5I", data, 16)
    n_blocks = -(-(n_tokens - n_exact) // block_tokens)
    records = [data[64 + 24 * p : 88 + 24 * p] for p in range(n_planes)]
    at = 64 + 24 * n_planes
    head = data[:at]
    sets = b""
    for _ in range(n_sets):
        n_symbols, n_classes, first, zero, had = struct.unpack_from("<4BH", data, at)
        assert had == 1
        begin = end = at + 8 + 5 * n_symbols
        for _ in range(n_symbols * n_classes):
            end += 3 if data[end] == 255 else 1
        sets += struct.pack("<4B2H", n_symbols, n_classes, first, zero, n_models, 0) + data[at + 8 : begin]
        sets += data[begin:end] * n_models
        sets += bytes(-(len(head) + len(sets)) % 8)
        at = (end + 7) // 8 * 8
    models = b""
    for record in records:
        if record[5] != 0:
            (n_channels,) = struct.unpack_from("<I", record, 8)
            models += bytes(c % n_models for c in range(n_channels))
            at += n_channels
    models += bytes(-(len(head) + len(sets) + len(models)) % 8)
    at = (at + 7) // 8 * 8
    metadata = bytearray(head + sets + models + data[at : metadata_bytes - 8])
    assert metadata_bytes - 8 - at == (4 * n_blocks * n_planes + 7) // 8 * 8 + 8 * (n_blocks + 1)
    payload = data[-(-metadata_bytes // 64) * 64 :]
    padding = bytes(-(len(metadata) + 8) % 64)
    struct.pack_into("<2Q", metadata, 8, len(metadata) + 8 + len(padding) + len(payload), len(metadata) + 8)
    return bytes(metadata) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(metadata))) + padding + payload


def archives() -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(1)
    for type_ in TYPES:
        name = type_.name.lower()
        page = [plane(kv_like(rng, 34, 32), type_)]
        for n_levels in (3, 15, 63):
            yield f"{name}-{n_levels}", codec.encode(page, profile(n_levels, n_classes=1 + n_levels % 7))
        yield f"{name}-source-scale", codec.encode(page, profile(7, scale="source", n_classes=1))
        yield f"{name}-exact", codec.encode(page, "exact")
        yield f"{name}-models", with_models(codec.encode(page, profile(5, n_classes=2)), 3)
        yield f"{name}-raw", codec.encode([plane(kv_like(rng, 3, 32), type_, kind=Kind.AUX)], profile(3))
        zeros = [plane(np.zeros((40, 32), np.float32), type_)]
        yield f"{name}-zeros", codec.encode(zeros, profile(31))
        yield f"{name}-zeros-exact", codec.encode(zeros, "exact")
        sinks = [plane(kv_like(rng, 70, 32), type_), plane(kv_like(rng, 70, 32), type_, kind=Kind.V)]
        yield f"{name}-blocks", codec.encode(sinks, profile(15, 3, n_exact_tokens=3, block_tokens=32))
        rotated = [plane(kv_like(rng, 33, 64), type_, n_rot=64)]
        for unrotate in (False, True):
            yield f"{name}-rotated-{unrotate:d}", codec.encode(rotated, profile(9, unrotate=unrotate))
        yield f"{name}-rotated-exact", codec.encode(rotated, "exact")
    for n_channels in (1, 2, 31, 33, 65, 130):
        page = [plane(kv_like(rng, 9, n_channels), t) for t in (GgmlType.F16, GgmlType.F32)]
        yield f"channels-{n_channels}", codec.encode(page, profile(15))
        yield f"channels-{n_channels}-exact", codec.encode(page, "exact")
    for n_tokens in (1, 2, 65, 129):
        yield f"tokens-{n_tokens}", codec.encode([plane(kv_like(rng, n_tokens, 8), GgmlType.F16)], profile(15))
    mixed = [plane(kv_like(rng, 40, 32), t, layer=i, kind=k) for i, t in enumerate(TYPES) for k in (Kind.K, Kind.V)]
    yield "mixed", codec.encode(mixed, profile(15, 3, n_exact_tokens=1))
    yield "mixed-exact", codec.encode(mixed, "exact")
    yield "all-exact", codec.encode(mixed[:2], profile(15, n_exact_tokens=40))
    for type_ in (GgmlType.F16, GgmlType.F32, GgmlType.BF16):
        values = kv_like(rng, 33, 32)
        values[1, 31], values[2, 3], values[3, 30:], values[4] = np.nan, np.inf, (-np.inf, np.nan), 1e-41
        values[5] = np.nan
        yield f"{type_.name.lower()}-not-finite", codec.encode([plane(values, type_)], "exact")
    window = [plane(kv_like(rng, 70, 8), GgmlType.F16)]
    for first_token, kind in ((2, Kind.K), (37, Kind.V), (69, Kind.AUX)):
        type_ = GgmlType.F32 if kind == Kind.V else GgmlType.F16
        window.append(plane(kv_like(rng, 70 - first_token, 8), type_, kind=kind, first_token=first_token, layer=1))
    yield "first-token", codec.encode(window, profile(15, 3, n_exact_tokens=3, block_tokens=32))
    yield "first-token-exact", codec.encode(window, "exact")


def inputs_of_decoders(is_by_parts: bool) -> Iterator[tuple[str, bytes]]:
    choices = itertools.cycle(
        [
            0,
            RANGE,
            OTHERS,
            NATIVE,
            ROTATE,
            OTHERS | RANGE,
            NATIVE | OTHERS,
            ROTATE | RANGE,
            OTHERS | ROTATE,
            NATIVE | RANGE,
        ]
    )
    for i, ((name, data), choice) in enumerate(zip(archives(), choices, strict=False)):
        by_parts = BY_PARTS if is_by_parts and i % 3 == 0 else 0
        yield name, bytes([RESEAL | RESIZE | BEST_ISA | choice | by_parts]) + data


def pages() -> Iterator[tuple[str, bytes]]:
    """What fuzz-lcg3-differential makes pages of: numbers in the order in which make_page() takes them."""
    rng = np.random.default_rng(2)
    for mode, type_number, fill in itertools.product(range(3), range(5), range(2)):
        n_planes = 1 + type_number % 2
        choices = (0, OTHERS, RANGE | ROTATE, NATIVE, RANGE | OTHERS)[type_number]
        head = bytes([ENCODE, n_planes - 1, 33 + 20 * mode, choices, 7, mode, 2, 8, type_number])
        body = b""
        for p in range(n_planes):
            form = 3 * mode + p | (0x40 if type_number != 1 else 0) | (0x80 if fill else 0)
            n_channels = 1 if type_number in (1, 4) else 47
            rotation = 133 if mode == 1 and fill == 0 else 0
            first_token = (3, 13 * p) if p else (0,)
            body += bytes([form, type_number, n_channels, rotation, 7, 2 + type_number % 2, *first_token])
            body += b"" if fill else bytes([1, 2, 3, 4, 9])
        if fill:  # small F16 numbers, or codes
            body += np.asarray(rng.normal(0, 1, 61), np.float16).tobytes()
        yield f"encode-{mode}-{type_number}-{fill}", head + body


CKG1_TYPES = {
    Ckg1Kind.F16_ROWS: GgmlType.F16,
    Ckg1Kind.F16_TRANSPOSED: GgmlType.F16,
    Ckg1Kind.F32_ROWS: GgmlType.F32,
    Ckg1Kind.F32_TRANSPOSED: GgmlType.F32,
    Ckg1Kind.Q8_0_ROWS: GgmlType.Q8_0,
    Ckg1Kind.Q4_0_ROWS: GgmlType.Q4_0,
}


def ckg1_part(rng: np.random.Generator, kind: Ckg1Kind, n_tokens: int, n_channels: int, n_bins: int) -> Ckg1Part:
    values = kv_like(rng, n_tokens, n_channels)
    type_ = CKG1_TYPES[kind]
    if kind in (Ckg1Kind.F16_TRANSPOSED, Ckg1Kind.F32_TRANSPOSED):
        data = np.ascontiguousarray(values.T, np.float32 if type_ == GgmlType.F32 else np.float16)
        return Ckg1Part(kind, Plane(data, type_, n_channels, transposed=True), n_bins)
    return Ckg1Part(kind, plane(values, type_), n_bins)


def ckg1_archives() -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(3)
    exact = Ckg1Part(Ckg1Kind.EXACT, b"exact bytes")
    yield "exact", encode_ckg1([exact])
    for version, n_bins in itertools.product((1, 2), (16, 32)):
        name = f"{version}-{n_bins}"
        for kind, type_ in CKG1_TYPES.items():
            n_channels = 32 if type_ in (GgmlType.Q8_0, GgmlType.Q4_0) else 3
            part = ckg1_part(rng, kind, 9, n_channels, n_bins)
            yield f"{name}-{kind.name.lower()}", encode_ckg1([part], version=version)
        every = [ckg1_part(rng, kind, 2, 32 if "Q" in kind.name else 2, n_bins) for kind in CKG1_TYPES]
        yield f"{name}-every-kind", encode_ckg1([*every, exact], version=version)
        for kind in (Ckg1Kind.F16_TRANSPOSED, Ckg1Kind.F32_TRANSPOSED, Ckg1Kind.F16_ROWS):
            part = ckg1_part(rng, kind, 259, 2, n_bins)  # of two tiles
            yield f"{name}-{kind.name.lower()}-long", encode_ckg1([exact, part], version=version)
        for n_tokens, n_channels in ((1, 1), (7, 31), (3, 32), (2, 33), (256, 1)):
            tile = encode_tile(plane(kv_like(rng, n_tokens, n_channels), GgmlType.F32), n_bins, version)
            yield f"{name}-tile-{n_tokens}x{n_channels}", tile
        yield f"{name}-tile-zeros", encode_tile(plane(np.zeros((5, 32), np.float32), GgmlType.F16), n_bins, version)
        tiny = np.full((3, 5), 1e-41, np.float32)
        tiny[1] = (65519, -65519, 0, 1e-7, -6e-5)
        yield f"{name}-tile-edges", encode_tile(plane(tiny, GgmlType.F32), n_bins, version)


def inputs_of_ckg1() -> Iterator[tuple[str, bytes]]:
    choices = itertools.cycle([SIZES | TABLES | COVER, 0, SIZES | TABLES, COVER | TABLES, SIZES | COVER | BACKWARDS])
    others = itertools.cycle([0, TILE_OTHERS, CELLS, LATER, TILE_OTHERS | CELLS | LATER, LATER | CELLS, TILE_OTHERS])
    for (name, data), choice, other in zip(ckg1_archives(), choices, others, strict=False):
        yield name, bytes([choice | other]) + data


TARGETS: dict[str, Callable[[], Iterable[tuple[str, bytes]]]] = {
    "ckg1-decode": inputs_of_ckg1,
    "lcg3-decode": lambda: inputs_of_decoders(True),
    "lcg3-differential": lambda: itertools.chain(itertools.islice(inputs_of_decoders(False), 0, None, 2), pages()),
}


def total(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return len(sizes), sum(sizes)


def merge(target: str, folder: Path) -> None:
    """Add what libFuzzer's merge keeps of the inputs it found, beside the seeds."""
    with tempfile.TemporaryDirectory() as kept:
        seeds = Path(kept) / "seeds"
        shutil.copytree(folder, seeds)
        executable = FOUND / "tests" / "fuzz" / f"fuzz-{target}"
        command = [str(executable), "-merge=1", str(seeds), str(FOUND / "corpus" / target)]
        subprocess.run(command, check=True, capture_output=True)
        known = {path.name for path in folder.iterdir()}
        new = sorted((path for path in seeds.iterdir() if path.name not in known), key=lambda path: path.stat().st_size)
        n_files, n_bytes = total(folder)
        for path in new:
            n_files, n_bytes = n_files + 1, n_bytes + path.stat().st_size
            if n_files > MAX_FILES or n_bytes > MAX_BYTES:
                break
            data = path.read_bytes()
            (folder / f"found-{hashlib.sha1(data).hexdigest()[:16]}").write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--merge", action="store_true", help="add what scripts/fuzz found, replacing what was found before"
    )
    args = parser.parse_args()
    for target, inputs in TARGETS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*" if args.merge else "seed-*"):
            path.unlink()
        for name, data in inputs():
            (folder / f"seed-{name}").write_bytes(data)
        if args.merge:
            merge(target, folder)
        n_files, n_bytes = total(folder)
        print(f"{target}: {n_files} files, {n_bytes:,} bytes")
        assert n_files <= MAX_FILES and n_bytes <= MAX_BYTES


if __name__ == "__main__":
    main()
