// Metal's sources as the build has flattened them: flatten.py writes the definitions.
#pragma once

namespace kernels {

extern const char * const metal_text_decode;
extern const char * const metal_text_encode;
extern const char * const metal_text_legacy;

} // namespace kernels
