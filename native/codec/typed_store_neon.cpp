// Typed rows with NEON.
#include "typed_store.h"

#ifdef CACHEGEN_NEON

#    include "bytes.h"
#    include "half_neon.h"

namespace cachegen {

namespace {

inline void store_8(uint8_t * to, uint16x8_t value) {
    vst1q_u8(to, vreinterpretq_u8_u16(value));
}

inline uint16x8_t load_8(const uint8_t * from) {
    return vreinterpretq_u16_u8(vld1q_u8(from));
}

void to_fp16(const float * values, uint64_t n, uint8_t * row) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store_8(row + 2 * i, fp16_of(vld1q_f32(values + i), vld1q_f32(values + i + 4)));
    }
    for (; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_fp16(values[i]));
    }
}

void to_bf16(const float * values, uint64_t n, uint8_t * row) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store_8(row + 2 * i, bf16_of(vld1q_f32(values + i), vld1q_f32(values + i + 4)));
    }
    for (; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_bf16(values[i]));
    }
}

// A block of 32 values and the largest magnitude among them.
struct block {
    float32x4_t x[8];
    float       magnitude;

    explicit block(const float * values) {
        // in integers: the order of magnitudes is that of their bit patterns, infinities and NaN last
        uint32x4_t largest = vdupq_n_u32(0);
        for (uint32_t v = 0; v < 8; v++) {
            x[v]    = vld1q_f32(values + 4 * v);
            largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(x[v])));
        }
        magnitude = float_from_bits(vmaxvq_u32(largest));
    }
};

// the lowest bytes of 16 lanes
inline uint8x16_t lowest_bytes(const uint32x4_t * lanes) {
    const auto       halves = [](uint32x4_t v) { return vreinterpretq_u16_u32(v); };
    const uint16x8_t first  = vuzp1q_u16(halves(lanes[0]), halves(lanes[1]));
    const uint16x8_t second = vuzp1q_u16(halves(lanes[2]), halves(lanes[3]));
    return vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second));
}

void to_q8_0(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        const block from(values + b);
        if (is_odd_block(from.magnitude)) {
            scalar_converters.to_q8_0(values + b, 32, row);
            continue;
        }
        const float       scale   = from.magnitude / 127;
        const float32x4_t inverse = vdupq_n_f32(inverse_scale(scale));
        put_le<uint16_t>(row, fp32_to_fp16(scale));

        uint32x4_t codes[8];
        for (uint32_t v = 0; v < 8; v++) {
            codes[v] = vreinterpretq_u32_s32(vcvtaq_s32_f32(vmulq_f32(from.x[v], inverse))); // halves away from zero
        }
        vst1q_u8(row + 2, lowest_bytes(codes));
        vst1q_u8(row + 18, lowest_bytes(codes + 4));
    }
}

// the first of 32 values that has this magnitude, or the last
inline uint32_t first_of_magnitude(const block & from) {
    const float32x4_t magnitude = vdupq_n_f32(from.magnitude);
    for (uint32_t v = 0; v < 8; v += 4) {
        uint32x4_t equal[4];
        for (uint32_t i = 0; i < 4; i++) {
            equal[i] = vceqq_f32(vabsq_f32(from.x[v + i]), magnitude);
        }
        // four bits a value
        const uint8x8_t bits = vshrn_n_u16(vreinterpretq_u16_u8(lowest_bytes(equal)), 4);
        const uint64_t  mask = vget_lane_u64(vreinterpret_u64_u8(bits), 0);
        if (mask != 0) {
            return 4 * v + static_cast<uint32_t>(__builtin_ctzll(mask)) / 4;
        }
    }
    return 31;
}

void to_q4_0(const float * values, uint64_t n, uint8_t * row) {
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        // the first value of the largest magnitude decides the sign
        const block from(values + b);
        if (is_odd_block(from.magnitude)) {
            scalar_converters.to_q4_0(values + b, 32, row);
            continue;
        }
        const float       extreme = from.magnitude != 0 ? values[b + first_of_magnitude(from)] : 0.0f;
        const float       scale   = extreme / -8;
        const float32x4_t inverse = vdupq_n_f32(inverse_scale(scale));
        const float32x4_t offset  = vdupq_n_f32(q4_0_offset(scale));
        put_le<uint16_t>(row, fp32_to_fp16(scale));

        uint32x4_t codes[8];
        for (uint32_t v = 0; v < 8; v++) {
            const int32x4_t code = vcvtq_s32_f32(vaddq_f32(vmulq_f32(from.x[v], inverse), offset));
            codes[v]             = vreinterpretq_u32_s32(vminq_s32(code, vdupq_n_s32(15)));
        }
        vst1q_u8(row + 2, vorrq_u8(lowest_bytes(codes), vshlq_n_u8(lowest_bytes(codes + 4), 4)));
    }
}

