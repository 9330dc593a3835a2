"""A prompt's cache, copied out of a session: as a page, or as llama.cpp's own state where pages are refused.

Interleaved sliding-window caches cannot be paged by this version. For them the planes are found in the bytes of
`llama_state_seq_get_data`, and restored by `llama_state_seq_set_data`, so that their quality can be measured too.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import llama_state
from ..codec import Archive, Kind, Plane, Profile, decode_page, encode, encode_page, page_planes
from ..errors import CachegenError, UnsupportedMemoryError
from ..ggml_types import GgmlType
from ..page import Page
from ..session import Session

__all__ = [
    "CacheCopy",
    "PageCopy",
    "StateCopy",
    "copy_cache",
    "n_native_bytes",
    "n_values",
    "native_rows",
    "values_of",
]

_DTYPES = {GgmlType.F32: "<f4", GgmlType.F16: "<f2", GgmlType.BF16: "<u2"}


class CacheCopy(Protocol):
    """The K and V of a prompt, in groups of planes with equal numbers of tokens; an archive holds one group.

    Attributes:
        source: "page" or "state".
        groups: the planes, over the copy's own bytes.
        n_layers: layers of the model.
    """

    @property
    def source(self) -> str: ...
    @property
    def groups(self) -> Sequence[Sequence[Plane]]: ...
    @property
    def n_layers(self) -> int: ...

    def encode(self, profile: str | Profile, *, n_threads: int) -> list[bytes]:
        """One archive a group."""
        ...

    def decode(self, archives: Sequence[bytes], *, n_threads: int) -> CacheCopy:
        """A copy with the values of archives."""
        ...

    def restore(self, session: Session) -> None:
        """Put the copy into an empty session."""
        ...


def n_values(groups: Sequence[Sequence[Plane]]) -> int:
    """K and V values of all planes."""
    return sum(plane.data.size * plane.data.itemsize // _row_bytes(plane) * plane.n_channels for plane in _all(groups))


def n_native_bytes(groups: Sequence[Sequence[Plane]]) -> int:
    """Native bytes of all planes, without padding between them."""
    return sum(plane.data.nbytes for plane in _all(groups))


def _all(groups: Sequence[Sequence[Plane]]) -> list[Plane]:
    return [plane for group in groups for plane in group]


def _row_bytes(plane: Plane) -> int:
    return plane.type.row_bytes(plane.n_channels)


def native_rows(plane: Plane) -> NDArray[np.uint8]:
    """The bytes of a plane in rows, uint8 [n_tokens, row bytes]."""
    if plane.transposed:
        raise CachegenError("transposed planes have no native rows; use flash attention")
    return np.ascontiguousarray(plane.data).view(np.uint8).reshape(-1, _row_bytes(plane))


def values_of(plane: Plane) -> NDArray[np.float32]:
    """The values of a plane, float32 [n_tokens, n_channels]; of a rotated one as they are stored."""
    from ..codec.reference.stores import load_rows

    return load_rows(native_rows(plane), plane.type)


@dataclasses.dataclass(frozen=True, eq=False)
class PageCopy:
    """A page in memory."""

    page: Page
    source: str = "page"

    @property
    def groups(self) -> Sequence[Sequence[Plane]]:
        """All planes, one group."""
        return [page_planes(self.page)]

    @property
    def n_layers(self) -> int:
        """One more than the last layer."""
        return 1 + max(component.layer for component in self.page.components)

    def encode(self, profile: str | Profile, *, n_threads: int) -> list[bytes]:
        """One archive."""
        return [encode_page(self.page, profile, n_threads=n_threads)]

    def decode(self, archives: Sequence[bytes], *, n_threads: int) -> PageCopy:
        """A page with the values of the archive."""
        (data,) = archives
        return PageCopy(decode_page(data, self.page, n_threads=n_threads))

    def restore(self, session: Session) -> None:
        """Import the page."""
        session.import_page(self.page)


@dataclasses.dataclass(frozen=True, eq=False)
class StateCopy:
    """llama.cpp's state of one sequence.

    Attributes:
        data: the state, uint8 [n_bytes].
        tokens: of the sequence, shape [n_tokens].
        places: of each group's planes: plane without data, offset of its rows, their number.
        n_layers: layers of the model.
    """

    data: NDArray[np.uint8]
    tokens: NDArray[np.int32]
    places: tuple[tuple[_Place, ...], ...]
    n_layers: int
    source: str = "state"

    @property
    def groups(self) -> Sequence[Sequence[Plane]]:
        """Planes of the full-attention layers, then of the sliding-window layers."""
        return [[place.plane(self.data) for place in group] for group in self.places]

    def encode(self, profile: str | Profile, *, n_threads: int) -> list[bytes]:
        """One archive for the full-attention layers, one for the sliding-window layers."""
        return [encode(planes, profile, n_layers=self.n_layers, n_threads=n_threads) for planes in self.groups]

    def decode(self, archives: Sequence[bytes], *, n_threads: int) -> StateCopy:
        """A state with the values of archives."""
        copy = dataclasses.replace(self, data=self.data.copy())
        for data, planes in zip(archives, copy.groups, strict=True):
            with Archive(data) as archive:
                archive.decode(planes, n_threads=n_threads)
        return copy

    def restore(self, session: Session) -> None:
        """`llama_state_seq_set_data`."""
        if llama_state.set_data(session, self.data, self.data.nbytes) == 0:
            raise CachegenError("llama_state_seq_set_data refused the state")
        session._tokens = [int(token) for token in self.tokens]
        session._logits = None


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where the rows of one plane lie in a state."""

    layer: int
    kind: Kind
    type: GgmlType
    row_bytes: int
    offset: int
    n_rows: int

    def plane(self, data: NDArray[np.uint8]) -> Plane:
        rows = data[self.offset : self.offset + self.n_rows * self.row_bytes].reshape(self.n_rows, self.row_bytes)
        n_channels = self.row_bytes // self.type.block_bytes
        return Plane(rows, self.type, n_channels, layer=self.layer, kind=self.kind)


