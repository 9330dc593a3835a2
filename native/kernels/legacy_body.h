// LCG1 and LCG2 tiles straight into their destination: docs/formats/lcg1.md and lcg2.md. A lane is a channel, a group
// of lanes 32 adjacent ones, which go through the tokens in step: each LCG1 lane by a stream and a table of its own.
// Whole numbers only until a symbol is known; then level x maximum rounded to F16, and the typed store of that.
#pragma once

#include "decode_body.h"
#include "legacy_jobs.h"

namespace kernels {

KC_CONSTANT uint32_t tile_header_bytes    = 16;
KC_CONSTANT uint32_t n_bounds             = 33; // of a channel's table; the last one is 65,536, not 65,535 as stored
KC_CONSTANT uint32_t stream_table_entries = n_bounds * 32; // of a group; entry i of lane l is number 32 i + l
KC_CONSTANT int      legacy_tokens        = 8;             // decoded between two stores

// the maxima and cells of tokens [first, first + 32) of a tile
KC_FN void load_tile_tokens(const KC_PRIVATE kc_thread & me, const KC_PRIVATE legacy_buffers & in,
                            const KC_GLOBAL legacy_unit & unit, uint32_t first, KC_SHARED token_scratch & scratch) {
    const uint32_t token     = first + me.lane;
    const bool     is_wanted = token >= unit.first_token && token < unit.end_token;
    float          maximum   = 0;
    uint32_t       cell      = no_cell;
    if (token < unit.n_tokens) {
        maximum = ((const KC_GLOBAL float *) (in.bytes + unit.bytes_offset + tile_header_bytes))[token];
    }
    if (is_wanted) {
        const uint32_t after = token - unit.first_token;
        cell                 = unit.cells == no_cell_list ? unit.first_cell + after : in.cells[unit.cells + after];
    }
    kc_sync_group(); // the tokens before have been used
    scratch.scales[me.lane] = maximum;
    scratch.cells[me.lane]  = cell;
    kc_sync_group();
}

// One channel in the middle of its stream: see libcachegen's arithmetic_decode.cpp.
struct channel_stream {
    const KC_GLOBAL uint32_t * next;     // word of the stream
    int32_t                    n_bytes;  // of the stream from there on; 0 or less: zeros follow
    uint32_t                   n_bits;   // in the window
    uint64_t                   window;   // the next bits, from the highest on, zeros after them
    uint32_t                   low;      // bounds
    uint32_t                   high;     // the last number that is inside
    uint32_t                   distance; // of the code from low, at most high - low
};

// the next four bytes, the first one highest; of those after the end none is seen
KC_FN uint32_t next_stream_word(KC_PRIVATE channel_stream & stream) {
    uint32_t bits = 0;
    if (stream.n_bytes > 0) {
        const uint32_t word = kc_read_only(stream.next);
        bits                = word << 24 | (word << 8 & 0xff0000) | (word >> 8 & 0xff00) | word >> 24;
        bits                = stream.n_bytes < 4 ? bits & ~0u << (32 - 8 * stream.n_bytes) : bits;
    }
    stream.next++;
    stream.n_bytes -= 4;
    return bits;
}

// 0 to 32 bits; the window has 33 or more between calls
KC_FN uint32_t take_bits(KC_PRIVATE channel_stream & stream, uint32_t n) {
    const uint64_t taken = stream.window >> 1 >> (63 - n);
    stream.window <<= n;
    stream.n_bits -= n;
    if (stream.n_bits <= 32) {
        stream.window |= (uint64_t) next_stream_word(stream) << (32 - stream.n_bits);
        stream.n_bits += 32;
    }
    return (uint32_t) taken;
}

/*
 * Open the stream of me.lane's channel, if there is one, and read its table; all lanes come here.
 * bounds  OUT of this group, the lane's entries alone
 */
KC_FN void open_stream(const KC_PRIVATE kc_thread & me, const KC_PRIVATE legacy_buffers & in,
                       const KC_GLOBAL legacy_unit & unit, uint32_t group, KC_SHARED uint32_t * bounds,
                       KC_PRIVATE channel_stream & stream) {
    const uint32_t                  channel        = group * 32 + me.lane;
    const bool                      is_channel     = channel < unit.n_channels;
    const KC_GLOBAL uint8_t * const tile           = in.bytes + unit.bytes_offset;
    const uint32_t                  tables_offset  = tile_header_bytes + 4 * unit.n_tokens;
    const uint32_t                  lengths_offset = tables_offset + 2 * n_bounds * unit.n_channels;
    uint32_t                        length         = 0;
    if (is_channel) {
        length = ((const KC_GLOBAL uint16_t *) (tile + lengths_offset))[channel];
    }
    uint32_t end = length; // of the lane's stream, from the group's first one
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t before = kc_shuffle(end, me.lane - distance);
        end += me.lane >= distance ? before : 0;
    }
    stream = channel_stream();
    if (!is_channel) {
        return;
    }
    const KC_GLOBAL uint16_t * const table =
        (const KC_GLOBAL uint16_t *) (tile + tables_offset) + (uint64_t) channel * n_bounds;
    for (uint32_t i = 0; i < n_bounds; i++) {
        bounds[32 * i + me.lane] = i < n_bounds - 1 ? table[i] : 65536;
    }
    const uint64_t first  = unit.bytes_offset + lengths_offset + 2 * (uint64_t) unit.n_channels +
                            in.group_streams[unit.group_streams + group] + (end - length);
    const uint32_t before = (uint32_t) first & 3; // bytes of others in the first word
    stream.next           = (const KC_GLOBAL uint32_t *) (in.bytes + (first - before));
    stream.n_bytes        = (int32_t) (length + before);
    stream.window         = (uint64_t) next_stream_word(stream) << (32 + 8 * before);
    stream.n_bits         = 32 - 8 * before;
    take_bits(stream, 0); // fills the window
    stream.high     = 0xffffffffu;
    stream.distance = take_bits(stream, 32);
}

