// A lossy unit straight into its destination: entropy decoding, levels times scales, rotation and typed store in one.
#pragma once

#include "block_store.h"
#include "rans_body.h"
#include "store_body.h"

namespace kernels {

// number `index` of an array of `width` bits, 0 to 32; see libcachegen's bit_pack.h
KC_FN uint32_t packed_number(const KC_GLOBAL uint8_t * packed, uint64_t index, uint32_t width) {
    if (width == 0) {
        return 0;
    }
    const KC_GLOBAL uint32_t * const words = (const KC_GLOBAL uint32_t *) packed;
    const uint64_t                   bit   = index * width;
    const uint32_t                   shift = (uint32_t) bit & 31;
    uint32_t                         value = words[bit / 32] >> shift;
    if (shift + width > 32) {
        value |= words[bit / 32 + 1] << (32 - shift);
    }
    return width == 32 ? value : value & ((1u << width) - 1);
}

// scale_type: cachegen_type
KC_FN float scale_of(uint32_t bits, uint32_t scale_type) {
    return scale_type == 1 ? float_of_fp16(bits) : kc_float(scale_type == 30 ? bits << 16 : bits);
}

// the scales and cells of tokens [first_row, first_row + 32) of a unit
KC_FN void load_tokens(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                       const KC_GLOBAL unit_job & unit, uint32_t first_row, KC_SHARED token_scratch & scratch) {
    const uint32_t row       = first_row + me.lane;
    const bool     is_there  = row < unit.n_rows;
    const bool     is_wanted = row >= unit.first_row && row < unit.end_row;
    float          scale     = 0;
    if (is_there) {
        const KC_GLOBAL uint8_t * const packed = in.bytes + unit.bytes_offset + unit.scales_offset;
        scale = scale_of(unit.scale_base + packed_number(packed, row, unit.scale_bits), unit.scale_type);
    }
    kc_sync_group(); // the tokens before have been used
    scratch.scales[me.lane] = scale;
    scratch.cells[me.lane]  = is_wanted ? in.cells[unit.cells + (row - unit.first_row)] : no_cell;
    kc_sync_group();
}

/*
 * F16 rows without a rotation: lane s works out what symbol s stands for in a token, once for all lanes. IS_WIDE: there
 * are more than 32 symbols, and lane s has two of them.
 */
template <int R, int T, bool IS_WIDE>
KC_FN void store_fp16_symbols(const KC_PRIVATE kc_thread & me, const KC_PRIVATE destination & dest,
                              uint32_t first_group, const KC_PRIVATE float (&levels)[2],
                              const KC_PRIVATE float (&scales)[T], const KC_PRIVATE uint32_t (&cells)[T],
                              const KC_PRIVATE uint32_t (&halves)[R][T]) {
    const uint32_t            channel = first_group * 32 + me.lane;
    KC_GLOBAL uint8_t * const column  = dest.data + 2 * (uint64_t) channel;
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        const uint32_t of_symbols     = kc_to_fp16_pair(levels[0] * scales[t], IS_WIDE ? levels[1] * scales[t] : 0.0f);
        KC_GLOBAL uint16_t * const to = (KC_GLOBAL uint16_t *) (column + kc_multiply_wide(cells[t], dest.stride));
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const uint32_t symbol = halves[r][t] >> 11;
            uint32_t       value  = kc_shuffle(of_symbols, symbol);
            if (IS_WIDE) {
                value = symbol & 32 ? value >> 16 : value;
            }
            if (cells[t] != no_cell && channel + 32 * r < dest.n_channels) {
                kc_write(to + 32 * r, (uint16_t) value);
            }
        }
    }
}

// what the symbols of a tile stand for; levels: of the symbols me.lane and me.lane + 32
template <int R, int T, bool IS_WIDE>
KC_FN void values_of(const KC_PRIVATE float (&levels)[2], const KC_PRIVATE float (&scales)[T],
                     const KC_PRIVATE uint32_t (&halves)[R][T], KC_PRIVATE float (&values)[R][T]) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const uint32_t symbol = halves[r][t] >> 11;
            uint32_t       level  = kc_shuffle(kc_float_bits(levels[0]), symbol);
            if (IS_WIDE) {
                const uint32_t upper = kc_shuffle(kc_float_bits(levels[1]), symbol);
                level                = symbol & 32 ? upper : level;
            }
            values[r][t] = kc_float(level) * scales[t];
        }
    }
}

// The shared memory of a group of lanes, without its rings. Blocks of several groups a lane go through tiles.
template <uint32_t STORE, int R> struct lane_shape {
    static KC_CONSTANT bool     has_tiles = (STORE == store_q8_0 || STORE == store_q4_0) && R > 1;
    static KC_CONSTANT uint32_t bytes     = sizeof(token_scratch) + (has_tiles ? block_tile<R>::bytes : 0);
};

// the shared memory of a group of lanes
struct lane_memory {
    KC_SHARED uint8_t *       rings; // R, at a multiple of a ring's size
    KC_SHARED token_scratch * scratch;
    KC_SHARED float *         tile; // block_tile's bytes, if there are tiles
};

/*
 * Decode R adjacent groups of a unit.
 * levels  IN  of the symbols me.lane and me.lane + 32
 * With F16 rows and R 1 there is no rotation.
 */
