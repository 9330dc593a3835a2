# The cffi module that scripts/cffi_source.py makes from cachegen.h.
from typing import Any

ffi: Any
lib: Any
