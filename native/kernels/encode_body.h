// LCG3's entropy encoder in 32 lanes: docs/formats/lcg3.md, "The step", backwards, as libcachegen's rans_encode.cpp.
// From a source's values to words in chunks of a pool, in one.
#pragma once

#include "quantize_body.h"

namespace kernels {

KC_CONSTANT uint32_t piece_words = chunk_words / 2; // written to the pool at a time, by 32 lanes of 16 bytes

template <int R> struct encode_tiling {
    static KC_CONSTANT int tokens = R == 1 ? 4 : R == 8 ? 1 : 2; // a tile's words fit into a piece
};

// R adjacent groups in the middle of their streams, which grow towards their begins
template <int R> struct word_streams {
    uint32_t             state[R];
    uint32_t             model[R];     // the lane's model, times the classes
    uint32_t             n_words[R];   // so far; the same in all lanes, as the rest
    uint32_t             n_written[R]; // to the pool; whole pieces
    uint32_t             chunk[R];     // the last one taken
    bool                 is_full;      // the pool is
    bool                 is_active[R]; // the lane is a channel
    kc_shared            ring_memory;  // the rings
    KC_SHARED uint16_t * rings;        // [R][chunk_words]: the chunk that is being filled, from its end
};

// cells or factors of 32 tokens, one a lane; `first` is a multiple of 32, or no_cell: none yet
struct token_window {
    uint32_t first;
    uint32_t value;
};

template <uint32_t SOURCE, int R, int T>
KC_FN void load_rows(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                     const KC_PRIVATE encode_plane & plane, const KC_PRIVATE block_rows & rows, uint32_t first_group,
                     uint32_t first_row, KC_PRIVATE token_window & cells, KC_PRIVATE raw_tile<R, T> & raw) {
    if (cells.first != (first_row & ~31u)) {
        cells.first        = first_row & ~31u;
        const uint32_t row = cells.first + me.lane;
        // instead of a token that is not there, the last one
        cells.value        = kc_read_only(in.cells + plane.cells + rows.first + (row < rows.n ? row : rows.n - 1));
    }
    uint32_t of_tile[T];
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        of_tile[t] = kc_shuffle(cells.value, (first_row + t) & 31);
    }
    load_tile<SOURCE, R, T>(me, plane, first_group, of_tile, raw);
}

// a tile's symbols, 8 bits each
template <uint32_t SOURCE, int R, int T>
KC_FN void quantize_rows(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                         const KC_PRIVATE encode_plane & plane, const KC_PRIVATE block_rows & rows,
                         uint32_t first_group, uint32_t first_row, float centre, KC_PRIVATE token_window & factors,
                         const KC_PRIVATE raw_tile<R, T> & raw, KC_PRIVATE uint32_t (&symbols)[R]) {
    if (factors.first != (first_row & ~31u)) {
        factors.first        = first_row & ~31u;
        const uint32_t row   = factors.first + me.lane;
        const uint32_t scale = in.scales[plane.scales + (row < rows.n ? row : rows.n - 1)];
        factors.value        = kc_float_bits(factor_of(scale, plane.scale_type, centre));
    }
    float values[R][T];
    convert_tile<SOURCE, R, T>(me, plane, first_group, raw, values);
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        symbols[r] = 0;
    }
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        const float factor = kc_float(kc_shuffle(factors.value, (first_row + t) & 31));
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            symbols[r] |= quantize(values[r][t], factor, centre) << (8 * t);
        }
    }
}

// what a workgroup looks up. Entries: kc_shared, or memory_table
template <typename Entries> struct encode_tables {
    Entries   entries; // of the set
    kc_shared class_of;
};

// What a tile's symbols are coded with: none of it depends on a state.
template <int R, int T> struct tile_entries {
    encode_entry entries[R][T];
    uint32_t     slots[R][T]; // index of the distribution's first
};

// symbols: of the tile that begins with a block's row first_row; before: of the tile before it
template <int R, int T, typename Entries>
KC_FN void look_up(const KC_PRIVATE encode_buffers & in, const KC_PRIVATE encode_tables<Entries> & tables,
                   const KC_PRIVATE word_streams<R> & streams, uint32_t first_row,
                   const KC_PRIVATE uint32_t (&symbols)[R], const KC_PRIVATE uint32_t (&before)[R],
                   KC_PRIVATE tile_entries<R, T> & found) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const uint32_t last    = t > 0 ? symbols[r] >> (8 * (t > 0 ? t - 1 : 0)) & 255 : before[r] >> (8 * T - 8);
            const uint32_t of_last = kc_read_u8(tables.class_of, tables.class_of.base + last);
            const uint32_t context = first_row + t > 0 ? of_last : in.set.initial_class;
            const uint32_t distribution = streams.model[r] + context;
            const uint32_t symbol       = symbols[r] >> (8 * t) & 255;
            found.entries[r][t] =
                kc_read_u64(tables.entries, tables.entries.base + ((distribution << in.set.log2_stride) + symbol) * 8);
            found.slots[r][t] = distribution * 1024;
        }
    }
}

