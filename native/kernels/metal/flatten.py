#!/usr/bin/env python3
"""Write Metal sources with their headers as one C++ file of strings: Metal's compiler is given a text, not files.

    flatten.py --output metal_sources.cpp decode.metal encode.metal legacy.metal

Each becomes metal_text_<name>. #include "..." is replaced by the file, once; conditions on what compiler reads the
text are decided here, so that headers of other devices are left out; #include <...> and all else stays. #line keeps
the compiler's messages about the files. Whatever is not understood ends it with a message.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

# what is defined when Metal's compiler reads the text
KNOWN = {"__METAL_VERSION__": True, "__HIP__": False, "__CUDACC__": False, "__cplusplus": True}
LINES_A_LITERAL = 50
DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)")


class FlattenError(Exception):
    """A source that cannot be flattened; the message has its place."""


@dataclass
class Condition:
    """An #if that is open."""

    is_known: bool  # decided here, its lines are left out
    is_taken: bool  # the current branch is in the text
    was_taken: bool  # some branch was


def value_of(expression: str) -> bool | None:
    """True or false for a condition on the compiler, None for another one."""
    expression = re.sub(r"//.*|/\*.*?\*/", "", expression).strip()
    found = re.fullmatch(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?", expression)
    if found is None or found[2] not in KNOWN:
        return None
    return KNOWN[found[2]] != bool(found[1])


class Flattener:
    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.seen: dict[Path, bool] = {}  # with #pragma once?
        self.lines: list[str] = []

    def find(self, name: str, base: Path, where: str) -> Path:
        for folder in (base, *self.folders):
            if (folder / name).is_file():
                return (folder / name).resolve()
        raise FlattenError(f"{where}: no {name} in {', '.join(str(folder) for folder in (base, *self.folders))}")

    def add(self, path: Path) -> None:
        conditions: list[Condition] = []
        self.seen[path] = False
        is_new = True  # the next line does not follow the one before it
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path}:{number}"
            directive = DIRECTIVE.match(line)
            word = directive[1] if directive else ""
            rest = directive[2].strip() if directive else ""
            if self.is_decided(word, rest, conditions, where) or not all(one.is_taken for one in conditions):
                is_new = True
            elif word == "pragma" and rest == "once":
                self.seen[path] = True
                is_new = True
            elif word == "include" and rest.startswith('"'):
                if any(not one.is_known for one in conditions):
                    raise FlattenError(f"{where}: included under a condition that is not known here")
                included = self.find(rest.split('"')[1], path.parent, where)
                if included not in self.seen:
                    self.add(included)
                elif not self.seen[included]:
                    raise FlattenError(f"{where}: included twice, without #pragma once")
                is_new = True
            else:
                if is_new:
                    self.lines.append(f'#line {number} "{path.name}"')
                self.lines.append(line)
                is_new = False
        if conditions:
            raise FlattenError(f"{path}: an #if without its #endif")

    @staticmethod
    def is_decided(word: str, rest: str, conditions: list[Condition], where: str) -> bool:
        """Follow a conditional directive; true: it is left out."""
        if word in ("if", "ifdef", "ifndef"):
            prefix = {"if": "", "ifdef": "defined ", "ifndef": "!defined "}[word]
            value = value_of(prefix + rest)
            conditions.append(Condition(value is not None, value is not False, value is True))
        elif word in ("elif", "else", "endif"):
            if not conditions:
                raise FlattenError(f"{where}: #{word} without an #if")
            last = conditions[-1]
            if word == "endif":
                conditions.pop()
            elif last.is_known:
                value = value_of(rest) if word == "elif" else True
                if value is None and not last.was_taken:
                    raise FlattenError(f"{where}: a condition that is not known here, after one that is")
                last.is_taken = value is True and not last.was_taken
                last.was_taken = last.was_taken or last.is_taken
            return last.is_known
        else:
            return False
        return conditions[-1].is_known


def flatten(path: Path, folders: list[Path]) -> str:
    """The text of a source with all it includes."""
    flattener = Flattener(folders)
    flattener.add(path.resolve())
    return "\n".join(flattener.lines) + "\n"


def as_pieces(text: str) -> str:
    """An array of C++ literals: compilers bound the length of one."""
    lines = text.splitlines(keepends=True)
    if ')msl"' in text:
        raise FlattenError('the text holds )msl"')
    pieces = ["".join(lines[at : at + LINES_A_LITERAL]) for at in range(0, len(lines), LINES_A_LITERAL)]
    return "{\n" + "".join(f'R"msl({piece})msl",\n' for piece in pieces) + "nullptr }"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--include", type=Path, action="append", default=[], help="folder of headers, besides their own"
    )
    parser.add_argument("sources", type=Path, nargs="+")
    arguments = parser.parse_args()
    try:
        texts = {path.stem: as_pieces(flatten(path, arguments.include)) for path in arguments.sources}
    except (FlattenError, OSError) as error:
        raise SystemExit(f"flatten: {error}") from error
    definitions = "\n".join(f"const char * const metal_text_{name}[] = {text};\n" for name, text in texts.items())
    head = '// Written by flatten.py.\n#include "metal_sources.h"\n\nnamespace kernels {\n\n'
    arguments.output.write_text(f"{head}{definitions}\n}} // namespace kernels\n", encoding="utf-8")


if __name__ == "__main__":
    main()
