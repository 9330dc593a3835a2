"""LCG3 archives: planes of a page into bytes and back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ggml_types import GgmlType
from ._lib import check, executor, ffi, lib, new_struct
from .profiles import Profile, get_profile

__all__ = ["Archive", "ArchiveInfo", "ArchivePlane", "Kind", "Mode", "Plane", "encode"]


class Kind(enum.IntEnum):
    """What a plane holds."""

    K = 1
    V = 2
    AUX = 3


class Mode(enum.IntEnum):
    """How a plane is coded."""

    RAW = 0
    LOSSY = 1
    EXACT = 2


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One component's values: where the encoder reads them, or where the decoder writes them.

    Attributes:
        data: two dimensions, the inner one contiguous. Rows: [n_tokens, row], transposed: [n_channels, n_tokens]. dtype
            float32, float16, uint16 (bits of bf16), or uint8 (native bytes of any type).
        type: ggml type of the values.
        n_channels: values of a token's row.
        layer: model layer.
        kind: K, V or auxiliary.
        transposed: tokens adjacent instead of channels.
        n_rot: size of the Hadamard rotation of the values, 0 for none.
        cells: row of each token, uint32, or None: token t is row t.
        first_token: the page's token that is this plane's token 0; the plane has none of those before, as a sliding
            window has not.
    """

    data: NDArray[Any]
    type: GgmlType
    n_channels: int
    layer: int = 0
    kind: Kind = Kind.K
    transposed: bool = False
    n_rot: int = 0
    cells: NDArray[np.uint32] | None = None
    first_token: int = 0

    def _fill(self, rows: Any, *, is_written: bool) -> None:
        """Describe it as a struct cachegen_rows, whose pointers live as long as the arrays do."""
        data = self.data
        if data.ndim != 2 or data.strides[1] != data.itemsize or data.strides[0] < 0:
            raise ValueError(
                f"data has shape {data.shape} and strides {data.strides}; two dimensions are needed, the inner one "
                "contiguous"
            )
        if is_written and not data.flags.writeable:
            raise ValueError("data is read-only")
        element_bytes = self.type.block_bytes if self.type.block_size == 1 else 1
        n_inner_bytes = data.shape[1] * data.itemsize
        n_rows = n_inner_bytes // element_bytes if self.transposed else data.shape[0]
        if self.transposed and data.shape[0] != self.n_channels:
            raise ValueError(f"transposed data of shape {data.shape} for {self.n_channels} channels")
        if not self.transposed and n_inner_bytes != self.type.row_bytes(self.n_channels):
            raise ValueError(f"rows of {n_inner_bytes} bytes for {self.n_channels} channels of {self.type.type_name}")
        rows.type = int(self.type)
        rows.is_transposed = int(self.transposed)
        rows.n_rows = n_rows
        rows.n_channels = self.n_channels
        rows.stride_bytes = data.strides[0]
        rows.n_bytes = (data.shape[0] - 1) * data.strides[0] + n_inner_bytes if data.shape[0] else 0
        rows.data = ffi.cast("void *", data.__array_interface__["data"][0])
        rows.n_tokens = n_rows
        rows.cells = ffi.NULL
        if self.cells is not None:
            if self.cells.dtype != np.uint32 or self.cells.ndim != 1 or not self.cells.flags.c_contiguous:
                raise ValueError("cells must be a contiguous array of uint32 with one dimension")
            rows.n_tokens = len(self.cells)
            rows.cells = ffi.cast("uint32_t *", self.cells.__array_interface__["data"][0])


def _scale_type(profile: Profile, source: GgmlType) -> GgmlType:
    """The source's own float type keeps CacheGen's scales exact; dequantised blocks have F32 maxima."""
    if profile.scale == "bf16":
        return GgmlType.BF16
    return source if source in (GgmlType.F16, GgmlType.BF16) else GgmlType.F32


