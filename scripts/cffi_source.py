#!/usr/bin/env python3
"""Write the C source of a cffi module from the real C headers.

The declarations between "cdef: begin" and "cdef: end" of each header are what cffi reads, so there is no second copy of
them to keep in step. The C compiler then checks every struct and signature against the same headers (API mode).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from cffi import FFI

STAMP_DECLARATIONS = """
#define LLAMA_KV_PAGE_ABI_VERSION ...
static const char * const BUILD_PATCH_DIGEST;
static const char * const BUILD_LLAMA_COMMIT;
"""

# functions that the library calls and Python defines, by ffi.def_extern()
CALLBACK_DECLARATIONS = """
extern "Python" int32_t py_cachegen_write(void *, uint64_t, const void *, uint64_t);
extern "Python" int32_t py_cachegen_go_on(void *, uint64_t, uint64_t);
"""

STAMP_SOURCE = """

/* what this module was built with; compared with the library's own stamp when it is loaded */
static const char * const BUILD_PATCH_DIGEST = LLAMA_CACHEGEN_PATCH_DIGEST;
static const char * const BUILD_LLAMA_COMMIT = LLAMA_CACHEGEN_LLAMA_COMMIT;
"""


def declarations(header: str) -> str:
    """The part of the header between its cdef marks, without the export macro."""
    match = re.search(r"/\* cdef: begin \*/(.*)/\* cdef: end \*/", header, re.DOTALL)
    if match is None:
        raise SystemExit("the header has no 'cdef: begin' and 'cdef: end' marks")
    return re.sub(r"\b(LLAMA_KV_PAGE|CACHEGEN)_API ", "", match.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--header", type=Path, required=True, action="append", dest="headers")
    parser.add_argument("--module", required=True, help="dotted name of the extension module")
    parser.add_argument("--stamp", action="store_true", help="also declare what the module was built with")
    parser.add_argument("--callbacks", action="store_true", help="also declare what the library calls")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    ffi = FFI()
    for header in args.headers:
        ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    if args.stamp:
        ffi.cdef(STAMP_DECLARATIONS)
    if args.callbacks:
        ffi.cdef(CALLBACK_DECLARATIONS)
    includes = "".join(f'#include "{header.name}"\n' for header in args.headers)
    ffi.set_source(args.module, includes + (STAMP_SOURCE if args.stamp else ""), py_limited_api=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(args.output))


if __name__ == "__main__":
    main()
