"""What a file holds, of any format, as plain values for JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .archive_file import ArchiveFile
from .codec import Archive, Mode
from .codec.reference.ckg1 import Ckg1Kind, read_ckg1
from .codec.reference.lmcache import payload_from_container
from .codec.reference.tiles import read_tile_header
from .codec.sizes import archive_sizes
from .file_kinds import FileKind, kind_of, naming, read_file
from .page import Page, PageComponent

__all__ = ["describe"]


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The facts of a file. `kind` is its format, `file_bytes` its size; the other keys depend on the format.

    Everything but the payload's digests is checked on the way.

    Raises:
        UnknownFileError: not a file of a known format.
        PageFileError, CodecError: a damaged one; the message names the file.
        OSError: the system refuses, or there is no such file.
    """
    kind = kind_of(path)
    name = os.fsdecode(path)
    if kind is FileKind.PAGE:
        facts = _page(name)
    elif kind is FileKind.ARCHIVE_PAGE:
        facts = _archive_page(name)
    else:
        data = read_file(path)
        with naming(path):
            facts = _READERS[kind](data)
        facts["file_bytes"] = len(data)
    return {"kind": kind.value, "path": name, "file_bytes": facts.pop("file_bytes"), **facts}


def bits(n_bytes: int, n_values: int) -> float | None:
    """Bits a value, None if there are no values."""
    return 8 * n_bytes / n_values if n_values else None


# page files


def _component_row(component: PageComponent) -> dict[str, Any]:
    return {
        "layer": component.layer,
        "kind": component.kind.name,
        "type": component.type_name,
        "layout": "transposed" if component.transposed else "rows",
        "rotation": component.n_rot,
        "channels": component.n_channels,
        "bytes": component.n_bytes,
        "xxh3": f"{component.xxh3:016x}",
    }


def _page(path: str) -> dict[str, Any]:
    with Page.open(path) as page:
        return {
            "file_bytes": Path(path).stat().st_size,
            "identity": msgspec.to_builtins(page.identity),
            "n_tokens": page.n_tokens,
            "pos_begin": page.pos_begin,
            "payload_bytes": page.payload_bytes,
            "components": [_component_row(component) for component in page.components],
        }


# archives


def _archive_page(path: str) -> dict[str, Any]:
    with ArchiveFile(path) as file:
        with naming(path):
            with Archive(file.archive) as archive:
                file.check_archive(archive)
            facts = _lcg3(bytes(file.archive))
        n_before = file.n_file_bytes - len(file.archive)
        return {
            "file_bytes": file.n_file_bytes,
            "identity": msgspec.to_builtins(file.identity),
            "pos_begin": file.pos_begin,
            "archive_bytes": len(file.archive),
            **facts,
            "ratio": facts["native_bytes"] / file.n_file_bytes,
            "bits_per_value": bits(file.n_file_bytes, facts["n_values"]),
            "bytes": {"page": n_before, **facts["bytes"]},
        }


def _layers(planes: Sequence[tuple[int, str, int, int]]) -> list[dict[str, Any]]:
    """Bits a value of every layer: from (layer, kind, bytes, values) of its planes."""
    sums: dict[int, dict[str, tuple[int, int]]] = {}
    for layer, kind, n_bytes, n_values in planes:
        of_layer = sums.setdefault(layer, {})
        bytes_before, values_before = of_layer.get(kind, (0, 0))
        of_layer[kind] = (bytes_before + n_bytes, values_before + n_values)
    return [
        {"layer": layer, **{kind: bits(*sums[layer].get(kind, (0, 0))) for kind in ("K", "V", "AUX")}}
        for layer in sorted(sums)
    ]


