"""What others published of their codecs, on their hardware and their data: beside our figures, never among them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PUBLISHED", "Published", "published_lines"]


class Published(NamedTuple):
    """A rate that its authors give. We did not measure it, and it is not of the bytes that a certificate is of."""

    codec: str
    rate: str
    hardware: str
    source: str
    url: str


_DIETGPU = (
    "README of DietGPU",
    "https://github.com/facebookresearch/dietgpu/blob/0262a39a8fdfa53ac6ea956dd66a977616b48846/README.md",
)

PUBLISHED = (
    Published("DietGPU ANS, bytes", "250-410 GB/s", "A100", *_DIETGPU),
    Published("DietGPU float, 16-bit floats", "250-600 GB/s", "A100", *_DIETGPU),
)


def published_lines() -> list[tuple[str, str, str]]:
    """(sentence, name of its source in it, address of that) of each."""
    return [
        (
            f"{one.codec}: around {one.rate} on an {one.hardware}, as published ({one.source}); not measured here",
            one.source,
            one.url,
        )
        for one in PUBLISHED
    ]
