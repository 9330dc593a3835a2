# The cffi module that scripts/cffi_source.py makes from llama-kv-page.h.
from typing import Any

ffi: Any
lib: Any
