"""What scripts/vendor and scripts/patches share: the lock, git without surprises, safe archives, the patch stack."""

from __future__ import annotations

import contextlib
import difflib
import email.header
import email.parser
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import IO, NoReturn, cast

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "cachegen"
BASE_TAG = "cachegen-base"
SYNCED_REF = "refs/cachegen/synced"  # HEAD as the last import or export left it
BEFORE_REF = "refs/cachegen/before"  # where the branch was when an unfinished import or refresh began
REFRESH_REF = "refs/cachegen/refresh-base"  # the new base while `refresh` is unfinished
IDENTITY = ("llama-cachegen", "llama-cachegen@users.noreply.github.com")
BUNDLE_FILE = "BUNDLE.json"


# --------------------------------------------------------------------------------------------------------- errors


class StackError(Exception):
    """Something is wrong that the user can put right: what, where, and what to do."""


class MismatchError(StackError):
    """A pinned value and the value found differ."""

    def __init__(self, item: str, expected: object, actual: object, todo: str) -> None:
        super().__init__(f"{item} does not match\n  expected: {expected}\n  actual:   {actual}\n  what to do: {todo}")
        self.item = item


def say(text: str) -> None:
    print(text, flush=True)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _terminated(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def run_cli(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command line: 0 done, 1 something does not match or fails, 2 usage; SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was left half-done", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    raise SystemExit(code)


# ----------------------------------------------------------------------------------------------------------- files


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> bool:
    """Write through a temporary sibling; says whether the file changed."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True


# ------------------------------------------------------------------------------------------------------------ lock


@dataclass(frozen=True)
class Lock:
    """vendor/llama.lock: which sdist, which llama.cpp, and which tree the patch stack must give."""

    sdist_name: str
    sdist_version: str
    sdist_filename: str
    sdist_sha256: str
    sdist_size: int
    repository: str
    commit: str
    tree: str
    patched_tree: str

    @classmethod
    def load(cls, path: Path) -> Lock:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StackError(f"{path}: no lock file; restore it from version control or pass --lock") from None
        except ValueError as error:
            raise StackError(f"{path}: not JSON: {error}") from None

        def field(*keys: str, kind: type = str, pattern: str = "") -> object:
            value: object = data
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            name = ".".join(keys)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise StackError(f"{path}: {name}: expected {kind.__name__}, actual {value!r}")
            if pattern and not re.fullmatch(pattern, str(value)):
                raise StackError(f"{path}: {name}: expected {pattern}, actual {value!r}")
            return value

        def text(*keys: str, pattern: str = "") -> str:
            return str(field(*keys, pattern=pattern))

        if field("format", kind=int) != 1:
            raise MismatchError(f"{path}: format", 1, data["format"], "use scripts of the same checkout as the lock")
        size = field("sdist", "size_bytes", kind=int)
        assert isinstance(size, int)
        return cls(
            sdist_name=text("sdist", "name"),
            sdist_version=text("sdist", "version"),
            sdist_filename=text("sdist", "filename", pattern=r"[A-Za-z0-9_.+-]+\.tar\.gz"),
            sdist_sha256=text("sdist", "sha256", pattern="[0-9a-f]{64}"),
            sdist_size=size,
            repository=text("llama_cpp", "repository"),
            commit=text("llama_cpp", "commit", pattern="[0-9a-f]{40}"),
            tree=text("llama_cpp", "tree", pattern="[0-9a-f]{40}"),
            patched_tree=text("patched_tree", pattern="[0-9a-f]{40}"),
        )

    def save(self, path: Path) -> bool:
        data = {
            "format": 1,
            "sdist": {
                "name": self.sdist_name,
                "version": self.sdist_version,
                "filename": self.sdist_filename,
                "sha256": self.sdist_sha256,
                "size_bytes": self.sdist_size,
            },
            "llama_cpp": {"repository": self.repository, "commit": self.commit, "tree": self.tree},
            "patched_tree": self.patched_tree,
        }
        return write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())


def check_sdist(path: Path, lock: Lock, todo: str = "") -> None:
    """Size first (cheap, and it tells a truncated file), then sha256."""
    size = path.stat().st_size
    todo = todo or f"fetch {lock.sdist_filename} again, or delete {path} if it is a stale copy"
    if size != lock.sdist_size:
        raise MismatchError(f"sdist size of {lock.sdist_filename}", f"{lock.sdist_size} bytes", f"{size} bytes", todo)
    actual = sha256_file(path)
    if actual != lock.sdist_sha256:
        raise MismatchError(f"sdist sha256 of {lock.sdist_filename}", lock.sdist_sha256, actual, todo)


# ------------------------------------------------------------------------------------------------------------- git

# Everything below could differ between two machines and change what we apply or export, so it is pinned per call.
_GIT_CONFIG = (
    "safe.directory=*",
    "core.autocrlf=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.quotePath=true",
    "core.abbrev=40",
    "commit.gpgsign=false",
    "tag.gpgsign=false",
    "am.threeWay=false",
    "am.keepcr=true",
    "am.messageid=false",
    "apply.whitespace=nowarn",
    "mailinfo.scissors=false",
    "rerere.enabled=false",
    "gc.auto=0",
    "advice.detachedHead=false",
    "diff.algorithm=myers",
    "diff.context=3",
    "diff.interHunkContext=0",
    "diff.indentHeuristic=true",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false",
    "diff.renames=false",
    "diff.orderFile=/dev/null",
    "diff.relative=false",
    "format.coverLetter=false",
    "format.encodeEmailHeaders=true",
    "format.from=false",
    "format.notes=false",
    "format.outputDirectory=",
    "format.signOff=false",
    "format.signature=",
    "format.subjectPrefix=PATCH",
    "format.thread=false",
    "format.useAutoBase=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "protocol.version=2",
)
_GIT_ENV_KEPT = re.compile(r"GIT_(SSL|SSH|PROXY|HTTP|TRACE|CURL|EXEC_PATH|ASKPASS)")


def git_env(repo: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or _GIT_ENV_KEPT.match(k)}
    env.update(
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        # a dest that is no repository must not be mistaken for the repository around it
        GIT_CEILING_DIRECTORIES=str(repo.resolve().parent),
        GIT_AUTHOR_NAME=IDENTITY[0],
        GIT_AUTHOR_EMAIL=IDENTITY[1],
        GIT_COMMITTER_NAME=IDENTITY[0],
        GIT_COMMITTER_EMAIL=IDENTITY[1],
        GIT_EDITOR="true",
        LC_ALL="C",
    )
    return env


class Git:
    """git in one repository, the same on every machine: no user, system or hook configuration reaches it."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo

    def command(self, args: Sequence[str]) -> list[str]:
        config = [word for setting in _GIT_CONFIG for word in ("-c", setting)]
        return ["git", "-C", str(self.repo), *config, *args]

    def call(
        self, *args: str, input: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self.command(args), input=input if input is not None else b"", capture_output=True, check=False,
                env={**git_env(self.repo), **(env or {})},
            )  # fmt: skip
        except FileNotFoundError:
            if not self.repo.is_dir():
                raise StackError(f"{self.repo}: no such directory; run scripts/vendor first") from None
            raise StackError("git is not installed or not on PATH; install git (2.35 or newer)") from None

    def out(self, *args: str, input: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        done = self.call(*args, input=input, env=env)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
            raise StackError(f"git {args[0]} failed in {self.repo} (exit {done.returncode}): {message}")
        return done.stdout

    def text(self, *args: str, env: Mapping[str, str] | None = None) -> str:
        return self.out(*args, env=env).decode("utf-8", "surrogateescape").strip()

    def ok(self, *args: str) -> bool:
        return self.call(*args).returncode == 0

    def resolve(self, rev: str) -> str | None:
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", rev)
        return done.stdout.decode().strip() or None if done.returncode == 0 else None

    def commit(self, rev: str) -> str | None:
        return self.resolve(f"{rev}^{{commit}}")

    def tree(self, rev: str) -> str:
        tree = self.resolve(f"{rev}^{{tree}}")
        if tree is None:
            raise StackError(f"{self.repo}: {rev} names no tree")
        return tree

    def is_repository(self) -> bool:
        if not self.repo.is_dir():
            return False
        done = self.call("rev-parse", "--show-toplevel")
        top = done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
        return done.returncode == 0 and bool(top) and Path(top).resolve() == self.repo.resolve()

    def path(self, name: str) -> Path:
        found = Path(self.text("rev-parse", "--git-path", name))
        return found if found.is_absolute() else self.repo / found

    def changes(self) -> list[str]:
        """Uncommitted changes, untracked files too (a new file that was not added is a change one forgets)."""
        done = self.out("-c", "core.quotePath=false", "status", "--porcelain", "--untracked-files=normal")
        return [line for line in done.decode("utf-8", "surrogateescape").splitlines() if line]

    def am_in_progress(self) -> bool:
        return self.path("rebase-apply").is_dir()

    def busy(self) -> str | None:
        for name, what in (("rebase-apply", "git am"), ("rebase-merge", "git rebase"), ("MERGE_HEAD", "a merge"),
                           ("CHERRY_PICK_HEAD", "a cherry-pick")):  # fmt: skip
            if self.path(name).exists():
                return what
        return None

    def between(self, base: str, head: str) -> list[str]:
        """Commits above base, oldest first; a merge or a head beside base is refused."""
        if not self.ok("merge-base", "--is-ancestor", base, head):
            raise StackError(f"{self.repo}: {head} does not descend from the base {base}; rebase it onto {base}")
        commits = self.text("rev-list", "--reverse", "--topo-order", f"{base}..{head}").split()
        merges = self.text("rev-list", "--merges", f"{base}..{head}").split()
        if merges:
            raise StackError(f"{self.repo}: merge commit {merges[0]} above the base; a stack is linear, rebase it")
        return commits


def init_repository(repo: Path) -> Git:
    repo.mkdir(parents=True)
    git = Git(repo)
    git.out("init", "--quiet", "--template=", f"--initial-branch={BRANCH}", ".")
    for key, value in (("user.name", IDENTITY[0]), ("user.email", IDENTITY[1]), ("core.autocrlf", "false"),
                       ("commit.gpgsign", "false"), ("am.keepcr", "true")):  # fmt: skip
        git.out("config", key, value)
    return git


def transfer_commit(source: Git, commit: str, target: Git) -> None:
    """Copy one commit with its whole tree and no history; index-pack recomputes every object's hash on the way."""
    if b"\nparent " in source.out("cat-file", "commit", commit).split(b"\n\n", 1)[0]:
        target.path("shallow").write_text(f"{commit}\n")
    objects = source.out("rev-list", "--objects", "--no-walk", commit)
    env = git_env(source.repo)
    pack = subprocess.Popen(
        source.command(["pack-objects", "--stdout", "--delta-base-offset", "--quiet"]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
    )  # fmt: skip
    try:
        assert pack.stdin is not None and pack.stdout is not None and pack.stderr is not None
        index = subprocess.Popen(
            target.command(["index-pack", "--stdin"]),
            stdin=pack.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=git_env(target.repo),
        )  # fmt: skip
        try:
            pack.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                pack.stdin.write(objects)
            with contextlib.suppress(BrokenPipeError):
                pack.stdin.close()
            _, index_error = index.communicate()
            pack_error = pack.stderr.read()
            if pack.wait() != 0 or index.returncode != 0:
                message = (pack_error + index_error).decode(errors="replace").strip()
                raise StackError(f"copying commit {commit} out of {source.repo} failed: {message}")
        finally:
            if index.poll() is None:
                index.kill()
                index.wait()
    finally:
        if pack.poll() is None:
            pack.kill()
            pack.wait()
        if pack.stderr is not None:
            pack.stderr.close()


def check_base(git: Git, commit: str, lock: Lock, where: str) -> None:
    todo = "get the sdist or repository that the lock pins, or correct the lock"
    if commit != lock.commit:
        raise MismatchError(f"llama.cpp commit in {where}", lock.commit, commit, todo)
    tree = git.tree(commit)
    if tree != lock.tree:
        raise MismatchError(f"llama.cpp tree in {where}", lock.tree, tree, todo)


def tree_hash(entries: Iterable[tuple[str, str, str]]) -> str:
    """git's tree hash of (mode, blob id, path) entries, computed without git."""
    children: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    for mode, oid, path in entries:
        parts = path.split("/")
        for depth in range(len(parts) - 1):
            children.setdefault("/".join(parts[: depth + 1]), {})
        children["/".join(parts[:-1])][parts[-1]] = (mode, oid)
    for folder in sorted((f for f in children if f), key=lambda f: -f.count("/")):
        parent, _, name = folder.rpartition("/")
        children[parent][name] = ("40000", _tree_object(children[folder]))
    return _tree_object(children[""])


def _tree_object(items: Mapping[str, tuple[str, str]]) -> str:
    def key(name: str) -> bytes:
        return os.fsencode(name + ("/" if items[name][0] == "40000" else ""))

    body = b"".join(
        f"{items[n][0]} ".encode() + os.fsencode(n) + b"\0" + bytes.fromhex(items[n][1]) for n in sorted(items, key=key)
    )
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def blob_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# --------------------------------------------------------------------------------------------------------- archives


def check_member(member: tarfile.TarInfo, archive: str) -> PurePosixPath:
    """Refuse what could write outside the archive's own top folder; returns the normal path (3.10 has no filters)."""

    def refuse(why: str) -> NoReturn:
        raise StackError(
            f"{archive}: member refused: {member.name!r} {why}\n"
            "  what to do: do not use this archive; fetch it again from a source you trust"
        )

    path = PurePosixPath(member.name)
    if path.is_absolute() or "\\" in member.name or re.match(r"[A-Za-z]:", member.name):
        refuse("has an absolute or foreign path")
    if ".." in path.parts or not path.parts:
        refuse("leaves the archive's folder")
    if member.issym() or member.islnk():
        link = PurePosixPath(member.linkname)
        if link.is_absolute() or "\\" in member.linkname:
            refuse(f"links to the absolute path {member.linkname!r}")
        depth = len(path.parts) - 1 if member.issym() else 0
        for part in link.parts:
            depth += -1 if part == ".." else 1
            if depth < 1:
                refuse(f"links outside the archive's folder, to {member.linkname!r}")
    elif not (member.isreg() or member.isdir()):
        refuse("is neither file, folder nor link")
    return path


class Gunzip(io.RawIOBase):
    """A gzip file as tarfile's stream mode reads it: zlib checks CRC and length, twice as fast as gzip.GzipFile."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.zlib = zlib.decompressobj(wbits=31)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        while not self.zlib.eof:
            data = self.zlib.unconsumed_tail or self.raw.read(1 << 18)
            if not data:
                raise EOFError("the file ends before its end-of-stream marker")
            if chunk := self.zlib.decompress(data, max(size, 0)):
                return chunk
        return b""


@contextlib.contextmanager
def read_archive(path: Path) -> Iterator[Iterator[tuple[PurePosixPath, tarfile.TarInfo, IO[bytes] | None]]]:
    """Stream a .tar.gz once: every member checked, the gzip trailer too, so that a truncated file is always told."""

    def members(packed: Gunzip) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo, IO[bytes] | None]]:
        with tarfile.open(fileobj=cast(IO[bytes], packed), mode="r|", bufsize=1 << 18) as tar:
            for member in tar:
                yield check_member(member, path.name), member, tar.extractfile(member) if member.isreg() else None
        while packed.read(1 << 20):
            pass

    try:
        with path.open("rb") as raw:
            yield members(Gunzip(raw))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise StackError(
            f"{path.name}: truncated or damaged archive\n  expected: a complete .tar.gz\n  actual:   {error}\n"
            "  what to do: fetch the file again"
        ) from None


def write_member(target: Path, source: IO[bytes], executable: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    if executable:
        target.chmod(0o755)


_GIT_DIR = (".git", "modules", "vendor", "llama.cpp")  # below the top folder
_GIT_OBJECT = re.compile(r"objects/([0-9a-f]{2}/[0-9a-f]{38}|pack/pack-[0-9a-f]{40}\.(pack|idx|rev))")


def sdist_repository(sdist: Path, stage: Path) -> tuple[Git, str | None]:
    """The sdist's llama.cpp objects as a bare repository (its config and hooks stay behind), and its HEAD commit."""
    git = Git(stage)
    stage.mkdir(parents=True)
    git.out("init", "--quiet", "--bare", "--template=", ".")
    head: str | None = None
    found = 0
    with read_archive(sdist) as members:
        for path, member, data in members:
            if path.parts[1:5] != _GIT_DIR or data is None:
                continue
            name = "/".join(path.parts[5:])
            if _GIT_OBJECT.fullmatch(name):
                write_member(stage / name, data)
                found += 1
            elif name == "shallow" and member.size < 1 << 20:
                oids = re.findall(r"^[0-9a-f]{40}$", data.read().decode("ascii", "replace"), re.MULTILINE)
                (stage / "shallow").write_text("".join(f"{oid}\n" for oid in oids))
            elif name == "HEAD" and member.size < 4096:
                head = data.read().decode("ascii", "replace").strip()
    if not found:
        raise StackError(
            f"{sdist.name}: holds no git objects of vendor/llama.cpp\n"
            "  expected: .git/modules/vendor/llama.cpp/objects/...\n  actual:   none\n"
            "  what to do: use the sdist that the lock names, or --git"
        )
    return git, head if head and re.fullmatch("[0-9a-f]{40}", head) else None


# ------------------------------------------------------------------------------------------------------ patch files

_ZERO_FROM = b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\n"
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_PATCH_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.patch")


@dataclass(frozen=True)
class FileDiff:
    path: str
    added: int
    removed: int
    binary: bool
    index_line: str


@dataclass(frozen=True)
class Patch:
    """One exported patch file, parsed as far as lint, stats and messages need it."""

    name: str
    data: bytes

    @property
    def split(self) -> tuple[bytes, bytes]:
        """Mail head with commit message, and the diff."""
        at = self.data.find(b"\ndiff --git ")
        return (self.data, b"") if at < 0 else (self.data[: at + 1], self.data[at + 1 :])

    def header(self, name: str) -> str | None:
        head = self.data.split(b"\n\n", 1)[0] + b"\n\n"
        if head.startswith(b"From "):
            head = head.partition(b"\n")[2]
        value = email.parser.BytesHeaderParser().parsebytes(head).get(name)
        if value is None:
            return None
        text = str(email.header.make_header(email.header.decode_header(str(value))))
        return re.sub(r"\n[ \t]", " ", text.replace("\r", "")).strip()

    @property
    def subject(self) -> str:
        return re.sub(r"^\[PATCH\] ?", "", self.header("Subject") or "")

    @property
    def message(self) -> str:
        """The commit message's body, without the `---` that ends it."""
        head = self.split[0].partition(b"\n\n")[2]
        if head.endswith((b"---\n\n", b"---\n")):
            head = head.rstrip(b"\n")[:-3]
        return head.decode("utf-8", "replace").strip("\n")

    @property
    def paragraphs(self) -> tuple[list[str], dict[str, str]]:
        """Paragraphs of the body that give the reason, and the trailers of the last paragraph."""
        blocks = [block for block in re.split(r"\n[ \t]*\n", self.message) if block.strip()]
        trailers: dict[str, str] = {}
        if blocks:
            lines = blocks[-1].strip("\n").split("\n")
            last = ""
            for number, line in enumerate(lines):
                match = re.fullmatch(r"([A-Za-z][A-Za-z0-9-]*):(?:[ \t]+(.*))?", line)
                if match:
                    last = match[1]
                    trailers[last] = (match[2] or "").strip()
                elif number and line[:1] in " \t":
                    trailers[last] = f"{trailers[last]} {line.strip()}".strip()
                else:
                    return blocks, {}
            blocks.pop()
        return blocks, trailers

    @property
    def files(self) -> list[FileDiff]:
        found: list[FileDiff] = []
        path, index, added, removed, binary = "", "", 0, 0, False
        old = new = 0

        def close() -> None:
            if path:
                found.append(FileDiff(path, added, removed, binary, index))

        for line in self.split[1].split(b"\n"):
            if old > 0 or new > 0:
                kind = line[:1]
                old -= kind in (b" ", b"-", b"")
                new -= kind in (b" ", b"+", b"")
                added += kind == b"+"
                removed += kind == b"-"
            elif line.startswith(b"diff --git "):
                close()
                text = line[len(b"diff --git ") :].decode("utf-8", "replace")
                path = text.rpartition(" b/")[2] if " b/" in text else text.rpartition(' "b/')[2].rstrip('"')
                index, added, removed, binary = "", 0, 0, False
            elif line.startswith(b"index "):
                index = line.decode("ascii", "replace")
            elif line.startswith((b"GIT binary patch", b"Binary files ")):
                binary = True
            elif match := _HUNK.match(line):
                old, new = int(match[1] or 1), int(match[2] or 1)
        close()
        return found


def slug(subject: str) -> str:
    """`kv-cache : describe page layout` -> `kv-cache-describe-page-layout.patch`; no number, so it stays stable."""
    return f"{re.sub('[^a-z0-9]+', '-', subject.lower()).strip('-') or 'patch'}.patch"


class Order:
    """patches/.order: one patch file name a line, in groups that `# comment` lines open."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)

    @classmethod
    def load(cls, folder: Path) -> Order:
        try:
            return cls((folder / ".order").read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            return cls([])

    @staticmethod
    def is_name(line: str) -> bool:
        return bool(line.strip()) and not line.lstrip().startswith("#")

    @property
    def names(self) -> list[str]:
        return [line.strip() for line in self.lines if self.is_name(line)]

    @property
    def groups(self) -> dict[str, str]:
        group, found = "", {}
        for line in self.lines:
            if self.is_name(line):
                found[line.strip()] = group
            elif line.strip():
                group = line.strip().lstrip("#").strip()
        return found

    def updated(self, names: Sequence[str]) -> Order:
        """The same groups for a new sequence: what is gone goes, what is new follows its predecessor."""
        old = self.names
        if not old:
            return Order([*self.lines, *names])
        inserts: dict[int, list[str]] = {}  # old index -> names in its place; -1: before the first
        kept: set[int] = set()
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, names, autojunk=False).get_opcodes():
            if tag == "equal":
                kept.update(range(i1, i2))
                continue
            fresh = list(names[j1:j2])
            if tag == "replace":  # a renamed commit keeps its place, and with it its group
                for i in range(i1, min(i2, i1 + len(fresh))):
                    inserts.setdefault(i, []).append(fresh.pop(0))
                inserts.setdefault(i2 - 1, []).extend(fresh)
            elif tag == "insert":
                inserts.setdefault(i1 - 1, []).extend(fresh)
        lines: list[str] = []
        number = -1
        for line in self.lines:
            if not self.is_name(line):
                lines.append(line)
                continue
            number += 1
            if number == 0:
                lines.extend(inserts.get(-1, []))
            if number in kept:
                lines.append(line)
            lines.extend(inserts.get(number, []))
        return Order(lines)

    def render(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()


@dataclass(frozen=True)
class Stack:
    folder: Path
    order: Order
    patches: list[Patch]

    @classmethod
    def load(cls, folder: Path) -> Stack:
        """The patches in order; an order file that cannot be followed is refused (lint tells every finding)."""
        order = Order.load(folder)
        problems = order_problems(folder, order)
        if problems:
            raise StackError(
                "\n".join(problems) + "\n  what to do: correct .order, or write it by scripts/patches export"
            )
        return cls(folder, order, [Patch(name, (folder / name).read_bytes()) for name in order.names])

    @property
    def digest(self) -> str:
        """The stack digest: sha256 over the line `<sha256 of the patch file's bytes>  <file name>\\n` of each patch.

        CMake computes the same: for every name of patches/.order, file(SHA256 patches/<name> hash), then
        string(APPEND lines "${hash}  <name>\\n"), and string(SHA256 digest "${lines}"). An empty stack is the sha256
        of the empty string.
        """
        lines = "".join(f"{hashlib.sha256(p.data).hexdigest()}  {p.name}\n" for p in self.patches)
        return hashlib.sha256(lines.encode("ascii")).hexdigest()


def order_problems(folder: Path, order: Order) -> list[str]:
    present = {path.name for path in folder.glob("*.patch")} if folder.is_dir() else set()
    problems: list[str] = []
    seen: set[str] = set()
    for name in order.names:
        if name in seen:
            problems.append(f".order: lists {name} twice")
        elif not _PATCH_NAME.fullmatch(name):
            problems.append(f".order: {name!r} is not a patch file name ({_PATCH_NAME.pattern})")
        elif name not in present:
            problems.append(f".order: lists {name}, which is not there")
        seen.add(name)
    problems += [f"{name}: not listed in .order" for name in sorted(present - seen)]
    return problems


def form_problems(patch: Patch) -> list[str]:
    """Why this file is no mail that `git am` takes as exactly one commit (empty: it is)."""
    problems: list[str] = []
    if not re.match(rb"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001\n", patch.data):
        problems.append("line 1: expected `From <40 hex digits> Mon Sep 17 00:00:00 2001`")
    for name in ("From", "Date", "Subject"):
        if not patch.header(name):
            problems.append(f"header `{name}:` is missing or broken")
    if len(re.findall(rb"^From [0-9a-f]{40} Mon Sep 17 00:00:00 2001$", patch.data, re.MULTILINE)) > 1:
        problems.append("holds more than one mail")
    if not patch.split[1]:
        problems.append("holds no diff")
    return problems


def check_well_formed(git: Git, stack: Stack) -> None:
    """Name a corrupt patch before anything is touched."""
    for patch in stack.patches:
        problems = form_problems(patch)
        if not problems:
            # as git am does: parse every hunk, apply nothing; its line numbers count from the file's first line
            done = git.call("apply", "--numstat", "-", input=patch.data)
            if done.returncode != 0:
                problems = [line.removeprefix("error: ") for line in done.stderr.decode(errors="replace").splitlines()]
        if problems:
            raise StackError(
                f"{patch.name}: corrupt patch: {'; '.join(problems)}\n"
                "  what to do: restore the file from version control, or write it again by scripts/patches export; "
                "nothing was applied"
            )


# ------------------------------------------------------------------------------------------------ apply and export


def format_commit(git: Git, commit: str) -> bytes:
    return git.out(
        "format-patch", "--stdout", "--zero-commit", "--full-index", "--no-signature", "--no-stat", "-N",
        "--no-renames", "--no-attach", "--no-cover-letter", "--no-thread", "--no-ext-diff", "--no-textconv", "--binary",
        "--src-prefix=a/", "--dst-prefix=b/", "-1", commit,
    )  # fmt: skip


def export_commits(git: Git, base: str, head: str) -> list[Patch]:
    """Every commit above base as a patch, oldest first."""
    patches: list[Patch] = []
    seen: dict[str, str] = {}
    for commit in git.between(base, head):
        data = format_commit(git, commit)
        if not data:
            raise StackError(f"commit {commit} changes nothing; drop it (git rebase -i {base})")
        subject = git.text("log", "-1", "--format=%s", commit)
        name = slug(subject)
        if name in seen:
            raise StackError(f"{name}: commits {seen[name]} and {commit} give the same file name; reword one subject")
        seen[name] = commit
        patches.append(Patch(name, data))
    return patches


@dataclass(frozen=True)
class Stopped:
    """git am stopped at a patch."""

    patch: Patch
    output: str
    conflicts: list[str]

    def describe(self) -> str:
        lines = [f"{self.patch.name}: does not apply"]
        lines += [f"  conflict: {conflict}" for conflict in self.conflicts]
        lines += [f"  git am: {line}" for line in self.output.splitlines() if line.startswith(("error:", "fatal:"))]
        return "\n".join(lines)


def apply_stack(git: Git, stack: Stack, *, three_way: bool) -> Stopped | None:
    """One `git am` over the whole stack, with hashes that depend on nothing but base and patches."""
    patches = stack.patches
    if not patches:
        return None
    args = ["am", "--quiet", "--keep-non-patch", "--keep-cr", "--no-scissors", "--committer-date-is-author-date"]
    args.append("--3way" if three_way else "--no-3way")
    done = git.call(*args, "--", *(str((stack.folder / patch.name).resolve()) for patch in patches))
    if done.returncode == 0:
        return None
    output = (done.stdout + done.stderr).decode(errors="replace")
    state = git.path("rebase-apply") / "next"
    if not state.exists():
        raise StackError(f"git am failed before the first patch:\n{output.strip()}")
    patch = patches[int(state.read_text()) - 1]
    return Stopped(patch, output, conflicts(git, patch))


def conflicts(git: Git, patch: Patch) -> list[str]:
    """`file: @@ hunk header` for every hunk that does not apply to HEAD as it is."""
    unmerged = set(git.text("-c", "core.quotePath=false", "diff", "--name-only", "--diff-filter=U").splitlines())
    found: list[str] = []
    told: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="cachegen-hunks-") as temporary:
        folder = Path(temporary) / "tree"
        folder.mkdir()
        for file in patch.files:
            if ".." in PurePosixPath(file.path).parts or PurePosixPath(file.path).is_absolute():
                continue
            done = git.call("cat-file", "blob", f"HEAD:{file.path}")
            if done.returncode == 0:
                target = folder / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(done.stdout)
        done = Git(folder).call("apply", "--reject", "-", input=patch.split[1])
        for reject in sorted(folder.rglob("*.rej")):
            path = reject.relative_to(folder).as_posix()[: -len(".rej")]
            if unmerged and path not in unmerged:
                continue  # the 3-way merge took it
            for line in reject.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("@@ "):
                    found.append(f"{path}: {line}")
                    told.add(path)
        for line in done.stderr.decode(errors="replace").splitlines():
            match = re.match(r"error: (.+?): (No such file or directory|already exists.*|does not exist.*)$", line)
            if match and match[1] not in told:
                found.append(f"{match[1]}: {match[2]}")
                told.add(match[1])
    return found + [f"{path}: conflict markers in the file" for path in sorted(unmerged - told)]


def first_difference(expected: Sequence[Patch], actual: Sequence[Patch]) -> str | None:
    """Which patch differs first, and in which line; the sequences are compared as far as the shorter goes."""
    for want, got in zip(expected, actual, strict=False):
        if want.name != got.name:
            return f"{want.name}: re-export names it {got.name} (file name and subject disagree)"
        if want.data != got.data:
            old, new = want.data.split(b"\n"), got.data.split(b"\n")
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))

            def line(lines: list[bytes], at: int = at) -> str:
                return repr(lines[at].decode("utf-8", "replace")) if at < len(lines) else "end of file"

            return (
                f"{want.name}: re-export gives other bytes, first in line {at + 1}\n"
                f"  expected: {line(old)} (the patch file)\n  actual:   {line(new)} (the re-export)"
            )
    return None


def base_of(git: Git, lock: Lock) -> str:
    """The pristine base: the tag if it is there, else the pinned commit; both must be what the lock says."""
    if not git.is_repository():
        raise StackError(f"{git.repo}: not a git repository of its own; run scripts/vendor first")
    commit = git.commit(f"refs/tags/{BASE_TAG}") or git.commit(lock.commit)
    if commit is None:
        bundled = (git.repo / BUNDLE_FILE).exists()
        raise StackError(
            f"{git.repo}: does not hold the pinned base commit {lock.commit}"
            + (" (it came from a bundle, which carries no pristine base)" if bundled else "")
            + "\n  what to do: run scripts/vendor (--force to recreate)"
        )
    check_base(git, commit, lock, str(git.repo))
    return commit


def unexported(git: Git, base: str, rev: str, stack_bytes: Callable[[], set[bytes]]) -> list[str]:
    """Commits above base whose export is in neither the stack nor the state of the last import or export."""
    commits = git.text("rev-list", "--reverse", rev, "--not", base).split()
    if not commits:
        return []
    if (synced := git.commit(SYNCED_REF)) is not None:
        known = set(git.text("rev-list", synced, "--not", base).split())
        commits = [commit for commit in commits if commit not in known]
    if not commits:
        return []
    known_bytes = stack_bytes()
    return [commit for commit in commits if format_commit(git, commit) not in known_bytes]


def patch_bytes(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.glob("*.patch")} if folder.is_dir() else set()


def with_base(lock: Lock, commit: str, tree: str) -> Lock:
    return replace(lock, commit=commit, tree=tree)
