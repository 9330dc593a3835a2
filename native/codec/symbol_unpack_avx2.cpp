// Packed symbols with AVX2.
#include "symbol_unpack.h"

#ifdef CACHEGEN_AVX2

#    include <immintrin.h>

namespace cachegen {

namespace {

void unpack_4(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    const __m256i mask = _mm256_set1_epi8(15);
    uint64_t      i    = 0;
    for (; i + 64 <= n; i += 64, packed += 32) {
        // quarters 0 and 2 of the bytes into the lower half of the lanes, so that interleaving keeps their order
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(packed)),
                                                       _MM_SHUFFLE(3, 1, 2, 0));
        const __m256i even  = _mm256_and_si256(bytes, mask);
        const __m256i odd   = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(symbols + i), _mm256_unpacklo_epi8(even, odd));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(symbols + i + 32), _mm256_unpackhi_epi8(even, odd));
    }
    scalar_unpackers.unpack_4(packed, n - i, symbols + i);
}

// 16 symbols out of 10 bytes, in 16-bit lanes: each lane gets the two bytes its symbol lies in, shifted to the top
inline __m256i sixteen(const uint8_t * packed) {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(packed)));
    const __m256i spread =
        _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6, 5, 6, 6, 7, 6,
                                                    7, 7, 8, 8, 9, 8, 9, 9, 10));
    const __m256i shifted =
        _mm256_mullo_epi16(spread, _mm256_setr_epi16(1 << 11, 1 << 6, 1 << 9, 1 << 4, 1 << 7, 1 << 10, 1 << 5, 1 << 8,
                                                     1 << 11, 1 << 6, 1 << 9, 1 << 4, 1 << 7, 1 << 10, 1 << 5, 1 << 8));
    return _mm256_srli_epi16(shifted, 11);
}

void unpack_5(const uint8_t * packed, uint64_t n, uint8_t * symbols) {
    uint64_t i = 0;
    // a load takes 16 bytes of which 10 are used: 16 symbols more keep the second one inside
    for (; i + 48 <= n; i += 32, packed += 20) {
        const __m256i joined = _mm256_packus_epi16(sixteen(packed), sixteen(packed + 10));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(symbols + i),
                            _mm256_permute4x64_epi64(joined, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    scalar_unpackers.unpack_5(packed, n - i, symbols + i);
}

} // namespace

const symbol_unpackers avx2_unpackers = { unpack_4, unpack_5 };

} // namespace cachegen

#endif
