// LCG3's entropy decoder in 32 lanes: docs/formats/lcg3.md, "The step". A lane is a channel; the lanes of a group take
// words from one stream, in rising order, found by a ballot and a count of bits (F. Giesen, arXiv:1402.3392).
#pragma once

#include "jobs.h"
#include "port.h"

namespace kernels {

// 64-bit words in a device's memory, as a table in shared memory is read
struct memory_table {
    uint32_t                      base;
    const KC_GLOBAL table_entry * words;
};
KC_FN table_entry kc_table_word(const memory_table & table, uint32_t address) {
    return table.words[address / 8];
}

// R adjacent groups in the middle of their streams.
template <int R> struct lane_streams {
    uint32_t                   state[R];
    uint32_t                   table[R]; // address of the lane's distribution: model and class
    uint32_t                   model[R]; // address of the lane's model
    const KC_GLOBAL uint16_t * next[R];  // word; the same in all lanes
    const KC_GLOBAL uint16_t * end[R];
    bool                       is_short; // a word was due that is not there
};

// Where the fields of states and entries go in addresses. A distribution lies at a multiple of its size.
struct bucket_shape {
    uint32_t shift;         // from a state to 8 x its bucket
    uint32_t bucket_mask;   // of that
    uint32_t position_mask; // in a state
    uint32_t class_shift;   // from an entry's half to the offset of its class
    uint32_t class_mask;    // of that
};

KC_FN bucket_shape shape_of(const set_shape & set) {
    bucket_shape shape;
    shape.shift         = 10 - set.log2_n_buckets - 3;
    shape.bucket_mask   = ((1u << set.log2_n_buckets) - 1) << 3;
    shape.position_mask = (1u << (10 - set.log2_n_buckets)) - 1;
    shape.class_shift   = 17 - set.log2_n_buckets - 3;
    shape.class_mask    = 15u << (set.log2_n_buckets + 3);
    return shape;
}

// base: address of the set's table
template <int R> KC_FN void open_streams(const kc_thread & me, const launch_buffers & in,
                                         const KC_GLOBAL unit_job & unit, uint32_t base, uint32_t first_group,
                                         lane_streams<R> & streams) {
    const KC_GLOBAL uint8_t * const  bytes         = in.bytes + unit.bytes_offset;
    const uint32_t                   log2_bytes    = in.set.log2_n_buckets + 3; // of a distribution
    const uint32_t                   states_offset = 8 + 4 * unit.n_groups;
    const KC_GLOBAL uint16_t * const words         = (const KC_GLOBAL uint16_t *) (bytes + unit.words_offset);
    streams.is_short                               = false;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t group      = first_group + r;
        const uint32_t channel    = group * 32 + me.lane;
        const bool     is_channel = channel < unit.n_channels;
        const uint32_t model      = is_channel ? in.models[unit.models + channel] : in.set.n_models;
        streams.model[r]          = base + (model * in.set.n_classes << log2_bytes);
        streams.table[r]          = streams.model[r] + (in.set.initial_class << log2_bytes);
        streams.state[r] =
            is_channel ? *(const KC_GLOBAL uint32_t *) (bytes + states_offset + 4 * (uint64_t) channel) : 65536;
        const bool is_group = group < unit.n_groups;
        streams.next[r]     = words + (is_group ? in.group_words[unit.group_words + group] : 0);
        streams.end[r]      = words + (is_group ? in.group_words[unit.group_words + group + 1] : 0);
    }
}

/*
 * One token of group r. Returns the symbol's half of the entry.
 * IS_NEAR_END: look at every word, else the caller knows that 32 are there.
 */
template <int R, bool IS_NEAR_END, typename Table> KC_FN uint32_t step(const kc_thread & me, const bucket_shape & shape,
                                                                       const Table & table, lane_streams<R> & streams,
                                                                       int r) {
    const uint32_t    state    = streams.state[r];
    const table_entry entry    = kc_table_word(table, (state >> shape.shift & shape.bucket_mask) | streams.table[r]);
    const uint32_t    own      = (uint32_t) entry;
    const uint32_t    position = state & shape.position_mask;
    const uint32_t    divider  = own >> 22;
    const uint32_t    half     = position < divider ? own : (uint32_t) (entry >> 32);

    uint32_t next    = (half & 2047) * (state >> 10) + (position - divider + (half >> 22));
    streams.table[r] = streams.model[r] + (half >> shape.class_shift & shape.class_mask);

    const bool                       needs_word = next < 65536;
    const uint32_t                   needing    = kc_ballot(needs_word);
    const KC_GLOBAL uint16_t * const word       = streams.next[r] + kc_count_bits(needing & ((1u << me.lane) - 1));
    if (IS_NEAR_END) {
        const bool is_there = word < streams.end[r];
        if (needs_word) {
            next = next << 16 | (is_there ? kc_read_u16(word) : 0u);
        }
        streams.is_short |= needs_word && !is_there;
    } else if (needs_word) {
        next = next << 16 | kc_read_u16(word);
    }
    streams.next[r] += kc_count_bits(needing);
    streams.state[r] = next;
    return half;
}

KC_FN uint32_t symbol_of(uint32_t half) {
    return half >> 11 & 63;
}

/*
 * The next tokens of R groups, tile_tokens at most; of a token that is not there the halves are of no use.
 * halves  OUT [R][tile_tokens]
 */
constexpr int tile_tokens = 4;

template <int R, typename Table> KC_FN void next_tile(const kc_thread & me, const bucket_shape & shape, Table table,
                                                      uint32_t n_tokens, lane_streams<R> & streams,
                                                      uint32_t (&halves)[R][tile_tokens]) {
    bool is_near_end = n_tokens < tile_tokens;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        is_near_end |= streams.end[r] - streams.next[r] < 32 * tile_tokens;
    }
    if (!is_near_end) {
        KC_UNROLL
        for (int t = 0; t < tile_tokens; t++) {
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                halves[r][t] = step<R, false>(me, shape, table, streams, r);
            }
        }
        return;
    }
    KC_UNROLL
    for (int t = 0; t < tile_tokens; t++) {
        if ((uint32_t) t < n_tokens) {
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                halves[r][t] = step<R, true>(me, shape, table, streams, r);
            }
        }
    }
}

// after the last token: all words taken, every state where the encoder began
template <int R> KC_FN void close_streams(const kc_thread & me, const launch_buffers & in, uint32_t unit_index,
                                          uint32_t first_group, const lane_streams<R> & streams) {
    uint32_t error = unit_ok;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        if (kc_ballot(streams.state[r] != 65536) != 0) {
            error = unit_final_state;
        }
        if (streams.next[r] != streams.end[r]) {
            error = unit_words_left;
        }
    }
    if (kc_ballot(streams.is_short) != 0) {
        error = unit_words_short;
    }
    if (error != unit_ok && me.lane == 0) {
        in.errors[unit_index] = error | first_group << 8;
    }
}

} // namespace kernels
