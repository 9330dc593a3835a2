"""What an entry of a store depends on besides its tokens: the page's identity, the cache's geometry, and the codec."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from ..errors import MissReason
from ..page_file import PageComponent
from ..page_identity import PageIdentity, RopeIdentity

__all__ = [
    "Adapter",
    "CodecStamp",
    "ComponentGroup",
    "Difference",
    "StoreIdentity",
    "component_groups",
    "first_codec_difference",
    "first_difference",
    "store_identity",
]

KNOWN_CODECS = {"native": 1, "lcg1": 1, "lcg2": 1, "lcg3": 1}
"""Newest version of each codec whose entries this version reads."""

_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_LAYERS = re.compile(r"\d{1,10}(?:-\d{1,10})?(?:,\d{1,10}(?:-\d{1,10})?)*\Z")
_MAX_LAYERS = 65536


def _check_text(**values: str) -> None:
    for name, value in values.items():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name} {value!r} is not Unicode text") from None


def _check_hex(**values: str) -> None:
    for name, value in values.items():
        if not _HEX.match(value):
            raise ValueError(f"{name} {value[:80]!r} is not hexadecimal")


class ComponentGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Components of a cache that differ in their layer only.

    Attributes:
        kind: "K", "V" or another of `ComponentKind`.
        layers: ascending, for example "0-29" or "0,2,4-6".
        type: ggml's name of the type.
        n_rot: size of the Hadamard rotation of the values, 0 for none.
        transposed: V is stored channel by channel.
        n_channels: values of one token.

    Raises:
        ValueError: the layers are not written like that.
    """

    kind: str
    layers: str
    type: str
    n_rot: int
    transposed: bool
    n_channels: int

    def __post_init__(self) -> None:
        if not _LAYERS.match(self.layers):
            raise ValueError(f'layers {self.layers[:80]!r} are not written as "0-29" or "0,2,4-6"')
        for number in (self.n_rot, self.n_channels):
            if not 0 <= number < 2**32:
                raise ValueError(f"{self.kind}: {number} takes more than 32 bits")

    def layer_numbers(self) -> Iterator[int]:
        """Each layer.

        Raises:
            ValueError: more than 65,536.
        """
        n = 0
        for part in self.layers.split(","):
            begin, _, end = part.partition("-")
            numbers = range(int(begin), int(end or begin) + 1)
            n += len(numbers)
            if n > _MAX_LAYERS:
                raise ValueError(f"layers {self.layers[:80]!r} are more than {_MAX_LAYERS}")
            yield from numbers


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA or control vector that was in effect, by its content.

    Attributes:
        kind: "lora" or "control-vector".
        blake3: BLAKE3 of its file, hexadecimal.
        scale: its strength.
    """

    kind: Literal["lora", "control-vector"]
    blake3: str
    scale: float

    def __post_init__(self) -> None:
        _check_hex(blake3=self.blake3)
        if not abs(self.scale) < float("inf"):
            raise ValueError(f"an adapter's scale is {self.scale}, which is not finite")


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything besides tokens and codec that the bytes of an entry depend on.

    Attributes:
        model_blake3: BLAKE3 of the model file, hexadecimal: its weights and its hyper-parameters.
        model_name: for people; never compared.
        hparams: hyper-parameters that were overridden when the model was loaded, "key=value" each, sorted.
        namespace: entries are only found by callers of the same namespace.
        components: the geometry of the cache, as `component_groups` writes it.
        swa_window: tokens of the sliding window, 0 for none.
        swa_policy: what the cache keeps of such layers: "none" (there are none), "window" or "full".
        rope: the position encoding in effect, defaults resolved.
        adapters: in the order in which they were applied.
        llama_commit: upstream commit of llama.cpp, hexadecimal.
        patch_digest: SHA-256 of the patch stack on it, hexadecimal.
        abi_version: version of the page interface.
        endianness: byte order of native values.

    Raises:
        ValueError: a text is no Unicode, a digest not hexadecimal, or a number out of range.
    """

    model_blake3: str
    model_name: str
    hparams: tuple[str, ...] = ()
    namespace: str = ""
    components: tuple[ComponentGroup, ...]
    swa_window: int = 0
    swa_policy: Literal["none", "window", "full"] = "none"
    rope: RopeIdentity
    adapters: tuple[Adapter, ...] = ()
    llama_commit: str
    patch_digest: str
    abi_version: int
    endianness: Literal["little", "big"] = sys.byteorder

    def __post_init__(self) -> None:
        _check_text(namespace=self.namespace, **{f"hparams[{i}]": text for i, text in enumerate(self.hparams)})
        _check_hex(model_blake3=self.model_blake3, llama_commit=self.llama_commit, patch_digest=self.patch_digest)
        if not 0 <= self.abi_version <= 0xFFFF:
            raise ValueError("abi_version is not a 16-bit number")
        if not 0 <= self.swa_window < 2**31:
            raise ValueError("swa_window is negative or takes more than 31 bits")
        if list(self.hparams) != sorted(self.hparams):
            raise ValueError("hparams are not sorted")
        msgspec.structs.force_setattr(self, "model_name", self.model_name.encode("utf-8", "replace").decode("utf-8"))


class CodecStamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the values of an entry are coded.

    Attributes:
        name: "native", "lcg1", "lcg2" or "lcg3".
        version: of the codec's format.
        profile: name of the encoder's profile, "" for native bytes.
        calibration: digest of what fixes the quantiser besides the values (a profile's numbers, tables made from a
            sample), hexadecimal; "" if nothing does.
        entry_class: "exact" if every bit of the cache comes back, else "lossy". It says so of the entry and of all it
            was computed from: what was evaluated after a lossy restore is lossy.

    Raises:
        ValueError: native bytes that are called lossy, or a digest that is not hexadecimal.
    """

    name: str
    version: int = 1
    profile: str = ""
    calibration: str = ""
    entry_class: Literal["exact", "lossy"] = "exact"

    def __post_init__(self) -> None:
        _check_text(name=self.name, profile=self.profile)
        _check_hex(calibration=self.calibration)
        if not 1 <= self.version <= 0xFFFF:
            raise ValueError(f"codec version {self.version} is not a 16-bit number from 1 on")

    @property
    def is_exact(self) -> bool:
        """Every bit of the cache comes back."""
        return self.entry_class == "exact"

    @property
    def title(self) -> str:
        """For people: "lcg3/1 balanced, lossy"."""
        profile = f" {self.profile}" if self.profile else ""
        return f"{self.name}/{self.version}{profile}, {self.entry_class}"


def component_groups(components: Sequence[PageComponent]) -> tuple[ComponentGroup, ...]:
    """The geometry of a cache in one way of writing it: equal caches give equal groups."""
    layers: dict[tuple[int, str, str, int, bool, int], list[int]] = {}
    for c in components:
        key = (int(c.kind), c.kind.name, c.type_name, c.n_rot, bool(c.transposed), c.n_channels)
        layers.setdefault(key, []).append(c.layer)
    groups = [(key, sorted(numbers)) for key, numbers in layers.items()]
    groups.sort(key=lambda group: (group[0][0], group[1], group[0]))
    return tuple(
        ComponentGroup(
            kind=kind, layers=_ranges(numbers), type=type_, n_rot=n_rot, transposed=transposed, n_channels=n_channels
        )
        for (_, kind, type_, n_rot, transposed, n_channels), numbers in groups
    )


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in parts)


def store_identity(
    page: PageIdentity,
    components: Sequence[PageComponent],
    *,
    hparams: Sequence[str] = (),
    swa_window: int = 0,
    swa_policy: Literal["none", "window", "full"] = "none",
    adapters: Sequence[Adapter] = (),
) -> StoreIdentity:
    """The identity of a page's entry.

    Args:
        page: identity of the page or of the engine.
        components: of the page or of the cache.
        hparams, swa_window, swa_policy, adapters: what a page's identity does not have; see `StoreIdentity`.

    Raises:
        ValueError: as `StoreIdentity`.
    """
    return StoreIdentity(
        model_blake3=page.model_blake3,
        model_name=page.model_name,
        hparams=tuple(sorted(hparams)),
        namespace=page.namespace,
        components=component_groups(components),
        swa_window=swa_window,
        swa_policy=swa_policy,
        rope=page.rope,
        adapters=tuple(adapters),
        llama_commit=page.llama_commit,
        patch_digest=page.patch_digest,
        abi_version=page.abi_version,
        endianness=page.endianness,
    )


# comparison


class Difference(NamedTuple):
    """The first field in which an entry differs from what was asked for.

    Attributes:
        rank: place of the field in the order of comparison; the higher, the more is the same.
        reason: for a receipt.
        field: its name, for example "rope.freq_base".
        actual: its value in the store.
        expected: its value in the question.
    """

    rank: int
    reason: MissReason
    field: str
    actual: object
    expected: object

    @property
    def detail(self) -> str:
        """Both values in words."""
        return f"{self.field}: the store's entry has {self.actual!r}, {self.expected!r} was asked for"


def _geometry(identity: StoreIdentity) -> dict[tuple[str, int], ComponentGroup]:
    return {(group.kind, layer): group for group in identity.components for layer in group.layer_numbers()}


def _fields(identity: StoreIdentity) -> Iterator[tuple[MissReason, str, object]]:
    """All that is compared, in order. Components come as one value; `_component_difference` takes them apart."""
    yield MissReason.MODEL, "model_blake3", identity.model_blake3
    yield MissReason.HPARAMS, "hparams", identity.hparams
    yield MissReason.NAMESPACE, "namespace", identity.namespace
    yield MissReason.COMPONENTS, "components", identity.components
    yield MissReason.WINDOW, "swa_window", identity.swa_window
    yield MissReason.WINDOW, "swa_policy", identity.swa_policy
    for name in RopeIdentity.__struct_fields__:
        yield MissReason.ROPE, f"rope.{name}", getattr(identity.rope, name)
    yield MissReason.ADAPTERS, "adapters", identity.adapters
    yield MissReason.LLAMA_COMMIT, "llama_commit", identity.llama_commit
    yield MissReason.PATCH_DIGEST, "patch_digest", identity.patch_digest
    yield MissReason.ABI, "abi_version", identity.abi_version
    yield MissReason.ENDIANNESS, "endianness", identity.endianness


def first_difference(entry: StoreIdentity, asked: StoreIdentity) -> Difference | None:
    """The first field in which an entry's identity differs from the one asked for; None if none does."""
    for rank, ((reason, name, actual), (_, _, expected)) in enumerate(zip(_fields(entry), _fields(asked), strict=True)):
        if actual == expected:
            continue
        if name == "components":
            return _component_difference(rank, entry, asked)
        return Difference(rank, reason, name, actual, expected)
    return None


