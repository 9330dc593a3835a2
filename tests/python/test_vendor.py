"""scripts/vendor: what the lock pins is what lands at dest, and every mismatch is told with both values."""

from __future__ import annotations

import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
VENDOR = SCRIPTS / "vendor"
NAME = "llama_cpp_python-9.9.9"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    loader = importlib.machinery.SourceFileLoader(f"{name}_script", str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


def git(repo: Path, *args: str) -> str:
    env = {
        **os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "u",
        "GIT_AUTHOR_EMAIL": "u@example.org", "GIT_COMMITTER_NAME": "u", "GIT_COMMITTER_EMAIL": "u@example.org",
        "GIT_AUTHOR_DATE": "2024-01-02T03:04:05+0000", "GIT_COMMITTER_DATE": "2024-01-02T03:04:05+0000",
    }  # fmt: skip
    done = subprocess.run(["git", *args], cwd=repo, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pack(folder: Path, out: Path) -> None:
    with tarfile.open(out, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)


@dataclass
class World:
    """A miniature sdist in the submodule layout of the real one, and its lock."""

    root: Path
    upstream: Path
    sdist: Path
    lock: Path
    commit: str
    tree: str
    script: Path = VENDOR

    @property
    def dest(self) -> Path:
        return self.root / "work" / "llama.cpp"

    def write_lock(self, **changes: object) -> None:
        data = {
            "format": 1,
            "sdist": {
                "name": "llama-cpp-python", "version": "9.9.9", "filename": self.sdist.name,
                "sha256": changes.get("sha256", hashlib.sha256(self.sdist.read_bytes()).hexdigest()),
                "size_bytes": changes.get("size", self.sdist.stat().st_size),
            },
            "llama_cpp": {
                "repository": "https://example.org/llama.cpp",
                "commit": changes.get("commit", self.commit), "tree": changes.get("tree", self.tree),
            },
            "patched_tree": changes.get("patched_tree", self.tree),
        }  # fmt: skip
        self.lock.write_text(json.dumps(data, indent=2) + "\n")

    def command(self, *args: object) -> list[str]:
        return [sys.executable, str(self.script), *map(str, args)]

    def env(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "GIT_", "LLAMA_CACHEGEN_"))}
        return {
            **env, "LLAMA_CACHEGEN_REPO": str(self.dest), "LLAMA_CACHEGEN_LOCK": str(self.lock),
            "LLAMA_CACHEGEN_PATCHES": str(self.root / "patches"), "LLAMA_CACHEGEN_CACHE": str(self.root / "cache"),
            "HOME": str(self.root / "home"), "PIP_CONFIG_FILE": os.devnull,
        }  # fmt: skip

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args), env={**self.env(), **env}, capture_output=True, text=True, timeout=60, check=False
        )

    def good(self, *args: object, **env: str) -> str:
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def bad(self, *args: object, **env: str) -> str:
        """Exit 1 with a message, no traceback, and nothing half-done beside dest."""
        done = self.run(*args, **env)
        assert done.returncode == 1, done.stdout + done.stderr
        assert any(line.startswith("error: ") for line in done.stderr.splitlines()) and "Traceback" not in done.stderr
        assert leftovers(self) == []
        return done.stderr


