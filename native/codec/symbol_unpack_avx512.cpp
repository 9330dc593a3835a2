// Packed symbols with AVX-512.
#include "symbol_unpack.h"

#ifdef CACHEGEN_AVX512

#    include <immintrin.h>

namespace cachegen {

namespace {

void unpack_4(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    uint64_t i = 0;
    for (; i + 64 <= n; i += 64, packed += 32) {
        const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(packed)));
        const __m512i both  = _mm512_or_si512(bytes, _mm512_slli_epi16(bytes, 4));
        _mm512_storeu_si512(symbols + i, _mm512_and_si512(both, _mm512_set1_epi8(15)));
    }
    scalar_unpackers.unpack_4(packed, n - i, symbols + i);
}

void unpack_5(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    // five bytes for each 64-bit lane, then eight fields of it at bits 0, 5, 10 ...
    alignas(64) uint8_t index[64];
    for (uint32_t k = 0; k < 64; k++) {
        index[k] = static_cast<uint8_t>(k / 8 * 5 + (k % 8 < 5 ? k % 8 : 4));
    }
    const __m512i spread = _mm512_load_si512(index);
    const __m512i fields = _mm512_set1_epi64(0x231e19140f0a0500);
    uint64_t      i      = 0;
    // a load takes 64 bytes of which 40 are used
    for (; i + 104 <= n; i += 64, packed += 40) {
        const __m512i lanes = _mm512_permutexvar_epi8(spread, _mm512_loadu_si512(packed));
        const __m512i wide  = _mm512_multishift_epi64_epi8(fields, lanes);
        _mm512_storeu_si512(symbols + i, _mm512_and_si512(wide, _mm512_set1_epi8(31)));
    }
    scalar_unpackers.unpack_5(packed, n - i, symbols + i);
}

} // namespace

const symbol_unpackers avx512_unpackers = { unpack_4, unpack_5 };

} // namespace cachegen

#endif
