#include "typed_store.h"

#include "bytes.h"
#include "isa.h"
#include "native_tile.h"

#include <algorithm>
#include <cmath>

namespace cachegen {

namespace {

using ull = unsigned long long;

void to_fp16(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t i = 0; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_fp16(values[i]));
    }
}

void to_bf16(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t i = 0; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_bf16(values[i]));
    }
}

// of a block of 32; in integers, which compilers turn into vectors
float largest_magnitude(const float * values) {
    int32_t largest = 0;
    for (uint32_t i = 0; i < 32; i++) {
        int32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        largest = std::max(largest, bits & 0x7fffffff);
    }
    return float_from_bits(static_cast<uint32_t>(largest));
}

// Blocks with an infinity or a NaN, as ggml's reference packs them on x86, where a number that no integer can hold
// gives code 0. All instruction sets come here for them.
void pack_odd_block_q8_0(const float * values, uint8_t * row) {
    float largest = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const float magnitude = std::fabs(values[i]);
        largest               = largest > magnitude ? largest : magnitude; // a NaN is taken, and gives way to the next
    }
    const float scale   = largest / 127;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    put_le<uint16_t>(row, fp32_to_fp16(scale));
    for (uint32_t i = 0; i < 32; i++) {
        const float scaled = std::round(values[i] * inverse); // values before a NaN can be larger than `largest`
        row[2 + i]         = std::fabs(scaled) < 0x1p31f ? static_cast<uint8_t>(static_cast<int32_t>(scaled)) : 0;
    }
}

void pack_odd_block_q4_0(const float * values, uint8_t * row) {
    float largest = 0;
    float extreme = 0;
    for (uint32_t i = 0; i < 32; i++) {
        if (largest < std::fabs(values[i])) { // a NaN is left out
            largest = std::fabs(values[i]);
            extreme = values[i];
        }
    }
    const float scale   = extreme / -8;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    put_le<uint16_t>(row, fp32_to_fp16(scale));
    const auto code = [&](uint32_t i) {
        const float shifted = values[i] * inverse + 8.5f;
        // false for a NaN and both infinities: the inverse of a subnormal scale is one
        return shifted > -1 && shifted < 17 ? static_cast<uint32_t>(std::min(15, static_cast<int32_t>(shifted))) : 0u;
    };
    for (uint32_t i = 0; i < 16; i++) {
        row[2 + i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
    }
}

void to_q8_0(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        const float magnitude = largest_magnitude(values + b);
        if (is_odd_block(magnitude)) {
            pack_odd_block_q8_0(values + b, row);
            continue;
        }
        const float scale   = magnitude / 127;
        const float inverse = inverse_scale(scale);
        put_le<uint16_t>(row, fp32_to_fp16(scale));
        for (uint32_t i = 0; i < 32; i++) {
            // halves away from zero: adding the largest number below one half and cutting off cannot round up too far
            const float scaled = values[b + i] * inverse;
            row[2 + i] = static_cast<uint8_t>(static_cast<int32_t>(scaled + std::copysign(0x1.fffffep-2f, scaled)));
        }
    }
}

void to_q4_0(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        // the first value of the largest magnitude, with its sign
        const float magnitude = largest_magnitude(values + b);
        if (is_odd_block(magnitude)) {
            pack_odd_block_q4_0(values + b, row);
            continue;
        }
        uint32_t first = 0;
        while (std::fabs(values[b + first]) != magnitude && first < 31) {
            first++;
        }
        const float extreme = magnitude != 0 ? values[b + first] : 0.0f; // no -0
        const float scale   = extreme / -8;
        const float inverse = inverse_scale(scale);
        const float offset  = q4_0_offset(scale);
        put_le<uint16_t>(row, fp32_to_fp16(scale));
        const auto code = [&](uint32_t i) {
            return static_cast<uint32_t>(std::min(15, static_cast<int32_t>(values[b + i] * inverse + offset)));
        };
        for (uint32_t i = 0; i < 16; i++) {
            row[2 + i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
        }
    }
}

void from_fp16(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t i = 0; i < n; i++) {
        values[i] = fp16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

void from_bf16(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t i = 0; i < n; i++) {
        values[i] = bf16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

void from_q8_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        const float scale = fp16_to_fp32(get_le<uint16_t>(row));
        for (uint32_t i = 0; i < 32; i++) {
            values[b + i] = static_cast<float>(static_cast<int8_t>(row[2 + i])) * scale;
        }
    }
}

void from_q4_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        const float scale = fp16_to_fp32(get_le<uint16_t>(row));
        for (uint32_t i = 0; i < 16; i++) {
            values[b + i]      = static_cast<float>((row[2 + i] & 15) - 8) * scale;
            values[b + i + 16] = static_cast<float>((row[2 + i] >> 4) - 8) * scale;
        }
    }
}

