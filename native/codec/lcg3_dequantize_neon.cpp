// Symbols and scales to values with NEON.
#include "lcg3_dequantize.h"

#ifdef CACHEGEN_NEON

#    include "half_neon.h"

#    include <cstring>

namespace cachegen::lcg3 {

namespace {

// 16 bytes out of a table of 16 * n_tables bytes
template <uint32_t n_tables> inline uint8x16_t look_up_bytes(const uint8x16x4_t & table, uint8x16_t symbols) {
    if constexpr (n_tables == 1) {
        return vqtbl1q_u8(table.val[0], symbols);
    } else if constexpr (n_tables == 2) {
        return vqtbl2q_u8({ table.val[0], table.val[1] }, symbols);
    } else {
        return vqtbl4q_u8(table, symbols);
    }
}

template <uint32_t n_tables> inline uint8x16x4_t load_table(const uint8_t * bytes) {
    uint8x16x4_t table;
    for (uint32_t i = 0; i < 4; i++) {
        table.val[i] = i < n_tables ? vld1q_u8(bytes + 16 * i) : vdupq_n_u8(0);
    }
    return table;
}

template <uint32_t n_tables> void run(const uint8_t * symbols, const float * levels, const float * scales,
                                      uint64_t n_tokens, float * values, uint64_t value_stride) {
    // byte k of every level is in planes[k]
    uint8x16x4_t planes[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint8x16x4_t split = vld4q_u8(reinterpret_cast<const uint8_t *>(levels + 16 * i));
        for (uint32_t k = 0; k < 4; k++) {
            planes[k].val[i] = split.val[k];
        }
    }
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, values += value_stride) {
        const float32x4_t scale = vdupq_n_f32(scales[t]);
        const auto        store = [&](float * to, uint16x8_t bits) {
            vst1q_f32(to, vmulq_f32(vreinterpretq_f32_u16(bits), scale));
        };
        for (uint32_t v = 0; v < 2; v++) {
            const uint8x16_t symbol = vld1q_u8(symbols + 16 * v);
            uint8x16_t       bytes[4];
            for (uint32_t k = 0; k < 4; k++) {
                bytes[k] = look_up_bytes<n_tables>(planes[k], symbol);
            }
            const auto       halves  = [](uint8x16_t x) { return vreinterpretq_u16_u8(x); };
            const uint16x8_t lower_0 = halves(vzip1q_u8(bytes[0], bytes[1]));
            const uint16x8_t lower_1 = halves(vzip2q_u8(bytes[0], bytes[1]));
            const uint16x8_t upper_0 = halves(vzip1q_u8(bytes[2], bytes[3]));
            const uint16x8_t upper_1 = halves(vzip2q_u8(bytes[2], bytes[3]));
            float * const    to      = values + 16 * v;
            store(to, vzip1q_u16(lower_0, upper_0));
            store(to + 4, vzip2q_u16(lower_0, upper_0));
            store(to + 8, vzip1q_u16(lower_1, upper_1));
            store(to + 12, vzip2q_u16(lower_1, upper_1));
        }
    }
}

} // namespace

void dequantize_neon(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                     uint64_t n_tokens, float * values, uint64_t value_stride) {
    (n_levels <= 16   ? run<1>
     : n_levels <= 32 ? run<2>
                      : run<4>) (symbols, levels, scales, n_tokens, values, value_stride);
}

namespace {

// a table is 64 lower bytes and 64 upper bytes
void make_tables(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens, uint8_t * tables) {
    for (uint64_t t = 0; t < n_tokens; t++, tables += row_table_bytes) {
        const float32x4_t scale  = vdupq_n_f32(scales[t]);
        const auto        values = [&](uint32_t i) { return vmulq_f32(vld1q_f32(levels + i), scale); };
        for (uint32_t i = 0; i < n_levels; i += 16) {
            const uint8x16_t first  = vreinterpretq_u8_u16(fp16_of(values(i), values(i + 4)));
            const uint8x16_t second = vreinterpretq_u8_u16(fp16_of(values(i + 8), values(i + 12)));
            vst1q_u8(tables + i, vuzp1q_u8(first, second));
            vst1q_u8(tables + 64 + i, vuzp2q_u8(first, second));
        }
    }
}

// 16 F16 values
template <uint32_t n_tables> inline void look_up_16(const uint8_t * symbols, const uint8x16x4_t & lower,
                                                    const uint8x16x4_t & upper, uint8_t * values) {
    const uint8x16_t symbol = vld1q_u8(symbols);
    uint8x16x2_t     bytes;
    bytes.val[0] = look_up_bytes<n_tables>(lower, symbol);
    bytes.val[1] = look_up_bytes<n_tables>(upper, symbol);
    vst2q_u8(values, bytes);
}

template <uint32_t n_tables> void look_up_rows(const uint8_t * symbols, const uint8_t * tables, uint64_t n_tokens,
                                               uint8_t * rows, uint64_t stride_bytes, const uint32_t * cells) {
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, tables += row_table_bytes) {
        const uint8x16x4_t lower = load_table<n_tables>(tables);
        const uint8x16x4_t upper = load_table<n_tables>(tables + 64);
        uint8_t * const    row   = rows + (cells ? cells[t] : t) * stride_bytes;
        look_up_16<n_tables>(symbols, lower, upper, row);
        look_up_16<n_tables>(symbols + 16, lower, upper, row + 32);
    }
}

void look_up_any(const uint8_t * symbols, uint32_t n_levels, const uint8_t * tables, uint64_t n_tokens, uint8_t * rows,
                 uint64_t stride_bytes, const uint32_t * cells) {
    (n_levels <= 16   ? look_up_rows<1>
     : n_levels <= 32 ? look_up_rows<2>
                      : look_up_rows<4>) (symbols, tables, n_tokens, rows, stride_bytes, cells);
}

template <uint32_t n_tables>
void look_up_16s(const uint8_t * symbols, uint64_t n, const uint8_t * table, uint8_t * row) {
    const uint8x16x4_t lower = load_table<n_tables>(table);
    const uint8x16x4_t upper = load_table<n_tables>(table + 64);
    uint64_t           i     = 0;
    for (; i + 16 <= n; i += 16) {
        look_up_16<n_tables>(symbols + i, lower, upper, row + 2 * i);
    }
    for (; i < n; i++) {
        row[2 * i]     = table[symbols[i]];
        row[2 * i + 1] = table[64 + symbols[i]];
    }
}

void look_up_row(const uint8_t * symbols, uint64_t n, uint32_t n_levels, const uint8_t * table, uint8_t * row) {
    (n_levels <= 16 ? look_up_16s<1> : n_levels <= 32 ? look_up_16s<2> : look_up_16s<4>) (symbols, n, table, row);
}

} // namespace

const fp16_look_up neon_fp16_look_up = { make_tables, look_up_any, look_up_row };

} // namespace cachegen::lcg3

#endif
