// LCG3 symbols with AVX2: four vectors of eight lanes.
#include "rans_decode.h"

#ifdef CACHEGEN_AVX2

#    include <cstring>

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// For each set of lanes that take a word: a byte shuffle that gives each of them the next word, and the others zero.
struct word_shuffles {
    alignas(16) uint8_t bytes[256][16];

    constexpr word_shuffles() : bytes() {
        for (uint32_t mask = 0; mask < 256; mask++) {
            uint8_t next = 0;
            for (uint32_t lane = 0; lane < 8; lane++) {
                const bool takes          = mask >> lane & 1;
                bytes[mask][2 * lane]     = takes ? next++ : 0x80;
                bytes[mask][2 * lane + 1] = takes ? next++ : 0x80;
            }
        }
    }
};

constexpr word_shuffles shuffles;

// Eight table entries. Eight loads are quicker than gather instructions on most processors.
struct entries {
    __m256i low;
    __m256i high;
};

inline entries load_entries(const uint64_t * base, __m256i index) {
    alignas(32) uint32_t i[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(i), index);
    const auto pair = [&](uint32_t a, uint32_t b) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(base + i[a]));
        return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64 *>(base + i[b])));
    };
    const __m256 e_0 = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(pair(0, 1)), pair(4, 5), 1));
    const __m256 e_1 = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(pair(2, 3)), pair(6, 7), 1));
    return { _mm256_castps_si256(_mm256_shuffle_ps(e_0, e_1, 0x88)),
             _mm256_castps_si256(_mm256_shuffle_ps(e_0, e_1, 0xdd)) };
}

// Classes of eight symbols in 32-bit lanes. Bytes 1 to 3 of a lane look up symbol 0, whose class is 0.
template <uint32_t log2_buckets_>
inline __m256i classes_of(__m256i symbol, __m256i classes_0, __m256i classes_1, const uint8_t * class_of) {
    if constexpr (log2_buckets_ == 4) {
        return _mm256_shuffle_epi8(classes_0, symbol);
    } else if constexpr (log2_buckets_ == 5) {
        const __m256i which = _mm256_slli_epi32(symbol, 3); // bit 4 of the symbol into bit 7 of the byte
        return _mm256_blendv_epi8(_mm256_shuffle_epi8(classes_0, symbol), _mm256_shuffle_epi8(classes_1, symbol),
                                  which);
    } else {
        const __m256i bytes = _mm256_i32gather_epi32(reinterpret_cast<const int *>(class_of), symbol, 1);
        return _mm256_and_si256(bytes, _mm256_set1_epi32(0xff));
    }
}

// One vector of eight lanes takes one step.
template <uint32_t log2_buckets_>
inline __m256i step(const uint64_t * base, __m256i table, __m256i & state, const uint8_t *& next_word) {
    constexpr uint32_t shift   = prob_bits - log2_buckets_;
    const __m256i      mask_10 = _mm256_set1_epi32(prob_scale - 1);

    const __m256i slot  = _mm256_and_si256(state, mask_10);
    const entries entry = load_entries(base, _mm256_add_epi32(table, _mm256_srli_epi32(slot, shift)));
    const __m256i u     = _mm256_and_si256(slot, _mm256_set1_epi32((1 << shift) - 1));

    const __m256i is_own = _mm256_cmpgt_epi32(_mm256_srli_epi32(entry.low, 26), u);
    const __m256i half   = _mm256_blendv_epi8(entry.high, entry.low, is_own);
    const __m256i rank   = _mm256_and_si256(_mm256_add_epi32(u, _mm256_srli_epi32(half, 10)), mask_10);

    const __m256i quotient = _mm256_srli_epi32(state, prob_bits);
    const __m256i product  = _mm256_mullo_epi32(_mm256_and_si256(half, mask_10), quotient); // of frequency - 1
    const __m256i x        = _mm256_add_epi32(product, _mm256_add_epi32(quotient, rank));

    const __m256i  needs = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    const uint32_t mask  = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(needs)));
    const __m128i  words = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(next_word)),
                                            _mm_load_si128(reinterpret_cast<const __m128i *>(shuffles.bytes[mask])));
    const __m256i  with_word = _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_cvtepu16_epi32(words));
    state                    = _mm256_blendv_epi8(x, with_word, needs);
    next_word += 2 * static_cast<size_t>(_mm_popcnt_u32(mask));
    return _mm256_and_si256(_mm256_srli_epi32(half, 20), _mm256_set1_epi32(63));
}