def leftovers(world: World) -> list[str]:
    return [path.name for path in world.dest.parent.glob(".*")] if world.dest.parent.exists() else []


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("template")
    upstream = root / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q", "-b", "master")
    for path, text in {
        "CMakeLists.txt": "project(llama)\n", "LICENSE": "MIT\n", "ggml/src/ggml.c": "int ggml;\n",
        "src/llama.cpp": "int llama;\n", "include/llama.h": "#pragma once\n", "common/common.h": "\n",
        "cmake/x.cmake": "\r\n", "vendor/json.hpp": "//\n", "docs/big.md": "left out of a bundle\n",
        "tools/server/server.cpp": "left out too\n", "models/ggml-vocab-llama-spm.gguf": "GGUF\0", "ci/run.sh": "#!\n",
        "src/gen.sh": "#!/bin/sh\n",
    }.items():  # fmt: skip
        (upstream / path).parent.mkdir(parents=True, exist_ok=True)
        (upstream / path).write_bytes(text.encode())
    (upstream / "src/gen.sh").chmod(0o755)
    (upstream / "src/link.h").symlink_to("../include/llama.h")
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "first")
    (upstream / "src/llama.cpp").write_text("int llama = 1;\n")
    git(upstream, "commit", "-q", "-am", "llama : pinned")
    top = root / NAME
    module = top / ".git" / "modules" / "vendor" / "llama.cpp"
    module.parent.mkdir(parents=True)
    checkout = top / "vendor" / "llama.cpp"
    checkout.parent.mkdir()
    git(root, "clone", "-q", "--depth=1", f"file://{upstream}", str(checkout))
    shutil.move(checkout / ".git", module)
    (checkout / ".git").write_text("gitdir: ../../.git/modules/vendor/llama.cpp\n")
    commit = git(upstream, "rev-parse", "HEAD")
    (module / "HEAD").write_text(f"{commit}\n")
    (module / "config").write_text("[core]\n\tbare = false\n\tfsmonitor = /bin/false\n[include]\n\tpath = /nowhere\n")
    (top / "llama_cpp").mkdir()
    (top / "llama_cpp" / "__init__.py").write_text("__version__ = '9.9.9'\n")
    (top / "pyproject.toml").write_text("[project]\nname = 'llama_cpp_python'\n")
    pack(top, root / f"{NAME}.tar.gz")
    return World(
        root, upstream, root / f"{NAME}.tar.gz", root / "lock", commit, git(upstream, "rev-parse", "HEAD^{tree}")
    )


@pytest.fixture
def world(template: World, tmp_path: Path) -> World:
    sdist = tmp_path / f"{NAME}.tar.gz"
    shutil.copyfile(template.sdist, sdist)
    made = World(tmp_path, template.upstream, sdist, tmp_path / "llama.lock", template.commit, template.tree)
    made.write_lock()
    return made


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir() and ".git" not in path.relative_to(folder).parts and path.name != "BUNDLE.json"
    }


def test_materialises_the_pinned_commit(world: World) -> None:
    out = world.good("--sdist", world.sdist)
    assert world.commit in out
    assert git(world.dest, "rev-parse", "HEAD", "cachegen-base") == f"{world.commit}\n{world.commit}"
    assert git(world.dest, "symbolic-ref", "--short", "HEAD") == "cachegen"
    assert git(world.dest, "status", "--porcelain") == ""
    assert git(world.dest, "config", "remote.origin.url") == "https://example.org/llama.cpp"
    assert "fsmonitor" not in (world.dest / ".git/config").read_text()  # the archive's own config stays behind
    assert snapshot(world.dest) == snapshot(world.upstream)
    git(world.dest, "fsck", "--strict")
    assert leftovers(world) == []


def test_second_run_is_a_no_op_without_any_source(world: World) -> None:
    world.good("--sdist", world.sdist)
    assert "already at" in world.good("--offline")
    git(world.dest, "tag", "-d", "cachegen-base")
    assert "already at" in world.good("--offline")
    assert git(world.dest, "rev-parse", "cachegen-base") == world.commit


def test_hostile_git_configuration_does_not_matter(world: World) -> None:
    home = world.root / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n[commit]\n\tgpgsign = true\n[safe]\n\tdirectory =\n"
    )
    world.good("--sdist", world.sdist, GIT_DIR="/nowhere", GIT_INDEX_FILE="/nowhere/index")
    assert (world.dest / "cmake/x.cmake").read_bytes() == b"\r\n"


def index(world: World, html: str) -> str:
    page = world.root / "index" / "llama-cpp-python" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(html)
    return (world.root / "index").as_uri()


