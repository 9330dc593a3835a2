"""A llama.cpp model with one context: what sessions are made of."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from . import _binding, _log
from ._archive_calls import ComponentCapability, component_capabilities
from ._binding import ffi, lib, llama
from .errors import ContextError, UnsupportedMemoryError
from .ggml_types import GgmlType
from .models import model_digest, resolve_model
from .page_identity import PageIdentity, RopeIdentity

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Capabilities", "Engine"]

_TokenPointer = ctypes.POINTER(llama.llama_token)

_backend_ready = False


def _init_backend() -> None:
    global _backend_ready
    _log.install()
    if not _backend_ready:
        llama.llama_backend_init()
        _backend_ready = True


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the context of an engine can do with pages.

    Attributes:
        supported: False if native pages cannot hold the context's memory; status_name and reason say why.
        n_seq_max: sequence ids are 0 .. n_seq_max - 1.
        n_streams: 1 if all sequences share one pool of cells, else one pool each.
        n_cells: cells in one pool.
        n_components: K and V tensors of a page.
        v_transposed: V is stored channel by channel (flash attention off).
        bytes_per_token: payload of one token.
        memory: class of the context's memory: "dense", "iswa", "recurrent", "hybrid", ...
        archives: what can be done with each component by archives, and where it lies; empty if archives cannot hold
            this memory either: archives_reason then says why.
    """

    supported: bool
    status_name: str
    reason: str
    abi_version: int
    n_seq_max: int
    n_streams: int
    n_cells: int
    n_components: int
    v_transposed: bool
    bytes_per_token: int
    memory: str = ""
    archives: tuple[ComponentCapability, ...] = ()
    archives_reason: str = ""


