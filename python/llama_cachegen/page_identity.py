"""What the K and V values of a page depend on besides its tokens."""

from __future__ import annotations

import math
import sys
from typing import Literal

import msgspec

from .errors import MissReason, PageFileCorruptError, PageFileVersionError, PageMismatchError

__all__ = [
    "ARCHIVE_FORMAT",
    "FORMAT",
    "PageIdentity",
    "RopeIdentity",
    "compare_identity",
    "decode_identity",
    "encode_identity",
    "with_format",
]

FORMAT = "native/1"
ARCHIVE_FORMAT = "lcg3/1"
MAX_IDENTITY_BYTES = 1 << 20


class RopeIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position encoding in effect, defaults resolved. Compared exactly.

    Raises:
        ValueError: a value is not finite, or an integer takes more than 32 bits.
    """

    rope_type: int
    n_ctx_orig_yarn: int
    freq_base: float
    freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not -(2**31) <= value < 2**32:
                raise ValueError(f"rope.{name} takes more than 32 bits")
            if not math.isfinite(value):
                raise ValueError(f"rope.{name} is {value}, which is not finite")


class PageIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model, position encoding and library a page was made with.

    Attributes:
        format: format of the page.
        model_blake3: BLAKE3 of the model file, hexadecimal.
        model_name: for people; never compared.
        namespace: pages are only restored into engines of the same namespace.
        llama_commit: upstream commit of llama.cpp, hexadecimal.
        patch_digest: SHA-256 of the patch stack on it, hexadecimal.
        abi_version: version of the page interface.
        endianness: byte order of the payload.

    Raises:
        ValueError: the ABI version is no 16-bit number, or the namespace is no Unicode text.
    """

    format: str = FORMAT
    model_blake3: str
    model_name: str
    namespace: str = ""
    llama_commit: str
    patch_digest: str
    abi_version: int
    endianness: Literal["little", "big"] = sys.byteorder
    rope: RopeIdentity

    def __post_init__(self) -> None:
        if not 0 <= self.abi_version <= 0xFFFF:
            raise ValueError("abi_version is not a 16-bit number")
        try:
            self.namespace.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"namespace {self.namespace!r} is not Unicode text") from None
        # a file name need not be Unicode text; the model's name is only shown
        msgspec.structs.force_setattr(self, "model_name", self.model_name.encode("utf-8", "replace").decode("utf-8"))


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(PageIdentity, strict=True)


def with_format(identity: PageIdentity, name: str) -> PageIdentity:
    """The same identity, of a file of another format."""
    return msgspec.structs.replace(identity, format=name)


def encode_identity(identity: PageIdentity, expected_format: str = FORMAT) -> bytes:
    """Canonical JSON: keys sorted, no blanks; equal identities give equal bytes.

    Raises:
        ValueError: longer than 1 MiB, or not of the expected format.
    """
    if identity.format != expected_format:
        raise ValueError(f"a page of format {identity.format!r} cannot be made here; {expected_format!r} can")
    data = _encoder.encode(identity)
    if len(data) > MAX_IDENTITY_BYTES:
        raise ValueError(f"the identity takes {len(data)} bytes; at most {MAX_IDENTITY_BYTES} are possible")
    return data


def decode_identity(data: bytes, expected_format: str = FORMAT) -> PageIdentity:
    """The identity of its JSON, which has to name the expected format.

    Raises:
        PageFileCorruptError: no JSON, a field is missing, unknown or of the wrong type, a number is not finite.
        PageFileVersionError: it names another format.
    """
    try:
        identity = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PageFileCorruptError(f"the identity cannot be read: {error}") from error
    if identity.format != expected_format:
        raise PageFileVersionError(f"the page has format {identity.format!r}; {expected_format!r} is expected here")
    return identity


def _short(digest: str) -> str:
    return digest[:12]


def compare_identity(page: PageIdentity, live: PageIdentity) -> None:
    """Refuse a page that was made under another identity than that of the context it is offered to.

    Raises:
        PageMismatchError: for the first difference; `expected` is the live value and `actual` the page's.
    """

    def compare(reason: MissReason, actual: object, expected: object, message: str) -> None:
        if actual != expected:
            raise PageMismatchError(reason, message, expected=expected, actual=actual)

    compare(
        MissReason.MODEL,
        page.model_blake3,
        live.model_blake3,
        f"model_blake3: the page is of {page.model_name} ({_short(page.model_blake3)}), the engine runs "
        f"{live.model_name} ({_short(live.model_blake3)}); load the page's model or evaluate the prompt again",
    )
    compare(
        MissReason.NAMESPACE,
        page.namespace,
        live.namespace,
        f"namespace: the page is of {page.namespace!r}, the engine of {live.namespace!r}; "
        "only an engine of the page's namespace may restore it",
    )
    compare(
        MissReason.LLAMA_COMMIT,
        page.llama_commit,
        live.llama_commit,
        f"llama_commit: the page was made with llama.cpp {_short(page.llama_commit)}, this library is "
        f"{_short(live.llama_commit)}; evaluate the prompt again and save it anew",
    )
    compare(
        MissReason.PATCH_DIGEST,
        page.patch_digest,
        live.patch_digest,
        f"patch_digest: the page was made with patch stack {_short(page.patch_digest)}, this library has "
        f"{_short(live.patch_digest)}; evaluate the prompt again and save it anew",
    )
    compare(
        MissReason.ABI,
        page.abi_version,
        live.abi_version,
        f"abi_version: the page has {page.abi_version}, this library {live.abi_version}; "
        "evaluate the prompt again and save it anew",
    )
    compare(
        MissReason.ENDIANNESS,
        page.endianness,
        live.endianness,
        f"endianness: the page is {page.endianness}-endian, this machine {live.endianness}-endian; "
        "evaluate the prompt again and save it anew",
    )
    for name in RopeIdentity.__struct_fields__:
        actual, expected = getattr(page.rope, name), getattr(live.rope, name)
        compare(
            MissReason.ROPE,
            actual,
            expected,
            f"rope.{name}: the page has {actual}, the context {expected}; "
            "create the context with the page's value or evaluate the prompt again",
        )