template <typename Element, typename Convert> void transpose(const float * values, uint64_t value_stride, uint8_t * out,
                                                             uint64_t out_stride, const Convert & convert) {
    for (uint32_t c = 0; c < 8; c++) {
        for (uint32_t t = 0; t < 8; t++) {
            put_le<Element>(out + c * out_stride + t * sizeof(Element), convert(values[t * value_stride + c]));
        }
    }
}

void transpose_fp32(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose<float>(values, value_stride, out, out_stride, [](float x) { return x; });
}

void transpose_fp16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose<uint16_t>(values, value_stride, out, out_stride, fp32_to_fp16);
}

void transpose_bf16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose<uint16_t>(values, value_stride, out, out_stride, fp32_to_bf16);
}

uint64_t row_of(const cachegen_rows & rows, uint64_t token) {
    return rows.cells != nullptr ? rows.cells[token] : token;
}

void store_row(const row_converters & to, uint32_t type, const float * values, uint64_t n, uint8_t * row) {
    switch (type) {
        case CACHEGEN_TYPE_F32: memcpy(row, values, n * sizeof(float)); break;
        case CACHEGEN_TYPE_F16: to.to_fp16(values, n, row); break;
        case CACHEGEN_TYPE_BF16: to.to_bf16(values, n, row); break;
        case CACHEGEN_TYPE_Q8_0: to.to_q8_0(values, n, row); break;
        default: to.to_q4_0(values, n, row); break;
    }
}

void load_row(const row_converters & from, uint32_t type, const uint8_t * row, uint64_t n, float * values) {
    switch (type) {
        case CACHEGEN_TYPE_F32: memcpy(values, row, n * sizeof(float)); break;
        case CACHEGEN_TYPE_F16: from.from_fp16(row, n, values); break;
        case CACHEGEN_TYPE_BF16: from.from_bf16(row, n, values); break;
        case CACHEGEN_TYPE_Q8_0: from.from_q8_0(row, n, values); break;
        default: from.from_q4_0(row, n, values); break;
    }
}

void store_transposed(const cachegen_rows & destination, uint64_t first_token, uint64_t n_tokens,
                      uint64_t first_channel, uint64_t n_channels, const float * values, uint64_t value_stride) {
    const auto &   to            = converters();
    const uint64_t element_bytes = native_bytes(destination.type, 1);
    auto * const   data          = static_cast<uint8_t *>(destination.data) + first_channel * destination.stride_bytes;
    const auto     transpose_8x8 = destination.type == CACHEGEN_TYPE_F32   ? to.transpose_fp32
                                   : destination.type == CACHEGEN_TYPE_F16 ? to.transpose_fp16
                                                                           : to.transpose_bf16;
    for (uint64_t t = 0; t < n_tokens;) {
        const uint64_t row   = row_of(destination, first_token + t);
        uint64_t       n_run = 1;
        while (n_run < 8 && t + n_run < n_tokens && row_of(destination, first_token + t + n_run) == row + n_run) {
            n_run++;
        }
        const float * from = values + t * value_stride;
        uint64_t      c    = 0;
        for (; n_run == 8 && c + 8 <= n_channels; c += 8) {
            transpose_8x8(from + c, value_stride, data + c * destination.stride_bytes + row * element_bytes,
                          destination.stride_bytes);
        }
        for (; c < n_channels; c++) {
            for (uint64_t i = 0; i < n_run; i++) {
                store_row(scalar_converters, destination.type, from + i * value_stride + c, 1,
                          data + c * destination.stride_bytes + (row + i) * element_bytes);
            }
        }
        t += n_run;
    }
}

void check_range(const cachegen_rows & rows, uint64_t first_token, uint64_t n_tokens, const void * values) {
    if (values == nullptr) {
        fail(CACHEGEN_ERR_ARGUMENT, "values is NULL");
    }
    if (first_token > rows.n_tokens || n_tokens > rows.n_tokens - first_token) {
        fail(CACHEGEN_ERR_ARGUMENT, "%llu tokens from %llu on, of %llu", (ull) n_tokens, (ull) first_token,
             (ull) rows.n_tokens);
    }
}

} // namespace

const row_converters scalar_converters = { to_fp16,        to_bf16,        to_q8_0,       to_q4_0,
                                           from_fp16,      from_bf16,      from_q8_0,     from_q4_0,
                                           transpose_fp32, transpose_fp16, transpose_bf16 };

const row_converters & converters() {
#ifdef CACHEGEN_AVX2
    if (active_isa() == isa::avx2 || active_isa() == isa::avx512) {
        return avx2_converters;
    }
#endif
#ifdef CACHEGEN_NEON
    if (active_isa() == isa::neon) {
        return neon_converters;
    }
#endif
    return scalar_converters;
}