class Engine:
    """A model and a context.

    Args:
        model: path of a GGUF file, or the name of a fetched model such as "smollm2".
        n_ctx: tokens one sequence can hold.
        type_k, type_v: ggml types of the K and the V cache ("f16", "q8_0", ...).
        flash_attn: True stores V in rows; False stores it transposed, and quantised V is then not possible.
        n_seq_max: sequences (sessions) at a time.
        kv_unified: True lets all sequences share one pool of n_ctx * n_seq_max cells.
        swa_full: of models with a sliding window: True keeps all positions, so that the sequence can be cut back and an
            archive of it restores any prefix; False keeps the window.
        n_batch, n_ubatch: tokens a decode call and a compute graph take.
        n_threads: threads of decode and of page copies; default: all cores.
        n_gpu_layers: layers to offload. Only layers in host memory can be paged.
        rope_freq_base, rope_freq_scale: overrides; 0 takes the model's own.
        namespace: pages are only restored into engines of the same namespace.

    Raises:
        ContextError: the model or the context could not be made; the message holds llama.cpp's reason.
        ModelFetchError: a known model name that was not fetched.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int = 4096,
        type_k: str | int = "f16",
        type_v: str | int = "f16",
        flash_attn: bool = True,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        swa_full: bool = False,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        namespace: str = "",
    ) -> None:
        self._model: Any = None
        self._ctx: Any = None
        self.model_path = Path(resolve_model(model))
        self.type_k = GgmlType.parse(type_k)
        self.type_v = GgmlType.parse(type_v)
        self.namespace = namespace
        self.n_threads = n_threads or os.cpu_count() or 1
        for name, value in (("n_ctx", n_ctx), ("n_seq_max", n_seq_max), ("n_batch", n_batch), ("n_ubatch", n_ubatch)):
            if not 0 < value <= 2**31 - 1:
                raise ContextError(f"{name} is {value}; it must be between 1 and {2**31 - 1}")
        if n_ctx * n_seq_max > 2**31 - 1:
            raise ContextError(f"n_ctx {n_ctx} times n_seq_max {n_seq_max} is more cells than llama.cpp can count")

        _init_backend()
        _log.take_last_error()

        model_params = llama.llama_model_default_params()
        model_params.n_gpu_layers = n_gpu_layers
        self._model = llama.llama_model_load_from_file(os.fsencode(self.model_path), model_params)
        if not self._model:
            raise ContextError(f"{self.model_path} could not be loaded: {_log.take_last_error() or 'no reason given'}")
        self._vocab = llama.llama_model_get_vocab(self._model)

        params = llama.llama_context_default_params()
        params.n_ctx = n_ctx * n_seq_max
        params.n_batch = n_batch
        params.n_ubatch = min(n_ubatch, n_batch)
        params.n_seq_max = n_seq_max
        params.n_threads = self.n_threads
        params.n_threads_batch = self.n_threads
        params.type_k = int(self.type_k)
        params.type_v = int(self.type_v)
        params.flash_attn_type = 1 if flash_attn else 0
        params.kv_unified = kv_unified
        params.swa_full = swa_full
        params.rope_freq_base = rope_freq_base
        params.rope_freq_scale = rope_freq_scale
        params.offload_kqv = n_gpu_layers > 0
        params.no_perf = True
        self._ctx = llama.llama_init_from_model(self._model, params)
        if not self._ctx:
            reason = _log.take_last_error() or "no reason given"
            self.close()
            raise ContextError(
                f"no context with K {self.type_k.type_name}, V {self.type_v.type_name}, flash attention "
                f"{'on' if flash_attn else 'off'}: {reason}"
            )
        self._native_ctx = _binding.context_pointer(self._ctx)
        self._memory = llama.llama_get_memory(self._ctx)
        self._free_seq_ids = list(range(n_seq_max))
        self._sessions: dict[int, Session] = {}
        self.n_seq_max = n_seq_max
        self.swa_full = swa_full
        self._store_identity: Any = None
        self.n_ctx_seq = n_ctx * n_seq_max if kv_unified else int(llama.llama_n_ctx_seq(self._ctx))
        self.n_batch = int(llama.llama_n_batch(self._ctx))
        self.n_vocab = int(llama.llama_vocab_n_tokens(self._vocab))

    # sessions

    def session(self, seq_id: int | None = None) -> Session:
        """A new, empty session on a free sequence id, or on the given one.

        Raises:
            ContextError: no sequence id is free; close a session or raise n_seq_max.
        """
        from .session import Session

        self._check_open()
        if seq_id is None:
            if not self._free_seq_ids:
                raise ContextError(f"all {self.n_seq_max} sequence ids are in use; close a session or raise n_seq_max")
            seq_id = self._free_seq_ids[0]
        elif seq_id not in self._free_seq_ids:
            raise ContextError(f"sequence id {seq_id} is in use or not one of 0 .. {self.n_seq_max - 1}")
        self._free_seq_ids.remove(seq_id)
        session = Session(self, seq_id)
        self._sessions[seq_id] = session
        return session

    def _release(self, seq_id: int) -> None:
        self._sessions.pop(seq_id, None)
        if self._ctx and seq_id not in self._free_seq_ids:
            llama.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
            self._free_seq_ids.append(seq_id)
            self._free_seq_ids.sort()

    # text

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> NDArray[np.int32]:
        """Token ids of a text, shape [n_tokens], int32."""
        self._check_open()
        data = text.encode("utf-8")
        n_max = len(data) + 8
        while True:
            tokens = np.empty(n_max, dtype=np.int32)
            pointer = tokens.ctypes.data_as(_TokenPointer)
            n = int(llama.llama_tokenize(self._vocab, data, len(data), pointer, n_max, add_special, parse_special))
            if n >= 0:
                return np.array(tokens[:n], dtype=np.int32)
            if n == -(2**31):
                raise ContextError(f"a text of {len(data)} bytes has more tokens than fit into 32 bits")
            n_max = -n

    def detokenize(self, tokens: Sequence[int] | NDArray[np.int32]) -> str:
        """Text of token ids; bytes that are no UTF-8 come as replacement characters."""
        self._check_open()
        array = np.ascontiguousarray(tokens, dtype=np.int32)
        n_max = 8 * len(array) + 16
        while True:
            buffer = (ctypes.c_char * n_max)()
            pointer = array.ctypes.data_as(_TokenPointer)
            n = llama.llama_detokenize(self._vocab, pointer, len(array), buffer, n_max, False, True)
            if n >= 0:
                return buffer.raw[:n].decode("utf-8", "replace")
            n_max = -n

    def is_end_of_generation(self, token: int) -> bool:
        """True for tokens after which the model has nothing more to say."""
        return bool(llama.llama_vocab_is_eog(self._vocab, int(token)))

    # pages

    @functools.cached_property
    def has_state(self) -> bool:
        """True if the model keeps a recurrent state, which cannot be cut back to an earlier token."""
        self._check_open()
        return bool(llama.llama_model_is_recurrent(self._model) or llama.llama_model_is_hybrid(self._model))

    def capabilities(self) -> Capabilities:
        """What this context can do with pages, before any page is read."""
        self._check_open()
        caps = _binding.new_struct("llama_kv_page_caps")
        _binding.check(lib.llama_kv_page_get_caps(self._native_ctx, caps))
        supported = caps.status == lib.LLAMA_KV_PAGE_OK
        reason = "" if supported else _binding.last_message()
        archives: tuple[ComponentCapability, ...] = ()
        archives_reason = ""
        try:
            archives = component_capabilities(self._native_ctx)
        except UnsupportedMemoryError as error:
            archives_reason = str(error)
        return Capabilities(
            supported=supported,
            status_name=ffi.string(lib.llama_kv_page_status_name(caps.status)).decode(),
            reason=reason,
            abi_version=caps.abi_version,
            n_seq_max=self.n_seq_max,
            n_streams=caps.n_streams,
            n_cells=caps.n_cells,
            n_components=caps.n_components,
            v_transposed=bool(caps.v_transposed),
            bytes_per_token=caps.bytes_per_token,
            memory=ffi.string(lib.llama_cachegen_memory_class(self._native_ctx)).decode(),
            archives=archives,
            archives_reason=archives_reason,
        )

    @functools.cached_property
    def identity(self) -> PageIdentity:
        """Everything besides the tokens that the K and V values of this context depend on."""
        self._check_open()
        info = _binding.new_struct("llama_kv_page_info")
        _binding.check(lib.llama_kv_page_get_rope(self._native_ctx, info))
        return PageIdentity(
            model_blake3=model_digest(self.model_path),
            model_name=self.model_path.name,
            namespace=self.namespace,
            llama_commit=_binding.LLAMA_COMMIT,
            patch_digest=_binding.PATCH_DIGEST,
            abi_version=_binding.ABI_VERSION,
            rope=RopeIdentity(
                rope_type=info.rope_type,
                n_ctx_orig_yarn=info.n_ctx_orig_yarn,
                freq_base=info.rope_freq_base,
                freq_scale=info.rope_freq_scale,
                yarn_ext_factor=info.yarn_ext_factor,
                yarn_attn_factor=info.yarn_attn_factor,
                yarn_beta_fast=info.yarn_beta_fast,
                yarn_beta_slow=info.yarn_beta_slow,
            ),
        )

    # life

    def _check_open(self) -> None:
        if not self._ctx:
            raise ContextError("the engine is closed")

    def close(self) -> None:
        """Free the context and the model. Sessions of this engine can no longer be used."""
        for session in list(getattr(self, "_sessions", {}).values()):
            session.close()
        if self._ctx:
            llama.llama_free(self._ctx)
            self._ctx = None
        if self._model:
            llama.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # at interpreter exit the bindings may already be gone
        if getattr(self, "_ctx", None) or getattr(self, "_model", None):
            try:
                self.close()
            except Exception:
                pass
