// The ways that need no speed of their own: symbols to native rows (any unit, tables of any size), and native rows to a
// destination of any type, rotation and layout.
#pragma once

#include "decode_body.h"

namespace kernels {

// enum cachegen_type
KC_CONSTANT uint32_t type_f32  = 0;
KC_CONSTANT uint32_t type_f16  = 1;
KC_CONSTANT uint32_t type_q4_0 = 2;
KC_CONSTANT uint32_t type_q8_0 = 8;
KC_CONSTANT uint32_t type_bf16 = 30;

KC_FN uint32_t native_bytes(uint32_t type, uint32_t n_channels) {
    return type == type_f32    ? n_channels * 4
           : type == type_q8_0 ? n_channels / 32 * 34
           : type == type_q4_0 ? n_channels / 32 * 18
                               : n_channels * 2;
}

// one token of a group: the lane's coded value as its native bytes
KC_FN void write_native(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                        const KC_GLOBAL unit_job & unit, uint32_t row, uint32_t group, uint32_t symbol) {
    const uint32_t                  channel    = group * 32 + me.lane;
    const bool                      is_channel = channel < unit.n_channels;
    const KC_GLOBAL uint8_t * const bytes      = in.bytes + unit.bytes_offset;
    KC_GLOBAL uint8_t * const       native =
        (KC_GLOBAL uint8_t *) unit.native + row * (uint64_t) native_bytes(unit.native_type, unit.n_channels);
    if (!unit.is_exact) {
        if (is_channel) {
            const uint32_t scale = unit.scale_base + packed_number(bytes + unit.scales_offset, row, unit.scale_bits);
            ((KC_GLOBAL float *) native)[channel] = kc_float(in.values[symbol]) * scale_of(scale, unit.scale_type);
        }
        return;
    }
    uint32_t code = 0;
    if (is_channel) {
        const uint64_t upper = (uint64_t) in.values[symbol] << unit.raw_bits;
        code = (uint32_t) upper |
               packed_number(bytes + unit.raw_offset, row * (uint64_t) unit.n_channels + channel, unit.raw_bits);
    }
    if (unit.native_type == type_f32) {
        if (is_channel) {
            ((KC_GLOBAL uint32_t *) native)[channel] = code;
        }
        return;
    }
    if (unit.native_type != type_q8_0 && unit.native_type != type_q4_0) {
        if (is_channel) {
            ((KC_GLOBAL uint16_t *) native)[channel] = (uint16_t) code;
        }
        return;
    }
    const bool          is_q8_0 = unit.native_type == type_q8_0;
    KC_GLOBAL uint8_t * block   = native + group * (is_q8_0 ? 34 : 18);
    if (me.lane == 0) {
        const uint64_t index = row * (uint64_t) unit.n_scales_a_row + group;
        const uint32_t scale = unit.scale_base + packed_number(bytes + unit.scales_offset, index, unit.scale_bits);
        *(KC_GLOBAL uint16_t *) block = (uint16_t) scale; // the host has looked at it
    }
    if (is_q8_0) {
        block[2 + me.lane] = (uint8_t) code;
    } else {
        code |= kc_shuffle_xor(code, 16) << 4;
        if (me.lane < 16) {
            block[2 + me.lane] = (uint8_t) code;
        }
    }
}

// symbols of one group a job to native rows; the table stays where it is. rings: OUT one a group of lanes
KC_FN void expand_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                         KC_SHARED uint8_t * rings) {
    constexpr uint32_t T     = tiling<1>::tokens;
    const bucket_shape shape = shape_of(in.set);
    const memory_table table = { 0, in.table };
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_groups; i += me.n_workgroups * me.n_groups) {
        const uint32_t             index = in.groups[i].unit;
        const KC_GLOBAL unit_job & unit  = in.units[index];
        const uint32_t             group = in.groups[i].first_group;
        lane_streams<1>            streams;
        open_streams(me, in, unit, 0, group, rings + me.group * tiling<1>::ring_bytes, streams);
        for (uint32_t row = 0; row < unit.n_rows; row += T) {
            uint32_t halves[1][T] = {};
            next_tile<1, T>(me, in, shape, table, unit.n_rows - row, streams, halves);
            for (uint32_t t = 0; t < T && row + t < unit.n_rows; t++) {
                write_native(me, in, unit, row + t, group, symbol_of(halves[0][t]));
            }
        }
        close_streams(me, in, index, group, streams);
    }
}