/*
 * The number of bits that both bounds drop is small: the span is above 2^30 before a symbol, so at least 2^14 after it.
 * bounds  IN  of the lane, 32 words apart
 */
KC_FN uint32_t next_symbol(const KC_SHARED uint32_t * bounds, KC_PRIVATE channel_stream & stream) {
    const uint32_t range  = stream.high - stream.low; // span - 1
    // the symbol is the last one with (span x bound) >> 16 not above the distance: the same without a division
    const uint64_t limit  = ((uint64_t) stream.distance + 1) << 16;
    uint64_t       below  = 0;
    uint32_t       symbol = 0;
    KC_UNROLL
    for (uint32_t step = 16; step > 0; step /= 2) {
        const uint32_t bound   = bounds[32 * (symbol + step)];
        const uint64_t product = kc_multiply_wide(range, bound) + bound;
        if (product < limit) {
            below = product;
            symbol += step;
        }
    }
    const uint32_t bound      = bounds[32 * (symbol + 1)];
    const uint32_t first      = (uint32_t) (below >> 16);
    const uint32_t after      = (uint32_t) ((kc_multiply_wide(range, bound) + bound) >> 16);
    uint32_t       low        = stream.low + first;
    uint32_t       high       = low + (after - first - 1);
    // the leading bits on which both agree, then the places after the next in which low has a 1 and high a 0
    const uint32_t n_agreed   = kc_leading_zeros(low ^ high);
    low                       = low << n_agreed;
    high                      = high << n_agreed | ((1u << n_agreed) - 1);
    const uint32_t n_straddle = kc_leading_zeros(~((low & ~high) << 1));
    stream.low                = low << n_straddle & 0x7fffffff;
    stream.high               = high << n_straddle | 0x80000000 | ((1u << n_straddle) - 1);
    const uint32_t n_dropped  = n_agreed + n_straddle;
    stream.distance           = (stream.distance - first) << n_dropped | take_bits(stream, n_dropped);
    return symbol;
}

// LCG1: the next n symbols of the lane's channel, zeros after them
template <int T> KC_FN void next_symbols(const KC_SHARED uint32_t * bounds, KC_PRIVATE channel_stream & stream,
                                         uint32_t n, KC_PRIVATE uint32_t (&symbols)[T]) {
    static_assert(T <= 8, "a byte each");
    uint64_t all = 0; // not in an array: the loop stays one
    for (uint32_t t = 0; t < n; t++) {
        all |= (uint64_t) next_symbol(bounds, stream) << 8 * t;
    }
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        symbols[t] = (uint32_t) (all >> 8 * t) & 255;
    }
}

