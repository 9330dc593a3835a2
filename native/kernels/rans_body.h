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
KC_FN table_entry kc_read_u64(const KC_PRIVATE memory_table & table, uint32_t address) {
    return table.words[address / 8];
}

/*
 * Words come through a ring in shared memory, one a group: what lanes need next has long been on its way. A ring has
 * room for 4 batches; before a tile, the batch that it begins in and the next one are there.
 */
template <int R> struct tiling {
    static KC_CONSTANT int      tokens      = R == 1 ? 8 : R == 2 ? 4 : 2; // of a tile
    static KC_CONSTANT uint32_t batch_bytes = 64 * tokens;                 // the most that a tile takes
    static KC_CONSTANT uint32_t ring_bytes  = 4 * batch_bytes;
};

// R adjacent groups in the middle of their streams. Positions are in bytes, from a multiple of 16 on.
template <int R> struct lane_streams {
    uint32_t            state[R];
    uint32_t            table[R]; // address of the lane's distribution: model and class
    uint32_t            model[R]; // address of the lane's model
    uint32_t            next[R];  // position of the next word; the same in all lanes, as the rest
    uint32_t            end[R];
    uint32_t            filled[R];   // multiple of a batch
    uint64_t            origin[R];   // of the positions, in the launch's bytes
    bool                is_short;    // a word was due that is not there
    KC_SHARED uint8_t * rings;       // [R][ring_bytes], at a multiple of ring_bytes
    kc_shared           ring_memory; // the same
};

// start the next batch of group r
template <int R> KC_FN void fill_ring(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                                      KC_PRIVATE lane_streams<R> & streams, int r) {
    const uint32_t lane = kc_again(me.lane);
    const uint32_t to   = streams.filled[r] + 16 * lane;
    const uint64_t from = streams.origin[r] + to;
    if (16 * lane < tiling<R>::batch_bytes && from + 16 <= in.n_bytes) {
        kc_copy_16(streams.rings + r * tiling<R>::ring_bytes + to % tiling<R>::ring_bytes, in.bytes + from);
    }
    kc_end_batch();
    streams.filled[r] += tiling<R>::batch_bytes;
}

// before a tile
template <int R> KC_FN void advance_rings(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                                          KC_PRIVATE lane_streams<R> & streams) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        // the batch before the one of `next` has been used
        if (streams.filled[r] - streams.next[r] <= 3 * tiling<R>::batch_bytes) {
            kc_sync_group(); // by all lanes
            fill_ring<R>(me, in, streams, r);
            kc_wait_batches<2>(); // of this group or others: the batch after the next is the oldest that may be late
            kc_sync_group();
        }
    }
}

// Where the fields of states and entries go in addresses. A distribution lies at a multiple of its size.
struct bucket_shape {
    uint32_t shift;         // from a state to 8 x its bucket
    uint32_t bucket_mask;   // of that
    uint32_t position_mask; // in a state
    uint32_t class_shift;   // from an entry's half to the offset of its class
    uint32_t class_mask;    // of that
};

KC_FN bucket_shape shape_of(const KC_PRIVATE set_shape & set) {
    bucket_shape shape;
    shape.shift         = 10 - set.log2_n_buckets - 3;
    shape.bucket_mask   = ((1u << set.log2_n_buckets) - 1) << 3;
    shape.position_mask = (1u << (10 - set.log2_n_buckets)) - 1;
    shape.class_shift   = 17 - set.log2_n_buckets - 3;
    shape.class_mask    = 15u << (set.log2_n_buckets + 3);
    return shape;
}

