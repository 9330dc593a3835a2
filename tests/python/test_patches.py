"""scripts/patches: files and commits are the same stack, and whatever breaks that is told by the patch's name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "patches"
FIRST, SECOND, THIRD = (
    "kv-cache-describe-page-layout.patch",
    "llama-stamp-the-digest.patch",
    "tests-page-round-trips.patch",
)

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@dataclass
class World:
    root: Path
    date: int = 0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def repo(self) -> Path:
        return self.root / "llama.cpp"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def lock(self) -> Path:
        return self.root / "llama.lock"

    def git(self, *args: str, ok: bool = True) -> str:
        stamp = f"{1_700_000_000 + self.date} +0200"
        env = {
            **os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "Zoë",
            "GIT_AUTHOR_EMAIL": "z@example.org", "GIT_COMMITTER_NAME": "c", "GIT_COMMITTER_EMAIL": "c@example.org",
            "GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp, "GIT_EDITOR": "true",
        }  # fmt: skip
        done = subprocess.run(["git", *args], cwd=self.repo, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not ok, done.stderr
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.repo / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, subject: str, body: str = "Because pages need it.\n\nForwarded: no, cachegen only") -> None:
        self.date += 60
        self.git("add", "-A")
        self.git("commit", "-q", "-m", f"{subject}\n\n{body}")

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.repo / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def edit_patch(self, name: str, old: str, new: str) -> None:
        path = self.patches / name
        data = path.read_bytes()
        assert old.encode() in data
        path.write_bytes(data.replace(old.encode(), new.encode(), 1))

    def readme(self) -> None:
        names = sorted(path.name for path in self.patches.glob("*.patch"))
        (self.patches / "README.md").write_text("".join(f"- `{name}`: why\n" for name in names))

    def run(self, *args: object) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "LLAMA_CACHEGEN_"))}
        command = [
            sys.executable,
            str(SCRIPT),
            "--repo",
            self.repo,
            "--lock",
            self.lock,
            *args,
            "--patches",
            self.patches,
        ]
        return subprocess.run(
            list(map(str, command)), env={**env, **self.env}, capture_output=True, text=True, timeout=60, check=False
        )

    def good(self, *args: object) -> str:
        done = self.run(*args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def bad(self, *args: object) -> str:
        done = self.run(*args)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.patches.iterdir()} if self.patches.exists() else {}

    def locked(self, key: str = "patched_tree") -> str:
        data = json.loads(self.lock.read_text())
        return str(data["patched_tree"] if key == "patched_tree" else data["llama_cpp"][key])


def lines(name: str) -> str:
    return "".join(f"{name} line {number}\n" for number in range(40))


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """A pristine repository, and one with three exported patches in two groups."""
    empty = World(tmp_path_factory.mktemp("empty"))
    empty.repo.mkdir()
    empty.git("init", "-q", "-b", "cachegen")
    empty.write(src__kv_dot_cpp=lines("kv"), src__llama_dot_cpp=lines("llama"), tests__x_dot_txt="x\r\ny\r\n")
    empty.commit("upstream commit")
    empty.git("tag", "cachegen-base")
    tree = empty.git("rev-parse", "HEAD^{tree}")
    empty.lock.write_text(json.dumps({
        "format": 1,
        "sdist": {"name": "llama-cpp-python", "version": "1.0", "filename": "llama_cpp_python-1.0.tar.gz",
                  "sha256": "0" * 64, "size_bytes": 1},
        "llama_cpp": {"repository": "https://example.org/llama.cpp", "commit": empty.git("rev-parse", "HEAD"),
                      "tree": tree},
        "patched_tree": tree,
    }, indent=2) + "\n")  # fmt: skip
    full = World(tmp_path_factory.mktemp("full") / "w", date=empty.date)
    shutil.copytree(empty.root, full.root)
    full.edit("src/kv.cpp", "kv line 10\n", "kv line 10\n\tdescribe — ü\n")
    full.commit("kv-cache : describe page layout")
    full.edit("src/llama.cpp", "llama line 20\n", "llama line twenty\n")
    full.edit("src/kv.cpp", "kv line 35\n", "kv line 35, stamped\n")
    full.commit("llama : stamp the digest")
    full.write(tests__new_dot_txt="1\r\n2\n")
    full.edit("src/kv.cpp", "describe", "describe it")
    full.commit("tests : page round trips")
    full.patches.mkdir()
    (full.patches / ".order").write_text(f"# seam\n{FIRST}\n{SECOND}\n\n# tests\n{THIRD}\n")
    full.good("export")
    full.readme()
    return empty, full


@pytest.fixture
def empty(templates: tuple[World, World], tmp_path: Path) -> World:
    shutil.copytree(templates[0].root, tmp_path / "w")
    return World(tmp_path / "w", date=templates[0].date)


@pytest.fixture
def world(templates: tuple[World, World], tmp_path: Path) -> World:
    shutil.copytree(templates[1].root, tmp_path / "w")
    return World(tmp_path / "w", date=templates[1].date)


def reset(world: World) -> None:
    world.git("reset", "-q", "--hard", "cachegen-base")


# ------------------------------------------------------------------------------------------- import and export


def test_export_form(world: World) -> None:
    data = (world.patches / FIRST).read_text()
    assert data.startswith(f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n")
    assert re.search(r"^index [0-9a-f]{40}\.\.[0-9a-f]{40} 100644$", data, re.MULTILINE)
    assert "Subject: [PATCH] kv-cache : describe page layout\n" in data
    assert "\n-- \n" not in data and not re.search(r"^ \S+ +\| ", data, re.MULTILINE) and "multipart" not in data
    assert world.locked() == world.git("rev-parse", "HEAD^{tree}")
    assert (world.patches / ".order").read_text() == f"# seam\n{FIRST}\n{SECOND}\n\n# tests\n{THIRD}\n"


def test_round_trip_is_byte_identical(world: World) -> None:
    before = world.files()
    reset(world)
    assert "imported 3 patches" in world.good("import")
    assert world.git("rev-parse", "HEAD^{tree}") == world.locked()
    assert "(0 changed)" in world.good("export")
    assert world.files() == before
    assert world.good("import").startswith("already imported: 3 patches")


def test_commits_are_deterministic(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    shutil.copytree(world.root, other.root)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\n\tname = me\n[commit]\n\tgpgsign = true\n[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n"
        "[am]\n\tthreeWay = false\n[diff]\n\tnoprefix = true\n\tcontext = 9\n[format]\n\tattach = x\n\tsignature = me\n"
    )
    other.env = {"HOME": str(home), "TZ": "Asia/Tokyo", "LC_ALL": "C", "GIT_DIR": "/nowhere"}
    other.git("config", "diff.context", "1")
    other.git("config", "format.attach", "yes")
    for each in (world, other):
        reset(each)
        each.good("import")
        each.good("export")
    assert world.git("rev-list", "HEAD") == other.git("rev-list", "HEAD")
    assert world.files() == other.files()
    assert world.good("digest") == other.good("digest")


def test_empty_stack_works_everywhere(empty: World) -> None:
    tree = empty.locked()
    assert "already imported: 0 patches" in empty.good("import")
    assert "exported 0 patches" in empty.good("export")
    assert f"replay ok: 0 patches, base {empty.locked('commit')}, tree {tree}, " in empty.good("verify")
    assert empty.good("digest").strip() == hashlib.sha256(b"").hexdigest()
    assert "total: 0 patches" in empty.good("stats")
    assert "lint ok" in empty.good("lint")
    assert empty.locked() == tree and not empty.patches.exists()
    empty.patches.mkdir()
    (empty.patches / ".order").write_text("")
    for command in ("import", "export", "verify", "digest", "stats", "lint"):
        empty.good(command)


def test_new_commit_follows_its_predecessor_and_a_dropped_one_goes(world: World) -> None:
    reset(world)
    world.good("import")
    world.git("checkout", "-q", "--detach", "HEAD~1")
    world.edit("src/llama.cpp", "llama line 5\n", "llama line five\n")
    world.commit("llama : fresh in the middle")
    world.git("cherry-pick", "cachegen")
    world.git("branch", "-f", "cachegen", "HEAD")
    world.git("checkout", "-q", "cachegen")
    assert "wrote llama-fresh-in-the-middle.patch" in world.good("export")
    fresh = "llama-fresh-in-the-middle.patch"
    order = (world.patches / ".order").read_text()
    assert order == f"# seam\n{FIRST}\n{SECOND}\n{fresh}\n\n# tests\n{THIRD}\n"
    world.git("rebase", "-q", "--onto", "HEAD~3", "HEAD~1")
    out = world.good("export")
    assert f"removed {SECOND}" in out and f"removed {fresh}" in out
    assert (world.patches / ".order").read_text() == f"# seam\n{FIRST}\n\n# tests\n{THIRD}\n"
    world.good("verify")


def test_renamed_commit_keeps_its_group(world: World) -> None:
    world.git("commit", "-q", "--amend", "-m", "tests : round trips of pages\n\nWhy.\n\nForwarded: no")
    world.good("export")
    expected = f"# seam\n{FIRST}\n{SECOND}\n\n# tests\ntests-round-trips-of-pages.patch\n"
    assert (world.patches / ".order").read_text() == expected


def test_export_refuses_uncommitted_changes(world: World) -> None:
    world.write(src__new_dot_cpp="new\n")
    assert "src/new.cpp" in world.bad("export")
    world.git("add", "-A")
    assert "src/new.cpp" in world.bad("export")


def test_export_refuses_equal_file_names_and_merges(world: World) -> None:
    world.edit("src/kv.cpp", "kv line 1\n", "kv line one\n")
    world.commit("llama : stamp, the digest!")
    assert SECOND in world.bad("export")
    world.git("reset", "-q", "--hard", "HEAD~1")
    world.git("checkout", "-q", "-b", "side", "HEAD~1")
    world.edit("src/llama.cpp", "llama line 1\n", "llama line one\n")
    world.commit("llama : side")
    world.git("checkout", "-q", "cachegen")
    world.git("merge", "-q", "--no-edit", "side")
    assert "merge commit" in world.bad("export")


def test_import_does_not_lose_work(world: World) -> None:
    world.edit("src/kv.cpp", "kv line 1\n", "kv line one\n")
    assert "src/kv.cpp" in world.bad("import")
    world.commit("kv-cache : mine")
    head = world.git("rev-parse", "HEAD")
    out = world.bad("import")
    assert "kv-cache : mine" in out and "export first" in out
    assert world.git("rev-parse", "HEAD") == head
    world.good("import", "--force")
    assert world.git("rev-list", "--count", "cachegen-base..HEAD") == "3"


def test_edited_patch_file_is_imported_when_nothing_is_unexported(world: World) -> None:
    world.edit_patch(THIRD, "Because pages need it.", "Because pages need it more.")
    world.good("import")
    assert "need it more" in world.git("log", "-1", "--format=%b")


def test_import_needs_the_pinned_base(world: World, tmp_path: Path) -> None:
    world.git("tag", "-f", "cachegen-base", "HEAD")
    out = world.bad("import")
    assert f"expected: {world.locked('commit')}" in out and f"actual:   {world.git('rev-parse', 'HEAD')}" in out
    shutil.rmtree(world.repo)
    assert "run scripts/vendor first" in world.bad("import")
    world.repo.mkdir()
    assert "not a git repository of its own" in world.bad("verify")


# -------------------------------------------------------------------------------------------------- corruption


def test_verify_says_what_was_replayed(world: World) -> None:
    reset(world)  # verify needs only the base
    digest = world.good("digest").strip()
    expected = f"replay ok: 3 patches, base {world.locked('commit')}, tree {world.locked()}, stack digest {digest}\n"
    assert world.good("verify") == expected
    names = [FIRST, SECOND, THIRD]
    text = "".join(f"{hashlib.sha256((world.patches / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    assert digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("\n llama line 19\n", "\n llama line nineteen\n", "does not apply"),
        ("\n-llama line 20\n", "\n-llama line 2O\n", "does not apply"),
        ("\n+llama line twenty\n", "\n+llama line twentY\n", "re-export gives other bytes"),
        ("@@ -18,7 +18,7 @@", "@@ -18,7 +18,9 @@", "corrupt patch at line"),
        ("@@ -18,7 +18,7 @@", "@@ -18,x +18,7 @@", "corrupt patch"),
        ("From 0000", "Frum 0000", "corrupt patch: line 1"),
        ("\nSubject: ", "\nSubjekt: ", "header `Subject:`"),
        ("\nDate: ", "\nDote: ", "header `Date:`"),
        ("\nFrom: ", "\nForm: ", "header `From:`"),
        ("\nindex ", "\nindex 0", "re-export gives other bytes"),
    ],
)
def test_one_changed_line_fails_by_name(world: World, old: str, new: str, told: str) -> None:
    world.edit_patch(SECOND, old, new)
    out = world.bad("verify")
    assert SECOND in out and told in out, out
    assert FIRST not in out
    assert "what to do" in out
    assert world.git("status", "--porcelain") == ""


def test_context_line_names_file_and_hunk(world: World) -> None:
    world.edit_patch(SECOND, "\n kv line 34\n", "\n kv line thirty-four\n")
    out = world.bad("verify")
    assert re.search(rf"{re.escape(SECOND)}: does not apply\n  conflict: src/kv.cpp: @@ -\d+,7 \+\d+,7 @@", out), out


def test_earlier_culprit_is_named(world: World) -> None:
    world.edit_patch(FIRST, "+\tdescribe", "+\tdescrybe")
    out = world.bad("verify")
    assert (
        f"{THIRD}: does not apply" in out and f"an earlier patch differs: {FIRST}: re-export gives other bytes" in out
    )


def test_subject_and_file_name_disagree(world: World) -> None:
    world.edit_patch(SECOND, "[PATCH] llama : stamp the digest", "[PATCH] llama : stamp a digest")
    assert f"{SECOND}: re-export names it llama-stamp-a-digest.patch" in world.bad("verify")


def test_truncated_patch(world: World) -> None:
    path = world.patches / THIRD
    path.write_bytes(path.read_bytes()[:-15])
    assert f"{THIRD}: corrupt patch" in world.bad("verify")
    world.edit_patch(THIRD, "diff --git", "no diff")
    assert THIRD in world.bad("verify")


def test_corrupt_patch_leaves_the_tree_alone(world: World) -> None:
    reset(world)
    head = world.git("rev-parse", "HEAD")
    world.edit_patch(SECOND, "@@ -18,7 +18,7 @@", "@@ -18,7 +18,9 @@")
    out = world.bad("import")
    assert re.search(rf"{re.escape(SECOND)}: corrupt patch: corrupt patch at .*\d+", out), out
    assert world.git("rev-parse", "HEAD") == head and world.git("status", "--porcelain") == ""
    assert "nothing is in progress" in world.good("import", "--abort")


def test_lock_with_another_patched_tree(world: World) -> None:
    data = world.lock.read_text()
    actual = world.locked()
    world.lock.write_text(data.replace(f'"patched_tree": "{actual}"', f'"patched_tree": "{"a" * 40}"'))
    out = world.bad("verify")
    assert f"expected: {'a' * 40}" in out and f"actual:   {actual}" in out
    assert "does not match the lock" in world.good("import")


# ---------------------------------------------------------------------------------------------------- conflicts


def conflict(world: World) -> None:
    """The first patch changes the line that the second one is about to change."""
    reset(world)
    world.edit("src/kv.cpp", "kv line 10\n", "kv line 10\n\tdescribe — ü\n")
    world.edit("src/llama.cpp", "llama line 20\n", "llama line zwanzig\n")
    world.commit("kv-cache : describe page layout")
    world.git("update-ref", "refs/cachegen/synced", "HEAD")
    data = world.git("format-patch", "--stdout", "--zero-commit", "--full-index", "--no-signature", "--no-stat", "-1")
    (world.patches / FIRST).write_text(data + "\n")


def test_conflict_is_named_and_abort_recovers(world: World) -> None:
    conflict(world)
    before = world.git("rev-parse", "HEAD")
    out = world.bad("import")
    assert f"{SECOND}: does not apply" in out
    assert "conflict: src/llama.cpp: @@ -18,7 +18,7 @@" in out and "src/kv.cpp" not in out
    assert "git am --continue" in out and "scripts/patches export" in out and "--abort" in out
    assert (world.repo / ".git/rebase-apply").is_dir()
    assert "<<<<<<<" in (world.repo / "src/llama.cpp").read_text()
    assert "git am is in progress" in world.bad("import")
    assert "git am is in progress" in world.bad("export")
    assert f"back at {before}" in world.good("import", "--abort")
    assert (
        world.git("status", "--porcelain") == "" and world.git("rev-parse", "cachegen", "HEAD") == f"{before}\n{before}"
    )


def test_conflict_resolved_and_exported(world: World) -> None:
    conflict(world)
    world.bad("import")
    text = (world.repo / "src/llama.cpp").read_text()
    text = re.sub(r"<<<<<<<.*?=======\n(.*?)>>>>>>>[^\n]*\n", r"\1", text, flags=re.DOTALL)
    (world.repo / "src/llama.cpp").write_text(text)
    world.git("add", "-A")
    world.git("-c", "user.name=x", "am", "--continue")
    world.good("export")
    assert "replay ok: 3 patches" in world.good("verify")
    assert "\n-llama line zwanzig\n+llama line twenty\n" in (world.patches / SECOND).read_text()
    assert "nothing is in progress" in world.good("import", "--abort")


def test_three_way_merge_takes_shifted_context(world: World) -> None:
    reset(world)
    world.edit("src/llama.cpp", "llama line 18\n", "llama line eighteen\n")
    world.commit("upstream moves")
    world.git("branch", "new-base")
    world.git("reset", "-q", "--hard", "HEAD~1")
    world.good("import")
    out = world.good("refresh", "--onto", "new-base")
    assert "refreshed onto" in out
    assert world.locked("commit") == world.git("rev-parse", "new-base", "--")[:40]
    assert world.locked("tree") == world.git("rev-parse", "new-base^{tree}")
    assert world.locked() == world.git("rev-parse", "HEAD^{tree}")
    assert world.git("rev-parse", "cachegen-base") == world.locked("commit")
    assert "replay ok: 3 patches" in world.good("verify")


def test_refresh_conflict_continues_or_aborts(world: World) -> None:
    head = world.git("rev-parse", "HEAD")
    reset(world)
    world.edit("src/llama.cpp", "llama line 20\n", "llama line twentieth\n")
    world.commit("upstream moves")
    world.git("branch", "new-base")
    world.git("reset", "-q", "--hard", head)
    lock = world.lock.read_text()
    out = world.bad("refresh", "--base", "new-base")
    assert f"{SECOND}: does not apply" in out and "refresh --continue" in out
    assert world.lock.read_text() == lock
    world.good("import", "--abort")
    assert world.git("rev-parse", "HEAD") == head and "0 changed" in world.good("export")
    world.bad("refresh", "--onto", "new-base")
    world.git("checkout", "--theirs", "src/llama.cpp")
    world.git("add", "-A")
    world.git("am", "--continue")
    assert "refresh is unfinished" in world.bad("export")
    world.good("refresh", "--continue")
    assert "replay ok: 3 patches" in world.good("verify")
    assert world.locked("commit") == world.git("rev-parse", "new-base")


# --------------------------------------------------------------------------------------------------------- lint


def test_lint_of_a_good_stack(world: World) -> None:
    assert "lint ok: 3 patches, 0 findings (limits: 400 changed lines" in world.good("lint")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("llama : stamp the digest", "stamp the digest", "expected the form `area : what`"),
        ("llama : stamp the digest", "llama: stamp the digest", "expected the form `area : what`"),
        ("llama : stamp the digest", "llama : stamp the digest " + "x" * 60, "the limit is 72"),
        ("llama : stamp the digest", "llama : stamp another", "expected llama-stamp-another.patch"),
        ("Because pages need it.\n\n", "", "no reason"),
        ("Forwarded: no, cachegen only", "Reviewed-by: x <x@example.org>", "no `Forwarded:` trailer"),
        ("Forwarded: no, cachegen only", "Forwarded:", "no `Forwarded:` trailer"),
        ("Forwarded: no, cachegen only", "Forwarded: no\n\nOne more paragraph.", "no `Forwarded:` trailer"),
        (f"From {'0' * 40}", f"From {'1' * 40}", "not a zero commit"),
        ("[PATCH]", "[PATCH 2/3]", "subject is numbered"),
        ("src/llama.cpp b/src/llama.cpp", "native/x.cpp b/native/x.cpp", "touches native/x.cpp"),
        ("src/llama.cpp b/src/llama.cpp", "python/x.py b/python/x.py", "touches python/x.py"),
    ],
)
def test_lint_findings(world: World, old: str, new: str, told: str) -> None:
    world.edit_patch(SECOND, old, new)
    out = world.bad("lint")
    assert [line for line in out.splitlines() if line.startswith(f"{SECOND}: ") and told in line], out
    assert "lint failed" in out


def test_lint_sees_other_export_forms(world: World) -> None:
    world.git("config", "core.abbrev", "8")
    data = world.git("format-patch", "--stdout", "--zero-commit", "--stat", "--signature=2.39", "-1", "HEAD~1")
    (world.patches / SECOND).write_text(data + "\n")
    out = world.bad("lint")
    for told in ("abbreviated index line", "ends with a signature", "holds a diffstat"):
        assert f"{SECOND}: " in out and told in out, out


def test_lint_counts_lines_and_binaries(world: World) -> None:
    world.write(src__big_dot_cpp="x\n" * 401)
    (world.repo / "src" / "data.bin").write_bytes(bytes(range(256)) * 4)
    world.commit("llama : big")
    world.good("export")
    out = world.bad("lint")
    assert "llama-big.patch: 401 changed lines, the limit is 400" in out
    assert "llama-big.patch: src/data.bin: binary diff" in out
    assert "README.md: does not mention llama-big.patch" in out
    world.good("verify")


def test_lint_readme(world: World) -> None:
    (world.patches / "README.md").write_text(f"- {FIRST}\n- {SECOND}\n- gone.patch\n")
    out = world.bad("lint")
    assert f"README.md: does not mention {THIRD}" in out and "README.md: mentions gone.patch" in out
    (world.patches / "README.md").unlink()
    assert "README.md: missing" in world.bad("lint")


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (f"{FIRST}\n{SECOND}\n", f"{THIRD}: not listed in .order"),
        (f"{FIRST}\n{SECOND}\n{THIRD}\n{FIRST}\n", f".order: lists {FIRST} twice"),
        (f"{FIRST}\n{SECOND}\n{THIRD}\nno-such.patch\n", ".order: lists no-such.patch, which is not there"),
        (f"{FIRST}\n{SECOND}\n{THIRD}\n../evil.patch\n", "'../evil.patch' is not a patch file name"),
    ],
)
def test_order_errors(world: World, order: str, told: str) -> None:
    (world.patches / ".order").write_text(order)
    assert told in world.bad("lint")
    for command in ("import", "verify", "stats", "digest"):
        assert told in world.bad(command), command


def test_missing_order_file(world: World) -> None:
    (world.patches / ".order").unlink()
    assert f"{FIRST}: not listed in .order" in world.bad("verify")


# ------------------------------------------------------------------------------------------------- stats, usage


def test_stats(world: World) -> None:
    data = json.loads(world.good("stats", "--json"))
    assert data["patches"][1] == {"patch": SECOND, "group": "seam", "files": 2, "added": 2, "removed": 2}
    assert data["patches"][2]["group"] == "tests"
    assert data["total"] == {"patches": 3, "files": 3, "added": 6, "removed": 3}
    assert data["digest"] == world.good("digest").strip()
    table = world.good("stats").splitlines()
    assert table[0].split() == ["patch", "group", "files", "+", "-"] and table[-1].split()[-3:] == ["3", "6", "3"]


@pytest.mark.parametrize("args", [[], ["refresh"], ["nonsense"], ["stats", "--nonsense"]])
def test_usage_errors(world: World, args: list[str]) -> None:
    assert world.run(*args).returncode == 2


def test_environment_names_the_places(world: World) -> None:
    env = {
        **os.environ, "LLAMA_CACHEGEN_REPO": str(world.repo), "LLAMA_CACHEGEN_PATCHES": str(world.patches),
        "LLAMA_CACHEGEN_LOCK": str(world.lock),
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(SCRIPT), "verify"], env=env, capture_output=True, text=True, check=False)
    assert "replay ok: 3 patches" in done.stdout, done.stderr
