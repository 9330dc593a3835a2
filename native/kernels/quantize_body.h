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

KC_FN block_rows rows_of(const encode_buffers & in, const KC_GLOBAL encode_plane & plane) {
    const uint32_t begin = in.block_begin > plane.first_token ? in.block_begin : plane.first_token;
    block_rows     rows;
    rows.n     = in.block_end > begin ? in.block_end - begin : 0;
    rows.first = begin - plane.first_token;
    return rows;
}

// one value; SOURCE: enum store_kind, how the source keeps its values
template <uint32_t SOURCE>
KC_FN float load_value(const KC_GLOBAL encode_plane & plane, uint32_t cell, uint32_t channel) {
    const KC_GLOBAL uint8_t * const data = (const KC_GLOBAL uint8_t *) plane.data;
    if (SOURCE == store_f32_transposed || SOURCE == store_f16_transposed || SOURCE == store_bf16_transposed) {
        const KC_GLOBAL uint8_t * const begin = data + kc_multiply_wide(channel, plane.stride);
        return SOURCE == store_f32_transposed   ? ((const KC_GLOBAL float *) begin)[cell]
               : SOURCE == store_f16_transposed ? float_of_fp16(((const KC_GLOBAL uint16_t *) begin)[cell])
                                                : kc_float((uint32_t) ((const KC_GLOBAL uint16_t *) begin)[cell] << 16);
    }
    const uint32_t type = SOURCE == store_f32    ? type_f32
                          : SOURCE == store_f16  ? type_f16
                          : SOURCE == store_bf16 ? type_bf16
                          : SOURCE == store_q8_0 ? type_q8_0
                                                 : type_q4_0;
    return native_value(data + kc_multiply_wide(cell, plane.stride), type, channel);
}

// a tile of R adjacent groups x T tokens; lanes without a channel, and no_cell: 0
template <uint32_t SOURCE, int R, int T>
KC_FN void load_tile(const kc_thread & me, const KC_GLOBAL encode_plane & plane, uint32_t first_group,
                     const uint32_t (&cells)[T], float (&values)[R][T]) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t channel = (first_group + r) * 32 + me.lane;
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            values[r][t] =
                channel < plane.n_channels && cells[t] != no_cell ? load_value<SOURCE>(plane, cells[t], channel) : 0.0f;
        }
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
template <uint32_t SOURCE, int R> KC_FN void scales_kernel(const kc_thread & me, const encode_buffers & in) {
    // as many values at hand as registers allow
    constexpr int T = R >= 4 ? 2 : R == 2 ? 4 : 8;
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const KC_GLOBAL encode_plane & plane = in.planes[in.groups[i].unit];
        const block_rows               rows  = rows_of(in, plane);
        const uint32_t                 end   = in.groups[i].first_group + scale_tokens;
        for (uint32_t row = in.groups[i].first_group; row < end && row < rows.n; row += T) {
            uint32_t cells[T];
            uint32_t largest[T];
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                cells[t]   = row + t < rows.n ? in.cells[plane.cells + rows.first + row + t] : no_cell;
                largest[t] = 0;
            }
            for (uint32_t group = 0; group < plane.n_groups; group += R) {
                float values[R][T];
                load_tile<SOURCE, R, T>(me, plane, group, cells, values);
                if (plane.rotation != 0) {
                    rotate_tile<R, T>(me, plane.rotation, plane.rotation_factor, values);
                }
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
    const float shifted = value * factor + centre;
    const float above   = shifted > 0.0f ? shifted : 0.0f; // a NaN has no symbol; its unit is refused
    const float clamped = above < 2 * centre ? above : 2 * centre;
    return kc_float_bits(clamped + 12582912.0f) & 255; // 1.5 x 2^23 rounds half to even in the last bits
}

} // namespace kernels
