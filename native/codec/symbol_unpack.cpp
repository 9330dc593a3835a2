#include "symbol_unpack.h"

#include "isa.h"

#include <cstring>

namespace cachegen {

static void unpack_4(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    uint64_t i = 0;
    for (; i + 2 <= n; i += 2, packed++) {
        symbols[i]     = *packed & 15;
        symbols[i + 1] = *packed >> 4;
    }
    if (i < n) {
        symbols[i] = *packed & 15;
    }
}

static void unpack_5(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    for (uint64_t i = 0; i < n; i += 8, packed += 5) {
        const uint64_t n_now = n - i < 8 ? n - i : 8;
        uint64_t       bits  = 0; // little-endian, as everywhere in the library
        memcpy(&bits, packed, (n_now * 5 + 7) / 8);
        for (uint64_t k = 0; k < n_now; k++) {
            symbols[i + k] = static_cast<uint8_t>(bits >> 5 * k & 31);
        }
    }
}

const symbol_unpackers scalar_unpackers = { unpack_4, unpack_5 };

const symbol_unpackers & unpackers() {
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: return avx2_unpackers;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: return avx512_unpackers;
#endif
        default: return scalar_unpackers;
    }
}

} // namespace cachegen