template <uint32_t log2_buckets_, bool has_context, uint32_t n_streams>
bool decode(group_stream * streams, uint32_t n_tokens, uint8_t * symbols) {
    const set_tables & tables = *streams[0].tables;
    const uint64_t *   base   = tables.buckets;

    alignas(32) uint8_t class_of[max_symbols + 4] = {}; // a gather reads four bytes
    memcpy(class_of, tables.class_of, max_symbols);
    const __m256i classes_0 = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(class_of)));
    const __m256i classes_1 =
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(class_of + 16)));

    __m256i         state[4 * n_streams];
    __m256i         model[4 * n_streams];
    __m256i         table[4 * n_streams];
    const uint8_t * next_word[n_streams];
    for (uint32_t v = 0; v < 4 * n_streams; v++) {
        const group_stream & stream = streams[v / 4];
        const uint32_t       lane   = 8 * (v % 4);
        state[v]                    = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(stream.state + lane));
        model[v]                    = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(stream.model_offset + lane));
        const __m256i classes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(stream.last_symbol_class + lane)));
        table[v]         = _mm256_add_epi32(model[v], _mm256_slli_epi32(classes, log2_buckets_));
        next_word[v / 4] = stream.next_word;
    }

    // a step takes 32 words at most, and its last vector reads eight
    constexpr int64_t n_safe_bytes = 2 * (32 + 8);
    const auto        is_safe      = [&] {
        bool result = true;
        for (uint32_t i = 0; i < n_streams; i++) {
            result &= streams[i].end_of_readable - next_word[i] >= n_safe_bytes;
        }
        return result;
    };

    uint32_t t = 0;
    for (; t < n_tokens && is_safe(); t++) {
        __m256i symbol[4 * n_streams];
#    pragma GCC unroll 8
        for (uint32_t v = 0; v < 4 * n_streams; v++) {
            symbol[v] = step<log2_buckets_>(base, table[v], state[v], next_word[v / 4]);
            if constexpr (has_context) {
                const __m256i classes = classes_of<log2_buckets_>(symbol[v], classes_0, classes_1, class_of);
                table[v]              = _mm256_add_epi32(model[v], _mm256_slli_epi32(classes, log2_buckets_));
            }
        }
        for (uint32_t i = 0; i < n_streams; i++) {
            const __m256i * own = symbol + 4 * size_t{ i };
            const __m256i   bytes =
                _mm256_packus_epi16(_mm256_packus_epi32(own[0], own[1]), _mm256_packus_epi32(own[2], own[3]));
            const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(symbols + (size_t{ i } * n_tokens + t) * n_lanes), ordered);
        }
    }

    for (uint32_t v = 0; v < 4 * n_streams; v++) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(streams[v / 4].state + 8 * (v % 4)), state[v]);
    }
    for (uint32_t i = 0; i < n_streams; i++) {
        group_stream & stream = streams[i];
        uint8_t *      own    = symbols + size_t{ i } * n_tokens * n_lanes;
        stream.next_word      = next_word[i];
        for (uint32_t lane = 0; lane < n_lanes && t > 0; lane++) {
            stream.last_symbol_class[lane] = class_of[own[size_t{ t - 1 } * n_lanes + lane]];
        }
        if (stream.next_word > stream.end_of_words ||
            (t < n_tokens && !decode_symbols_scalar(&stream, 1, n_tokens - t, own + size_t{ t } * n_lanes))) {
            return false;
        }
    }
    return true;
}

template <uint32_t log2_buckets_, bool has_context>
bool decode_all(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    for (; n_streams >= 2; n_streams -= 2, streams += 2, symbols += size_t{ 2 } * n_tokens * n_lanes) {
        if (!decode<log2_buckets_, has_context, 2>(streams, n_tokens, symbols)) {
            return false;
        }
    }
    return n_streams == 0 || decode<log2_buckets_, has_context, 1>(streams, n_tokens, symbols);
}

} // namespace

bool decode_symbols_avx2(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    const bool has_context = streams[0].tables->n_classes > 1;
    switch (streams[0].tables->log2_n_buckets) {
        case 4:
            return (has_context ? decode_all<4, true> : decode_all<4, false>) (streams, n_streams, n_tokens, symbols);
        case 5:
            return (has_context ? decode_all<5, true> : decode_all<5, false>) (streams, n_streams, n_tokens, symbols);
        default:
            return (has_context ? decode_all<6, true> : decode_all<6, false>) (streams, n_streams, n_tokens, symbols);
    }
}

} // namespace cachegen::lcg3

#endif
