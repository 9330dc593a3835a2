"""What lies where in a store's directory, and the file that says it is one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

import blake3
import msgspec

from ..errors import StoreKeyError, StoreLayoutError, StoreMissingError, StoreVersionError
from .files import FileEntry, Files
from .segment import MAX_BLOCK_TOKENS

__all__ = ["SEGMENTS", "StoreFile", "is_shard", "key_of", "make_layout", "open_root", "segment_name", "shard_of"]

STORE_FILE = "store.json"
LOCK_FILE = ".lock"
TAG_FILE = "CACHEDIR.TAG"
SEGMENTS, TEMPORARY, QUARANTINE, PINS = "segments", "tmp", "quarantine", "pins"
SUFFIX = ".seg"
FORMAT = "llama-cachegen-store/1"
_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Files of llama-cachegen that can be made again. For information about cache directory tags, see:\n"
    b"#	https://bford.info/cachedir/\n"
)
_KEY_CHECK = b"llama-cachegen store key 1\0"
_SEGMENT_FILE = re.compile(r"[0-9a-f]{64}" + re.escape(SUFFIX))
_SHARD = re.compile(r"[0-9a-f]{2}")


class StoreFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """store.json.

    Attributes:
        format: "llama-cachegen-store/1".
        block_tokens: tokens of a block of its chains.
        key_check: of a keyed store: a digest that only its key gives, hexadecimal; else "".
    """

    format: str = FORMAT
    block_tokens: int
    key_check: str = ""


def segment_name(key: bytes) -> str:
    """The file of a segment."""
    name = key.hex()
    return f"{SEGMENTS}/{name[:2]}/{name}{SUFFIX}"


def shard_of(key: bytes) -> str:
    """The directory of a segment, below segments/."""
    return key[:1].hex()


def key_of(file_name: str) -> bytes | None:
    """The key that a file's name says, None if it is no name of a segment."""
    return bytes.fromhex(file_name[:64]) if _SEGMENT_FILE.fullmatch(file_name) else None


def is_shard(name: str) -> bool:
    """Whether a directory below segments/ is one of segments."""
    return _SHARD.fullmatch(name) is not None


def key_check(key: bytes | None) -> str:
    """What store.json says of a key."""
    return "" if key is None else str(blake3.blake3(_KEY_CHECK, key=key).hexdigest())


def open_root(path: str, make_files: Callable[[str], Files], *, create: bool, is_keyed: bool) -> Files:
    """The root, held open.

    Raises:
        StoreMissingError: there is no such directory, and none is to be made.
        StoreLayoutError: a link, no directory, or others may write to it and the store has no key.
        OSError: the system refuses.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        if not create:
            raise StoreMissingError(2, "there is no store", path) from None
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        os.mkdir(path, 0o700)
        mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise StoreLayoutError(f"{path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(mode):
        raise StoreLayoutError(f"{path} is no directory")
    if mode & 0o022 and not is_keyed:
        raise StoreLayoutError(
            f"{path} has mode {stat.S_IMODE(mode):04o}: others may write to it; chmod 700 it, or give the store a key"
        )
    return make_files(path)


def read_store_file(files: Files, path: str) -> StoreFile | None:
    """store.json, None if there is none.

    Raises:
        StoreVersionError: of another version.
        StoreLayoutError: it cannot be understood.
    """
    try:
        fd = files.open_read(STORE_FILE)
    except FileNotFoundError:
        return None
    try:
        data = files.read(fd, min(files.facts_of(fd).size, 1 << 16), 0)
    finally:
        files.close_file(fd)
    try:
        if isinstance(found := msgspec.json.decode(data), dict) and found.get("format", FORMAT) != FORMAT:
            raise StoreVersionError(f"{path} is a store of format {found['format']!r}; this version reads {FORMAT!r}")
        store_file = msgspec.json.decode(data, type=StoreFile, strict=True)
    except msgspec.DecodeError as error:
        raise StoreLayoutError(f"{path}/{STORE_FILE} cannot be read: {error}") from None
    if not 1 <= store_file.block_tokens <= MAX_BLOCK_TOKENS:
        raise StoreLayoutError(f"{path}/{STORE_FILE}: blocks of {store_file.block_tokens} tokens are not possible")
    return store_file


def make_layout(files: Files, path: str, block_tokens: int, key: bytes | None) -> StoreFile:
    """Make what a new store consists of. A second run after a crash makes the rest.

    Raises:
        StoreLayoutError: the directory holds something else.
        OSError: the system refuses.
    """
    own = {SEGMENTS, TEMPORARY, QUARANTINE, PINS, TAG_FILE, LOCK_FILE, STORE_FILE}
    have = {entry.name for entry in files.list("")}
    if not have <= own and SEGMENTS not in have:
        raise StoreLayoutError(f"{path} is not empty and no store; name a directory that is")
    for name in (TEMPORARY, SEGMENTS, QUARANTINE, PINS):
        if name not in have:
            files.make_dir(name)
    clean_temporary(files)
    store_file = StoreFile(block_tokens=block_tokens, key_check=key_check(key))
    if TAG_FILE not in have:
        files.publish(f"{TEMPORARY}/tag", TAG_FILE, [_TAG])
    files.publish(f"{TEMPORARY}/store", STORE_FILE, [msgspec.json.encode(store_file, order="sorted")])
    return store_file


def check_layout(files: Files, path: str, *, create: bool) -> None:
    """Raises StoreLayoutError unless the store's own directories are directories. Makes those that are missing."""
    have = {entry.name: entry for entry in files.list("")}
    for name in (TEMPORARY, SEGMENTS, QUARANTINE, PINS):
        if name in have and not have[name].is_dir:
            raise StoreLayoutError(f"{path}/{name} is no directory")
        if name not in have and create:
            files.make_dir(name)


def list_or_none(files: Files, name: str) -> list[FileEntry]:
    """What is in one of the store's own directories, nothing if it is missing."""
    try:
        return files.list(name)
    except FileNotFoundError:
        return []


def check_key(store_file: StoreFile, path: str, key: bytes | None) -> None:
    """Raises StoreKeyError unless the key is that of the store."""
    if store_file.key_check != key_check(key):
        if not store_file.key_check:
            raise StoreKeyError(f"{path} is not keyed; open it without a key")
        raise StoreKeyError(f"{path} is keyed; {'give its key' if key is None else 'the key given is another'}")


def clean_temporary(files: Files) -> int:
    """Remove what writers that were interrupted left. Returns how many files."""
    left = [entry.name for entry in files.list(TEMPORARY) if not entry.is_dir]
    for name in left:
        files.remove(f"{TEMPORARY}/{name}")
    return len(left)