def test_download_then_offline_from_the_cache(world: World) -> None:
    digest = hashlib.sha256(world.sdist.read_bytes()).hexdigest()
    url = index(world, f'<a href="other-1.tar.gz">x</a><a href="{world.sdist.as_uri()}#sha256={digest}">y</a>')
    out = world.good("--index-url", url)
    assert out.count("downloading") == 1
    cached = world.root / "cache" / "sdist" / world.sdist.name
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]
    shutil.rmtree(world.root / "index")
    shutil.rmtree(world.dest)
    assert "downloading" not in world.good("--offline")
    assert git(world.dest, "rev-parse", "HEAD") == world.commit


def test_extra_index_and_pip_environment(world: World) -> None:
    url = index(world, f'<a href="{world.sdist.as_uri()}">y</a>')
    world.good(PIP_INDEX_URL=(world.root / "none").as_uri(), PIP_EXTRA_INDEX_URL=url)
    assert git(world.dest, "rev-parse", "HEAD") == world.commit


def test_json_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = load_script("vendor", monkeypatch)
    digest = "0" * 64
    body = json.dumps({"files": [{"filename": NAME + ".tar.gz", "url": "../f.tar.gz", "hashes": {"sha256": digest}}]})

    class Fake:
        from contextlib import contextmanager

        @contextmanager
        def open(self, url: str, accept: str = "*/*"):  # type: ignore[no-untyped-def]
            assert url == "https://user:word@example.org/simple/llama-cpp-python/" and "v1+json" in accept
            yield (
                io.BytesIO(body.encode()),
                "https://example.org/simple/llama-cpp-python/",
                "application/vnd.pypi.simple.v1+json",
            )

    lock = vendor.Lock.load(world.lock)
    found = vendor.find_file(Fake(), "https://user:word@example.org/simple/", lock)
    assert found == ("https://user:word@example.org/simple/f.tar.gz", digest)
    assert vendor.redact(found[0]) == "https://example.org/simple/f.tar.gz"


def test_no_index_lists_it(world: World) -> None:
    out = world.bad("--index-url", index(world, "<a href='x'>x</a>"))
    assert "does not list" in out and "--sdist" in out
    assert not world.dest.exists()


def test_offline_without_anything(world: World) -> None:
    assert "--offline" in world.bad("--offline")


def test_sha_mismatch_shows_both_values(world: World) -> None:
    actual = hashlib.sha256(world.sdist.read_bytes()).hexdigest()
    world.write_lock(sha256="a" * 64)
    out = world.bad("--sdist", world.sdist)
    assert f"sdist sha256 of {world.sdist.name}" in out
    assert f"expected: {'a' * 64}" in out and f"actual:   {actual}" in out and "what to do" in out
    assert not world.dest.exists()


def test_downloaded_file_with_wrong_sha_is_not_kept(world: World) -> None:
    world.write_lock(sha256="a" * 64)
    out = world.bad("--index-url", index(world, f'<a href="{world.sdist.as_uri()}">y</a>'))
    assert f"expected: {'a' * 64}" in out
    assert list((world.root / "cache" / "sdist").iterdir()) == []


def test_damaged_cache_is_told_and_replaced(world: World) -> None:
    cached = world.root / "cache" / "sdist" / world.sdist.name
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"x" * world.sdist.stat().st_size)
    assert "sha256" in world.bad("--offline")
    assert "replaced" in world.good("--index-url", index(world, f'<a href="{world.sdist.as_uri()}">y</a>'))
    assert cached.read_bytes() == world.sdist.read_bytes()


def test_size_mismatch(world: World) -> None:
    size = world.sdist.stat().st_size
    world.sdist.write_bytes(world.sdist.read_bytes()[:-10])
    out = world.bad("--sdist", world.sdist)
    assert f"expected: {size} bytes" in out and f"actual:   {size - 10} bytes" in out


def test_wrong_commit(world: World) -> None:
    world.write_lock(commit="b" * 40)
    out = world.bad("--sdist", world.sdist)
    assert "llama.cpp commit" in out and f"expected: {'b' * 40}" in out and f"actual:   {world.commit}" in out
    assert not world.dest.exists()


