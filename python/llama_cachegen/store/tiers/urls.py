"""A tier by its address."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ...errors import TierSetupError
from ..sizes import parse_size
from .mooncake_tier import MooncakeTier
from .object_tier import ObjectTier
from .redis_tier import RedisTier
from .tier import Tier

__all__ = ["open_tier"]


def open_tier(url: str, *, timeout_s: float = 2.0) -> Tier:
    """The tier at an address. Settings that are not in it come from the environment, for S3 as everywhere (AWS_...).

    Args:
        url: "s3://BUCKET/PREFIX" (also gs, az, file), "redis://HOST:PORT/DB" (also rediss, unix), or
            "mooncake://MASTER:PORT?local_hostname=HOST&buffer=1GiB".
        timeout_s: of one request.

    Raises:
        TierSetupError: no such kind, an impossible address, or its package is missing.
    """
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss", "unix"):
        return RedisTier.from_url(url, timeout_s=timeout_s)
    if parts.scheme in ("s3", "gs", "az", "file"):
        return ObjectTier.from_url(url, timeout_s=timeout_s)
    if parts.scheme == "mooncake":
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        try:
            buffer_bytes = parse_size(options.pop("buffer", "256MiB"))
            n_replicas = int(options.pop("replicas", "1"))
            return MooncakeTier(parts.netloc, buffer_bytes=buffer_bytes, n_replicas=n_replicas, **options)
        except (TypeError, ValueError) as error:
            raise TierSetupError(f"{url}: {error}") from None
    raise TierSetupError(f"{url}: s3, gs, az, file, redis, rediss, unix and mooncake are known, not {parts.scheme!r}")