// base: address of the set's table
template <int R> KC_FN void open_streams(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                                         const KC_GLOBAL unit_job & unit, uint32_t base, uint32_t first_group,
                                         KC_SHARED uint8_t * rings, KC_PRIVATE lane_streams<R> & streams) {
    const KC_GLOBAL uint8_t * const bytes         = in.bytes + unit.bytes_offset;
    const uint32_t                  log2_bytes    = in.set.log2_n_buckets + 3; // of a distribution
    const uint32_t                  states_offset = 8 + 4 * unit.n_groups;
    const uint64_t                  words         = unit.bytes_offset + unit.words_offset;
    streams.is_short                              = false;
    streams.rings                                 = rings;
    streams.ring_memory                           = kc_shared_at(rings);
    kc_wait_batches<0>(); // nothing of the groups before is still on its way,
    kc_sync_group();      // and nobody reads it
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
        const bool     is_group = group < unit.n_groups;
        const uint64_t first    = words + 2 * (uint64_t) (is_group ? in.group_words[unit.group_words + group] : 0);
        const uint64_t after    = words + 2 * (uint64_t) (is_group ? in.group_words[unit.group_words + group + 1] : 0);
        streams.origin[r]       = first & ~(uint64_t) 15;
        streams.next[r]         = (uint32_t) (first - streams.origin[r]);
        streams.end[r]          = is_group ? (uint32_t) (after - streams.origin[r]) : streams.next[r];
        streams.filled[r]       = 0;
    }
    for (int batch = 0; batch < 4; batch++) {
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            fill_ring<R>(me, in, streams, r);
        }
    }
    kc_wait_batches<0>();
    kc_sync_group();
}

/*
 * One token of group r. Returns the symbol's half of the entry.
 * IS_NEAR_END: look at every word, else the caller knows that 32 are there.
 */
template <int R, bool IS_NEAR_END, typename Table>
KC_FN uint32_t step(const KC_PRIVATE kc_thread & me, const KC_PRIVATE bucket_shape & shape,
                    const KC_PRIVATE Table & table, KC_PRIVATE lane_streams<R> & streams, int r) {
    const uint32_t    state    = streams.state[r];
    const table_entry entry    = kc_read_u64(table, (state >> shape.shift & shape.bucket_mask) | streams.table[r]);
    const uint32_t    own      = (uint32_t) entry;
    const uint32_t    position = state & shape.position_mask;
    const uint32_t    divider  = own >> 22;
    const uint32_t    chosen   = position < divider ? own : (uint32_t) (entry >> 32);

    uint32_t next    = (chosen & 2047) * (state >> 10) + (position - divider + (chosen >> 22));
    streams.table[r] = streams.model[r] + (chosen >> shape.class_shift & shape.class_mask);

    const bool     needs_word = next < 65536;
    const uint32_t needing    = kc_ballot(needs_word);
    const uint32_t word       = streams.next[r] + 2 * kc_count_bits(needing & ((1u << me.lane) - 1));
    const bool     is_there   = !IS_NEAR_END || word < streams.end[r];
    if (needs_word) {
        const uint32_t address =
            (word & (tiling<R>::ring_bytes - 1)) | (streams.ring_memory.base + r * tiling<R>::ring_bytes);
        next = next << 16 | (is_there ? kc_read_u16(streams.ring_memory, address) : 0u);
    }
    streams.is_short |= needs_word && !is_there;
    streams.next[r] += 2 * kc_count_bits(needing);
    streams.state[r] = next;
    return chosen;
}

KC_FN uint32_t symbol_of(uint32_t bits) {
    return bits >> 11 & 63;
}

/*
 * The next tokens of R groups, as many as a tile has at most; of a token that is not there the halves are of no use.
 * halves  OUT [R][T]
 */
template <int R, int T, typename Table>
KC_FN void next_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                     const KC_PRIVATE bucket_shape & shape, const KC_PRIVATE Table & table, uint32_t n_tokens,
                     KC_PRIVATE lane_streams<R> & streams, KC_PRIVATE uint32_t (&halves)[R][T]) {
    static_assert(T == tiling<R>::tokens, "a tile is what the rings are made for");
    bool is_near_end = n_tokens < T;
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        is_near_end |= streams.end[r] - streams.next[r] < tiling<R>::batch_bytes;
    }
    advance_rings<R>(me, in, streams);
    if (!is_near_end) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                halves[r][t] = step<R, false>(me, shape, table, streams, r);
            }
        }
        return;
    }
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        if ((uint32_t) t < n_tokens) {
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                halves[r][t] = step<R, true>(me, shape, table, streams, r);
            }
        }
    }
}

// after the last token: all words taken, every state where the encoder began
template <int R> KC_FN void close_streams(const KC_PRIVATE kc_thread & me, const KC_PRIVATE launch_buffers & in,
                                          uint32_t unit_index, uint32_t first_group,
                                          const KC_PRIVATE lane_streams<R> & streams) {
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
