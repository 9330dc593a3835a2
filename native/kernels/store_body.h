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

KC_FN float float_of_fp16(uint32_t bits) {
    const uint32_t sign      = (bits & 0x8000) << 16;
    const uint32_t exponent  = bits >> 10 & 31;
    const uint32_t mantissa  = bits & 1023;
    uint32_t       magnitude = (bits & 0x7fff) << 13;
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

KC_CONSTANT uint32_t infinity_bits = 0x7f800000;

KC_FN uint32_t code_q8_0(float value, float inverse) {
    const float scaled   = value * inverse;
    // halves away from zero: adding the largest number below one half and cutting off cannot round up too far
    const float one_half = kc_float(0x3effffff | (kc_float_bits(scaled) & 0x80000000));
    return (uint32_t) (int32_t) (scaled + one_half) & 255;
}

KC_FN float q4_0_offset(float scale) {
    return kc_float_bits(scale) << 1 == 0 || kc_float_bits(inverse_scale(scale)) << 1 != 0 ? 8.5f : 0.0f;
}

KC_FN uint32_t code_q4_0(float value, float inverse, float offset) {
    const float   product = value * inverse; // on its own: a sum in the same expression could be contracted
    const int32_t code    = (int32_t) (product + offset);
    return (uint32_t) (code < 15 ? code : 15);
}

// Blocks with an infinity or a NaN, in the order of their values as ggml's reference packs them on x86.
struct odd_block {
    uint32_t scale_bits;
    uint32_t code;
};

KC_FN uint32_t odd_code_q8_0(float value, float inverse) {
    const float product = value * inverse;
    // roundf(): halves away from zero
    float       rounded = magnitude_of(product);
    if (rounded < 8388608.0f) {
        const float whole = (float) (int32_t) rounded;
        rounded           = rounded - whole >= 0.5f ? whole + 1 : whole;
    }
    if (!(rounded < 2147483648.0f)) {
        return 0;
    }
    const int32_t whole = (int32_t) rounded;
    return (uint32_t) (kc_float_bits(product) >> 31 != 0 ? -whole : whole) & 255;
}

KC_FN uint32_t odd_code_q4_0(float value, float inverse) {
    const float product = value * inverse;
    const float shifted = product + 8.5f;
    if (!(shifted > -1 && shifted < 17)) {
        return 0;
    }
    const int32_t code = (int32_t) shifted;
    return (uint32_t) (code < 15 ? code : 15);
}

KC_FN odd_block odd_block_q8_0(float value) {
    float largest = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const float magnitude = magnitude_of(kc_float(kc_shuffle(kc_float_bits(value), i)));
        largest               = largest > magnitude ? largest : magnitude;
    }
    const float scale = largest / 127;
    return { fp16_of(scale), odd_code_q8_0(value, scale != 0 ? 1.0f / scale : 0.0f) };
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
    const float scale = extreme / -8;
    return { fp16_of(scale), odd_code_q4_0(value, scale != 0 ? 1.0f / scale : 0.0f) };
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
KC_FN KC_GLOBAL uint8_t * row_of(const KC_PRIVATE destination & dest, uint32_t cell) {
    return dest.data + kc_multiply_wide(cell, dest.stride);
}

// What 32 lanes keep of 32 tokens.
struct alignas(16) token_scratch {
    float    scales[32];
    uint32_t cells[32];
};

// scales and cells of a tile's tokens; begin: a multiple of T
template <int T> KC_FN void tokens_of_tile(const KC_SHARED token_scratch & scratch, uint32_t begin,
                                           KC_PRIVATE float (&scales)[T], KC_PRIVATE         uint32_t (&cells)[T]) {
    kc_read_words<T>(scratch.scales + begin, scales);
    kc_read_words<T>(scratch.cells + begin, cells);
}

// A channel's values next to each other: tokens that go to neighbouring cells are written 4 at a time.
template <uint32_t STORE, int R, int T>
KC_FN void store_transposed(const KC_PRIVATE kc_thread & me, const KC_PRIVATE destination & dest, uint32_t first_group,
                            const KC_PRIVATE uint32_t (&cells)[T], const KC_PRIVATE float (&values)[R][T]) {
    constexpr uint32_t value_bytes = STORE == store_f32_transposed ? 4 : 2;
    constexpr int      run         = T < 4 ? T : 4;
    bool               are_runs    = run == 4;
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        are_runs = are_runs && cells[t] != no_cell && cells[t] == cells[t / run * run] + t % run;
    }
    const uint32_t alignment = (uint32_t) (uint64_t) dest.data | dest.stride | cells[0] * value_bytes;
    are_runs                 = are_runs && (alignment & (4 * value_bytes - 1)) == 0;
    KC_UNROLL
    for (int t = 4; t < T; t += 4) {
        are_runs = are_runs && ((cells[t] * value_bytes) & (4 * value_bytes - 1)) == 0;
    }
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t channel = (first_group + r) * 32 + me.lane;
        if (channel >= dest.n_channels) {
            continue;
        }
        KC_GLOBAL uint8_t * const begin = row_of(dest, channel);
        uint32_t                  bits[T];
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            bits[t] = STORE == store_f32_transposed   ? kc_float_bits(values[r][t])
                      : STORE == store_f16_transposed ? fp16_of(values[r][t])
                                                      : bf16_of(values[r][t]);
        }
        if (are_runs) {
            KC_UNROLL
            for (int t = 0; t + 3 < T; t += 4) {
                if (value_bytes == 4) {
                    kc_write_16(begin + 4 * (uint64_t) cells[t], bits[t], bits[t + 1], bits[t + 2], bits[t + 3]);
                } else {
                    kc_write_8(begin + 2 * (uint64_t) cells[t], bits[t] | bits[t + 1] << 16,
                               bits[t + 2] | bits[t + 3] << 16);
                }
            }
            continue;
        }
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            if (cells[t] == no_cell) {
                continue;
            }
            if (value_bytes == 4) {
                kc_write((KC_GLOBAL float *) begin + cells[t], values[r][t]);
            } else {
                kc_write((KC_GLOBAL uint16_t *) begin + cells[t], (uint16_t) bits[t]);
            }
        }
    }
}

