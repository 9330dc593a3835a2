// Which instruction set the codec's inner loops use. All of them give the same bits.
#pragma once

#include "cachegen.h"

namespace cachegen {

enum class isa : uint32_t {
    scalar = CACHEGEN_ISA_SCALAR,
    avx2   = CACHEGEN_ISA_AVX2,
    avx512 = CACHEGEN_ISA_AVX512,
    neon   = CACHEGEN_ISA_NEON,
};

// the best one of this processor and build, unless cachegen_isa_select() chose another
isa active_isa() noexcept;

} // namespace cachegen
