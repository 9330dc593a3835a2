"""Finished steps of a run, one JSON line each, so that a run that was killed goes on where it was.

The first line says what the run measures. A line is on the disk before its step counts as done; a last line that was
cut short is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import JournalError

__all__ = ["Journal"]


class Journal:
    """The journal of one run.

    Args:
        path: of its file.
        setting: what the run measures, by name.
        resume: go on with what is there.

    Raises:
        JournalError: there is one of another setting, or one that is not to be resumed.
    """

    def __init__(self, path: Path, setting: dict[str, Any], *, resume: bool) -> None:
        self.path = path
        self.setting = setting
        self.results: dict[str, dict[str, Any]] = {}
        self.n_resumes = 0
        self._took_s: dict[str, float] = {}
        self.started_utc = ""
        lines = _read(path)
        if lines and not resume:
            raise JournalError(
                f"{path} has {sum('step' in line for line in lines)} finished steps of an interrupted run; go on with "
                "--resume, or drop them with --restart"
            )
        if lines:
            self._take(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        for line in lines:
            self._write(line)
        if not lines:
            self._write({"setting": setting})

    def _take(self, lines: list[dict[str, Any]]) -> None:
        before = lines[0].get("setting")
        if before != self.setting:
            if not isinstance(before, dict):
                raise JournalError(f"{self.path} does not begin with a run's setting; drop it with --restart")
            names = sorted(name for name in {*before, *self.setting} if before.get(name) != self.setting.get(name))
            raise JournalError(
                f"{self.path} is of another run: {', '.join(names)} differ; a certificate is of one setting, so drop "
                "these steps with --restart"
            )
        for line in lines[1:]:
            if "step" in line:
                self.results[line["step"]] = line["result"]
                self._took_s[line["step"]] = line["took_s"]
            elif "dropped" in line:
                for step in [step for step in self.results if step.startswith(line["dropped"])]:
                    del self.results[step]
            elif "started_utc" in line:
                self.started_utc = self.started_utc or line["started_utc"]
                self.n_resumes += 1

    def started(self, now_utc: str) -> None:
        """Note that the run began, or goes on."""
        self.started_utc = self.started_utc or now_utc
        self._write({"started_utc": now_utc})

    @property
    def took_s(self) -> float:
        """Of all finished steps together."""
        return sum(self._took_s[step] for step in self.results)

    def add(self, step: str, result: dict[str, Any], *, took_s: float) -> None:
        """Note a finished step."""
        self.results[step] = result
        self._took_s[step] = round(took_s, 3)
        self._write({"step": step, "took_s": self._took_s[step], "result": result})

    def drop(self, prefix: str) -> None:
        """Forget the steps whose names begin with a prefix."""
        for step in [step for step in self.results if step.startswith(prefix)]:
            del self.results[step]
        self._write({"dropped": prefix})

    def _write(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    pieces = text.split("\n")
    for number, piece in enumerate(pieces[:-1], start=1):  # what follows the last newline was cut short
        try:
            line = json.loads(piece)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise JournalError(f"{path}, line {number} is damaged; drop the run with --restart")
        lines.append(line)
    return lines