// Blocks of 32 values: a lane works out the scale of one block for all, and writes it.
template <uint32_t STORE, int R, int T>
KC_FN void store_blocks(const KC_PRIVATE kc_thread & me, const KC_PRIVATE destination & dest, uint32_t first_group,
                        uint32_t cell_of_lane, const KC_PRIVATE uint32_t (&cells)[T],
                        const KC_PRIVATE float (&values)[R][T]) {
    constexpr uint32_t block_bytes = STORE == store_q8_0 ? 34 : 18;
    const uint32_t     lane        = kc_again(me.lane);
    uint32_t           extreme     = 0; // bits, of the lane's block: its largest magnitude, with its sign for Q4_0
    uint32_t           most        = 0;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const uint32_t bits      = kc_float_bits(values[r][t]);
            const uint32_t magnitude = bits & 0x7fffffff;
            const uint32_t largest   = kc_max(magnitude);
            uint32_t       of_block  = largest;
            if (STORE == store_q4_0) {
                // the sign of the first value of the largest magnitude; of a block of zeros no -0
                const uint32_t lanes    = kc_ballot(magnitude == largest);
                const uint32_t negative = kc_ballot(bits >> 31 != 0);
                of_block |= (lanes & (0u - lanes) & negative) != 0 && largest != 0 ? 0x80000000 : 0;
            }
            most    = most > largest ? most : largest;
            extreme = lane == (uint32_t) (r * T + t) ? of_block : extreme;
        }
    }
    const float    scale      = STORE == store_q8_0 ? kc_float(extreme) / 127 : kc_float(extreme) / -8;
    const float    inverse    = inverse_scale(scale);
    const float    offset     = STORE == store_q4_0 ? q4_0_offset(scale) : 0.0f;
    uint32_t       scale_bits = fp16_of(scale);
    const uint32_t n_groups   = kc_again((dest.n_channels + 31) / 32 - first_group);
    uint32_t       codes[R][T];
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const float of_block = kc_float(kc_shuffle(kc_float_bits(inverse), r * T + t));
            if (STORE == store_q8_0) {
                codes[r][t] = code_q8_0(values[r][t], of_block);
            } else {
                codes[r][t] = code_q4_0(values[r][t], of_block, kc_float(kc_shuffle(kc_float_bits(offset), r * T + t)));
            }
        }
    }
    if (most >= infinity_bits) {
        KC_UNROLL
        for (int i = 0; i < R * T; i++) {
            const float value = values[i / T][i % T];
            if (kc_max(kc_float_bits(value) & 0x7fffffff) >= infinity_bits) {
                const odd_block block = STORE == store_q8_0 ? odd_block_q8_0(value) : odd_block_q4_0(value);
                codes[i / T][i % T]   = block.code;
                scale_bits            = lane == (uint32_t) i ? block.scale_bits : scale_bits;
            }
        }
    }
    KC_GLOBAL uint8_t * const column = dest.data + (uint64_t) first_group * block_bytes;
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        KC_GLOBAL uint8_t * const to = column + 2 + me.lane + kc_multiply_wide(cells[t], dest.stride);
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            uint32_t code = codes[r][t];
            if (STORE == store_q4_0) {
                code |= kc_shuffle_xor(code, 16) << 4;
            }
            if (cells[t] != no_cell && (uint32_t) r < n_groups && (STORE == store_q8_0 || lane < 16)) {
                kc_write(to + r * block_bytes, (uint8_t) code);
            }
        }
    }
    if (lane < R * T && me.lane / T < n_groups && cell_of_lane != no_cell) {
        kc_write(
            (KC_GLOBAL uint16_t *) (column + kc_multiply_wide(cell_of_lane, dest.stride) + me.lane / T * block_bytes),
            (uint16_t) scale_bits);
    }
}