void validate_rows(const cachegen_rows & rows, const char * what) {
    const bool is_block = is_block_type(rows.type);
    if (!has_typed_store(rows.type, false)) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "%s of type %u; F32, F16, BF16, Q8_0 and Q4_0 are possible", what, rows.type);
    }
    if (rows.is_transposed > 1 || rows.data == nullptr || rows.n_channels == 0) {
        fail(CACHEGEN_ERR_ARGUMENT, "%s without data or channels, or with is_transposed %u", what, rows.is_transposed);
    }
    if (is_block && (rows.is_transposed || rows.n_channels % 32 != 0)) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "%s in blocks of 32 channels cannot be transposed or have %llu channels", what,
             (ull) rows.n_channels);
    }
    const uint64_t n_channels   = rows.n_channels;
    const uint64_t unit_bytes   = is_block ? native_bytes(rows.type, 32) : native_bytes(rows.type, 1);
    const uint64_t row_bytes    = mul_or_fail(is_block ? n_channels / 32 : n_channels, unit_bytes, what);
    // the last row (or channel) needs its own bytes only, not a whole stride
    const uint64_t n_strides    = rows.is_transposed ? n_channels : rows.n_rows;
    const uint64_t stride_needs = rows.is_transposed ? mul_or_fail(rows.n_rows, unit_bytes, what) : row_bytes;
    if (n_strides > 0 && rows.n_rows > 0) {
        if (n_strides > 1 && rows.stride_bytes < stride_needs) {
            fail(CACHEGEN_ERR_ARGUMENT, "%s: a stride of %llu bytes for %llu", what, (ull) rows.stride_bytes,
                 (ull) stride_needs);
        }
        const uint64_t needed = add_or_fail(mul_or_fail(n_strides - 1, rows.stride_bytes, what), stride_needs, what);
        if (needed > rows.n_bytes) {
            fail(CACHEGEN_ERR_ARGUMENT, "%s needs %llu bytes, %llu are there", what, (ull) needed, (ull) rows.n_bytes);
        }
    }
    if (rows.cells == nullptr) {
        if (rows.n_tokens > rows.n_rows) {
            fail(CACHEGEN_ERR_ARGUMENT, "%s: %llu tokens in %llu rows", what, (ull) rows.n_tokens, (ull) rows.n_rows);
        }
        return;
    }
    for (uint64_t t = 0; t < rows.n_tokens; t++) {
        if (rows.cells[t] >= rows.n_rows) {
            fail(CACHEGEN_ERR_ARGUMENT, "%s: token %llu is in cell %u of %llu", what, (ull) t, rows.cells[t],
                 (ull) rows.n_rows);
        }
    }
}

void store_tile(const cachegen_rows & destination, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                uint64_t n_channels, const float * values, uint64_t value_stride) {
    if (destination.is_transposed) {
        store_transposed(destination, first_token, n_tokens, first_channel, n_channels, values, value_stride);
        return;
    }
    const auto & to    = converters();
    auto * const begin = static_cast<uint8_t *>(destination.data) + native_bytes(destination.type, first_channel);
    for (uint64_t t = 0; t < n_tokens; t++) {
        store_row(to, destination.type, values + t * value_stride, n_channels,
                  begin + row_of(destination, first_token + t) * destination.stride_bytes);
    }
}

void load_tile(const cachegen_rows & source, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
               uint64_t n_channels, float * values, uint64_t value_stride) {
    const auto &       from = converters();
    const auto * const data = static_cast<const uint8_t *>(source.data);
    if (source.is_transposed) {
        const uint64_t element_bytes = native_bytes(source.type, 1);
        for (uint64_t c = 0; c < n_channels; c++) {
            const uint8_t * channel = data + (first_channel + c) * source.stride_bytes;
            for (uint64_t t = 0; t < n_tokens; t++) {
                load_row(scalar_converters, source.type, channel + row_of(source, first_token + t) * element_bytes, 1,
                         values + t * value_stride + c);
            }
        }
        return;
    }
    const uint8_t * const begin = data + native_bytes(source.type, first_channel);
    for (uint64_t t = 0; t < n_tokens; t++) {
        load_row(from, source.type, begin + row_of(source, first_token + t) * source.stride_bytes, n_channels,
                 values + t * value_stride);
    }
}

} // namespace cachegen

int32_t cachegen_load_rows(const struct cachegen_rows * source, uint64_t first_token, uint64_t n_tokens,
                           float * values) {
    return cachegen::guard([&] {
        if (source == nullptr) {
            cachegen::fail(CACHEGEN_ERR_ARGUMENT, "source is NULL");
        }
        cachegen::validate_rows(*source, "a source");
        cachegen::check_range(*source, first_token, n_tokens, values);
        cachegen::load_tile(*source, first_token, n_tokens, 0, source->n_channels, values, source->n_channels);
    });
}

int32_t cachegen_store_rows(const struct cachegen_rows * destination, uint64_t first_token, uint64_t n_tokens,
                            const float * values) {
    return cachegen::guard([&] {
        if (destination == nullptr) {
            cachegen::fail(CACHEGEN_ERR_ARGUMENT, "destination is NULL");
        }
        cachegen::validate_rows(*destination, "a destination");
        cachegen::check_range(*destination, first_token, n_tokens, values);
        cachegen::store_tile(*destination, first_token, n_tokens, 0, destination->n_channels, values,
                             destination->n_channels);
    });
}