class _StateReader:
    """Reads the state of a sequence as llama_kv_cache::state_write writes it, rows of unquantised K and V only."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self.offset = 8  # a magic number and the sequence id

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data.data, self.offset)
        self.offset += struct.calcsize(f"<{form}")
        return int(value)

    def cache(self) -> list[_Place]:
        """One cache's planes; their layers are numbered within the cache."""
        if self.take("I") != 1:
            raise CachegenError("a state of several streams is not read")
        n_cells = self.take("I")
        for _ in range(n_cells):
            self.take("i")
            if self.take("I") != 1:
                raise CachegenError("a state whose cells belong to several sequences is not read")
            self.take("i")
        if self.take("I") & 1:  # the bits above tell the rotations
            raise CachegenError("a state with transposed V is not read; use flash attention")
        n_layers = self.take("I")
        return [self._plane(layer, kind, n_cells) for kind in (Kind.K, Kind.V) for layer in range(n_layers)]

    def _plane(self, layer: int, kind: Kind, n_cells: int) -> _Place:
        type_ = GgmlType.parse(self.take("i"))
        if type_ not in _DTYPES:
            raise CachegenError(f"the rotation of {type_.type_name} values is not undone here; use f16 or f32")
        row_bytes = self.take("Q")
        place = _Place(layer, kind, type_, row_bytes, self.offset, n_cells)
        self.offset += n_cells * row_bytes
        return place


def _copy_state(session: Session) -> StateCopy:
    """Copy the state of an interleaved sliding-window cache: full-attention layers, then the others.

    Its layers have no numbers. Every n-th layer has full attention, the last of each n: so it is in Gemma 3.
    """
    data = np.zeros(llama_state.size(session), dtype=np.uint8)
    if llama_state.get_data(session, data) != data.nbytes:
        raise CachegenError("llama_state_seq_get_data failed")
    reader = _StateReader(data)
    try:
        full, window = reader.cache(), reader.cache()
    except struct.error:
        raise CachegenError("the sequence's state ends too early") from None
    if reader.offset != data.nbytes:
        raise CachegenError(f"the sequence's state has {data.nbytes} bytes, two caches have {reader.offset}")
    n_full, n_window = len(full) // 2, len(window) // 2
    n_layers = n_full + n_window
    if n_full == 0 or n_layers % n_full:
        raise CachegenError(f"{n_full} layers of full attention among {n_layers}: their order is not known")
    period = n_layers // n_full
    full_layers = range(period - 1, n_layers, period)
    window_layers = [layer for layer in range(n_layers) if layer not in full_layers]
    places = tuple(
        tuple(dataclasses.replace(place, layer=layers[place.layer]) for place in cache)
        for cache, layers in ((full, full_layers), (window, window_layers))
    )
    return StateCopy(data, session.tokens, places, n_layers)


def copy_cache(session: Session) -> CacheCopy:
    """The cache of a session: its page, or its state where pages of interleaved sliding-window caches are refused.

    Raises:
        UnsupportedMemoryError: pages are refused for another reason.
        CachegenError: the state cannot be read.
    """
    try:
        return PageCopy(session.export_page())
    except UnsupportedMemoryError:
        if session.engine.capabilities().status_name != "REFUSED_ISWA":
            raise
    return _copy_state(session)
