"""llama-cachegen.h from Python: profiles as structs, the sink and the cancellation as callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _binding
from ._binding import ffi, lib
from .backends import evidence_of
from .codec.profiles import Profile
from .ggml_types import GgmlType, type_name
from .page_file import ComponentKind

__all__ = ["Cancel", "ComponentCapability", "FileSink", "component_capabilities", "import_options", "native_profile"]

Cancel = threading.Event
"""Set it to stop a save or a restore between two blocks."""


@dataclasses.dataclass(frozen=True)
class ComponentCapability:
    """What can be done with one component of a context.

    Attributes:
        layer: model layer.
        kind: K, V, an indexer's K or a recurrent state.
        type: ggml type of its tensor.
        transposed: stored channel by channel.
        can_import: its backend decodes LCG3 into it.
        can_export: its backend encodes LCG3 from it.
        can_stage: where its backend cannot, `host_staged=True` takes it by way of host memory.
        backend: name of the backend that holds it.
    """

    layer: int
    kind: ComponentKind
    type: int
    transposed: bool
    can_import: bool
    can_export: bool
    can_stage: bool
    backend: str

    @property
    def evidence(self) -> str:
        """How far the codec on its backend was tried, a value of `backends.Evidence`; "" if nothing is known."""
        known = evidence_of(self.backend)
        return known.level.value if known else ""

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return type_name(self.type)

    @property
    def is_state(self) -> bool:
        """Part of a recurrent state: there is one for a sequence, after its last token."""
        return self.kind >= ComponentKind.STATE_R


def component_capabilities(ctx: Any) -> tuple[ComponentCapability, ...]:
    """Every component, in the order of its page."""
    n = ffi.new("uint32_t *")
    _binding.check(lib.llama_cachegen_get_caps(ctx, lib.LLAMA_CACHEGEN_FORMAT_LCG3, ffi.NULL, 0, n))
    records = ffi.new("struct llama_cachegen_component_caps[]", n[0])
    _binding.check(lib.llama_cachegen_get_caps(ctx, lib.LLAMA_CACHEGEN_FORMAT_LCG3, records, n[0], n))
    return tuple(
        ComponentCapability(
            layer=record.layer,
            kind=ComponentKind(record.kind),
            type=record.type,
            transposed=bool(record.transposed),
            can_import=bool(record.can_import),
            can_export=bool(record.can_export),
            can_stage=bool(record.can_stage),
            backend=ffi.string(record.backend, 32).decode(),
        )
        for record in records
    )


def _scale_type(profile: Profile, source: int) -> int:
    if profile.scale == "bf16":
        return int(GgmlType.BF16)
    return source if source in (GgmlType.F16, GgmlType.BF16) else int(GgmlType.F32)


def native_profile(profile: Profile, components: Sequence[ComponentCapability]) -> tuple[Any, Any]:
    """struct llama_cachegen_profile and one llama_cachegen_coding for each component."""
    native = _binding.new_struct("llama_cachegen_profile")
    native.block_tokens = profile.block_tokens
    native.n_exact_tokens = profile.n_exact_tokens
    native.n_models = profile.n_models
    native.n_classes = profile.n_classes
    native.n_sample_tokens = profile.n_sample_tokens
    native.name = profile.name.encode("ascii").ljust(16, b"\0")
    n_layers = 1 + max(component.layer for component in components)
    codings = ffi.new("struct llama_cachegen_coding[]", len(components))
    for coding, component in zip(codings, components, strict=True):
        coding.layer = component.layer
        coding.kind = int(component.kind)
        if not profile.is_exact and component.kind in (ComponentKind.K, ComponentKind.V):
            kind = "K" if component.kind is ComponentKind.K else "V"
            coding.n_levels = profile.n_levels(kind, component.layer, n_layers)  # type: ignore[arg-type]
            coding.scale_type = _scale_type(profile, component.type)
            coding.is_unrotated = int(profile.unrotate)
    return native, codings


class _Call:
    """What the callbacks of one native call reach through its user data."""

    def __init__(self, cancel: Cancel | None, sink: FileSink | None = None) -> None:
        self.cancel = cancel
        self.sink = sink
        self.error: BaseException | None = None


class FileSink:
    """Writes the pieces of an archive into a file, from an offset on."""

    def __init__(self, fd: int, begin: int) -> None:
        self._fd = fd
        self._begin = begin

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of a piece.

        Raises:
            OSError: the system refuses.
        """
        done = 0
        while done < len(data):
            n = os.pwrite(self._fd, data[done:], self._begin + offset + done)
            if n <= 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            done += n


def _keep_error(_kind: Any, error: BaseException, traceback: Any) -> None:
    """Keep what a callback raised for the caller.

    No `try` inside of the callback can do this: Ctrl-C during a long native call is raised where Python next runs, at
    the callback's very entry.
    """
    if traceback is not None:
        call: _Call = ffi.from_handle(traceback.tb_frame.f_locals["user_data"])
        call.error = error


@ffi.def_extern(error=1, onerror=_keep_error)  # type: ignore[untyped-decorator]
def py_cachegen_write(user_data: Any, offset: int, data: Any, n_bytes: int) -> int:
    """llama_cachegen_write_t: 0 to go on."""
    call: _Call = ffi.from_handle(user_data)
    assert call.sink is not None
    with memoryview(ffi.buffer(data, n_bytes)) as piece:  # no longer than the call: the memory is the library's
        call.sink.write(offset, piece)
    return 0


@ffi.def_extern(error=0, onerror=_keep_error)  # type: ignore[untyped-decorator]
def py_cachegen_go_on(user_data: Any, _done_bytes: int, _total_bytes: int) -> int:
    """llama_cachegen_continue_t: 1 to go on."""
    call: _Call = ffi.from_handle(user_data)
    return int(call.cancel is None or not call.cancel.is_set())


@contextlib.contextmanager
def import_options(
    n_threads: int,
    cancel: Cancel | None,
    sink: FileSink | None = None,
    tokens: NDArray[np.int32] | None = None,
    *,
    host_staged: bool = False,
    place: tuple[int, int] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """struct llama_cachegen_options and the user data that belongs to it.

    `tokens` are those an import restores. `place` is the descriptor and offset of the archive's file: for an import
    that of its mapping, for an export where the library writes to in place of the sink.

    An error of the sink or of `cancel`, KeyboardInterrupt too, is raised in place of the CancelledError it leads to.
    """
    call = _Call(cancel, sink)
    handle = ffi.new_handle(call)
    options = _binding.new_struct("llama_cachegen_options")
    options.n_threads = n_threads
    options.flags = lib.LLAMA_CACHEGEN_HOST_STAGED if host_staged else 0
    options.go_on = lib.py_cachegen_go_on
    options.user_data = handle
    ids = None if tokens is None else ffi.from_buffer("int32_t[]", tokens)
    options.tokens = ffi.NULL if ids is None else ids
    file = ffi.new("struct llama_cachegen_file *")  # lives as long as the call
    if place is not None:
        file.fd, file.offset = place
        options.file = file
    try:
        yield options, handle
    except BaseException:
        if call.error is not None:
            raise call.error from None
        raise