template <uint32_t STORE, int R, bool IS_WIDE, typename Table>
KC_FN void decode_groups(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                         const KC_PRIVATE Table &   table, const KC_PRIVATE float (&levels)[2],
                         const KC_GLOBAL unit_job & unit, uint32_t unit_index, uint32_t first_group,
                         const KC_PRIVATE lane_memory & memory) {
    constexpr int      T     = tiling<R>::tokens;
    const bucket_shape shape = shape_of(in.set);
    lane_streams<R>    streams;
    open_streams(me, in, unit, table.base, first_group, memory.rings, streams);
    KC_SHARED token_scratch & scratch  = *memory.scratch;
    const uint32_t            n_rows   = unit.n_rows;
    const uint32_t            rotation = unit.apply_rotation;
    const float               factor   = unit.rotation_factor;
    const destination         dest     = destination_of(unit);
    for (uint32_t first_row = 0; first_row < n_rows; first_row += 32) {
        load_tokens(me, in, unit, first_row, scratch);
        const uint32_t n = n_rows - first_row < 32 ? n_rows - first_row : 32;
        if constexpr (lane_shape<STORE, R>::has_tiles) {
            constexpr uint32_t n_tile = block_tile<R>::tokens;
            for (uint32_t begin = 0; begin < n; begin += n_tile) {
                kc_sync_group(); // the tile before has been used
                KC_UNROLL
                for (uint32_t of_tile = 0; of_tile < n_tile && begin + of_tile < n; of_tile += T) {
                    uint32_t halves[R][T] = {};
                    next_tile<R, T>(me, in, shape, table, n - begin - of_tile, streams, halves);
                    float scales[T];
                    kc_read_words<T>(scratch.scales + begin + of_tile, scales);
                    float values[R][T];
                    values_of<R, T, IS_WIDE>(levels, scales, halves, values);
                    put_values<R, T>(me, memory.tile, of_tile, values);
                }
                kc_sync_group();
                store_block_tile<STORE, R>(me, dest, first_group, rotation, factor, scratch.cells + begin, memory.tile);
            }
            continue;
        }
        for (uint32_t begin = 0; begin < n; begin += T) {
            uint32_t halves[R][T] = {};
            next_tile<R, T>(me, in, shape, table, n - begin, streams, halves);
            float    scales[T];
            uint32_t cells[T];
            tokens_of_tile<T>(scratch, begin, scales, cells);
            if (STORE == store_f16 && R == 1) {
                store_fp16_symbols<R, T, IS_WIDE>(me, dest, first_group, levels, scales, cells, halves);
                continue;
            }
            float values[R][T];
            values_of<R, T, IS_WIDE>(levels, scales, halves, values);
            if (rotation != 0) {
                rotate_tile<R, T>(me, rotation, factor, values);
            }
            store_tile<STORE, R, T>(me, dest, first_group, scratch.cells[begin + me.lane % T], cells, values);
        }
    }
    close_streams(me, in, unit_index, first_group, streams);
}

// the set's table for the whole workgroup; it begins at a multiple of a distribution's 512 bytes
KC_FN void load_table(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                      KC_SHARED table_entry * table) {
    for (uint32_t i = me.id; i < in.set.n_entries; i += 32 * me.n_groups) {
        table[i] = in.table[i];
    }
    kc_sync();
}

/*
 * Groups of lanes take jobs in turn.
 * table  IN  the set's, wherever it is
 * rings  OUT R rings a group of lanes, at a multiple of a ring's size
 * lanes  OUT lane_shape's bytes a group of lanes, at a multiple of 16
 */
template <uint32_t STORE, int R, bool IS_WIDE, typename Table>
KC_FN void decode_jobs(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                       const KC_PRIVATE Table & table, KC_SHARED uint8_t * rings, KC_SHARED uint8_t * lanes) {
    const float               levels[2] = { kc_float(in.values[me.lane]), kc_float(in.values[me.lane + 32]) };
    KC_SHARED uint8_t * const own       = lanes + me.group * lane_shape<STORE, R>::bytes;
    const lane_memory         memory = { rings + me.group * R * tiling<R>::ring_bytes, (KC_SHARED token_scratch *) own,
                                         (KC_SHARED float *) (own + sizeof(token_scratch)) };
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_groups; i += me.n_workgroups * me.n_groups) {
        const uint32_t index = in.groups[i].unit;
        decode_groups<STORE, R, IS_WIDE>(me, in, table, levels, in.units[index], index, in.groups[i].first_group,
                                         memory);
    }
}

/*
 * The kernel, with the set's table in shared memory.
 * table  OUT in.set.n_entries
 * rings  OUT R rings a group of lanes, at a multiple of a ring's size
 * lanes  OUT lane_shape's bytes a group of lanes, at a multiple of 16
 */
template <uint32_t STORE, int R, bool IS_WIDE>
KC_FN void decode_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                         KC_SHARED table_entry * table, KC_SHARED uint8_t * rings, KC_SHARED uint8_t * lanes) {
    load_table(me, in, table);
    const kc_shared shared = kc_shared_at(table);
    decode_jobs<STORE, R, IS_WIDE>(me, in, shared, rings, lanes);
}

} // namespace kernels
