"""Two hosts share the cache of a prompt's beginning by way of a tier, each with a store on a disk of its own.

    python examples/two_hosts.py MODEL.gguf [--tier s3://BUCKET/PREFIX] [--folder FOLDER]

The first host evaluates the beginning and saves it. The second, another process, asks its own store, which is empty and
gets the beginning from the tier; it evaluates only the rest, and its next token is that of a host that evaluated all of
it. Without --tier the tier is a folder: object stores of every kind work alike.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from llama_cachegen import Engine
from llama_cachegen.session_store import identity_of
from llama_cachegen.store import CodecStamp, Store
from llama_cachegen.store.tiers import GuardedTier, TieredStore, TierLimits, open_tier
from numpy.typing import NDArray

EXACT = CodecStamp(name="lcg3", profile="exact")
BLOCK_TOKENS = 32


def prompt(n_rest: int) -> NDArray[np.int32]:
    """A beginning of 96 tokens that all have in common, and the rest of one's own. Any model has these tokens."""
    beginning = np.random.default_rng(1).integers(1, 60, 96)
    return np.concatenate([beginning, np.full(n_rest, n_rest)]).astype(np.int32)


def run_host(model: Path, tier_url: str, folder: Path, n_rest: int) -> None:
    """Evaluate a prompt with the help of the store, save what was not there, and print the next token."""
    tokens = prompt(n_rest)
    tier = GuardedTier(open_tier(tier_url), TierLimits(deadline_s=5.0))
    with (
        Engine(model, n_ctx=512) as engine,
        engine.session() as session,
        Store(folder, block_tokens=BLOCK_TOKENS, min_free_bytes=0) as store,
        TieredStore(store, [tier], codecs=[EXACT]) as tiered,
    ):
        tiered.fetch(identity_of(engine), tokens[:-1])
        restored = session.restore_from(store, tokens[:-1])  # the last one is evaluated: its logits are needed
        session.prefill(tokens[restored.n_tokens :])
        token = int(np.argmax(session.logits()))
        saved = session.save_to(store)
        tiered.offer(saved.key)
    # closing has written back what was saved
    print(
        f"restored {restored.n_tokens} of {len(tokens)} tokens; next token {token}; tier: {tier.counters}", flush=True
    )


def main() -> None:
    """Run one host, or without --host all three."""
    parser = argparse.ArgumentParser(description="Two hosts share a prompt's beginning.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tier")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--host", nargs=2, metavar=("STORE", "N_REST"), help="be one host")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="two-hosts-"))
    tier_url = arguments.tier or f"file://{folder.absolute() / 'tier'}"
    if arguments.host:
        name, n_rest = arguments.host
        run_host(arguments.model, tier_url, folder / name, int(n_rest))
        return
    # the third has the second's prompt and another tier: what evaluating all of it gives
    for name, n_rest, url in (("a", 10, tier_url), ("b", 20, tier_url), ("alone", 20, f"file://{folder / 'no-tier'}")):
        print(f"{name}: ", end="", flush=True)
        command = [sys.executable, __file__, str(arguments.model), "--folder", str(folder), "--tier", url]
        subprocess.run([*command, "--host", name, str(n_rest)], check=True)


if __name__ == "__main__":
    main()
