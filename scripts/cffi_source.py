#!/usr/bin/env python3
"""Write the C source of the cffi module from the real C header.

The declarations between "cdef: begin" and "cdef: end" of the header are what cffi reads, so there is no second copy of
them to keep in step. The C compiler then checks every struct and signature against the same header (API mode).
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
    parser.add_argument("--header", type=Path, required=True)
    parser.add_argument("--module", required=True, help="dotted name of the extension module")
    parser.add_argument("--stamp", action="store_true", help="also declare what the module was built with")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    ffi = FFI()
    ffi.cdef(declarations(args.header.read_text(encoding="utf-8")) + (STAMP_DECLARATIONS if args.stamp else ""))
    include = f'#include "{args.header.name}"\n'
    ffi.set_source(args.module, include + (STAMP_SOURCE if args.stamp else ""), py_limited_api=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(args.output))


if __name__ == "__main__":
    main()