/*
 * A tile of R adjacent groups x T tokens, one value a lane, group and token.
 * cells         IN  where each token goes, the same in all lanes; no_cell: nowhere
 * cell_of_lane  IN  of token me.lane % T
 */
template <uint32_t STORE, int R, int T>
KC_FN void store_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE destination & dest, uint32_t first_group,
                      uint32_t cell_of_lane, const KC_PRIVATE uint32_t (&cells)[T],
                      const KC_PRIVATE float (&values)[R][T]) {
    if constexpr (STORE == store_q8_0 || STORE == store_q4_0) {
        store_blocks<STORE, R, T>(me, dest, first_group, cell_of_lane, cells, values);
    } else if constexpr (STORE == store_f32 || STORE == store_f16 || STORE == store_bf16) {
        constexpr uint32_t        value_bytes = STORE == store_f32 ? 4 : 2;
        const uint32_t            channel     = first_group * 32 + me.lane;
        KC_GLOBAL uint8_t * const column      = dest.data + (uint64_t) channel * value_bytes;
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            KC_GLOBAL uint8_t * const to = column + kc_multiply_wide(cells[t], dest.stride);
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                if (cells[t] == no_cell || channel + 32 * r >= dest.n_channels) {
                    continue;
                }
                if (STORE == store_f32) {
                    kc_write((KC_GLOBAL float *) to + 32 * r, values[r][t]);
                } else {
                    kc_write((KC_GLOBAL uint16_t *) to + 32 * r,
                             (uint16_t) (STORE == store_f16 ? fp16_of(values[r][t]) : bf16_of(values[r][t])));
                }
            }
        }
    } else {
        store_transposed<STORE, R, T>(me, dest, first_group, cells, values);
    }
}

/*
 * Rotate by a Hadamard matrix every n_rotated adjacent channels of a tile, n_rotated being 32 x R or smaller: the order
 * of operations is that of libcachegen's hadamard.cpp.
 */
template <int R, int T> KC_FN void rotate_tile(const KC_PRIVATE kc_thread & me, uint32_t n_rotated, float factor,
                                               KC_PRIVATE float (&values)[R][T]) {
    const uint32_t n_rot = kc_again(n_rotated);
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            values[r][t] *= factor;
        }
    }
    KC_UNROLL
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        if (distance >= n_rot) {
            break;
        }
        const float sign = me.lane & distance ? -1.0f : 1.0f;
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                const float partner = kc_float(kc_shuffle_xor(kc_float_bits(values[r][t]), distance));
                values[r][t]        = kc_add_signed(partner, values[r][t], sign);
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
