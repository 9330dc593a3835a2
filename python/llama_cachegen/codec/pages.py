"""Pages as archives: every component a plane, identity and tokens kept beside it."""

from __future__ import annotations

import dataclasses

import numpy as np
import xxhash

from ..ggml_types import GgmlType
from ..page import Page, PageComponent
from .archive import Archive, Kind, Plane, encode
from .profiles import Profile

__all__ = ["decode_page", "encode_page", "page_planes"]


def page_planes(page: Page) -> list[Plane]:
    """The components of a page as planes over its own bytes."""
    return [
        Plane(
            data=page.numpy(i),
            type=GgmlType(component.type),
            n_channels=component.n_channels,
            layer=component.layer,
            kind=Kind(int(component.kind)),
            transposed=component.transposed,
            n_rot=component.n_rot,
        )
        for i, component in enumerate(page.components)
    ]


def encode_page(page: Page, profile: str | Profile = "balanced", *, n_threads: int = 1) -> bytes:
    """Encode a page's payload as an LCG3 archive. Identity and tokens are not in it.

    Raises:
        EncodeError, UnsupportedArchiveError, CodecError: as `encode`.
    """
    return encode(page_planes(page), profile, n_threads=n_threads)


def decode_page(data: bytes | memoryview, like: Page, *, n_threads: int = 1) -> Page:
    """A page with the tokens, identity and layout of another one and the values of an archive.

    Args:
        data: the archive.
        like: a page with the archive's number of tokens and planes; its types and layouts may differ.
        n_threads: threads to use.

    Raises:
        ArchiveError, UnsupportedArchiveError, CodecError: as `Archive.decode`.
        ValueError: the archive has other planes than the page.
    """
    payload = np.zeros(like.payload_bytes, dtype=np.uint8)
    components: list[PageComponent] = []
    with Archive(data) as archive:
        if len(archive.planes) != len(like.components):
            raise ValueError(
                f"the archive has {len(archive.planes)} planes, the page {len(like.components)} components"
            )
        destinations = []
        for component in like.components:
            view = payload[component.offset : component.offset + component.n_bytes]
            destinations.append(
                Plane(
                    data=view.reshape(component.n_channels if component.transposed else component.n_tokens, -1),
                    type=GgmlType(component.type),
                    n_channels=component.n_channels,
                    transposed=component.transposed,
                    n_rot=component.n_rot,
                )
            )
        archive.decode(destinations, n_threads=n_threads)
    for component in like.components:
        digest = xxhash.xxh3_64_intdigest(payload[component.offset : component.offset + component.n_bytes].data)
        components.append(dataclasses.replace(component, xxh3=digest))
    payload.flags.writeable = False
    return Page(
        identity=like.identity, pos_begin=like.pos_begin, tokens=like.tokens, components=components, payload=payload
    )
