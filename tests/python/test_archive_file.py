"""Archive page files: round trips, damage of every kind, crafted numbers, what is no file, the worked example."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import struct
import tempfile
from pathlib import Path
from typing import Any

import blake3
import msgspec
import numpy as np
import pytest
from codec_cases import random_planes
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cachegen import codec
from llama_cachegen.archive_file import (
    ARCHIVE_MAGIC,
    HEADER,
    ArchiveFile,
    archive_offset_of,
    encode_archive_prefix,
    write_archive_file,
)
from llama_cachegen.codec import Archive
from llama_cachegen.errors import (
    PageFileCorruptError,
    PageFileError,
    PageFileMissingError,
    PageFileNotRegularError,
    PageFileTruncatedError,
    PageFileVersionError,
)
from llama_cachegen.ggml_types import GgmlType
from llama_cachegen.page import Page
from llama_cachegen.page_file import MAGIC as PAGE_MAGIC
from llama_cachegen.page_identity import ARCHIVE_FORMAT, decode_identity, encode_identity, with_format
from test_format_pages import archive as example_archive
from test_page_file import IDENTITY as PAGE_IDENTITY
from test_page_file import tiny_page

IDENTITY = with_format(PAGE_IDENTITY, ARCHIVE_FORMAT)
TOKENS = np.array([7, -1, 2**31 - 1], dtype=np.int32)
ARCHIVE = codec.encode(random_planes(3, 3, types=[GgmlType.F16], n_channels=2), "balanced")
FIELDS = (
    "magic", "format_version", "abi_version", "header_bytes", "file_bytes", "identity_bytes", "archive_offset",
    "archive_bytes", "pos_begin", "n_tokens", "flags", "reserved", "digest",
)  # fmt: skip
PAGE = (ROOT / "docs" / "formats" / "archive-page.md").read_text(encoding="utf-8")


def write(path: Path, **changes: Any) -> Path:
    arguments = {"identity": IDENTITY, "pos_begin": 4, "tokens": TOKENS, "is_exact": False, **changes}
    write_archive_file(path, arguments.pop("archive", ARCHIVE), **arguments)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.archive")


def assert_refused(path: Path, kind: type[PageFileError] = PageFileError) -> PageFileError:
    with pytest.raises(kind) as caught:
        ArchiveFile(path).close()
    assert str(path) in str(caught.value)
    return caught.value


def seal(data: bytes, **fields: Any) -> bytes:
    """Other numbers in the header, with the digest that belongs to them."""
    values = dict(zip(FIELDS, HEADER.unpack(data[: HEADER.size]), strict=True)) | fields | {"digest": bytes(32)}
    offset = archive_offset_of(len(encode_identity(IDENTITY, ARCHIVE_FORMAT)), len(TOKENS))
    header = HEADER.pack(*values.values())
    return header[:96] + blake3.blake3(header + data[128:offset]).digest() + data[128:]


def seal_rest(data: bytes, at: int, replacement: bytes) -> bytes:
    """Other bytes behind the header, with the digest that belongs to them."""
    return seal(data[:at] + replacement + data[at + len(replacement) :])


# round trips


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=2000),
    st.integers(0, 2**31 - 2001),
    st.text(max_size=20),
    st.booleans(),
    st.binary(min_size=1, max_size=300),
)
def test_round_trip(tokens: list[int], pos_begin: int, namespace: str, is_exact: bool, archive: bytes) -> None:
    identity = msgspec.structs.replace(IDENTITY, namespace=namespace)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a")
        stats = write_archive_file(
            path,
            archive,
            identity=identity,
            pos_begin=pos_begin,
            tokens=np.array(tokens, dtype=np.int32),
            is_exact=is_exact,
        )
        offset = archive_offset_of(len(encode_identity(identity, ARCHIVE_FORMAT)), len(tokens))
        assert stats.file_bytes == path.stat().st_size == offset + len(archive) and offset % 4096 == 0
        assert os.listdir(directory) == ["a"] and path.stat().st_mode & 0o777 == 0o600
        with ArchiveFile(path) as file:
            assert file.identity == identity and file.pos_begin == pos_begin and file.is_exact == is_exact
            assert file.tokens.dtype == np.int32 and file.tokens.tolist() == tokens and file.n_tokens == len(tokens)
            assert bytes(file.archive) == archive and file.n_file_bytes == stats.file_bytes
            assert path.read_bytes()[offset:] == archive


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "a").read_bytes() == write(tmp_path / "b").read_bytes()
    assert write(tmp_path / "c", is_exact=True).read_bytes() != (tmp_path / "a").read_bytes()


def test_the_content_is_read_only(tiny: Path) -> None:
    with ArchiveFile(tiny) as file:
        assert file.archive.readonly
        with pytest.raises(ValueError, match="read-only"):
            file.tokens[0] = 1


def test_views_outlive_the_file(tiny: Path) -> None:
    file = ArchiveFile(tiny)
    view = file.archive[4:20]
    array = np.frombuffer(file.archive, dtype=np.uint8)
    file.close()
    file.close()
    gc.collect()
    assert bytes(view) == ARCHIVE[4:20] and array.tobytes() == ARCHIVE
    with pytest.raises(ValueError, match="closed"):
        file.archive  # noqa: B018
    with ArchiveFile(tiny) as file:
        archive = Archive(file.archive)
    archive.verify()
    archive.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_nothing_stays_open(tiny: Path) -> None:
    def n_open() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = n_open()
    for _ in range(5):
        ArchiveFile(tiny).close()
    damaged = bytearray(tiny.read_bytes())
    damaged[130] ^= 1
    tiny.write_bytes(damaged)
    for _ in range(5):
        assert_refused(tiny, PageFileCorruptError)
    assert n_open() == before


# what cannot be written


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": PAGE_IDENTITY},
        {"identity": msgspec.structs.replace(IDENTITY, format="lcg3/2")},
        {"identity": msgspec.structs.replace(IDENTITY, namespace="n" * (1 << 20))},
        {"pos_begin": -1},
        {"pos_begin": 2**31 - 3},
        {"tokens": TOKENS[:0]},
        {"archive": b""},
    ],
)
def test_impossible_content_is_not_written(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write(tmp_path / "a", **changes)
    assert os.listdir(tmp_path) == []


def test_a_page_never_has_an_archives_identity() -> None:
    with pytest.raises(ValueError, match="lcg3/1"):
        tiny_page(identity=IDENTITY)


# damage


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_byte_before_the_archive_is_checked(tiny: Path, mask: int) -> None:
    original = tiny.read_bytes()
    n_prefix = len(original) - len(ARCHIVE)
    with open(tiny, "r+b", buffering=0) as file:
        for i, byte in enumerate(original[:n_prefix]):
            os.pwrite(file.fileno(), bytes([byte ^ mask]), i)
            assert_refused(tiny)
            os.pwrite(file.fileno(), bytes([byte]), i)
    ArchiveFile(tiny).close()


def test_bytes_of_the_archive_are_the_archives_to_check(tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[-1] ^= 1
    tiny.write_bytes(data)
    with ArchiveFile(tiny) as file, pytest.raises(codec.ArchiveError), Archive(file.archive) as archive:
        archive.verify()


def test_truncation_at_every_length(tiny: Path) -> None:
    for n_bytes in range(tiny.stat().st_size - 1, -1, -1):
        os.truncate(tiny, n_bytes)
        assert f"has {n_bytes} bytes" in str(assert_refused(tiny, PageFileTruncatedError))


@pytest.mark.parametrize("n_extra", [1, 64, 4096])
def test_a_longer_file_is_refused(tiny: Path, n_extra: int) -> None:
    n_bytes = tiny.stat().st_size
    os.truncate(tiny, n_bytes + n_extra)
    message = str(assert_refused(tiny, PageFileTruncatedError))
    assert str(n_bytes) in message and str(n_bytes + n_extra) in message


def test_a_file_that_shrinks_while_it_is_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread

    def shrinking(fd: int, n_bytes: int, offset: int) -> bytes:
        data = pread(fd, n_bytes, offset)
        if offset == 0:
            os.truncate(tiny, 200)
        return data

    monkeypatch.setattr(os, "pread", shrinking)
    assert_refused(tiny, PageFileTruncatedError)


@pytest.mark.parametrize("content", [b"x", b"GGUF", b"x" * 128, b"x" * 5000, PAGE_MAGIC + bytes(300)])
def test_other_files_are_not_archive_page_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)
    assert_refused(path, PageFileCorruptError)


def test_a_text_transfer_is_noticed(tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes().replace(b"\r\n", b"\n"))
    assert_refused(tiny, PageFileCorruptError)


def test_page_files_and_archive_page_files_are_not_mixed_up(tiny: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    tiny_page().write(page)
    assert_refused(page, PageFileCorruptError)
    with pytest.raises(PageFileCorruptError):
        Page.open(tiny)


# crafted numbers, with a digest that belongs to them


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"magic": b"\x89LKB\r\n\x1a\n"}, PageFileCorruptError),
        ({"format_version": 0}, PageFileVersionError),
        ({"format_version": 2}, PageFileVersionError),
        ({"abi_version": 2}, PageFileCorruptError),
        ({"header_bytes": 0}, PageFileCorruptError),
        ({"header_bytes": 192}, PageFileCorruptError),
        ({"file_bytes": 0}, PageFileTruncatedError),
        ({"file_bytes": 2**64 - 1}, PageFileTruncatedError),
        ({"identity_bytes": 0}, PageFileCorruptError),
        ({"identity_bytes": 1}, PageFileCorruptError),
        ({"identity_bytes": (1 << 20) + 1}, PageFileCorruptError),
        ({"identity_bytes": 2**64 - 1}, PageFileCorruptError),
        ({"archive_offset": 0}, PageFileCorruptError),
        ({"archive_offset": 8192}, PageFileCorruptError),
        ({"archive_offset": 2**64 - 4096}, PageFileCorruptError),
        ({"archive_bytes": 0}, PageFileCorruptError),
        ({"archive_bytes": len(ARCHIVE) - 1}, PageFileCorruptError),
        ({"archive_bytes": 2**64 - 1}, PageFileCorruptError),
        ({"pos_begin": -1}, PageFileCorruptError),
        ({"pos_begin": 2**31 - 1}, PageFileCorruptError),
        ({"n_tokens": 0}, PageFileCorruptError),
        ({"n_tokens": 2}, PageFileCorruptError),  # the third token would be padding
        ({"n_tokens": 2**31 - 5}, PageFileCorruptError),
        ({"n_tokens": 2**32 - 1}, PageFileCorruptError),
        ({"flags": 2}, PageFileCorruptError),
        ({"flags": 2**31}, PageFileCorruptError),
        ({"reserved": bytes(35) + b"\1"}, PageFileCorruptError),
    ],
)
def test_crafted_numbers(tiny: Path, fields: dict[str, Any], kind: type[PageFileError]) -> None:
    data = tiny.read_bytes()
    assert seal(data) == data
    tiny.write_bytes(seal(data, **fields))
    assert_refused(tiny, kind)


def test_no_archive_at_all(tiny: Path) -> None:
    data = tiny.read_bytes()[: -len(ARCHIVE)]
    tiny.write_bytes(seal(data, file_bytes=len(data), archive_bytes=0))
    assert "without bytes" in str(assert_refused(tiny, PageFileCorruptError))


def test_crafted_sections(tiny: Path) -> None:
    data = tiny.read_bytes()
    n_identity = HEADER.unpack(data[:128])[5]
    tokens_at = (128 + n_identity + 7) // 8 * 8
    cases: list[tuple[int, bytes, type[PageFileError]]] = [
        (tokens_at + 12, b"\1", PageFileCorruptError),
        (4095, b"\1", PageFileCorruptError),
        (128, b"[", PageFileCorruptError),
        (128 + data[128:].index(b"lcg3/1"), b"lcg3/2", PageFileVersionError),
    ]
    if tokens_at > 128 + n_identity:
        cases.append((tokens_at - 1, b"\1", PageFileCorruptError))
    for at, replacement, kind in cases:
        tiny.write_bytes(seal_rest(data, at, replacement))
        assert_refused(tiny, kind)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**64 - 1), st.sampled_from(FIELDS[4:8]), st.integers(0, 2**32 - 1))
def test_random_numbers(number: int, field: str, n_tokens: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory, "a"))
        data = path.read_bytes()
        sealed = seal(data, **{field: number, "n_tokens": n_tokens})
        path.write_bytes(sealed)
        if sealed != data:
            assert_refused(path)


def test_random_bytes_behind_the_magic(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "a"
    for n_bytes in [*range(0, 130), 500, 5000]:
        path.write_bytes(ARCHIVE_MAGIC + rng.randbytes(n_bytes))
        assert_refused(path)
        path.write_bytes(ARCHIVE_MAGIC + struct.pack("<HH", 1, 1) + bytes(n_bytes))
        assert_refused(path)


def test_header_and_archive_have_to_agree(tmp_path: Path) -> None:
    exact = codec.encode(random_planes(3, 3, types=[GgmlType.F16], n_channels=2), "exact")
    for archive, changes, words in (
        (ARCHIVE, {}, None),
        (exact, {"is_exact": True}, None),
        (exact, {}, "header says lossy, the archive is lossless"),
        (ARCHIVE, {"is_exact": True}, "header says lossless, the archive is lossy"),
        (ARCHIVE, {"tokens": TOKENS[:2]}, "2 tokens, the archive has 3"),
        (ARCHIVE, {"tokens": np.arange(4, dtype=np.int32)}, "4 tokens, the archive has 3"),
    ):
        with ArchiveFile(write(tmp_path / "a", archive=archive, **changes)) as file, Archive(file.archive) as opened:
            if words is None:
                file.check_archive(opened)
            else:
                with pytest.raises(PageFileCorruptError, match=words) as caught:
                    file.check_archive(opened)
                assert str(tmp_path / "a") in str(caught.value)


# what is not a file


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "a directory" in str(assert_refused(tmp_path, PageFileNotRegularError))


@pytest.mark.timeout(20)
def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert "a FIFO" in str(assert_refused(path, PageFileNotRegularError))
    with pytest.raises(PageFileNotRegularError):
        write(path)
    with pytest.raises(PageFileNotRegularError):
        write(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_a_device_is_refused() -> None:
    assert "a character device" in str(assert_refused(Path("/dev/zero"), PageFileNotRegularError))


def test_symlinks(tiny: Path) -> None:
    link = tiny.with_name("link")
    link.symlink_to(tiny)
    ArchiveFile(link).close()
    before = tiny.read_bytes()
    write(link, is_exact=True)
    assert not link.is_symlink() and tiny.read_bytes() == before
    link.unlink()
    link.symlink_to(tiny)
    tiny.unlink()
    assert_refused(link, PageFileMissingError)


def test_a_missing_file(tmp_path: Path) -> None:
    error = assert_refused(tmp_path / "none", PageFileMissingError)
    assert isinstance(error, FileNotFoundError) and error.errno == 2
    assert_refused(tmp_path / "none" / "below", PageFileMissingError)
    (tmp_path / "none").write_bytes(b"")
    assert_refused(tmp_path / "none", PageFileTruncatedError)
    assert_refused(tmp_path / "none" / "below", PageFileMissingError)


# the format page


def table(first_column: str, n_th: int = 0) -> list[list[str]]:
    found = re.findall(rf"^\| {first_column} \|.*\n\| --- .*\n((?:\|.*\n?)+)", PAGE, re.MULTILINE)[n_th]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in found.splitlines()]


def test_the_field_table_is_the_header() -> None:
    rows = table("Offset")
    assert tuple(row[3] for row in rows) == FIELDS
    end = 0
    for offset, size, *_ in rows:
        assert int(offset) == end
        end += int(size)
    assert end == HEADER.size == 128
    types = {"bytes": "s", "u16": "H", "u32": "I", "u64": "Q", "i32": "i"}
    codes = "".join(f"{row[1]}s" if row[2] == "bytes" else types[row[2]] for row in rows)
    assert HEADER.format == "<" + codes
    assert bytes.fromhex(rows[0][4].strip("`")) == ARCHIVE_MAGIC


def test_the_worked_example(tmp_path: Path) -> None:
    found = re.search(r"^```hex\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    prefix = bytes.fromhex(found[1])
    archive = example_archive()
    path = tmp_path / "example"
    path.write_bytes(prefix.ljust(4096, b"\0") + archive)
    assert (len(prefix), len(archive), path.stat().st_size) == (676, 304, 4400)

    tokens: list[int] = []
    end = 0
    for begin, stop, what, value in table("From"):
        assert int(begin) == end
        end = int(stop)
        part = prefix[int(begin) : end]
        if what in FIELDS and value:
            assert int.from_bytes(part, "little") == int(value), what
        elif what in ("reserved", "padding"):
            assert not any(part)
        elif what == "tokens":
            tokens = [int(token) for token in value.split(",")]
            assert struct.unpack(f"<{len(tokens)}i", part) == tuple(tokens)
        elif what == "identity":
            stated = re.search(r"^```json\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
            assert stated and stated[1].encode() == part
            assert json.loads(part)["format"] == "lcg3/1"
            assert encode_identity(decode_identity(part, ARCHIVE_FORMAT), ARCHIVE_FORMAT) == part
    assert end == len(prefix)

    with ArchiveFile(path) as file, Archive(file.archive) as opened:
        file.check_archive(opened)
        assert file.identity == IDENTITY and file.pos_begin == 4 and not file.is_exact
        assert file.tokens.tolist() == tokens
        made = encode_archive_prefix(file.identity, 4, file.tokens, is_exact=False, archive_bytes=len(archive))
    assert made == path.read_bytes()[:4096]