// one token of group r. is_active: the lane is a channel
template <int R> KC_FN void encode_step(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                                        bool is_active, encode_entry entry, uint32_t first_slot,
                                        KC_PRIVATE word_streams<R> & streams, int r) {
    const uint32_t frequency  = (uint32_t) (entry >> 32) & 0xffff;
    uint32_t       state      = streams.state[r];
    const bool     gives_word = is_active && state >> 22 >= frequency;
    const uint32_t giving     = kc_ballot(gives_word);
    if (gives_word) {
        // the last lane's word is the last of the token
        const uint32_t index = streams.n_words[r] + kc_count_bits(giving >> 1 >> me.lane);
        kc_write_u16(streams.ring_memory,
                     streams.ring_memory.base + r * chunk_bytes + (~(2 * index) & (chunk_bytes - 2)), state);
    }
    state = gives_word ? state >> 16 : state;
    streams.n_words[r] += kc_count_bits(giving);

    uint32_t quotient = (uint32_t) (kc_multiply_wide(state, (uint32_t) entry) >> 32);
    uint32_t rank     = state - quotient * frequency;
    if (rank >= frequency) {
        quotient++;
        rank -= frequency;
    }
    const uint32_t slot = first_slot + (((uint32_t) (entry >> 48) + rank) & 1023);
    streams.state[r]    = quotient << 10 | kc_read_only(in.slots + slot);
}

template <int R, int T, bool IS_WHOLE>
KC_FN void encode_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in, uint32_t n_tokens,
                       const KC_PRIVATE tile_entries<R, T> & found, KC_PRIVATE word_streams<R> & streams) {
    KC_UNROLL
    for (int t = T - 1; t >= 0; t--) {
        if (IS_WHOLE || (uint32_t) t < n_tokens) {
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                encode_step<R>(me, in, streams.is_active[r], found.entries[r][t], found.slots[r][t], streams, r);
            }
        }
    }
}

// write the next piece of group r's ring to the pool, whole or not
template <int R> KC_FN void write_piece(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                                        KC_PRIVATE word_streams<R> & streams, int r) {
    const uint32_t piece = streams.n_written[r] / piece_words & 1;
    if (piece == 0) {
        uint32_t chunk = 0;
        if (me.lane == 0) {
            chunk = kc_atomic_add(&in.cursors->n_chunks, 1);
            if (chunk < in.n_pool) {
                in.next_chunk[chunk] = streams.chunk[r];
            }
        }
        chunk            = kc_shuffle(chunk, 0);
        streams.chunk[r] = chunk;
        streams.is_full |= chunk >= in.n_pool;
    }
    kc_sync_group(); // the words are there
    if (!streams.is_full) {
        const uint32_t                   offset = chunk_bytes / 2 * (1 - piece) + 16 * me.lane;
        const KC_SHARED uint32_t * const from =
            (const KC_SHARED uint32_t *) ((const KC_SHARED uint8_t *) (streams.rings + r * chunk_words) + offset);
        kc_write_16(in.pool + (uint64_t) streams.chunk[r] * chunk_bytes + offset, from[0], from[1], from[2], from[3]);
    }
    kc_sync_group(); // and have been read
    streams.n_written[r] += piece_words;
}

template <int R> KC_FN void open_words(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                                       const KC_PRIVATE encode_plane & plane, uint32_t first_group,
                                       KC_SHARED uint16_t * rings, KC_PRIVATE word_streams<R> & streams) {
    streams.is_full     = false;
    streams.rings       = rings;
    streams.ring_memory = kc_shared_at(rings);
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t channel = (first_group + r) * 32 + me.lane;
        streams.state[r]       = 65536;
        streams.is_active[r]   = channel < plane.n_channels;
        streams.model[r] =
            channel < plane.n_channels ? kc_read_only(in.models + plane.models + channel) * in.set.n_classes : 0;
        streams.n_words[r]   = 0;
        streams.n_written[r] = 0;
        streams.chunk[r]     = no_chunk;
    }
}

