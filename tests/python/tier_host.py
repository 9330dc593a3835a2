"""A host of its own: a process with a store on its own disk and a tier. Saves a prompt, prints what it has, as JSON.

Usage: tier_host.py KIND PORT STORE N_TOKENS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import blake3
from llama_cachegen.store.tiers.adopting import read_segment
from store_cases import EXACT, IDENTITY, check_snapshot, payload_of
from tier_cases import guarded, host, raw_tier


def main() -> None:
    kind, port, path, n_tokens = sys.argv[1:]
    tokens = list(range(int(n_tokens)))
    tier = guarded(raw_tier(kind, int(port)))
    with host(Path(path), tier) as tiered:
        begin = tiered.missing_from(IDENTITY, EXACT, tokens)
        tiered.save(
            IDENTITY, EXACT, tokens, payload_of(tokens[begin:], 100_000), pos_begin=begin, payload_format="lcg3",
            decoded_bytes=1000, component_types={"K": "f16", "V": "f16"},
        )  # fmt: skip
        with tiered.snapshot(IDENTITY, tokens) as snapshot:
            n_found = check_snapshot(snapshot, tokens)
        segments = {
            row.key.hex(): blake3.blake3(read_segment(tiered.store, row.key)).hexdigest()
            for row, _ in tiered.store.entries()
        }
        counters = tier.counters
        print(json.dumps({"n_tokens": n_found, "segments": segments, "n_puts": counters.n_puts,
                          "n_hits": counters.n_hits, "error": tier.last_error}))  # fmt: skip


main()