def _component_difference(rank: int, entry: StoreIdentity, asked: StoreIdentity) -> Difference:
    have, want = _geometry(entry), _geometry(asked)
    if have.keys() != want.keys():
        kind, layer = min(have.keys() ^ want.keys())
        place = f"{kind} of layer {layer}"
        return Difference(rank, MissReason.COMPONENTS, place, (kind, layer) in have, (kind, layer) in want)
    for attribute, reason in (
        ("type", MissReason.TYPE),
        ("n_rot", MissReason.ROTATION),
        ("transposed", MissReason.LAYOUT),
        ("n_channels", MissReason.WIDTH),
    ):
        for (kind, layer), group in sorted(have.items(), key=lambda item: item[0]):
            actual, expected = getattr(group, attribute), getattr(want[kind, layer], attribute)
            if actual != expected:
                return Difference(rank, reason, f"{attribute} of {kind} of layer {layer}", actual, expected)
    return Difference(rank, MissReason.COMPONENTS, "components", entry.components, asked.components)


def first_codec_difference(entry: CodecStamp, asked: CodecStamp) -> Difference | None:
    """The same of codecs. The class comes first: a lossy entry never stands in for an exact one."""
    for rank, name in enumerate(("entry_class", "name", "version", "profile", "calibration")):
        actual, expected = getattr(entry, name), getattr(asked, name)
        if actual != expected:
            reason = MissReason.EXACTNESS if name == "entry_class" else MissReason.CODEC
            return Difference(100 + rank, reason, name, actual, expected)
    return None
