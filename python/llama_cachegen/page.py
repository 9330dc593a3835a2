"""A page: the K and V data of a range of positions, with what is needed to check where it belongs."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .errors import PageFileCorruptError
from .ggml_types import GgmlType
from .page_file import (
    ComponentKind,
    PageComponent,
    PageWriteStats,
    check_layout,
    check_payload_padding,
    check_positions,
    encode_prefix,
    plan_file,
    read_page_file,
    write_page_file,
)
from .page_identity import PageIdentity, encode_identity

__all__ = ["ComponentKind", "Page", "PageComponent", "PageWriteStats", "size_of"]

# numpy has no bfloat16: its bits, as they are
_DTYPES: dict[int, str] = {GgmlType.F32: "f4", GgmlType.F16: "f2", GgmlType.BF16: "u2"}


def _release(payload: memoryview | None, mapping: mmap.mmap | None) -> None:
    """Release both now, or with the last array made of them."""
    if payload is not None:
        with contextlib.suppress(BufferError):
            payload.release()
    if mapping is not None:
        with contextlib.suppress(BufferError):
            mapping.close()


def _as_int32(tokens: NDArray[np.int32] | Sequence[int]) -> NDArray[np.int32]:
    """A view if they are int32 already. Numbers that do not fit are refused, never wrapped or rounded."""
    given = np.asarray(tokens)
    if given.dtype != np.int32 and given.size:
        if given.dtype.kind not in "iu":
            raise ValueError(f"tokens have type {given.dtype}; 32-bit integers are needed")
        if given.min() < -(2**31) or given.max() >= 2**31:
            raise ValueError("a token does not fit into 32 bits")
    narrow: NDArray[np.int32] = given.astype(np.int32, copy=False)
    view: NDArray[np.int32] = narrow.view()
    return view


class Page:
    """K and V data of positions [pos_begin, pos_begin + n_tokens). Immutable; the payload is never copied.

    A page from a file lies in a read-only mapping of it, which `close()` or a with statement gives back.

    Args:
        identity: what the values depend on besides the tokens.
        pos_begin: position of the first token.
        tokens: shape [n_tokens], int32.
        components: in the order of their offsets.
        payload: contiguous bytes: the components, each padded with zeros to a multiple of 64.
        mapping: the mapping the payload lies in, if it shall be closed with the page.

    Raises:
        ValueError: the components do not describe the payload, or the positions are not possible.
    """

    def __init__(
        self,
        *,
        identity: PageIdentity,
        pos_begin: int,
        tokens: NDArray[np.int32] | Sequence[int],
        components: Sequence[PageComponent],
        payload: memoryview | bytes | bytearray | NDArray[np.uint8],
        mapping: mmap.mmap | None = None,
    ) -> None:
        view = _as_int32(tokens)
        if view.ndim != 1:
            raise ValueError(f"tokens have shape {view.shape}; [n_tokens] is needed")
        view.setflags(write=False)
        data: memoryview = payload.data if isinstance(payload, np.ndarray) else memoryview(payload)
        if not data.c_contiguous or data.nbytes == 0:
            raise ValueError("the payload is empty or not contiguous")
        self.identity = identity
        self.pos_begin = int(pos_begin)
        self.tokens: NDArray[np.int32] = view
        self.components: tuple[PageComponent, ...] = tuple(components)
        check_positions(self.pos_begin, len(view))
        check_layout(self.components, len(view), data.nbytes)
        self._identity_json = encode_identity(identity)
        self._payload_bytes = data.nbytes
        self._payload: memoryview | None = data.cast("B").toreadonly()
        self._mapping = mapping

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Page:
        """Map a page file.

        Header, identity, tokens, component table and padding are checked here. The components' bytes are checked by
        the import while it copies them, and here with verify.

        Raises:
            PageFileError: a subclass for each way in which this can be no page file.
            OSError: the system refuses, for example for want of permission.
        """
        content = read_page_file(path)
        try:
            page = cls(**content._asdict())
        except ValueError as error:
            _release(content.payload, content.mapping)
            raise PageFileCorruptError(f"{os.fsdecode(path)}: {error}") from None
        if verify:
            try:
                page.verify()
            except PageFileCorruptError as error:
                page.close()
                raise PageFileCorruptError(f"{os.fsdecode(path)}: {error}") from None
            except BaseException:
                page.close()
                raise
        return page

    @property
    def payload(self) -> memoryview:
        """The bytes, read-only, format "B".

        Raises:
            ValueError: the page is closed.
        """
        if self._payload is None:
            raise ValueError("the page is closed")
        return self._payload

    @property
    def n_tokens(self) -> int:
        """Tokens of the page."""
        return len(self.tokens)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload, padding included."""
        return self._payload_bytes

    @property
    def n_file_bytes(self) -> int:
        """Bytes of the file that `write` makes."""
        plan = plan_file(len(self._identity_json), self.n_tokens, len(self.components), self._payload_bytes)
        return plan.file_bytes

    def numpy(self, which: int | PageComponent) -> NDArray[Any]:
        """A component as an array over the payload itself, read-only.

        Args:
            which: one of `components`, or its index.

        Returns:
            float32 for f32, float16 for f16, uint16 with the bits of bf16: shape [n_tokens, n_channels], or
            [n_channels, n_tokens] if transposed. Of any other type the bytes, uint8: shape [n_tokens, row_bytes], or
            [n_channels, bytes of a channel] if transposed.

        Raises:
            IndexError: there is no such index.
            ValueError: the component is not one of this page, or the page is closed.
        """
        component = self.components[self.components.index(which) if isinstance(which, PageComponent) else which]
        code = _DTYPES.get(component.type)
        dtype = np.dtype("u1" if code is None else (">" if self.identity.endianness == "big" else "<") + code)
        n_values = component.n_bytes // dtype.itemsize
        flat = np.frombuffer(self.payload, dtype=dtype, count=n_values, offset=component.offset)
        return flat.reshape(component.n_channels if component.transposed else component.n_tokens, -1)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.payload)

    def verify(self) -> None:
        """Compare the digest of every component, and the padding.

        Raises:
            PageFileCorruptError: naming the layer and K or V.
        """
        payload = self.payload
        for component in self.components:
            actual = xxhash.xxh3_64_intdigest(payload[component.offset : component.offset + component.n_bytes])
            if actual != component.xxh3:
                raise PageFileCorruptError(
                    f"layer {component.layer} {component.kind.name}: the bytes have digest {actual:016x}, the page "
                    f"says {component.xxh3:016x}; they are damaged, delete the page and evaluate the prompt again"
                )
        try:
            check_payload_padding(self.components, payload)
        except ValueError as error:
            raise PageFileCorruptError(str(error)) from None

    def write(self, path: str | os.PathLike[str]) -> PageWriteStats:
        """Write a page file. An older file of that name is replaced once the new one is on the disk.

        Equal pages give equal bytes.

        Raises:
            PageFileNotRegularError: the name is that of a directory, a FIFO, a device or a socket.
            OSError: the file cannot be written; an older file is still there.
            ValueError: the page is closed, or its padding is not zero.
        """
        payload = self.payload
        check_payload_padding(self.components, payload)
        prefix = encode_prefix(
            identity_json=self._identity_json,
            abi_version=self.identity.abi_version,
            pos_begin=self.pos_begin,
            tokens=self.tokens,
            components=self.components,
            payload_bytes=payload.nbytes,
        )
        return write_page_file(path, prefix, payload)

    def close(self) -> None:
        """Give the payload back. Arrays made of it stay valid; the mapping then goes with the last of them."""
        payload, self._payload = self._payload, None
        mapping, self._mapping = self._mapping, None
        _release(payload, mapping)

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        end = self.pos_begin + self.n_tokens
        return (
            f"<Page [{self.pos_begin}, {end}), {len(self.components)} components, {self._payload_bytes} bytes of "
            f"{self.identity.model_name}{', closed' if self._payload is None else ''}>"
        )


def size_of(page: Page) -> int:
    """Bytes of the page's file, without writing it."""
    return page.n_file_bytes
