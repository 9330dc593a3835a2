// Values of a source and their scales: libcachegen's lcg3_quantize.cpp and lcg3_symbols.cpp in 32 lanes.
#pragma once

#include "encode_jobs.h"
#include "native_body.h"

namespace kernels {

// the block's tokens that a plane has
struct block_rows {
    uint32_t n;
    uint32_t first; // of the plane's own
};

KC_FN block_rows rows_of(const KC_PRIVATE encode_buffers & in, const KC_PRIVATE encode_plane & plane) {
    const uint32_t block = in.wave_begin + plane.block_token;
    const uint32_t end   = in.page_end > block + in.block_tokens ? block + in.block_tokens : in.page_end;
    const uint32_t begin = block > plane.first_token ? block : plane.first_token;
    block_rows     rows;
    rows.n     = end > begin ? end - begin : 0; // 0 too where a wave has more blocks than the page has left
    rows.first = begin - plane.first_token;
    return rows;
}

// A tile of R adjacent groups x T tokens as the source keeps them, on their way: nothing waits for them before
// convert_tile(). SOURCE: enum store_kind, how the source keeps its values.
template <int R, int T> struct raw_tile {
    uint32_t numbers[R][T];
    uint32_t scales[R][T]; // of blocks
};

/*
 * cells  IN  of each token, the same in all lanes; lanes without a channel load another one
 */
template <uint32_t SOURCE, int R, int T>
KC_FN void load_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_plane & plane, uint32_t first_group,
                     const KC_PRIVATE uint32_t (&cells)[T], KC_PRIVATE raw_tile<R, T> & raw) {
    const KC_GLOBAL uint8_t * const data = (const KC_GLOBAL uint8_t *) plane.data;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t wanted  = (first_group + r) * 32 + me.lane;
        const uint32_t channel = wanted < plane.n_channels ? wanted : plane.n_channels - 1;
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            raw.scales[r][t] = 0;
            if (SOURCE == store_f32_transposed) {
                const KC_GLOBAL uint8_t * const begin = data + kc_multiply_wide(channel, plane.stride);
                raw.numbers[r][t]                     = kc_read_only((const KC_GLOBAL uint32_t *) begin + cells[t]);
            } else if (SOURCE == store_f16_transposed || SOURCE == store_bf16_transposed) {
                const KC_GLOBAL uint8_t * const begin = data + kc_multiply_wide(channel, plane.stride);
                raw.numbers[r][t]                     = kc_read_only((const KC_GLOBAL uint16_t *) begin + cells[t]);
            } else {
                const KC_GLOBAL uint8_t * const row = data + kc_multiply_wide(cells[t], plane.stride);
                if (SOURCE == store_f32) {
                    raw.numbers[r][t] = kc_read_only((const KC_GLOBAL uint32_t *) row + channel);
                } else if (SOURCE == store_f16 || SOURCE == store_bf16) {
                    raw.numbers[r][t] = kc_read_only((const KC_GLOBAL uint16_t *) row + channel);
                } else {
                    const uint32_t                  lane  = channel & 31;
                    const KC_GLOBAL uint8_t * const block = row + channel / 32 * (SOURCE == store_q8_0 ? 34 : 18);
                    raw.scales[r][t]                      = kc_read_only((const KC_GLOBAL uint16_t *) block);
                    raw.numbers[r][t] = kc_read_only(block + 2 + (SOURCE == store_q8_0 ? lane : lane & 15));
                }
            }
        }
    }
}

template <uint32_t SOURCE> KC_FN float convert_value(const KC_PRIVATE kc_thread & me, uint32_t number, uint32_t scale) {
    if (SOURCE == store_f32 || SOURCE == store_f32_transposed) {
        return kc_float(number);
    }
    if (SOURCE == store_f16 || SOURCE == store_f16_transposed) {
        return kc_from_fp16(number);
    }
    if (SOURCE == store_bf16 || SOURCE == store_bf16_transposed) {
        return kc_float(number << 16);
    }
    if (SOURCE == store_q8_0) {
        return (float) (int32_t) (int8_t) number * kc_from_fp16(scale);
    }
    const uint32_t code = number >> (me.lane & 16 ? 4 : 0) & 15; // blocks fill their groups
    return (float) ((int32_t) code - 8) * kc_from_fp16(scale);
}