def _lcg3(data: bytes) -> dict[str, Any]:
    with Archive(data) as archive:
        info, planes = archive.info, archive.planes
        sizes = archive_sizes(data, archive)
    n_coded = info.n_tokens - info.n_exact_tokens
    n_values = sum(info.n_tokens * plane.n_channels for plane in planes)
    native_bytes = sum(info.n_tokens * plane.type.row_bytes(plane.n_channels) for plane in planes)
    return {
        "profile": info.profile,
        "is_exact": all(plane.mode is not Mode.LOSSY for plane in planes),
        "n_tokens": info.n_tokens,
        "n_exact_tokens": info.n_exact_tokens,
        "block_tokens": info.block_tokens,
        "n_blocks": info.n_blocks,
        "n_sets": info.n_sets,
        "n_classes": info.n_classes,
        "n_values": n_values,
        "native_bytes": native_bytes,
        "ratio": native_bytes / len(data),
        "bits_per_value": bits(len(data), n_values),
        "bytes": sizes.sections(),
        "layers": _layers(
            [(plane.layer, plane.kind.name, plane.payload_bytes, n_coded * plane.n_channels) for plane in planes]
        ),
        "planes": [
            {
                "layer": plane.layer,
                "kind": plane.kind.name,
                "mode": plane.mode.name.lower(),
                "type": plane.type.type_name,
                "channels": plane.n_channels,
                "rotation": plane.n_rot,
                "unrotated": plane.unrotated,
                "n_symbols": plane.n_levels,
                "scale_type": plane.scale_type.type_name if plane.mode is Mode.LOSSY else None,
                "payload_bytes": plane.payload_bytes,
                "bits_per_value": bits(plane.payload_bytes, n_coded * plane.n_channels),
                "bytes": of_plane._asdict(),
            }
            for plane, of_plane in zip(planes, sizes.planes, strict=True)
        ],
    }


def _ckg1(data: bytes) -> dict[str, Any]:
    records = read_ckg1(data)
    kinds = []
    for kind in Ckg1Kind:
        of_kind = [record for record in records if record.kind is kind]
        if of_kind:
            stored = sum(len(record.payload) for record in of_kind)
            n_values = sum(record.n_tokens * record.n_channels for record in of_kind if record.n_channels)
            kinds.append(
                {
                    "kind": kind.name.lower(),
                    "n_records": len(of_kind),
                    "page_bytes": sum(record.n_bytes for record in of_kind),
                    "payload_bytes": stored,
                    "bits_per_value": bits(stored, n_values),
                }
            )
    page_bytes = sum(record.n_bytes for record in records)
    return {
        "page_bytes": page_bytes,
        "n_records": len(records),
        "ratio": page_bytes / len(data),
        "kinds": kinds,
        "records": [
            {
                "kind": record.kind.name.lower(),
                "offset": record.offset,
                "page_bytes": record.n_bytes,
                "payload_bytes": len(record.payload),
                "n_tokens": record.n_tokens,
                "n_channels": record.n_channels,
                "token_start": record.token_start,
                "total_tokens": record.total_tokens,
            }
            for record in records
        ],
    }


def _segment(data: bytes) -> dict[str, Any]:
    header = read_tile_header(data)
    n_values = header.n_tokens * header.n_channels
    return {
        **header._asdict(),
        "n_values": n_values,
        "bits_per_value": bits(len(data), n_values),
    }


def _lmcache(data: bytes) -> dict[str, Any]:
    payload = payload_from_container(data)
    n_layers, n_tokens, n_channels = payload.n_layers, payload.n_tokens, payload.n_channels
    n_values = 2 * n_layers * n_tokens * n_channels
    value_bytes = payload.value_type.dtype.itemsize
    streams = sum(chunk.lengths.sum(axis=1, dtype="int64") for chunk in payload.chunks)
    lengths_bytes = 4 * n_channels * len(payload.chunks)
    table_bytes = int(payload.cdf[0].nbytes)
    planes = [
        (
            plane % n_layers,
            "K" if plane < n_layers else "V",
            int(streams[plane]) + lengths_bytes + table_bytes + n_tokens * value_bytes,
            n_tokens * n_channels,
        )
        for plane in range(2 * n_layers)
    ]
    sections = {
        "tables": 2 * n_layers * table_bytes,
        "lengths": 2 * n_layers * lengths_bytes,
        "maxima": 2 * n_layers * n_tokens * value_bytes,
        "streams": int(streams.sum()),
    }
    return {
        "n_layers": n_layers,
        "n_tokens": n_tokens,
        "n_heads": payload.n_heads,
        "head_size": payload.head_size,
        "value_type": payload.value_type.name.lower(),
        "n_chunks": len(payload.chunks),
        "n_values": n_values,
        "ratio": n_values * value_bytes / len(data),
        "bits_per_value": bits(len(data), n_values),
        "bytes": {**sections, "container": len(data) - sum(sections.values())},
        "layers": _layers(planes),
    }


_READERS: dict[FileKind, Callable[[bytes], dict[str, Any]]] = {
    FileKind.LCG3: _lcg3,
    FileKind.CKG1: _ckg1,
    FileKind.LCG2: _segment,
    FileKind.LCG1: _segment,
    FileKind.LMCACHE: _lmcache,
}