// LCG2: n symbols of a channel from a token on, zeros after them
template <int T> KC_FN void packed_symbols(const KC_PRIVATE legacy_buffers & in, const KC_GLOBAL legacy_unit & unit,
                                           uint32_t token, uint32_t channel, uint32_t n,
                                           KC_PRIVATE uint32_t (&symbols)[T]) {
    const KC_GLOBAL uint8_t * const packed =
        in.bytes + unit.bytes_offset + tile_header_bytes + 4 * (uint64_t) unit.n_tokens;
    const uint32_t width = unit.n_bins == 16 ? 4 : 5;
    const uint32_t first = token * unit.n_channels + channel; // a tile has 2^24 at most
    KC_UNROLL
    for (int t = 0; t < T; t++) {
        symbols[t] = (uint32_t) t < n ? packed_number(packed, first + t * unit.n_channels, width) : 0;
    }
}

// what symbol me.lane stands for: (symbol - c) / c, 0 for one that there is not
KC_FN float level_of_lane(const KC_PRIVATE kc_thread & me, uint32_t n_bins) {
    const float centre = (float) (n_bins / 2 - 1);
    return me.lane < n_bins - 1 ? ((float) me.lane - centre) / centre : 0.0f;
}

/*
 * 32 adjacent channels of a tile.
 * bounds   OUT stream_table_entries, of this group; LCG1 alone
 * scratch  OUT of this group
 */
template <uint32_t VERSION, uint32_t STORE>
KC_FN void decode_channels(const KC_PRIVATE kc_thread & me, const KC_PRIVATE legacy_buffers & in,
                           const KC_GLOBAL legacy_unit & unit, uint32_t group, KC_SHARED uint32_t * bounds,
                           KC_SHARED token_scratch & scratch) {
    constexpr int     T          = legacy_tokens;
    const uint32_t    channel    = group * 32 + me.lane;
    const bool        is_channel = channel < unit.n_channels;
    const destination dest       = { (KC_GLOBAL uint8_t *) unit.dest, unit.dest_stride, unit.n_channels };
    const float       levels[2]  = { level_of_lane(me, unit.n_bins), 0.0f };
    uint32_t          largest    = 0;
    channel_stream    stream;
    if (VERSION == 1) {
        open_stream(me, in, unit, group, bounds, stream);
    }
    for (uint32_t first = 0; first < unit.n_tokens; first += 32) {
        load_tile_tokens(me, in, unit, first, scratch);
        const uint32_t n = unit.n_tokens - first < 32 ? unit.n_tokens - first : 32;
        for (uint32_t begin = 0; begin < n; begin += T) {
            const uint32_t n_left = n - begin < (uint32_t) T ? n - begin : (uint32_t) T;
            uint32_t       symbols[1][T];
            if (VERSION == 1) {
                next_symbols<T>(bounds + me.lane, stream, is_channel ? n_left : 0, symbols[0]);
            } else {
                packed_symbols<T>(in, unit, first + begin, channel, is_channel ? n_left : 0, symbols[0]);
            }
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                largest = symbols[0][t] > largest ? symbols[0][t] : largest;
            }
            float    maxima[T];
            uint32_t cells[T];
            tokens_of_tile<T>(scratch, begin, maxima, cells);
            if constexpr (STORE == store_f16) {
                KC_UNROLL
                for (int t = 0; t < T; t++) {
                    symbols[0][t] <<= 11; // where an entry of LCG3's tables has it
                }
                store_fp16_symbols<1, T, false>(me, dest, group, levels, maxima, cells, symbols);
            } else {
                float values[1][T];
                KC_UNROLL
                for (int t = 0; t < T; t++) {
                    // lane s works out what symbol s stands for in this token, for all lanes
                    values[0][t] = kc_from_fp16(kc_shuffle(kc_to_fp16(levels[0] * maxima[t]), symbols[0][t]));
                }
                store_tile<STORE, 1, T>(me, dest, group, scratch.cells[begin + me.lane % T], cells, values);
            }
        }
    }
    if (kc_ballot(largest >= unit.n_bins - 1) != 0 && me.lane == 0) {
        in.errors[unit.record] = legacy_symbol | group << 8;
    }
}

/*
 * The kernel: groups of lanes take jobs in turn.
 * bounds   OUT stream_table_entries a group of lanes; LCG1 alone
 * scratch  OUT one a group of lanes
 */
template <uint32_t VERSION, uint32_t STORE>
KC_FN void legacy_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE legacy_buffers & in,
                         KC_SHARED uint32_t * bounds, KC_SHARED token_scratch * scratch) {
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        decode_channels<VERSION, STORE>(me, in, in.units[in.jobs[i].unit], in.jobs[i].first_group,
                                        VERSION == 1 ? bounds + me.group * stream_table_entries : bounds,
                                        scratch[me.group]);
    }
}

} // namespace kernels