KC_FN float native_value(const KC_GLOBAL uint8_t * row, uint32_t type, uint32_t channel) {
    if (type == type_f32) {
        return ((const KC_GLOBAL float *) row)[channel];
    }
    if (type == type_f16) {
        return float_of_fp16(((const KC_GLOBAL uint16_t *) row)[channel]);
    }
    if (type == type_bf16) {
        return kc_float((uint32_t) ((const KC_GLOBAL uint16_t *) row)[channel] << 16);
    }
    const uint32_t                  lane  = channel & 31;
    const KC_GLOBAL uint8_t * const block = row + (channel / 32) * (type == type_q8_0 ? 34u : 18u);
    const float                     scale = float_of_fp16(*(const KC_GLOBAL uint16_t *) block);
    if (type == type_q8_0) {
        return (float) (int32_t) (int8_t) block[2 + lane] * scale;
    }
    const uint32_t code = block[2 + (lane & 15)] >> (lane & 16 ? 4 : 0) & 15;
    return (float) ((int32_t) code - 8) * scale;
}

// every n_rot adjacent values of a span, in shared memory
KC_FN void rotate_span(const KC_PRIVATE kc_thread & me, KC_SHARED float * values, uint32_t n_values, uint32_t n_rot) {
    const float factor = 1.0f / kc_sqrt((float) n_rot);
    for (uint32_t i = me.lane; i < n_values; i += 32) {
        values[i] *= factor;
    }
    for (uint32_t distance = 1; distance < n_rot; distance *= 2) {
        kc_sync_group();
        for (uint32_t i = me.lane; i < n_values / 2; i += 32) {
            const uint32_t low     = i / distance * 2 * distance + i % distance;
            const float    u       = values[low];
            const float    v       = values[low + distance];
            values[low]            = u + v;
            values[low + distance] = u - v;
        }
    }
    kc_sync_group();
}

KC_CONSTANT uint32_t max_span = 1024; // the largest rotation

template <uint32_t STORE> KC_FN void place_row(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                                               const KC_GLOBAL unit_job & unit, uint32_t row, KC_SHARED float * span) {
    const KC_GLOBAL uint8_t * const native =
        (const KC_GLOBAL uint8_t *) unit.native + row * (uint64_t) native_bytes(unit.native_type, unit.n_channels);
    const destination dest = destination_of(unit);
    const uint32_t    cell = in.cells[unit.cells + (row - unit.first_row)];
    if (unit.is_same) {
        if (STORE == store_f32_transposed) {
            for (uint32_t c = me.lane; c < unit.n_channels; c += 32) {
                ((KC_GLOBAL uint32_t *) row_of(dest, c))[cell] = ((const KC_GLOBAL uint32_t *) native)[c];
            }
        } else if (STORE == store_f16_transposed || STORE == store_bf16_transposed) {
            for (uint32_t c = me.lane; c < unit.n_channels; c += 32) {
                ((KC_GLOBAL uint16_t *) row_of(dest, c))[cell] = ((const KC_GLOBAL uint16_t *) native)[c];
            }
        } else {
            const uint32_t n_words = native_bytes(unit.native_type, unit.n_channels) / 2;
            for (uint32_t i = me.lane; i < n_words; i += 32) {
                ((KC_GLOBAL uint16_t *) row_of(dest, cell))[i] = ((const KC_GLOBAL uint16_t *) native)[i];
            }
        }
        return;
    }
    uint32_t n_span = unit.undo_rotation > unit.apply_rotation ? unit.undo_rotation : unit.apply_rotation;
    n_span          = n_span < 32 ? 32 : n_span;
    for (uint32_t first = 0; first < unit.n_channels; first += n_span) {
        const uint32_t n = unit.n_channels - first < n_span ? unit.n_channels - first : n_span;
        for (uint32_t i = me.lane; i < n_span; i += 32) {
            span[i] = i < n ? native_value(native, unit.native_type, first + i) : 0;
        }
        kc_sync_group();
        if (unit.undo_rotation != 0) {
            rotate_span(me, span, n, unit.undo_rotation);
        }
        if (unit.apply_rotation != 0) {
            rotate_span(me, span, n, unit.apply_rotation);
        }
        for (uint32_t i = 0; i < n; i += 32) {
            const float    values[1][1] = { { span[i + me.lane] } };
            const uint32_t cells[1]     = { cell };
            store_tile<STORE, 1, 1>(me, dest, (first + i) / 32, cells[0], cells, values);
        }
        kc_sync_group();
    }
}

/*
 * Native rows into a destination: a job is a unit's row, in.groups[].first_group.
 * span  OUT max_span a group of lanes
 */
template <uint32_t STORE>
KC_FN void place_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in, KC_SHARED float * span) {
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_groups; i += me.n_workgroups * me.n_groups) {
        place_row<STORE>(me, in, in.units[in.groups[i].unit], in.groups[i].first_group, span + me.group * max_span);
    }
}

} // namespace kernels