def _arguments(
    planes: Sequence[Plane], profile: Profile, n_layers: int, *, is_raw: bool = False
) -> tuple[Any, Any, Any]:
    """Planes, sources and options as libcachegen takes them; pointers live as long as the planes' arrays."""
    described = ffi.new("struct cachegen_lcg3_plane[]", len(planes))
    sources = ffi.new("struct cachegen_rows[]", len(planes))
    for plane, record, rows in zip(planes, described, sources, strict=True):
        plane._fill(rows, is_written=False)
        record.struct_size = ffi.sizeof("struct cachegen_lcg3_plane")
        record.layer = plane.layer
        record.kind = int(plane.kind)
        record.type = int(plane.type)
        record.n_channels = plane.n_channels
        record.n_rot = plane.n_rot
        record.first_token = plane.first_token
        record.mode = int(Mode.RAW if is_raw else Mode.EXACT)
        if not profile.is_exact and plane.kind is not Kind.AUX:
            record.mode = int(Mode.LOSSY)
            record.n_symbols = profile.n_levels("K" if plane.kind is Kind.K else "V", plane.layer, n_layers)
            record.scale_type = int(_scale_type(profile, plane.type))
            record.is_unrotated = int(profile.unrotate and plane.n_rot != 0)
    options = new_struct("cachegen_lcg3_options")
    options.block_tokens = profile.block_tokens
    options.n_exact_tokens = profile.n_exact_tokens
    options.n_models = profile.n_models
    options.n_classes = profile.n_classes
    options.n_sample_tokens = profile.n_sample_tokens
    options.profile = profile.name.encode("ascii").ljust(16, b"\0")
    return described, sources, options


def encode(
    planes: Sequence[Plane],
    profile: str | Profile = "balanced",
    *,
    n_layers: int | None = None,
    n_threads: int = 1,
    is_raw: bool = False,
) -> bytes:
    """Encode the planes of a page as one LCG3 archive.

    Args:
        planes: at least one; first_token + tokens is the same for all. Auxiliary planes are always coded exactly.
        profile: a profile or its name.
        n_layers: layers of the model, for the profile's schedule; None: one more than the largest layer of the planes.
        n_threads: threads to use.
        is_raw: with an exact profile: native rows as they are, not coded at all. What compression is compared with.

    Raises:
        EncodeError: a NaN or an infinity under a lossy profile.
        UnsupportedArchiveError: a type or layout that the codec does not know.
        CodecError: anything else that the library refuses.
        ValueError: arrays that do not fit their description, or raw planes of a lossy profile.
    """
    if not planes:
        raise ValueError("no planes")
    if is_raw and not get_profile(profile).is_exact:
        raise ValueError(f"planes as they are, and profile {get_profile(profile).name}: an exact one is needed")
    if n_layers is None:
        n_layers = 1 + max(plane.layer for plane in planes)
    described, sources, options = _arguments(planes, get_profile(profile), n_layers, is_raw=is_raw)
    archive = ffi.new("void **")
    n_bytes = ffi.new("uint64_t *")
    with executor(n_threads) as pool:
        check(lib.cachegen_lcg3_encode(described, sources, len(planes), options, pool, archive, n_bytes))
    try:
        return bytes(ffi.buffer(archive[0], n_bytes[0]))
    finally:
        lib.cachegen_free(archive[0])