template <int R> KC_FN void close_words(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                                        const KC_PRIVATE encode_plane & plane, uint32_t first_group,
                                        KC_PRIVATE word_streams<R> & streams) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        if (!streams.is_full && streams.n_words[r] > streams.n_written[r]) {
            write_piece<R>(me, in, streams, r);
        }
    }
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t group   = first_group + r;
        const uint32_t channel = group * 32 + me.lane;
        if (channel < plane.n_channels) {
            in.states[plane.channels + channel] = streams.state[r];
        }
        if (me.lane == 0 && group < plane.n_groups) {
            in.n_words[plane.groups + group]     = streams.is_full ? no_chunk : streams.n_words[r];
            in.first_chunk[plane.groups + group] = streams.chunk[r];
        }
    }
}

/*
 * Encode R adjacent groups of a block, from its last token to the first. While a tile is encoded, the one before has
 * been quantised, since its last symbols are context, and the values of the one before that are on their way.
 */
template <uint32_t SOURCE, int R, typename Entries>
KC_FN void encode_groups(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                         const KC_PRIVATE encode_tables<Entries> & tables, const KC_PRIVATE encode_plane & plane,
                         uint32_t first_group, KC_SHARED uint16_t * rings) {
    constexpr int    T      = encode_tiling<R>::tokens;
    const block_rows rows   = rows_of(in, plane);
    const float      centre = (float) (in.set.n_symbols / 2);
    word_streams<R>  streams;
    open_words<R>(me, in, plane, first_group, rings, streams);
    if (rows.n == 0) {
        close_words<R>(me, in, plane, first_group, streams);
        return;
    }
    token_window   cells   = { no_cell, 0 };
    token_window   factors = { no_cell, 0 };
    raw_tile<R, T> raw;
    uint32_t       symbols[R];
    uint32_t       before[R];
    uint32_t       tile = (rows.n - 1) / T * T;
    load_rows<SOURCE, R, T>(me, in, plane, rows, first_group, tile, cells, raw);
    quantize_rows<SOURCE, R, T>(me, in, plane, rows, first_group, tile, centre, factors, raw, symbols);
    if (tile > 0) {
        load_rows<SOURCE, R, T>(me, in, plane, rows, first_group, tile - T, cells, raw);
    }
    while (true) {
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            before[r] = 0;
        }
        if (tile > 0) {
            quantize_rows<SOURCE, R, T>(me, in, plane, rows, first_group, tile - T, centre, factors, raw, before);
        }
        if (tile > T) {
            load_rows<SOURCE, R, T>(me, in, plane, rows, first_group, tile - 2 * T, cells, raw);
        }
        tile_entries<R, T> found;
        look_up<R, T>(in, tables, streams, tile, symbols, before, found);
        if (tile + T <= rows.n) {
            encode_tile<R, T, true>(me, in, T, found, streams);
        } else {
            encode_tile<R, T, false>(me, in, rows.n - tile, found, streams);
        }
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            if (streams.n_words[r] - streams.n_written[r] >= piece_words) {
                write_piece<R>(me, in, streams, r);
            }
        }
        if (tile == 0 || streams.is_full) {
            break;
        }
        tile -= T;
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            symbols[r] = before[r];
        }
    }
    close_words<R>(me, in, plane, first_group, streams);
}

/*
 * Groups of lanes take jobs in turn.
 * rings     OUT R x chunk_words a group of lanes
 */
template <uint32_t SOURCE, int R, typename Entries>
KC_FN void encode_jobs(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                       const KC_PRIVATE encode_tables<Entries> & tables, KC_SHARED uint16_t * rings) {
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const encode_plane plane = in.planes[in.groups[i].unit];
        encode_groups<SOURCE, R>(me, in, tables, plane, in.groups[i].first_group, rings + me.group * R * chunk_words);
    }
}

KC_FN void load_classes(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                        KC_SHARED uint8_t * class_of) {
    for (uint32_t i = me.id; i < 64; i += 32 * me.n_groups) {
        class_of[i] = in.class_of[i];
    }
    kc_sync();
}

/*
 * The kernel, with the set's table in shared memory.
 * rings     OUT R x chunk_words a group of lanes
 * table     OUT in.set.n_entries
 * class_of  OUT 64
 */
template <uint32_t SOURCE, int R>
KC_FN void encode_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                         KC_SHARED uint16_t * rings, KC_SHARED encode_entry * table, KC_SHARED uint8_t * class_of) {
    for (uint32_t i = me.id; i < in.set.n_entries; i += 32 * me.n_groups) {
        table[i] = in.table[i];
    }
    load_classes(me, in, class_of);
    const encode_tables<kc_shared> tables = { kc_shared_at(table), kc_shared_at(class_of) };
    encode_jobs<SOURCE, R>(me, in, tables, rings);
}

} // namespace kernels
