"""One file into another: pages into archives, archives into archives of another profile, lossless ones into pages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from .archive_file import ArchiveFile, write_archive_file
from .codec import Archive, Kind, Mode, Plane, decode_page, encode, encode_page, get_profile
from .errors import TranscodeError
from .file_kinds import FileKind, kind_of, naming, read_file
from .ggml_types import GgmlType
from .page import ComponentKind, Page, PageComponent
from .page_file import COMPONENT_ALIGNMENT, PageWriteStats, write_page_file
from .page_identity import ARCHIVE_FORMAT, FORMAT, PageIdentity, with_format

__all__ = ["Transcoded", "transcode"]

DEFAULT_PROFILE = "balanced"

NOTE_ERRORS_ADD_UP = (
    "the source is lossy and was quantised again: the errors add up, encoding the original page is better"
)
NOTE_KEEP_THE_PAGE = "tokens and identity are not in a bare archive; --like needs a page that has them"


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
class _Label:
    """What an archive page file has besides its archive."""

    identity: PageIdentity
    pos_begin: int
    tokens: NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class _Made:
    """What is to be written: a page, an archive with a label, or an archive alone."""

    content: bytes | Page
    label: _Label | None
    profile: str | None
    n_tokens: int
    n_values: int
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> FileKind:
        if isinstance(self.content, Page):
            return FileKind.PAGE
        return FileKind.LCG3 if self.label is None else FileKind.ARCHIVE_PAGE

    def write(self, path: str) -> PageWriteStats:
        if isinstance(self.content, Page):
            return self.content.write(path)
        if self.label is None:
            return write_page_file(path, self.content, memoryview(b""))
        with Archive(self.content) as archive:
            is_exact = _is_exact(archive)
        return write_archive_file(
            path,
            self.content,
            identity=with_format(self.label.identity, ARCHIVE_FORMAT),
            pos_begin=self.label.pos_begin,
            tokens=self.label.tokens,
            is_exact=is_exact,
        )


def _is_exact(archive: Archive) -> bool:
    return all(plane.mode is not Mode.LOSSY for plane in archive.planes)


def transcode(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    profile: str | None = None,
    like: str | os.PathLike[str] | None = None,
    bare: bool = False,
    n_threads: int = 1,
    force: bool = False,
) -> Transcoded:
    """Turn a file of one of these formats into another one.

    * A page file becomes an archive page file.
    * An archive page file becomes one of another profile (profile), or a page file if it is lossless (no profile). Its
      types are the archive's, its layout is rows, unless `like` is given.
    * An LCG3 archive becomes one of another profile, or a page file if it is lossless (like).

    The target appears under its name when all of it is on the disk, or not at all.

    Args:
        source: a page file, an archive page file or an LCG3 archive.
        target: the file to write.
        profile: name of the archive's profile; None: `balanced` for a page.
        like: a page file with the tokens, identity, types and layout that the new page gets. An archive page file must
            have the same tokens and identity.
        bare: write the archive alone, without tokens and identity; without a profile, the one in an archive page file.
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
    if like is not None and (profile is not None or bare):
        raise TranscodeError("a page file has no profile; leave out either the profile or the page it shall be like")
    try:
        made = _make(kind, names[0], profile, like, bare, n_threads, force)
    except MemoryError:
        raise TranscodeError(f"{names[0]} decodes to more than there is memory for") from None
    t_write = time.perf_counter()
    _check_target(names[1], [], force)  # once more: someone else may have made it meanwhile
    target_bytes = made.write(names[1]).file_bytes
    t_end = time.perf_counter()
    source_bytes = os.stat(names[0]).st_size
    return Transcoded(
        source=names[0],
        source_kind=kind.value,
        source_bytes=source_bytes,
        target=names[1],
        target_kind=made.kind.value,
        target_bytes=target_bytes,
        profile=made.profile,
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
    kind: FileKind,
    source: str,
    profile: str | None,
    like: str | os.PathLike[str] | None,
    bare: bool,
    n_threads: int,
    force: bool,
) -> _Made:
    if kind is FileKind.PAGE:
        if like is not None:
            raise TranscodeError(f"{source} is a page file already; --like is for archives")
        return _page_to_archive(source, profile or DEFAULT_PROFILE, bare, n_threads)
    if kind is FileKind.ARCHIVE_PAGE:
        with ArchiveFile(source) as file, _named(source), Archive(file.archive) as archive:
            file.check_archive(archive)
            label = _Label(file.identity, file.pos_begin, file.tokens)
            if like is not None:
                return _archive_to_page(archive, file.archive, source, os.fsdecode(like), n_threads, label)
            if profile is not None:
                return _archive_to_archive(archive, profile, n_threads, force, None if bare else label)
            if bare:
                archive.verify(n_threads=n_threads)
                return _made_archive(bytes(file.archive), archive, None, archive.info.profile, (NOTE_KEEP_THE_PAGE,))
            return _archive_to_rows(archive, source, label, n_threads)
    if kind is FileKind.LCG3:
        data = read_file(source)
        with _named(source), Archive(data) as archive:
            if like is not None:
                return _archive_to_page(archive, data, source, os.fsdecode(like), n_threads)
            if profile is None:
                raise TranscodeError("give --profile for another archive, or --like PAGE for a page file")
            return _archive_to_archive(archive, profile, n_threads, force, None)
    if kind is FileKind.CKG1:
        raise TranscodeError(
            f"{source} is a CKG1 archive, which does not say which layers, types and rotations its page has; "
            "without a description of the page it cannot become an LCG3 archive"
        )
    raise TranscodeError(
        f"{source} is an {kind.title}; only page files, archive page files and LCG3 archives can be transcoded"
    )


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        with naming(path):
            yield
    except ValueError as error:
        raise TranscodeError(f"{path}: {error}") from error


