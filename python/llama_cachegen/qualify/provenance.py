"""Which code a qualification ran: the commit, and the stamp of the loaded library."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

import msgspec

from .. import _binding
from ..errors import QualifyError
from ..evaluate.report import Setting
from ..models import _sha256_of

__all__ = ["COMMIT_VARIABLE", "Software", "package_digest"]

COMMIT_VARIABLE = "LLAMA_CACHEGEN_COMMIT"
"""Environment variable that names the commit where the source tree is a copy without its git repository."""

_PACKAGE = Path(__file__).resolve().parent.parent


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The code.

    Attributes:
        package_version: of llama-cachegen.
        commit: of the source tree; where that is a copy without git, what LLAMA_CACHEGEN_COMMIT names; "" if neither.
        is_clean: the tree's Python files of the package are those of the commit, and are the ones that ran. Of a copy
            only the second is known.
        package_sha256: of the package's Python files as they ran.
        llama_commit, patch_digest, abi_version: the loaded library's stamp.
        library_sha256: of the loaded libllama.
        python_version: of the interpreter.
    """

    package_version: str
    commit: str
    is_clean: bool
    package_sha256: str
    llama_commit: str
    patch_digest: str
    abi_version: int
    library_sha256: str
    python_version: str

    @classmethod
    def here(cls, tree: Path) -> Software:
        """Of this process, made from the source tree `tree`, if that is one.

        Raises:
            QualifyError: LLAMA_CACHEGEN_COMMIT is needed and is not the full hash of a commit.
        """
        head = _git(tree, "rev-parse", "HEAD")
        sources = tree / "python" / "llama_cachegen"
        own = package_digest(_PACKAGE)
        if head is None:
            commit, status = _commit_of_copy(), ""
        else:
            commit = head
            status = _git(tree, "status", "--porcelain", "--", "python", "native", "patches", "vendor/llama.lock") or ""
        return cls(
            package_version=Setting.here().package_version,
            commit=commit,
            is_clean=bool(commit) and status == "" and sources.is_dir() and package_digest(sources) == own,
            package_sha256=own,
            llama_commit=_binding.LLAMA_COMMIT,
            patch_digest=_binding.PATCH_DIGEST,
            abi_version=_binding.ABI_VERSION,
            library_sha256=_sha256_of(_library_path()),
            python_version=platform.python_version(),
        )


def _commit_of_copy() -> str:
    commit = os.environ.get(COMMIT_VARIABLE, "")
    if commit and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise QualifyError(
            f"{COMMIT_VARIABLE} is {commit!r}; the 40 hex digits of the commit that the tree is a copy of are needed"
        )
    return commit


def _library_path() -> Path:
    return Path(str(_binding.llama._lib._name)).resolve()


def package_digest(folder: Path) -> str:
    """SHA-256 over names and content of the Python and TOML files of a package."""
    digest = hashlib.sha256()
    files = [path for path in folder.rglob("*") if path.suffix in {".py", ".toml"} and path.is_file()]
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(f"{path.relative_to(folder).as_posix()} {_sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _git(tree: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