void from_fp16(const uint8_t * row, uint64_t n, float * values) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const float16x8_t halves = vreinterpretq_f16_u16(load_8(row + 2 * i));
        vst1q_f32(values + i, vcvt_f32_f16(vget_low_f16(halves)));
        vst1q_f32(values + i + 4, vcvt_high_f32_f16(halves));
    }
    for (; i < n; i++) {
        values[i] = fp16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

void from_bf16(const uint8_t * row, uint64_t n, float * values) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t halves = load_8(row + 2 * i);
        vst1q_f32(values + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)));
        vst1q_f32(values + i + 4, vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16)));
    }
    for (; i < n; i++) {
        values[i] = bf16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

// 16 values of their codes
inline void scale_codes(int8x16_t codes, float32x4_t scale, float * values) {
    const int16x8_t halves[2] = { vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes) };
    for (uint32_t i = 0; i < 2; i++) {
        const float32x4_t first  = vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[i])));
        const float32x4_t second = vcvtq_f32_s32(vmovl_high_s16(halves[i]));
        vst1q_f32(values + 8 * i, vmulq_f32(first, scale));
        vst1q_f32(values + 8 * i + 4, vmulq_f32(second, scale));
    }
}

void from_q8_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        const float32x4_t scale = vdupq_n_f32(fp16_to_fp32(get_le<uint16_t>(row)));
        scale_codes(vreinterpretq_s8_u8(vld1q_u8(row + 2)), scale, values + b);
        scale_codes(vreinterpretq_s8_u8(vld1q_u8(row + 18)), scale, values + b + 16);
    }
}

void from_q4_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        const float32x4_t scale  = vdupq_n_f32(fp16_to_fp32(get_le<uint16_t>(row)));
        const uint8x16_t  packed = vld1q_u8(row + 2);
        const int8x16_t   middle = vdupq_n_s8(8);
        const int8x16_t   lower  = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        const int8x16_t   upper  = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
        scale_codes(vsubq_s8(lower, middle), scale, values + b);
        scale_codes(vsubq_s8(upper, middle), scale, values + b + 16);
    }
}

// four columns of four rows
inline void transpose_4x4(const float * values, uint64_t value_stride, float32x4_t * columns) {
    float32x4_t r[4];
    for (uint64_t i = 0; i < 4; i++) {
        r[i] = vld1q_f32(values + i * value_stride);
    }
    const auto        pairs  = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
    const float64x2_t even_0 = pairs(vtrn1q_f32(r[0], r[1]));
    const float64x2_t odd_0  = pairs(vtrn2q_f32(r[0], r[1]));
    const float64x2_t even_1 = pairs(vtrn1q_f32(r[2], r[3]));
    const float64x2_t odd_1  = pairs(vtrn2q_f32(r[2], r[3]));
    columns[0]               = vreinterpretq_f32_f64(vtrn1q_f64(even_0, even_1));
    columns[1]               = vreinterpretq_f32_f64(vtrn1q_f64(odd_0, odd_1));
    columns[2]               = vreinterpretq_f32_f64(vtrn2q_f64(even_0, even_1));
    columns[3]               = vreinterpretq_f32_f64(vtrn2q_f64(odd_0, odd_1));
}

// calls store(to, first four, last four) for each of the eight channels
template <typename Store> inline void transpose_8x8(const float * values, uint64_t value_stride, uint8_t * out,
                                                    uint64_t out_stride, const Store & store) {
    for (uint64_t c = 0; c < 8; c += 4) {
        float32x4_t first[4];
        float32x4_t last[4];
        transpose_4x4(values + c, value_stride, first);
        transpose_4x4(values + c + 4 * value_stride, value_stride, last);
        for (uint64_t i = 0; i < 4; i++) {
            store(out + (c + i) * out_stride, first[i], last[i]);
        }
    }
}

void transpose_fp32(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose_8x8(values, value_stride, out, out_stride, [](uint8_t * to, float32x4_t first, float32x4_t last) {
        vst1q_u8(to, vreinterpretq_u8_f32(first));
        vst1q_u8(to + 16, vreinterpretq_u8_f32(last));
    });
}

void transpose_fp16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose_8x8(values, value_stride, out, out_stride,
                  [](uint8_t * to, float32x4_t first, float32x4_t last) { store_8(to, fp16_of(first, last)); });
}

void transpose_bf16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    transpose_8x8(values, value_stride, out, out_stride,
                  [](uint8_t * to, float32x4_t first, float32x4_t last) { store_8(to, bf16_of(first, last)); });
}

} // namespace

const row_converters neon_converters = { to_fp16,   to_bf16,   to_q8_0,        to_q4_0,        from_fp16,     from_bf16,
                                         from_q8_0, from_q4_0, transpose_fp32, transpose_fp16, transpose_bf16 };

} // namespace cachegen

#endif
