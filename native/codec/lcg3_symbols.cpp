#include "lcg3_symbols.h"

#include "bit_pack.h"
#include "bytes.h"
#include "hadamard.h"
#include "lcg3_quantize.h"
#include "native_tile.h"
#include "typed_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cachegen::lcg3 {

namespace {

uint32_t code_bits(uint8_t type) {
    switch (type) {
        case CACHEGEN_TYPE_F32: return 32;
        case CACHEGEN_TYPE_Q8_0: return 8;
        case CACHEGEN_TYPE_Q4_0: return 4;
        default: return 16;
    }
}

// the coded values of one native row: n_channels numbers
void row_codes(uint8_t type, const uint8_t * native, uint32_t n_channels, uint32_t * codes) {
    switch (type) {
        case CACHEGEN_TYPE_F32: memcpy(codes, native, size_t{ n_channels } * 4); break;
        case CACHEGEN_TYPE_Q8_0:
            for (uint32_t c = 0; c < n_channels; c++) {
                codes[c] = native[c / 32 * 34 + 2 + c % 32];
            }
            break;
        case CACHEGEN_TYPE_Q4_0:
            for (uint32_t c = 0; c < n_channels; c++) {
                codes[c] = native[c / 32 * 18 + 2 + c % 16] >> (c % 32 / 16 * 4) & 15;
            }
            break;
        default:
            for (uint32_t c = 0; c < n_channels; c++) {
                codes[c] = get_le<uint16_t>(native + 2 * size_t{ c });
            }
    }
}

void make_lossy(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, token_symbols & out) {
    const uint32_t        n_channels   = plane.record.n_channels;
    const bool            is_unrotated = plane.record.flags & plane_flag_unrotated;
    const uint64_t        group_stride = size_t{ n_tokens } * n_lanes;
    const auto &          quantize     = quantizer();
    metered_vector<float> values(n_channels);
    for (uint32_t t = 0; t < n_tokens; t++) {
        load_tile(*plane.rows, first_token + t, 1, 0, n_channels, values.data(), n_channels);
        if (is_unrotated) {
            hadamard_rows(values.data(), 1, n_channels, n_channels, plane.record.n_rot);
        }
        const float maximum = quantize.max_magnitude(values.data(), n_channels);
        if (!std::isfinite(maximum)) {
            fail(CACHEGEN_ERR_NON_FINITE,
                 "layer %d, kind %u, token %llu holds a NaN or an infinity; only exact and raw planes can keep it",
                 plane.record.layer, plane.record.kind, (unsigned long long) (first_token + t));
        }
        const float scale = make_scale(maximum, plane.record.scale_type, plane.record.type, &out.scales[t]);
        quantize.quantize_row(values.data(), n_channels, scale, plane.n_symbols, &out.symbols[size_t{ t } * n_lanes],
                              group_stride);
    }
}

void make_exact(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, bool has_raw,
                token_symbols & out) {
    const uint32_t n_channels  = plane.record.n_channels;
    const uint8_t  type        = plane.record.type;
    const uint32_t raw_bits    = plane.record.raw_bits;
    const bool     has_blocks  = type == CACHEGEN_TYPE_Q8_0 || type == CACHEGEN_TYPE_Q4_0;
    const uint32_t block_bytes = type == CACHEGEN_TYPE_Q8_0 ? 34 : 18;

    metered_vector<uint8_t>  native(native_bytes(type, n_channels));
    metered_vector<uint32_t> codes(n_channels);
    bit_writer               raw(out.raw);
    for (uint32_t t = 0; t < n_tokens; t++) {
        fetch_native(*plane.rows, first_token + t, 1, 0, n_channels, native.data(), native.size());
        row_codes(type, native.data(), n_channels, codes.data());
        for (uint32_t first = 0; first < n_channels; first += n_lanes) {
            uint8_t * const group = &out.symbols[(size_t{ first } / n_lanes * n_tokens + t) * n_lanes];
            const uint32_t  n     = std::min(n_lanes, n_channels - first);
            for (uint32_t lane = 0; lane < n; lane++) {
                group[lane] = plane.dictionary->symbol_of[codes[first + lane] >> raw_bits];
            }
        }
        for (uint32_t c = 0; has_raw && c < n_channels; c++) {
            raw.put(codes[c] & ((1u << raw_bits) - 1), raw_bits);
        }
        for (uint32_t b = 0; has_blocks && b < n_channels / 32; b++) {
            out.scales[size_t{ t } * (n_channels / 32) + b] = get_le<uint16_t>(&native[size_t{ b } * block_bytes]);
        }
    }
    raw.finish();
}

} // namespace