def test_wrong_tree(world: World) -> None:
    world.write_lock(tree="c" * 40)
    out = world.bad("--sdist", world.sdist)
    assert "llama.cpp tree" in out and f"expected: {'c' * 40}" in out and f"actual:   {world.tree}" in out
    out = world.bad("--git", world.upstream)
    assert f"actual:   {world.tree}" in out
    assert not world.dest.exists()


@pytest.mark.parametrize("cut", [0.3, 0.7, 0.999])
def test_truncated_tar_whose_hash_is_pinned(world: World, cut: float) -> None:
    data = world.sdist.read_bytes()
    world.sdist.write_bytes(data[: int(len(data) * cut)])
    world.write_lock()
    assert "truncated or damaged archive" in world.bad("--sdist", world.sdist)
    assert not world.dest.exists()


def test_flipped_bit_whose_hash_is_pinned(world: World) -> None:
    """A damaged object in an archive that unpacks: git's own hashes tell."""
    folder = world.root / "unpacked"
    shutil.copytree(world.upstream.parent / NAME, folder / NAME)
    found = [p for p in (folder / NAME / ".git/modules/vendor/llama.cpp/objects").rglob("*") if p.is_file()]
    for path in found:
        if path.suffix != ".idx" and path.stat().st_size > 20:
            path.chmod(0o644)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x10
            path.write_bytes(bytes(data))
    pack(folder / NAME, world.sdist)
    world.write_lock()
    world.bad("--sdist", world.sdist)
    assert not world.dest.exists()


def test_sdist_without_git_objects(world: World) -> None:
    (world.root / NAME).mkdir()
    (world.root / NAME / "pyproject.toml").write_text("")
    pack(world.root / NAME, world.sdist)
    world.write_lock()
    assert "holds no git objects" in world.bad("--sdist", world.sdist)


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "member",
    [
        hostile("/tmp/evil"),
        hostile(f"{NAME}/../../evil"),
        hostile("C:/evil"),
        hostile(f"{NAME}\\..\\evil"),
        hostile(f"{NAME}/llama_cpp/l", tarfile.SYMTYPE, "/etc/passwd"),
        hostile(f"{NAME}/llama_cpp/l", tarfile.SYMTYPE, "../../evil"),
        hostile(f"{NAME}/l", tarfile.SYMTYPE, "a/../../b"),
        hostile(f"{NAME}/l", tarfile.LNKTYPE, "../evil"),
        hostile(f"{NAME}/fifo", tarfile.FIFOTYPE),
        hostile(f"{NAME}/dev", tarfile.CHRTYPE),
    ],
    ids=lambda m: f"{m.name}>{m.linkname}".replace("/", "|"),
)
def test_malicious_member_is_refused(world: World, member: tarfile.TarInfo) -> None:
    buffer = io.BytesIO(gzip.decompress(world.sdist.read_bytes()))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        tar.addfile(member)
    world.sdist.write_bytes(gzip.compress(buffer.getvalue()))
    world.write_lock()
    assert "member refused" in world.bad("--sdist", world.sdist)
    assert "member refused" in world.bad("--sdist", world.sdist, "--bindings", world.root / "bindings")
    assert not world.dest.exists() and not (world.root / "bindings").exists()