def _check_byte_order(identity: PageIdentity, path: str) -> None:
    if identity.endianness != sys.byteorder:
        raise TranscodeError(f"{path} is a page of a {identity.endianness}-endian machine")


@contextlib.contextmanager
def _page(path: str, *, verify: bool = False) -> Iterator[Page]:
    with Page.open(path, verify=verify) as page:
        _check_byte_order(page.identity, path)
        for component in page.components:
            if component.type not in GgmlType.__members__.values():
                raise TranscodeError(f"{path}: layer {component.layer} has {component.type_name}, which is not known")
        yield page


def _n_values(archive: Archive) -> int:
    return sum(archive.info.n_tokens * plane.n_channels for plane in archive.planes)


def _made_archive(
    data: bytes, archive: Archive, label: _Label | None, profile: str, notes: tuple[str, ...] = ()
) -> _Made:
    return _Made(data, label, profile, archive.info.n_tokens, _n_values(archive), notes)


def _page_to_archive(source: str, profile: str, bare: bool, n_threads: int) -> _Made:
    with _page(source, verify=True) as page:
        with _named(source):
            data = encode_page(page, profile, n_threads=n_threads)
        n_values = sum(page.n_tokens * component.n_channels for component in page.components)
        label = None if bare else _Label(page.identity, page.pos_begin, page.tokens)
        return _Made(data, label, profile, page.n_tokens, n_values, (NOTE_KEEP_THE_PAGE,) if bare else ())


def _archive_to_archive(archive: Archive, profile: str, n_threads: int, force: bool, label: _Label | None) -> _Made:
    info, planes = archive.info, archive.planes
    is_lossy = not _is_exact(archive)
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
    return _made_archive(data, archive, label, profile, (NOTE_ERRORS_ADD_UP,) if is_lossy else ())


def _refuse_lossy(archive: Archive, source: str, hint: str = "") -> None:
    if not _is_exact(archive):
        raise TranscodeError(
            f"{source} is lossy (profile {archive.info.profile}); a page file cannot say so and would pass for exact"
            + hint
        )


def _archive_to_rows(archive: Archive, source: str, label: _Label, n_threads: int) -> _Made:
    """The page of a lossless archive: its own types and rotations, everything in rows."""
    _refuse_lossy(archive, source, ". Give --profile for another archive page file, --bare for the archive in it")
    _check_byte_order(label.identity, source)
    info = archive.info
    components: list[PageComponent] = []
    end = 0
    for plane in archive.planes:
        if plane.kind is Kind.AUX or plane.first_token:
            raise TranscodeError(
                f"{source}: layer {plane.layer} {plane.kind.name} is auxiliary or lacks tokens before "
                f"{plane.first_token}; a page file cannot have it"
            )
        row_bytes = plane.type.row_bytes(plane.n_channels)
        component = PageComponent(
            layer=plane.layer,
            kind=ComponentKind(int(plane.kind)),
            type=int(plane.type),
            transposed=False,
            n_rot=plane.n_rot,
            n_tokens=info.n_tokens,
            n_channels=plane.n_channels,
            row_bytes=row_bytes,
            offset=end,
            n_bytes=info.n_tokens * row_bytes,
            xxh3=0,
        )
        components.append(component)
        end += (component.n_bytes + COMPONENT_ALIGNMENT - 1) // COMPONENT_ALIGNMENT * COMPONENT_ALIGNMENT
    payload = np.zeros(end, dtype=np.uint8)
    views = [payload[c.offset : c.offset + c.n_bytes].reshape(info.n_tokens, -1) for c in components]
    destinations = [
        Plane(view, plane.type, plane.n_channels, n_rot=plane.n_rot)
        for view, plane in zip(views, archive.planes, strict=True)
    ]
    archive.decode(destinations, n_threads=n_threads)
    page = Page(
        identity=with_format(label.identity, FORMAT),
        pos_begin=label.pos_begin,
        tokens=label.tokens,
        components=[
            dataclasses.replace(component, xxh3=xxhash.xxh3_64_intdigest(view.data))
            for component, view in zip(components, views, strict=True)
        ],
        payload=payload,
    )
    return _Made(page, None, None, info.n_tokens, _n_values(archive))


def _check_label(label: _Label, source: str, page: Page, like: str) -> None:
    if with_format(label.identity, FORMAT) != page.identity:
        raise TranscodeError(f"{source} has another identity than {like}; `inspect` shows both")
    if label.pos_begin != page.pos_begin or not np.array_equal(label.tokens, page.tokens):
        raise TranscodeError(f"{source} has other tokens or positions than {like}")


def _archive_to_page(
    archive: Archive, data: bytes | memoryview, source: str, like: str, n_threads: int, label: _Label | None = None
) -> _Made:
    info, planes = archive.info, archive.planes
    _refuse_lossy(archive, source)
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
        if label is not None:
            _check_label(label, source, page, like)
        made = decode_page(data, page, n_threads=n_threads)
    return _Made(made, None, None, info.n_tokens, _n_values(archive))
