"""llama.cpp's log, as records of the standard logging module under "llama_cachegen.llama_cpp"."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

from ._binding import llama

_logger = logging.getLogger("llama_cachegen.llama_cpp")

# llama.cpp's "info" (2) is a page of details per model load: debug for the users of a library
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUES = 5

_pending = threading.local()

# llama.cpp reports failures by NULL and a log line; the line is the only reason there is
_last_error = threading.local()


def take_last_error() -> str:
    """The last error line of llama.cpp on this thread since the last call, or an empty string."""
    text: str = getattr(_last_error, "text", "")
    _last_error.text = ""
    return text


def _flush() -> None:
    text = getattr(_pending, "text", "")
    if text:
        _logger.log(_pending.level, "%s", text.rstrip("\n"))
    _pending.text = ""


def _on_log(level: int, text: bytes | None, _user_data: Any) -> None:
    if level != _CONTINUES:
        _flush()
        _pending.level = _LEVELS.get(level, logging.DEBUG)
    elif not hasattr(_pending, "level"):
        _pending.level = logging.DEBUG
    if _pending.level == logging.ERROR and level != _CONTINUES:
        _last_error.text = (text or b"").decode("utf-8", "replace").strip()
    if not _logger.isEnabledFor(_pending.level):
        _pending.text = ""
        return
    _pending.text = getattr(_pending, "text", "") + (text or b"").decode("utf-8", "replace")
    if _pending.text.endswith("\n"):
        _flush()


_callback = llama.llama_log_callback(_on_log)


def install() -> None:
    """Route llama.cpp's and ggml's log to `logging`. llama-cpp-python prints it to stderr before this is called."""
    llama.llama_log_set(_callback, ctypes.c_void_p(0))