uint32_t upper_bits_of(uint8_t type) {
    switch (type) {
        case CACHEGEN_TYPE_F16: return 6; // sign and exponent
        case CACHEGEN_TYPE_F32:
        case CACHEGEN_TYPE_BF16: return 9;
        default: return 4;
    }
}

void make_symbols(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, bool has_raw,
                  token_symbols & out) {
    const uint32_t n_channels = plane.record.n_channels;
    const bool     is_exact   = static_cast<plane_mode>(plane.record.mode) == plane_mode::exact;
    const bool     has_blocks = plane.record.type == CACHEGEN_TYPE_Q8_0 || plane.record.type == CACHEGEN_TYPE_Q4_0;
    out.symbols.assign((size_t{ n_channels } + n_lanes - 1) / n_lanes * n_lanes * n_tokens, 0);
    out.scales.assign(size_t{ n_tokens } * (!is_exact ? 1 : has_blocks ? n_channels / 32 : 0), 0);
    out.raw.clear();
    if (is_exact) {
        make_exact(plane, first_token, n_tokens, has_raw, out);
    } else {
        make_lossy(plane, first_token, n_tokens, out);
    }
}

void count_upper_bits(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, uint64_t * counts) {
    const uint32_t           shift = code_bits(plane.record.type) - upper_bits_of(plane.record.type);
    metered_vector<uint8_t>  native(native_bytes(plane.record.type, plane.record.n_channels));
    metered_vector<uint32_t> codes(plane.record.n_channels);
    for (uint32_t t = 0; t < n_tokens; t++) {
        fetch_native(*plane.rows, first_token + t, 1, 0, plane.record.n_channels, native.data(), native.size());
        row_codes(plane.record.type, native.data(), plane.record.n_channels, codes.data());
        for (const uint32_t code : codes) {
            counts[code >> shift]++;
        }
    }
}

bool make_dictionary(const uint64_t * counts, uint8_t type, symbol_dictionary & out) {
    const uint32_t n_values = 1u << upper_bits_of(type);
    const uint32_t sign     = n_values / 2;
    // floats are sign and magnitude, Q8_0 codes two's complement, Q4_0 codes unsigned
    const auto     order_of = [&](uint32_t value) {
        const auto signed_value = static_cast<int32_t>(value);
        switch (type) {
            case CACHEGEN_TYPE_Q4_0: return signed_value;
            case CACHEGEN_TYPE_Q8_0: return value & sign ? signed_value - static_cast<int32_t>(n_values) : signed_value;
            default: return value & sign ? -static_cast<int32_t>(value - sign) - 1 : signed_value;
        }
    };
    metered_vector<uint32_t> present;
    for (uint32_t v = 0; v < n_values; v++) {
        if (counts[v] != 0) {
            present.push_back(v);
        }
    }
    if (present.size() > max_symbols) {
        return false;
    }
    while (present.size() < 2) { // a set has two symbols at least
        present.push_back(present.empty() || present[0] != 0 ? 0 : 1);
    }
    std::sort(present.begin(), present.end(), [&](uint32_t a, uint32_t b) { return order_of(a) < order_of(b); });
    out.n_symbols = static_cast<uint32_t>(present.size());
    for (uint32_t s = 0; s < out.n_symbols; s++) {
        out.values[s]             = present[s];
        out.symbol_of[present[s]] = static_cast<uint8_t>(s);
    }
    return true;
}

} // namespace cachegen::lcg3