@dataclasses.dataclass(frozen=True, slots=True)
class ArchivePlane:
    """What an archive says of one plane.

    Attributes:
        n_levels: of a lossy plane; symbols of an exact one.
        n_rot: size of the source's Hadamard rotation, 0 for none.
        unrotated: the coded values are those before the rotation.
        payload_bytes: bytes of its units.
        symbol_bytes: of them, words of the entropy coder; 0 if only the metadata is open.
        first_token: the plane holds the page's tokens from this one on.
    """

    layer: int
    kind: Kind
    mode: Mode
    type: GgmlType
    n_channels: int
    n_rot: int
    unrotated: bool
    n_levels: int
    scale_type: GgmlType
    payload_bytes: int
    symbol_bytes: int
    first_token: int


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What an archive says of itself. Sizes in bytes; `table_bytes` is part of `metadata_bytes`."""

    archive_bytes: int
    metadata_bytes: int
    table_bytes: int
    n_tokens: int
    n_exact_tokens: int
    block_tokens: int
    n_blocks: int
    n_sets: int
    n_classes: int
    profile: str


class Archive:
    """An LCG3 archive, opened: everything but the payload has been checked. A context manager.

    Args:
        data: the bytes of exactly one archive; kept, never copied, and not to be changed while this is open.
        metadata_only: no byte of the payload is read, so that of a mapped file none has to come from the disk. It can
            be described, without symbol_bytes; verify and decode refuse.

    Raises:
        ArchiveError: damaged, cut short, or made to do harm.
        UnsupportedArchiveError: of a version or type that this library does not read.
    """

    def __init__(
        self, data: bytes | bytearray | memoryview | NDArray[np.uint8], *, metadata_only: bool = False
    ) -> None:
        self._reader: Any = None
        self._data = ffi.from_buffer(data)
        reader = ffi.new("struct cachegen_lcg3 **")
        n_bytes = len(self._data)
        if metadata_only:
            check(lib.cachegen_lcg3_open_metadata(self._data, n_bytes, n_bytes, reader))
        else:
            check(lib.cachegen_lcg3_open(self._data, n_bytes, reader))
        self._reader = reader[0]
        info = new_struct("cachegen_lcg3_info")
        check(lib.cachegen_lcg3_describe(self._reader, info, ffi.NULL, 0))
        self._n_planes = int(info.n_planes)
        self.info = ArchiveInfo(
            archive_bytes=info.archive_bytes,
            metadata_bytes=info.metadata_bytes,
            table_bytes=info.table_bytes,
            n_tokens=info.n_tokens,
            n_exact_tokens=info.n_exact_tokens,
            block_tokens=info.block_tokens,
            n_blocks=info.n_blocks,
            n_sets=info.n_sets,
            n_classes=info.n_classes,
            profile=ffi.string(info.profile, 16).decode("ascii"),
        )

    def _open_reader(self) -> Any:
        if self._reader is None:
            raise ValueError("the archive is closed")
        return self._reader

    @property
    def planes(self) -> tuple[ArchivePlane, ...]:
        """Every plane, in the archive's order. Reads the head of every unit, unless only the metadata is open.

        Raises:
            ArchiveError: a unit contradicts itself.
            ValueError: the archive is closed.
        """
        reader = self._open_reader()
        records = ffi.new("struct cachegen_lcg3_plane[]", self._n_planes)
        info = new_struct("cachegen_lcg3_info")
        check(lib.cachegen_lcg3_describe(reader, info, records, len(records)))
        return tuple(
            ArchivePlane(
                layer=record.layer,
                kind=Kind(record.kind),
                mode=Mode(record.mode),
                type=GgmlType(record.type),
                n_channels=record.n_channels,
                n_rot=record.n_rot,
                unrotated=bool(record.is_unrotated),
                n_levels=record.n_symbols,
                scale_type=GgmlType(record.scale_type),
                payload_bytes=record.payload_bytes,
                symbol_bytes=record.symbol_bytes,
                first_token=record.first_token,
            )
            for record in records
        )

    def verify(self, *, n_threads: int = 1) -> None:
        """Compare every digest of the payload. Opening has compared the metadata's.

        Raises:
            ArchiveError: the bytes are damaged.
            CodecError: only the metadata is open.
        """
        reader = self._open_reader()
        with executor(n_threads) as pool:
            check(lib.cachegen_lcg3_verify(reader, pool))

    def decode(
        self,
        destinations: Sequence[Plane | None],
        *,
        first_token: int = 0,
        n_tokens: int | None = None,
        n_threads: int = 1,
    ) -> None:
        """Decode a range of tokens into arrays. Whole blocks are decoded, what lies outside of the range is dropped.

        Args:
            destinations: one a plane, in the archive's order; None leaves the plane out. Their data is written, in any
                type, layout and rotation; their layer and kind are not looked at. Token 0 of each is the first token
                of the range that the archive's plane holds and that is not before the destination's first_token.
            first_token: first token of the range; it becomes token 0 of every destination.
            n_tokens: tokens of the range; None: to the end.
            n_threads: threads to use.

        Raises:
            ArchiveError: the bytes are damaged or made to do harm; destinations may have been written in part.
            UnsupportedArchiveError: a destination of another width, or of a type or layout that cannot be written.
            CodecError: the range is not in the archive, or only the metadata is open.
            ValueError: an array that does not fit its description, or a closed archive.
        """
        reader = self._open_reader()
        if n_tokens is None:
            n_tokens = self.info.n_tokens - first_token
        if first_token < 0 or n_tokens < 1:
            raise ValueError(f"{n_tokens} tokens from {first_token} on, of {self.info.n_tokens}")
        if len(destinations) != self._n_planes:
            raise ValueError(f"{len(destinations)} destinations for {self._n_planes} planes")
        wanted = ffi.new("struct cachegen_lcg3_destination[]", len(destinations))
        for plane, destination in zip(destinations, wanted, strict=True):
            if plane is not None:
                plane._fill(destination.rows, is_written=True)
                destination.n_rot = plane.n_rot
                destination.first_token = plane.first_token
        with executor(n_threads) as pool:
            check(lib.cachegen_lcg3_decode(reader, first_token, n_tokens, wanted, len(wanted), pool))

    def close(self) -> None:
        """Release the reader. A second call does nothing."""
        reader, self._reader = self._reader, None
        if reader is not None:
            lib.cachegen_lcg3_close(reader)
            ffi.release(self._data)

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()
