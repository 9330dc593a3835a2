"""LMCache's own codec on the processor, timed: `PYTHON lmcache_side.py FOLDER`, with a Python that has LMCache.

It runs there by its path and knows nothing of this package. FOLDER has call-*.npy, each of shape [layers, 2, tokens,
heads, size] and float16, float32, or uint16 for the bits of bfloat16. Prints one JSON line: version, n_bytes of all
containers, encode_ms and decode_ms of all calls. The first call is made once before and does not count.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def _metadata(folder: Path, n_layers: int, value_type: Any) -> Any:
    """LMCache reads its schedule by the layers of a model's configuration."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    config = {"model_type": "llama", "num_hidden_layers": n_layers, "hidden_size": 64, "vocab_size": 128}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64}
    (model / "config.json").write_text(json.dumps(config))
    return importlib.import_module("lmcache.v1.metadata").LMCacheMetadata(
        model_name=str(model),
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=value_type,
        kv_shape=None,
    )


def main() -> None:
    """Entry; see the module."""
    folder = Path(sys.argv[1])
    torch = importlib.import_module("torch")
    serde = "lmcache.storage_backend.serde"
    calls = []
    for path in sorted(folder.glob("call-*.npy")):
        values = torch.from_numpy(np.load(path))
        calls.append(values.view(torch.bfloat16) if values.dtype == torch.uint16 else values)
    engine = importlib.import_module("lmcache.v1.config").LMCacheEngineConfig.from_defaults(chunk_size=256)
    metadata = _metadata(folder, calls[0].shape[0], calls[0].dtype)
    encoder = importlib.import_module(f"{serde}.cachegen_encoder").CacheGenSerializer(engine, metadata)
    decoder = importlib.import_module(f"{serde}.cachegen_decoder").CacheGenDeserializer(
        engine, metadata, calls[0].dtype
    )
    decoder.from_bytes(encoder.to_bytes(calls[0].clone()))
    encode_s = decode_s = 0.0
    n_bytes = 0
    for values in calls:
        own = values.clone()
        t_start = time.perf_counter()
        container = encoder.to_bytes(own)
        t_encoded = time.perf_counter()
        decoder.from_bytes(container)
        decode_s += time.perf_counter() - t_encoded
        encode_s += t_encoded - t_start
        n_bytes += len(container)
    result = {
        "version": importlib.metadata.version("lmcache"),
        "n_bytes": n_bytes,
        "encode_ms": round(1000 * encode_s, 4),
        "decode_ms": round(1000 * decode_s, 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
