"""The page file: reading with every number checked before it is used, and writing by atomic replacement.

The format is described in docs/formats/native-page.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import mmap
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn

import blake3
import numpy as np
from numpy.typing import NDArray

from ._timing import ms_since
from .errors import (
    PageFileCorruptError,
    PageFileError,
    PageFileMissingError,
    PageFileNotRegularError,
    PageFileTruncatedError,
    PageFileVersionError,
)
from .ggml_types import GgmlType, type_name
from .page_identity import MAX_IDENTITY_BYTES, PageIdentity, decode_identity

__all__ = ["ComponentKind", "PageComponent", "PageWriteStats", "check_layout", "plan_file", "read_page_file"]

MAGIC = b"\x89LKP\r\n\x1a\n"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sHHIQ8QiIII56s32s")
RECORD = struct.Struct("<iiiIIIIIQQQ")
DIGEST_BYTES = 32
COMPONENT_ALIGNMENT = 64
SECTION_ALIGNMENT = 8
PAYLOAD_ALIGNMENT = 4096
MAX_COMPONENTS = 65536
MAX_READ_BYTES = 1 << 26
MAX_WRITE_BYTES = 1 << 26
_RESERVED = bytes(56)
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


class ComponentKind(enum.IntEnum):
    """enum llama_kv_page_kind. Native pages have K and V; archives have the others too."""

    K = 1
    V = 2
    INDEXER_K = 3
    STATE_R = 4
    STATE_S = 5
    STATE_P = 6


@dataclasses.dataclass(frozen=True, slots=True)
class PageComponent:
    """One tensor's share of a page: struct llama_kv_page_component.

    Attributes:
        layer: model layer.
        type: ggml type of this component; 0 is F32.
        transposed: False: n_tokens rows of row_bytes; True: n_channels rows of n_tokens elements.
        n_rot: size of the Hadamard rotation of the values, 0 for none.
        n_channels: values of one token.
        row_bytes: bytes of one token.
        offset: first byte in the payload, a multiple of 64.
        n_bytes: n_tokens * row_bytes.
        xxh3: XXH3-64 of the component's bytes, seed 0.
    """

    layer: int
    kind: ComponentKind
    type: int
    transposed: bool
    n_rot: int
    n_tokens: int
    n_channels: int
    row_bytes: int
    offset: int
    n_bytes: int
    xxh3: int

    @property
    def type_name(self) -> str:
        """ggml's name of the type."""
        return type_name(self.type)


@dataclasses.dataclass(frozen=True)
class PageWriteStats:
    """A page file was written.

    Attributes:
        write_ms: writing the temporary file.
        fsync_ms: waiting until it is on the disk, renaming it, and the same for its directory.
    """

    path: str
    file_bytes: int
    write_ms: float
    fsync_ms: float


