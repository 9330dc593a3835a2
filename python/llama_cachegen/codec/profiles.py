"""Profiles: how finely each layer's K and V are quantised. A profile is data; it is not part of any format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

__all__ = ["BALANCED", "EXACT", "FINE", "LMCACHE", "PROFILES", "Profile", "Span", "get_profile"]


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Layers [begin, end) get n_levels levels. end None: to the last layer.

    CacheGen's "bins" b stand for 2 * (b // 2 - 1) + 1 levels: 32 bins for 31 levels, 16 for 15.
    """

    begin: int
    end: int | None
    n_levels: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """A named schedule.

    Attributes:
        name: 1 to 16 printable ASCII characters, kept in the archive.
        key: spans that cover all layers from 0 on, in order; empty: lossless.
        value: the same for V.
        few_layers: levels of both for models with fewer than `few_layers_below` layers, None: as the others.
        few_layers_below: see above.
        scale: "source": as CacheGen does, in the source's own float type; "bf16": 16-bit scales, rounded up.
        n_exact_tokens: first tokens kept as they are (attention sinks).
        unrotate: code the values of rotated caches as they were before the rotation.
        n_models: shared probability models for each number of levels, 1 to 256.
        n_classes: context classes of the token before, 1 (order 0) to 16.
        block_tokens: tokens of a block, the unit of random access, 32 to 65,536.
        n_sample_tokens: tokens that the models are made from, 0: all.

    Raises:
        ValueError: spans that leave a gap or overlap, or numbers out of range.
    """

    name: str
    key: tuple[Span, ...]
    value: tuple[Span, ...]
    few_layers: int | None = None
    few_layers_below: int = 0
    scale: Literal["source", "bf16"] = "bf16"
    n_exact_tokens: int = 0
    unrotate: bool = True
    n_models: int = 32
    n_classes: int = 9
    block_tokens: int = 1024
    n_sample_tokens: int = 1024

    def __post_init__(self) -> None:
        if not (1 <= len(self.name) <= 16 and self.name.isascii() and self.name.isprintable() and " " not in self.name):
            raise ValueError(f"{self.name!r} is no profile name: 1 to 16 printable ASCII characters without spaces")
        if self.scale not in ("source", "bf16"):
            raise ValueError(f"scale {self.scale!r}: choose 'source' or 'bf16'")
        for what, spans in (("key", self.key), ("value", self.value)):
            _check_spans(f"{self.name}.{what}", spans)
        if bool(self.key) != bool(self.value):
            raise ValueError(f"profile {self.name}: either both key and value have spans or neither has")
        for what, number, least, most in (
            ("n_exact_tokens", self.n_exact_tokens, 0, 4096),
            ("n_models", self.n_models, 1, 256),
            ("n_classes", self.n_classes, 1, 16),
            ("block_tokens", self.block_tokens, 32, 65536),
            ("n_sample_tokens", self.n_sample_tokens, 0, 2**32 - 1),
        ):
            if not least <= number <= most:
                raise ValueError(f"profile {self.name}: {what} {number} is not {least} to {most}")

    @property
    def is_exact(self) -> bool:
        """Every bit comes back."""
        return not self.key

    def n_levels(self, kind: Literal["K", "V"], layer: int, n_layers: int) -> int:
        """Levels of a layer's K or V; 0 for an exact profile.

        Raises:
            ValueError: no such layer.
        """
        if not 0 <= layer < n_layers:
            raise ValueError(f"layer {layer} of {n_layers}")
        if self.is_exact:
            return 0
        if self.few_layers is not None and n_layers < self.few_layers_below:
            return self.few_layers
        spans = self.key if kind == "K" else self.value
        return next(span.n_levels for span in spans if span.end is None or layer < span.end)


def _check_spans(what: str, spans: Sequence[Span]) -> None:
    expected = 0
    for i, span in enumerate(spans):
        if span.begin != expected or (span.end is None) != (i == len(spans) - 1):
            raise ValueError(f"{what}: spans must follow each other from layer 0, the last one with end None")
        if span.end is not None:
            if span.end <= span.begin:
                raise ValueError(f"{what}: the span [{span.begin}, {span.end}) is empty")
            expected = span.end
        if not (3 <= span.n_levels <= 63 and span.n_levels % 2 == 1):
            raise ValueError(f"{what}: {span.n_levels} levels; choose an odd number from 3 to 63")


LMCACHE = Profile(
    name="lmcache",
    key=(Span(0, 10, 31), Span(10, None, 15)),
    value=(Span(0, 2, 31), Span(2, None, 15)),
    few_layers=31,
    few_layers_below=10,
    scale="source",
)
"""LMCache's schedule for models it has none for, and its arithmetic: the same values as its own decoder gives."""

BALANCED = Profile(name="balanced", key=(Span(0, None, 31),), value=(Span(0, None, 13),), n_exact_tokens=4)
"""Bits where they are felt: keys fine everywhere, values coarser, attention sinks exact."""

FINE = Profile(name="fine", key=(Span(0, None, 63),), value=(Span(0, None, 31),), n_exact_tokens=4)
"""About twice as fine as `balanced`."""

EXACT = Profile(name="exact", key=(), value=())
"""Lossless: sign and exponent (or the upper half of a block's codes) are entropy-coded, the rest is kept."""

PROFILES = {profile.name: profile for profile in (LMCACHE, BALANCED, FINE, EXACT)}


def get_profile(profile: str | Profile) -> Profile:
    """A profile by name, or the profile itself.

    Raises:
        ValueError: no such name; the message lists them.
    """
    if isinstance(profile, Profile):
        return profile
    try:
        return PROFILES[profile]
    except KeyError:
        raise ValueError(f"no profile {profile!r}; choose one of {', '.join(PROFILES)}, or make a Profile") from None