@pytest.mark.parametrize("step", ["transfer_commit", "move_into_place"])
@pytest.mark.parametrize("existing", [False, True])
def test_interrupted_run_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, existing: bool
) -> None:
    if existing:
        world.good("--sdist", world.sdist)
    vendor = load_script("vendor", monkeypatch)

    def stop(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(vendor, step, stop)
    args = ["--dest", str(world.dest), "--lock", str(world.lock), "--sdist", str(world.sdist), "--force"]
    with pytest.raises(KeyboardInterrupt):
        vendor.main(args)
    assert leftovers(world) == []
    assert world.dest.exists() == existing
    if existing:
        assert git(world.dest, "rev-parse", "HEAD") == world.commit


def test_failed_move_puts_the_old_tree_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.good("--sdist", world.sdist)
    vendor = load_script("vendor", monkeypatch)
    real = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == "repo":
            raise OSError("no space")
        real(source, target)

    monkeypatch.setattr(vendor.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        vendor.main(["--dest", str(world.dest), "--lock", str(world.lock), "--sdist", str(world.sdist), "--force"])
    assert git(world.dest, "rev-parse", "HEAD") == world.commit
    assert leftovers(world) == []


def test_terminated_run_leaves_nothing(world: World) -> None:
    # a fifo as the sdist's place in the index: the download blocks until the signal comes
    fifo = world.root / "blocks" / world.sdist.name
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    url = index(world, f'<a href="{fifo.as_uri()}">y</a>')
    process = subprocess.Popen(
        world.command("--index-url", url), env=world.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None and "downloading" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert leftovers(world) == [] and not world.dest.exists()
    assert list((world.root / "cache" / "sdist").iterdir()) == []


def test_work_in_dest_is_not_deleted_without_force(world: World) -> None:
    world.good("--sdist", world.sdist)
    other = World(**{**world.__dict__, "commit": git(world.upstream, "rev-parse", "HEAD~1")})
    other.tree = git(world.upstream, "rev-parse", "HEAD~1^{tree}")
    other.write_lock()
    (world.dest / "src/llama.cpp").write_text("edited\n")
    assert "src/llama.cpp" in other.bad("--git", world.upstream)
    git(world.dest, "commit", "-q", "-am", "llama : mine")
    assert "llama : mine" in other.bad("--git", world.upstream)
    other.good("--git", world.upstream, "--force")
    assert git(world.dest, "rev-parse", "HEAD") == other.commit


def test_foreign_folder_is_not_deleted_without_force(world: World) -> None:
    world.dest.mkdir(parents=True)
    (world.dest / "precious").write_text("x")
    assert "no git repository" in world.bad("--sdist", world.sdist)
    assert (world.dest / "precious").exists()
    world.good("--sdist", world.sdist, "--force")
    assert not (world.dest / "precious").exists()


def test_new_pin_recreates_an_untouched_dest(world: World) -> None:
    world.good("--sdist", world.sdist)
    world.commit = git(world.upstream, "rev-parse", "HEAD~1")
    world.tree = git(world.upstream, "rev-parse", "HEAD~1^{tree}")
    world.write_lock()
    world.good("--git", world.upstream)
    assert git(world.dest, "rev-parse", "HEAD") == world.commit


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_git_source(world: World, scheme: str) -> None:
    world.good("--git", f"{scheme}{world.upstream}", "--offline")
    assert git(world.dest, "rev-parse", "HEAD", "cachegen-base") == f"{world.commit}\n{world.commit}"
    assert git(world.dest, "rev-list", "--count", "HEAD") == "1"


def test_git_source_without_the_commit(world: World) -> None:
    world.write_lock(commit="b" * 40)
    head = git(world.upstream, "rev-parse", "HEAD")
    out = world.bad("--git", world.upstream)
    assert f"expected: {'b' * 40}" in out and head in out
    assert "b" * 40 in world.bad("--git", f"file://{world.upstream}")
    assert not world.dest.exists()


def test_bundle_round_trip(world: World) -> None:
    world.good("--sdist", world.sdist)
    (world.dest / "src/llama.cpp").write_text("int llama = 2;\n")
    assert "uncommitted changes" in world.bad("--bundle", world.root / "b.tar.gz")
    git(world.dest, "commit", "-q", "-am", "llama : patched")
    patched = git(world.dest, "rev-parse", "HEAD^{tree}")
    assert "is not the lock's patched tree" in world.good("--bundle", world.root / "early.tar.gz")
    world.write_lock(patched_tree=patched)
    out = world.good("--bundle", world.root / "b.tar.gz")
    again = world.good("--bundle", world.root / "c.tar.gz")
    data = (world.root / "b.tar.gz").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert digest in out and digest in again and f"{len(data)} bytes" in out
    source = snapshot(world.dest)

    target = world.root / "elsewhere" / "llama.cpp"
    world.good("--from-bundle", world.root / "b.tar.gz", "--bundle-sha256", digest, "--dest", target)
    unpacked = snapshot(target)
    assert unpacked["src/llama.cpp"] == b"int llama = 2;\n"
    assert unpacked == {path: data for path, data in source.items() if path in unpacked}
    assert {"docs/big.md", "tools/server/server.cpp", "ci/run.sh"} == set(source) - set(unpacked)
    assert os.access(target / "src/gen.sh", os.X_OK) and (target / "src/link.h").is_symlink()
    facts = json.loads((target / "BUNDLE.json").read_text())
    assert (facts["commit"], facts["tree"], facts["patched_tree"]) == (world.commit, world.tree, patched)
    assert git(target, "rev-parse", "HEAD^{tree}") == facts["trimmed_tree"]
    assert git(target, "rev-list", "--count", "HEAD") == "1" and git(target, "status", "--porcelain") == ""
    assert "bundle of llama.cpp" in world.good("--dest", target, "--offline")


def test_bundle_mismatches(world: World) -> None:
    world.good("--sdist", world.sdist)
    bundle, target = world.root / "b.tar.gz", world.root / "work" / "other"
    world.good("--bundle", bundle)
    out = world.bad("--from-bundle", bundle, "--bundle-sha256", "d" * 64, "--dest", target)
    assert f"expected: {'d' * 64}" in out and hashlib.sha256(bundle.read_bytes()).hexdigest() in out
    world.write_lock(commit="b" * 40)
    out = world.bad("--from-bundle", bundle, "--dest", target)
    assert f"expected: {'b' * 40}" in out and f"actual:   {world.commit}" in out
    world.write_lock(patched_tree="e" * 40)
    assert "patched tree" in world.bad("--from-bundle", bundle, "--dest", target)
    world.write_lock()
    raw = gzip.decompress(bundle.read_bytes()).replace(b"int llama = 1;", b"int llama = 7;")
    bundle.write_bytes(gzip.compress(raw))
    assert "trimmed tree" in world.bad("--from-bundle", bundle, "--dest", target)
    bundle.write_bytes(bundle.read_bytes()[:-30])
    assert "truncated" in world.bad("--from-bundle", bundle, "--dest", target)
    assert not target.exists()


def test_bindings(world: World) -> None:
    target = world.root / "bindings"
    world.good("--sdist", world.sdist, "--bindings", target)
    assert set(snapshot(target)) == {".llama-cachegen-bindings.json", "llama_cpp/__init__.py", "pyproject.toml"}
    assert "already holds" in world.good("--offline", "--bindings", target)
    (world.root / "foreign").mkdir()
    (world.root / "foreign" / "x").write_text("")
    assert "--force" in world.bad("--sdist", world.sdist, "--bindings", world.root / "foreign")


@pytest.mark.parametrize(
    "args",
    [
        ["--sdist", "a", "--git", "b"],
        ["--offline", "--git", "https://example.org/x"],
        ["--bundle-sha256", "00"],
        ["--bundle", "x", "--git", "y"],
        ["--nonsense"],
    ],
)
def test_usage_errors(world: World, args: list[str]) -> None:
    assert world.run(*args).returncode == 2


def test_broken_lock_is_told(world: World) -> None:
    world.lock.write_text("{")
    assert "not JSON" in world.bad()
    world.write_lock(commit="xyz")
    assert "llama_cpp.commit" in world.bad()
    world.lock.unlink()
    assert "no lock file" in world.bad()


def test_help_and_the_real_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--from-bundle" in world.good("--help")
    vendor = load_script("vendor", monkeypatch)
    path = SCRIPTS.parent / "vendor" / "llama.lock"
    lock = vendor.Lock.load(path)
    copy = world.root / "copy.lock"
    lock.save(copy)
    assert copy.read_bytes() == path.read_bytes()
