// Metal's sources as the build has flattened them: flatten.py writes the definitions.
#pragma once

#include <string>

namespace kernels {

// pieces of a text, as compilers bound the length of a literal, and NULL after the last one
extern const char * const metal_text_decode[];
extern const char * const metal_text_encode[];
extern const char * const metal_text_legacy[];

inline std::string joined(const char * const * pieces) {
    std::string text;
    for (; *pieces != nullptr; pieces++) {
        text += *pieces;
    }
    return text;
}

} // namespace kernels