// to the values that are coded; lanes without a channel: 0
template <uint32_t SOURCE, int R, int T>
KC_FN void convert_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_plane & plane, uint32_t first_group,
                        const KC_PRIVATE raw_tile<R, T> & raw, KC_PRIVATE float (&values)[R][T]) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const bool is_channel = (first_group + r) * 32 + me.lane < plane.n_channels;
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const float value = convert_value<SOURCE>(me, raw.numbers[r][t], raw.scales[r][t]);
            values[r][t]      = is_channel ? value : 0.0f;
        }
    }
    if (plane.rotation != 0) {
        rotate_tile<R, T>(me, plane.rotation, plane.rotation_factor, values);
    }
}

/*
 * The scale of a row: the smallest number of its type that is not below the row's largest magnitude.
 * maximum_bits  IN  of the largest magnitude
 * Returns its bit pattern, or scale_non_finite or scale_too_large.
 */
KC_FN uint32_t make_scale(uint32_t maximum_bits, uint32_t scale_type, bool is_fp16) {
    if (maximum_bits >= infinity_bits) {
        return scale_non_finite;
    }
    if (scale_type == type_bf16) {
        const uint32_t bits = (maximum_bits + 0xffff) >> 16;
        if (is_fp16 && bits > 0x477f) {
            return 0x477f; // 65,280; the next is above F16's largest number
        }
        return bits < 0x7f80 ? bits : scale_too_large;
    }
    if (scale_type == type_f16) {
        uint32_t bits = kc_to_fp16(kc_float(maximum_bits));
        if (float_of_fp16(bits) < kc_float(maximum_bits)) {
            bits++;
        }
        return bits < 0x7c00 ? bits : scale_too_large;
    }
    return maximum_bits;
}

/*
 * The kernel: a job is scale_tokens tokens of a plane; groups[].first_group is the first of them.
 */
template <uint32_t SOURCE, int R>
KC_FN void scales_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in) {
    // as many values at hand as registers allow
    constexpr int T = R >= 4 ? 2 : R == 2 ? 4 : 8;
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const encode_plane plane = in.planes[in.groups[i].unit];
        const block_rows   rows  = rows_of(in, plane);
        const uint32_t     begin = in.groups[i].first_group;
        const uint32_t     end   = begin + scale_tokens;
        for (uint32_t row = begin; row < end && row < rows.n; row += T) {
            uint32_t cells[T];
            uint32_t largest[T];
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                // instead of a token that is not there, the last one
                const uint32_t there = row + t < rows.n ? row + t : rows.n - 1;
                cells[t]             = kc_read_only(in.cells + plane.cells + rows.first + there);
                largest[t]           = 0;
            }
            for (uint32_t group = 0; group < plane.n_groups; group += R) {
                raw_tile<R, T> raw;
                float          values[R][T];
                load_tile<SOURCE, R, T>(me, plane, group, cells, raw);
                convert_tile<SOURCE, R, T>(me, plane, group, raw, values);
                KC_UNROLL
                for (int r = 0; r < R; r++) {
                    KC_UNROLL
                    for (int t = 0; t < T; t++) {
                        const uint32_t magnitude = kc_float_bits(values[r][t]) & 0x7fffffff;
                        largest[t]               = largest[t] > magnitude ? largest[t] : magnitude;
                    }
                }
            }
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                const uint32_t of_row = kc_max(largest[t]);
                if (me.lane == 0 && row + t < rows.n) {
                    in.scales[plane.scales + row + t] = make_scale(of_row, plane.scale_type, plane.is_fp16 != 0);
                }
            }
        }
    }
}

// the factor of a token's values: see quantizer_factor() of libcachegen
KC_FN float factor_of(uint32_t scale_bits, uint32_t scale_type, float centre) {
    const float factor = centre / scale_of(scale_bits, scale_type);
    return (kc_float_bits(factor) & infinity_bits) != infinity_bits ? factor : 0.0f;
}

// below 2 x centre + 1, whatever the value
KC_FN uint32_t quantize(float value, float factor, float centre) {
    const float product = value * factor;
    const float shifted = product + centre;
    const float above   = shifted > 0.0f ? shifted : 0.0f; // a NaN has no symbol; its unit is refused
    const float clamped = above < 2 * centre ? above : 2 * centre;
    return kc_float_bits(clamped + 12582912.0f) & 255; // 1.5 x 2^23 rounds half to even in the last bits
}

} // namespace kernels
