"""One file into another: pages into archives, archives into archives of another profile, lossless ones into pages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from .codec import Archive, Mode, Plane, decode_page, encode, encode_page, get_profile
from .errors import TranscodeError
from .file_kinds import FileKind, kind_of, naming, read_file
from .ggml_types import GgmlType
from .page import Page
from .page_file import write_page_file

__all__ = ["Transcoded", "transcode"]

DEFAULT_PROFILE = "balanced"

NOTE_ERRORS_ADD_UP = (
    "the source is lossy and was quantised again: the errors add up, encoding the original page is better"
)
NOTE_KEEP_THE_PAGE = "tokens and identity are not in an archive; --like needs a page that has them"


@dataclasses.dataclass(frozen=True)
class Transcoded:
    """A file was turned into another one.

    Attributes:
        ratio: input bytes for one of the output.
        bits_per_value: of the output file, everything counted.
        seconds: all of it, writing included.
        write_seconds: of them, writing and waiting for the disk.
        notes: what the user should know.
    """

    source: str
    source_kind: str
    source_bytes: int
    target: str
    target_kind: str
    target_bytes: int
    profile: str | None
    n_tokens: int
    n_values: int
    ratio: float
    bits_per_value: float
    seconds: float
    write_seconds: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Made:
    """What is to be written: an archive or a page."""

    content: bytes | Page
    n_tokens: int
    n_values: int
    notes: tuple[str, ...]


def transcode(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    profile: str | None = None,
    like: str | os.PathLike[str] | None = None,
    n_threads: int = 1,
    force: bool = False,
) -> Transcoded:
    """Turn a page file or an LCG3 archive into an LCG3 archive (profile); a lossless archive into a page file (like).

    The target appears under its name when all of it is on the disk, or not at all.

    Args:
        source: a page file or an LCG3 archive.
        target: the file to write.
        profile: name of the archive's profile; None: `balanced` for a page.
        like: a page file with the tokens, identity and layout that the new page gets.
        n_threads: threads to use.
        force: replace an existing target; encode a lossy archive under a lossless profile.

    Raises:
        TranscodeError: these files do not go together, or the target may not be written.
        PageFileError, CodecError: a damaged file, or values that cannot be encoded; the message names the file.
        OSError: the system refuses.
    """
    t_start = time.perf_counter()
    names = [os.fsdecode(source), os.fsdecode(target)]
    _check_target(names[1], [names[0]] + ([os.fsdecode(like)] if like is not None else []), force)
    kind = kind_of(source)
    if like is not None and profile is not None:
        raise TranscodeError("a page file has no profile; leave out either the profile or the page it shall be like")
    try:
        made = _make(kind, names[0], profile, like, n_threads, force)
    except MemoryError:
        raise TranscodeError(f"{names[0]} decodes to more than there is memory for") from None
    t_write = time.perf_counter()
    _check_target(names[1], [], force)  # once more: someone else may have made it meanwhile
    if isinstance(made.content, Page):
        target_bytes = made.content.write(names[1]).file_bytes
    else:
        target_bytes = write_page_file(names[1], made.content, memoryview(b"")).file_bytes
    t_end = time.perf_counter()
    source_bytes = os.stat(names[0]).st_size
    return Transcoded(
        source=names[0],
        source_kind=kind.value,
        source_bytes=source_bytes,
        target=names[1],
        target_kind=(FileKind.PAGE if like is not None else FileKind.LCG3).value,
        target_bytes=target_bytes,
        profile=None if like is not None else profile or DEFAULT_PROFILE,
        n_tokens=made.n_tokens,
        n_values=made.n_values,
        ratio=source_bytes / target_bytes,
        bits_per_value=8 * target_bytes / made.n_values,
        seconds=t_end - t_start,
        write_seconds=t_end - t_write,
        notes=made.notes,
    )


def _is_same(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)


def _check_target(target: str, inputs: list[str], force: bool) -> None:
    for name in inputs:
        if _is_same(name, target):
            raise TranscodeError(f"{target} is read too; choose another name for the output")
    folder = os.path.dirname(target) or os.curdir
    if not os.path.isdir(folder):
        raise TranscodeError(f"{target}: there is no folder {folder}")
    if os.path.isdir(target):
        raise TranscodeError(f"{target} is a folder; name a file")
    if os.path.lexists(target) and not force:
        raise TranscodeError(f"{target} exists; --force replaces it")


def _make(
    kind: FileKind, source: str, profile: str | None, like: str | os.PathLike[str] | None, n_threads: int, force: bool
) -> _Made:
    if kind is FileKind.PAGE:
        if like is not None:
            raise TranscodeError(f"{source} is a page file already; --like is for archives")
        return _page_to_archive(source, profile or DEFAULT_PROFILE, n_threads)
    if kind is FileKind.LCG3:
        data = read_file(source)
        with _named(source), Archive(data) as archive:
            if like is not None:
                return _archive_to_page(archive, data, source, os.fsdecode(like), n_threads)
            if profile is None:
                raise TranscodeError("give --profile for another archive, or --like PAGE for a page file")
            return _archive_to_archive(archive, profile, n_threads, force)
    if kind is FileKind.CKG1:
        raise TranscodeError(
            f"{source} is a CKG1 archive, which does not say which layers, types and rotations its page has; "
            "without a description of the page it cannot become an LCG3 archive"
        )
    raise TranscodeError(f"{source} is an {kind.title}; only page files and LCG3 archives can be transcoded")


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        with naming(path):
            yield
    except ValueError as error:
        raise TranscodeError(f"{path}: {error}") from error


@contextlib.contextmanager
def _page(path: str, *, verify: bool = False) -> Iterator[Page]:
    with Page.open(path, verify=verify) as page:
        if page.identity.endianness != sys.byteorder:
            raise TranscodeError(f"{path} is a page of a {page.identity.endianness}-endian machine")
        for component in page.components:
            if component.type not in GgmlType.__members__.values():
                raise TranscodeError(f"{path}: layer {component.layer} has {component.type_name}, which is not known")
        yield page


def _page_to_archive(source: str, profile: str, n_threads: int) -> _Made:
    with _page(source, verify=True) as page:
        with _named(source):
            data = encode_page(page, profile, n_threads=n_threads)
        n_values = sum(page.n_tokens * component.n_channels for component in page.components)
        return _Made(data, page.n_tokens, n_values, (NOTE_KEEP_THE_PAGE,))


def _archive_to_archive(archive: Archive, profile: str, n_threads: int, force: bool) -> _Made:
    info, planes = archive.info, archive.planes
    is_lossy = any(plane.mode is Mode.LOSSY for plane in planes)
    if is_lossy and get_profile(profile).is_exact and not force:
        raise TranscodeError(
            f"the source is lossy (profile {info.profile}); profile {profile} would keep its approximate values, "
            "larger and no better. --force does it"
        )
    decoded = [
        Plane(
            np.empty((info.n_tokens, plane.type.row_bytes(plane.n_channels)), dtype=np.uint8),
            plane.type,
            plane.n_channels,
            layer=plane.layer,
            kind=plane.kind,
            n_rot=plane.n_rot,
        )
        for plane in planes
    ]
    archive.decode(decoded, n_threads=n_threads)
    data = encode(decoded, profile, n_threads=n_threads)
    n_values = sum(info.n_tokens * plane.n_channels for plane in planes)
    return _Made(data, info.n_tokens, n_values, (NOTE_ERRORS_ADD_UP,) if is_lossy else ())


def _archive_to_page(archive: Archive, data: bytes, source: str, like: str, n_threads: int) -> _Made:
    info, planes = archive.info, archive.planes
    if any(plane.mode is Mode.LOSSY for plane in planes):
        raise TranscodeError(
            f"{source} is lossy (profile {info.profile}); a page file cannot say so and would pass for exact"
        )
    with _page(like) as page:
        if page.n_tokens != info.n_tokens:
            raise TranscodeError(f"{source} has {info.n_tokens} tokens, {like} has {page.n_tokens}")
        in_archive = [(plane.layer, plane.kind.name, plane.n_channels) for plane in planes]
        in_page = [(component.layer, component.kind.name, component.n_channels) for component in page.components]
        if len(in_archive) != len(in_page):
            raise TranscodeError(f"{source} has {len(in_archive)} planes, {like} has {len(in_page)} components")
        for i, (a, b) in enumerate(zip(in_archive, in_page, strict=True)):
            if a != b:
                raise TranscodeError(
                    f"plane {i} of {source} is layer {a[0]} {a[1]} of {a[2]} channels, "
                    f"component {i} of {like} is layer {b[0]} {b[1]} of {b[2]}"
                )
        made = decode_page(data, page, n_threads=n_threads)
    n_values = sum(info.n_tokens * plane.n_channels for plane in planes)
    return _Made(made, info.n_tokens, n_values, ())
