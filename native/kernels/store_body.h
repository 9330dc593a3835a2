// Values into the bytes of a destination, as libcachegen's typed_store.cpp makes them: bit-equal to
// ggml_quantize_chunk.
#pragma once

#include "jobs.h"
#include "port.h"

namespace kernels {

// any number; every NaN becomes the quiet one of its sign
KC_FN uint32_t fp16_of(float value) {
    const uint32_t bits = kc_float_bits(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7e00 : kc_to_fp16(value);
}

KC_FN uint32_t bf16_of(float value) {
    const uint32_t bits = kc_float_bits(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

KC_FN float float_of_fp16(uint32_t half) {
    const uint32_t sign      = (half & 0x8000) << 16;
    const uint32_t exponent  = half >> 10 & 31;
    const uint32_t mantissa  = half & 1023;
    uint32_t       magnitude = (half & 0x7fff) << 13;
    if (exponent == 31) {
        magnitude = 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0);
    } else if (exponent == 0) {
        magnitude = kc_float_bits((float) mantissa * 5.9604644775390625e-8f); // 2^-24
    } else {
        magnitude += 0x38000000;
    }
    return kc_float(sign | magnitude);
}

KC_FN float magnitude_of(float value) {
    return kc_float(kc_float_bits(value) & 0x7fffffff);
}

// 1 / scale of a block, 0 where ggml's would be infinite
KC_FN float inverse_scale(float scale) {
    const float inverse = 1.0f / scale;
    return (kc_float_bits(inverse) & 0x7f800000) != 0x7f800000 ? inverse : 0.0f;
}

constexpr uint32_t infinity_bits = 0x7f800000;

KC_FN uint32_t code_q8_0(float value, float inverse) {
    const float scaled = value * inverse;
    // halves away from zero: adding the largest number below one half and cutting off cannot round up too far
    const float half   = kc_float(0x3effffff | (kc_float_bits(scaled) & 0x80000000));
    return (uint32_t) (int32_t) (scaled + half) & 255;
}

KC_FN float q4_0_offset(float scale) {
    return kc_float_bits(scale) << 1 == 0 || kc_float_bits(inverse_scale(scale)) << 1 != 0 ? 8.5f : 0.0f;
}

KC_FN uint32_t code_q4_0(float value, float inverse, float offset) {
    const int32_t code = (int32_t) (value * inverse + offset);
    return (uint32_t) (code < 15 ? code : 15);
}

// Blocks with an infinity or a NaN, in the order of their values as ggml's reference packs them on x86.
struct odd_block {
    uint32_t scale_bits;
    uint32_t code;
};

KC_FN odd_block odd_block_q8_0(float value) {
    float largest = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const float magnitude = magnitude_of(kc_float(kc_shuffle(kc_float_bits(value), i)));
        largest               = largest > magnitude ? largest : magnitude;
    }
    const float scale   = largest / 127;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    const float product = value * inverse;
    // roundf(): halves away from zero
    float       rounded = magnitude_of(product);
    if (rounded < 8388608.0f) {
        const float whole = (float) (int32_t) rounded;
        rounded           = rounded - whole >= 0.5f ? whole + 1 : whole;
    }
    const bool is_negative = kc_float_bits(product) >> 31 != 0;
    odd_block  block;
    block.scale_bits = fp16_of(scale);
    block.code       = 0;
    if (rounded < 2147483648.0f) {
        const int32_t whole = (int32_t) rounded;
        block.code          = (uint32_t) (is_negative ? -whole : whole) & 255;
    }
    return block;
}

KC_FN odd_block odd_block_q4_0(float value) {
    float largest = 0;
    float extreme = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const float of_lane = kc_float(kc_shuffle(kc_float_bits(value), i));
        if (largest < magnitude_of(of_lane)) { // a NaN is left out
            largest = magnitude_of(of_lane);
            extreme = of_lane;
        }
    }
    const float scale   = extreme / -8;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    const float shifted = value * inverse + 8.5f;
    odd_block   block;
    block.scale_bits = fp16_of(scale);
    block.code       = 0;
    if (shifted > -1 && shifted < 17) {
        const int32_t code = (int32_t) shifted;
        block.code         = (uint32_t) (code < 15 ? code : 15);
    }
    return block;
}

// A unit's destination, at hand.
struct destination {
    KC_GLOBAL uint8_t * data;
    uint32_t            stride;
    uint32_t            n_channels;
};

KC_FN destination destination_of(const KC_GLOBAL unit_job & unit) {
    return { (KC_GLOBAL uint8_t *) unit.dest, unit.dest_stride, unit.n_channels };
}

// row `cell`, or transposed channel `cell`
KC_FN KC_GLOBAL uint8_t * row_of(const destination & dest, uint32_t cell) {
    return dest.data + kc_multiply_wide(cell, dest.stride);
}

/*
 * A tile of R adjacent groups x T tokens, one value a lane, group and token.
 * cells  IN  where each token goes, the same in all lanes; no_cell: nowhere
 */
template <uint32_t STORE, int R, int T> KC_FN void store_tile(const kc_thread & me, const destination & dest,
                                                              uint32_t first_group, const uint32_t (&cells)[T],
                                                              const float (&values)[R][T]) {
    if (STORE != store_q8_0 && STORE != store_q4_0) {
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const uint32_t channel = (first_group + r) * 32 + me.lane;
            if (channel >= dest.n_channels) {
                continue;
            }
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                if (cells[t] == no_cell) {
                    continue;
                }
                const float value = values[r][t];
                if (STORE == store_f32) {
                    kc_write((KC_GLOBAL float *) row_of(dest, cells[t]) + channel, value);
                } else if (STORE == store_f16) {
                    kc_write((KC_GLOBAL uint16_t *) row_of(dest, cells[t]) + channel, (uint16_t) fp16_of(value));
                } else if (STORE == store_bf16) {
                    kc_write((KC_GLOBAL uint16_t *) row_of(dest, cells[t]) + channel, (uint16_t) bf16_of(value));
                } else {
                    KC_GLOBAL uint8_t * const begin = row_of(dest, channel);
                    if (STORE == store_f32_transposed) {
                        kc_write((KC_GLOBAL float *) begin + cells[t], value);
                    } else {
                        kc_write((KC_GLOBAL uint16_t *) begin + cells[t],
                                 (uint16_t) (STORE == store_f16_transposed ? fp16_of(value) : bf16_of(value)));
                    }
                }
            }
        }
        return;
    }

    // every lane works out the scale of one block
    constexpr uint32_t block_bytes = STORE == store_q8_0 ? 34 : 18;
    uint32_t           odd         = 0;
    float              extreme     = 0; // of the lane's block: its largest magnitude, with its sign for Q4_0
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const uint32_t magnitude = kc_float_bits(values[r][t]) & 0x7fffffff;
            const uint32_t largest   = kc_max(magnitude);
            uint32_t       of_block  = largest;
            if (STORE == store_q4_0) {
                // the first value of the largest magnitude; of a block of zeros no -0
                const uint32_t lanes = kc_ballot(magnitude == largest);
                of_block = kc_shuffle(kc_float_bits(values[r][t]), kc_count_bits((lanes & (0u - lanes)) - 1));
                of_block = largest == 0 ? 0 : of_block;
            }
            odd |= largest >= infinity_bits ? 1u : 0u;
            extreme = me.lane == (uint32_t) (r * T + t) ? kc_float(of_block) : extreme;
        }
    }
    const float scale      = STORE == store_q8_0 ? extreme / 127 : extreme / -8;
    const float inverse    = inverse_scale(scale);
    const float offset     = STORE == store_q4_0 ? q4_0_offset(scale) : 0.0f;
    uint32_t    scale_bits = fp16_of(scale);
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const float of_block = kc_float(kc_shuffle(kc_float_bits(inverse), r * T + t));
            uint32_t    code;
            if (STORE == store_q8_0) {
                code = code_q8_0(values[r][t], of_block);
            } else {
                code = code_q4_0(values[r][t], of_block, kc_float(kc_shuffle(kc_float_bits(offset), r * T + t)));
            }
            if (odd != 0 && kc_max(kc_float_bits(values[r][t]) & 0x7fffffff) >= infinity_bits) {
                const odd_block block =
                    STORE == store_q8_0 ? odd_block_q8_0(values[r][t]) : odd_block_q4_0(values[r][t]);
                code       = block.code;
                scale_bits = me.lane == (uint32_t) (r * T + t) ? block.scale_bits : scale_bits;
            }
            if (STORE == store_q4_0) {
                code |= kc_shuffle_xor(code, 16) << 4;
            }
            if (cells[t] != no_cell && (first_group + r) * 32 < dest.n_channels &&
                (STORE == store_q8_0 || me.lane < 16)) {
                kc_write(row_of(dest, cells[t]) + ((first_group + r) * block_bytes + 2 + me.lane), (uint8_t) code);
            }
        }
    }
    // the lane's block again, without indexing by a number that is not known before
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        const uint32_t r = me.lane / T;
        if (me.lane % T == (uint32_t) t && r < R && cells[t] != no_cell && (first_group + r) * 32 < dest.n_channels) {
            kc_write((KC_GLOBAL uint16_t *) (row_of(dest, cells[t]) + (first_group + r) * block_bytes),
                     (uint16_t) scale_bits);
        }
    }
}

/*
 * Rotate by a Hadamard matrix every n_rot adjacent channels of a tile, n_rot being 32 x R or smaller: the order of
 * operations is that of libcachegen's hadamard.cpp.
 */
template <int R, int T>
KC_FN void rotate_tile(const kc_thread & me, uint32_t n_rot, float factor, float (&values)[R][T]) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            values[r][t] *= factor;
        }
    }
    for (uint32_t distance = 1; distance < 32 && distance < n_rot; distance *= 2) {
        const uint32_t flip = me.lane & distance ? 0x80000000 : 0;
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                const float partner = kc_float(kc_shuffle_xor(kc_float_bits(values[r][t]), distance));
                values[r][t]        = partner + kc_float(kc_float_bits(values[r][t]) ^ flip);
            }
        }
    }
    KC_UNROLL
    for (int distance = 1; distance < R; distance *= 2) {
        if ((uint32_t) distance * 32 >= n_rot) {
            break;
        }
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            if (r & distance) {
                continue;
            }
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                const float u           = values[r][t];
                const float v           = values[r + distance][t];
                values[r][t]            = u + v;
                values[r + distance][t] = u - v;
            }
        }
    }
}

} // namespace kernels