def _align(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


class FilePlan(NamedTuple):
    """Where the sections of a page file are. There is one plan for given sizes."""

    identity_offset: int
    tokens_offset: int
    table_offset: int
    payload_offset: int
    file_bytes: int


def plan_file(identity_bytes: int, n_tokens: int, n_components: int, payload_bytes: int) -> FilePlan:
    """The offsets and the size of a file with sections of these sizes."""
    tokens_offset = _align(HEADER.size + identity_bytes, SECTION_ALIGNMENT)
    table_offset = _align(tokens_offset + 4 * n_tokens, SECTION_ALIGNMENT)
    payload_offset = _align(table_offset + RECORD.size * n_components, PAYLOAD_ALIGNMENT)
    return FilePlan(HEADER.size, tokens_offset, table_offset, payload_offset, payload_offset + payload_bytes)


# what a page must fulfil, in memory and on disk


def check_positions(pos_begin: int, n_tokens: int) -> None:
    """Raises ValueError unless the positions are a range llama.cpp can count."""
    if pos_begin < 0 or n_tokens < 1 or pos_begin + n_tokens > _INT32_MAX:
        raise ValueError(f"{n_tokens} tokens from position {pos_begin} are not a range of 31-bit positions")


def check_layout(components: Sequence[PageComponent], n_tokens: int, payload_bytes: int) -> None:
    """Raises ValueError unless the components describe a payload of that size, completely and without overlap."""
    if not 1 <= len(components) <= MAX_COMPONENTS:
        raise ValueError(f"a page of {len(components)} components is not possible; 1 to {MAX_COMPONENTS} are")
    seen: set[tuple[int, int]] = set()
    end = 0
    for i, c in enumerate(components):
        if c.kind not in (ComponentKind.K, ComponentKind.V):
            raise ValueError(f"component {i}: kind {int(c.kind)} is neither 1 (K) nor 2 (V)")
        kind = ComponentKind(c.kind)
        where = f"component {i}, layer {c.layer} {kind.name}"
        if not 0 <= c.layer <= _INT32_MAX or not 0 <= c.type <= _INT32_MAX:
            raise ValueError(f"{where}: layer {c.layer} or type {c.type} is negative or too large")
        if (c.layer, kind) in seen:
            raise ValueError(f"{where}: the page has this component twice")
        seen.add((c.layer, kind))
        if c.transposed not in (0, 1):
            raise ValueError(f"{where}: transposed is {c.transposed}, not 0 or 1")
        if c.n_tokens != n_tokens:
            raise ValueError(f"{where}: {c.n_tokens} tokens in a page of {n_tokens}")
        if not 1 <= c.n_channels <= _UINT32_MAX or not 1 <= c.row_bytes <= _UINT32_MAX:
            raise ValueError(f"{where}: {c.n_channels} channels in {c.row_bytes} bytes are not possible")
        if not 0 <= c.n_rot <= _UINT32_MAX or not 0 <= c.xxh3 <= _UINT64_MAX:
            raise ValueError(f"{where}: rotation {c.n_rot} or digest {c.xxh3} is negative or too large")
        _check_row(c, where)
        if c.n_bytes != n_tokens * c.row_bytes:
            raise ValueError(f"{where}: {c.n_bytes} bytes for {n_tokens} tokens of {c.row_bytes} bytes")
        if c.offset != end:
            raise ValueError(f"{where}: begins at {c.offset} of the payload; {end} was next")
        end = _align(c.offset + c.n_bytes, COMPONENT_ALIGNMENT)
        if end > payload_bytes:
            raise ValueError(f"{where}: ends at {end}, behind the payload of {payload_bytes} bytes")
    if end != payload_bytes:
        raise ValueError(f"the components take {end} bytes, the payload has {payload_bytes}")


def _check_row(c: PageComponent, where: str) -> None:
    try:
        known = GgmlType(c.type)
    except ValueError:
        # a later type: the native import compares it with the live one
        if c.transposed and c.row_bytes % c.n_channels:
            raise ValueError(f"{where}: transposed, but {c.row_bytes} bytes are no {c.n_channels} elements") from None
        return
    if c.transposed and known.block_size != 1:
        raise ValueError(f"{where}: {known.type_name} cannot be transposed")
    if c.n_channels % known.block_size or c.row_bytes != known.row_bytes(c.n_channels):
        raise ValueError(f"{where}: {c.n_channels} values of {known.type_name} do not take {c.row_bytes} bytes")


def check_payload_padding(components: Sequence[PageComponent], payload: memoryview) -> None:
    """Raises ValueError unless the bytes between the components are zero. Reads no others."""
    for c in components:
        end = c.offset + c.n_bytes
        if any(payload[end : _align(end, COMPONENT_ALIGNMENT)]):
            raise ValueError(f"the padding after layer {c.layer} {ComponentKind(c.kind).name} is not zero")


# writing


def _prefix_digest(header: bytes, rest: bytes) -> bytes:
    hasher = blake3.blake3(header[: HEADER.size - DIGEST_BYTES] + bytes(DIGEST_BYTES))
    hasher.update(rest)
    return hasher.digest()


def encode_prefix(
    *,
    identity_json: bytes,
    abi_version: int,
    pos_begin: int,
    tokens: NDArray[np.int32],
    components: Sequence[PageComponent],
    payload_bytes: int,
) -> bytes:
    """Everything of a file before its payload: header, identity, tokens, component table, padding."""
    plan = plan_file(len(identity_json), len(tokens), len(components), payload_bytes)
    table = b"".join(
        RECORD.pack(
            c.layer,
            int(c.kind),
            c.type,
            int(c.transposed),
            c.n_rot,
            c.n_tokens,
            c.n_channels,
            c.row_bytes,
            c.offset,
            c.n_bytes,
            c.xxh3,
        )
        for c in components
    )
    rest = identity_json.ljust(plan.tokens_offset - plan.identity_offset, b"\0")
    rest += tokens.astype("<i4").tobytes().ljust(plan.table_offset - plan.tokens_offset, b"\0")
    rest += table.ljust(plan.payload_offset - plan.table_offset, b"\0")
    fields = (
        MAGIC,
        FORMAT_VERSION,
        abi_version,
        HEADER.size,
        plan.file_bytes,
        plan.identity_offset,
        len(identity_json),
        plan.tokens_offset,
        4 * len(tokens),
        plan.table_offset,
        len(table),
        plan.payload_offset,
        payload_bytes,
        pos_begin,
        len(tokens),
        len(components),
        RECORD.size,
        _RESERVED,
    )
    header = HEADER.pack(*fields, bytes(DIGEST_BYTES))
    return HEADER.pack(*fields, _prefix_digest(header, rest)) + rest


def _write_all(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        n = os.write(fd, rest[:MAX_WRITE_BYTES])
        if n <= 0:
            raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
        rest = rest[n:]


def write_page_file(path: str | os.PathLike[str], prefix: bytes, payload: memoryview) -> PageWriteStats:
    """Write a file so that its name has the old content or the new one, whatever happens.

    Raises:
        As `replace_file`.
    """

    def write(fd: int) -> int:
        _write_all(fd, prefix)
        _write_all(fd, payload)
        return len(prefix) + payload.nbytes

    return replace_file(path, write)


def replace_file(path: str | os.PathLike[str], write: Callable[[int], int]) -> PageWriteStats:
    """Write a file so that its name has the old content or the new one, whatever happens.

    Args:
        path: its name.
        write: writes the content to a file descriptor and returns its size.

    Raises:
        PageFileNotRegularError: the name is that of a directory, a FIFO, a device or a socket.
        OSError: the file cannot be written; `filename` names it, or the temporary file beside it.
    """
    target = os.fsdecode(path)
    directory, name = os.path.split(target)
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(target).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise PageFileNotRegularError(f"{target} is {_file_kind(mode)}; a page file is not written over it")
    short_name = os.fsdecode(os.fsencode(name)[:200])
    temporary = os.path.join(directory, f".{short_name}.{secrets.token_hex(8)}.tmp")
    t_start = time.perf_counter()
    fd = -1
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            file_bytes = write(fd)
            write_ms = ms_since(t_start)
            t_sync = time.perf_counter()
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, target)
    except BaseException as error:
        if fd >= 0 or not isinstance(error, OSError):  # Ctrl-C may come after the file was made and before fd was set
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = target
        raise
    directory_fd = os.open(directory or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_fd)
    finally:
        os.close(directory_fd)
    return PageWriteStats(path=target, file_bytes=file_bytes, write_ms=write_ms, fsync_ms=ms_since(t_sync))


# reading


def _file_kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return name
    return "not a regular file"


class PageFileContent(NamedTuple):
    """A checked file. The payload lies in the mapping, which the receiver has to close."""

    identity: PageIdentity
    pos_begin: int
    tokens: NDArray[np.int32]
    components: tuple[PageComponent, ...]
    payload: memoryview
    mapping: mmap.mmap


def open_regular(path: str) -> int:
    """Open for reading without ever waiting for another process."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise PageFileMissingError(error.errno, "there is no such page file", path) from None
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise PageFileNotRegularError(f"{path} is {_file_kind(os.stat(path).st_mode)}, not a page file") from None
        raise
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise PageFileNotRegularError(f"{path} is {_file_kind(mode)}, not a page file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_at(fd: int, path: str, offset: int, n_bytes: int) -> bytes:
    # bytes and no memoryview: in a reference cycle, such as an exception's frames, one with exported buffers can crash
    # the garbage collector (seen with 3.11)
    parts = []
    while n_bytes:
        part = os.pread(fd, min(n_bytes, MAX_READ_BYTES), offset)
        if not part:
            raise PageFileTruncatedError(f"{path} became shorter than {offset + n_bytes} bytes while it was read")
        parts.append(part)
        n_bytes -= len(part)
        offset += len(part)
    return b"".join(parts)


@contextlib.contextmanager
def naming_corrupt(path: str) -> Iterator[None]:
    """Say which file a broken rule was found in."""
    try:
        yield
    except ValueError as error:
        raise PageFileCorruptError(f"{path}: {error}") from None
    except PageFileError as error:
        raise type(error)(f"{path}: {error}") from error.__cause__


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _check_header(path: str, header: bytes, file_bytes: int) -> tuple[FilePlan, int, int, int, int, int]:
    """Every number of the header against the file's size and against each other.

    Returns: the plan, the identity's size, abi_version, pos_begin, n_tokens, n_components.
    """
    if header[: len(MAGIC)] != MAGIC[: len(header)]:
        raise PageFileCorruptError(f"{path} is not a page file: it begins with other bytes")
    if len(header) < HEADER.size:
        raise PageFileTruncatedError(f"{path} has {file_bytes} bytes; the header alone takes {HEADER.size}")
    (
        _,
        format_version,
        abi_version,
        header_bytes,
        stated_bytes,
        identity_offset,
        identity_bytes,
        tokens_offset,
        tokens_bytes,
        table_offset,
        table_bytes,
        payload_offset,
        payload_bytes,
        pos_begin,
        n_tokens,
        n_components,
        record_bytes,
        reserved,
        _,
    ) = HEADER.unpack(header)
    if format_version != FORMAT_VERSION:
        raise PageFileVersionError(f"{path} has format version {format_version}; this version reads {FORMAT_VERSION}")
    if stated_bytes != file_bytes:
        raise PageFileTruncatedError(f"{path} has {file_bytes} bytes, its header says {stated_bytes}")
    with naming_corrupt(path):
        if header_bytes != HEADER.size or record_bytes != RECORD.size or reserved != _RESERVED:
            _refuse("the header's sizes or reserved bytes are not those of this format version")
        if not 1 <= identity_bytes <= MAX_IDENTITY_BYTES:
            _refuse(f"an identity of {identity_bytes} bytes is not possible")
        if not 1 <= n_components <= MAX_COMPONENTS:
            _refuse(f"a page of {n_components} components is not possible; 1 to {MAX_COMPONENTS} are")
        check_positions(pos_begin, n_tokens)
        if tokens_bytes != 4 * n_tokens or table_bytes != RECORD.size * n_components:
            _refuse("the sizes of tokens and component table do not fit their counts")
        plan = plan_file(identity_bytes, n_tokens, n_components, payload_bytes)
        if tuple(plan) != (identity_offset, tokens_offset, table_offset, payload_offset, file_bytes):
            _refuse("the sections are not where their sizes put them")
    return plan, identity_bytes, abi_version, pos_begin, n_tokens, n_components


def _check_padding(section: bytes, n_bytes: int, name: str) -> bytes:
    if any(section[n_bytes:]):
        _refuse(f"the padding after the {name} is not zero")
    return section[:n_bytes]


def _read_component(fields: tuple[int, ...], index: int) -> PageComponent:
    layer, kind, number, transposed, *numbers = fields
    if kind not in (ComponentKind.K, ComponentKind.V):
        _refuse(f"component {index}: kind {kind} is neither 1 (K) nor 2 (V)")
    if transposed not in (0, 1):
        _refuse(f"component {index}: transposed is {transposed}, not 0 or 1")
    return PageComponent(layer, ComponentKind(kind), number, bool(transposed), *numbers)


def read_page_file(path: str | os.PathLike[str]) -> PageFileContent:
    """Open and check a file: all but the bytes of the components.

    Raises:
        PageFileError: a subclass for each way in which this can be no page file.
        OSError: the system refuses, for example for want of permission.
    """
    name = os.fsdecode(path)
    fd = open_regular(name)
    try:
        file_bytes = os.fstat(fd).st_size
        header = read_at(fd, name, 0, min(HEADER.size, file_bytes))
        plan, identity_bytes, abi_version, pos_begin, n_tokens, n_components = _check_header(name, header, file_bytes)

        rest = read_at(fd, name, HEADER.size, plan.payload_offset - HEADER.size)
        with naming_corrupt(name):
            if _prefix_digest(header, rest) != header[-DIGEST_BYTES:]:
                _refuse("header, identity, tokens or component table do not match their digest; bytes are damaged")
            begin = HEADER.size
            identity_json = _check_padding(rest[: plan.tokens_offset - begin], identity_bytes, "identity")
            tokens_raw = _check_padding(
                rest[plan.tokens_offset - begin : plan.table_offset - begin], 4 * n_tokens, "tokens"
            )
            table = _check_padding(rest[plan.table_offset - begin :], RECORD.size * n_components, "component table")
            identity = decode_identity(identity_json)
            if identity.abi_version != abi_version:
                _refuse(f"the header says ABI {abi_version}, the identity {identity.abi_version}")
            tokens = np.frombuffer(tokens_raw, dtype="<i4").astype(np.int32)
            tokens.setflags(write=False)
            components = tuple(_read_component(fields, i) for i, fields in enumerate(RECORD.iter_unpack(table)))
            check_layout(components, n_tokens, file_bytes - plan.payload_offset)

        try:
            mapping = mmap.mmap(fd, file_bytes, access=mmap.ACCESS_READ)
        except ValueError:
            raise PageFileTruncatedError(f"{name} became shorter than {file_bytes} bytes while it was read") from None
    finally:
        os.close(fd)
    payload = memoryview(mapping)[plan.payload_offset :]
    try:
        with naming_corrupt(name):
            check_payload_padding(components, payload)
    except BaseException:
        payload.release()
        with contextlib.suppress(BufferError):
            mapping.close()
        raise
    return PageFileContent(identity, pos_begin, tokens, components, payload, mapping)
