#!/usr/bin/env python3
"""Make the store of the current format version: once, before that version is released, and never again."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from llama_cachegen.store import MeasuredError, Store  # noqa: E402
from store_cases import BLOCK, EXACT, IDENTITY, LOSSY, payload_of  # noqa: E402


def main() -> None:
    target = HERE / "store-1"
    if target.exists():
        raise SystemExit(f"{target} is what others have stored; it is not made anew")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "s")
        clock = iter(range(1_700_000_000, 1_800_000_000))
        with Store(path, block_tokens=BLOCK, min_free_bytes=0, clock=lambda: float(next(clock))) as store:
            for tokens, begin, codec in (
                (list(range(10)), 0, EXACT),
                ([*range(8), 50, 51, 52, 53], 8, EXACT),
                ([7] * 6, 0, LOSSY),
            ):
                store.save(
                    IDENTITY,
                    codec,
                    tokens,
                    payload_of(tokens[begin:]),
                    pos_begin=begin,
                    payload_format="lcg3",
                    decoded_bytes=1000,
                    component_types={"K": "f16", "V": "f16"},
                    measured_error=() if codec.is_exact else [MeasuredError(metric="kl_mean", value=0.015)],
                )
        for name in ("index.sqlite", "index.sqlite-journal", ".lock"):
            Path(path, name).unlink(missing_ok=True)
        shutil.copytree(path, target)
        for empty in ("tmp", "pins", "quarantine"):
            (target / empty).rmdir()


if __name__ == "__main__":
    main()
