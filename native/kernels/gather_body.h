// Finished units from what the encoder left: sizes and scales first, then every group's words to their place in the
// host's memory.
#pragma once

#include "encode_body.h"

namespace kernels {

// the sum of the lanes' values up to this lane's
KC_FN uint32_t sum_up_to(const KC_PRIVATE kc_thread & me, uint32_t value) {
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t lower = kc_shuffle(value, (me.lane - distance) & 31);
        value += me.lane >= distance ? lower : 0;
    }
    return value;
}

struct scale_range {
    uint32_t base;    // the least
    uint32_t n_bits;  // of the others above it
    uint32_t odd_row; // the first row without a scale, n if there is none
};

KC_FN scale_range range_of(const KC_PRIVATE kc_thread & me, const KC_GLOBAL uint32_t * scales, uint32_t n) {
    uint32_t    most     = 0;
    uint32_t    inverted = 0;
    scale_range range    = { 0, 0, n };
    for (uint32_t first = 0; first < n; first += 32) {
        const bool     is_there = first + me.lane < n;
        const uint32_t scale    = is_there ? scales[first + me.lane] : 0;
        if (is_there) {
            most     = most > scale ? most : scale;
            inverted = inverted > ~scale ? inverted : ~scale;
        }
        const uint32_t odd = kc_ballot(is_there && scale >= scale_too_large);
        if (odd != 0 && range.odd_row == n) {
            range.odd_row = first + kc_count_bits((odd & (0u - odd)) - 1);
        }
    }
    range.base = ~kc_max(inverted);
    most       = kc_max(most);
    while (range.n_bits < 32 && (most - range.base) >> range.n_bits != 0) {
        range.n_bits++;
    }
    return range;
}

// word `index` of n scales packed
KC_FN uint32_t packed_scales(const KC_GLOBAL uint32_t * scales, uint32_t n, const KC_PRIVATE scale_range & range,
                             uint32_t index) {
    const uint32_t begin = 32 * index;
    uint32_t       word  = 0;
    for (uint32_t i = begin / range.n_bits; i < n && i * range.n_bits < begin + 32; i++) {
        const uint32_t above = scales[i] - range.base;
        const uint32_t bit   = i * range.n_bits;
        word |= bit >= begin ? above << (bit - begin) : above >> (begin - bit);
    }
    return word;
}

// of groups [0, n_groups): their first words, and the sum; no_chunk: one of them had no room
KC_FN uint32_t place_groups(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                            const KC_PRIVATE encode_plane & plane) {
    uint32_t total   = 0;
    bool     is_full = false;
    for (uint32_t first = 0; first < plane.n_groups; first += 32) {
        const uint32_t group    = first + me.lane;
        const bool     is_there = group < plane.n_groups;
        const uint32_t n        = is_there ? in.n_words[plane.groups + group] : 0;
        is_full |= kc_ballot(n == no_chunk) != 0;
        const uint32_t sum = sum_up_to(me, n);
        if (is_there) {
            in.first_word[plane.groups + group] = total + sum - n;
        }
        total += kc_shuffle(sum, 31);
    }
    return is_full ? no_chunk : total;
}

// one plane's unit: everything but states and words. Returns what became of it, the same in all lanes.
KC_FN unit_made lay_out_unit(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                             const KC_PRIVATE encode_plane & plane, KC_PRIVATE unit_place & place) {
    const block_rows rows = rows_of(in, plane);
    unit_made        made = { made_none, 0, 0, 0 };
    place                 = { 0, 0 };
    if (rows.n == 0) {
        return made;
    }
    const KC_GLOBAL uint32_t * const scales = in.scales + plane.scales;
    const scale_range                range  = range_of(me, scales, rows.n);
    if (range.odd_row < rows.n) {
        made.outcome = scales[range.odd_row] == scale_non_finite ? made_non_finite : made_too_large;
        made.row     = range.odd_row;
        return made;
    }
    const uint32_t n_words = place_groups(me, in, plane);
    if (n_words == no_chunk) {
        return made;
    }
    const uint32_t states_offset = 8 + 4 * plane.n_groups;
    const uint32_t scales_offset = states_offset + 4 * plane.n_channels;
    const uint32_t n_scale_words = (rows.n * range.n_bits + 31) / 32;
    const uint32_t words_offset  = scales_offset + 4 * n_scale_words;
    const uint32_t end           = words_offset + 2 * n_words;
    const uint32_t n_units_of_16 = (end + 15) / 16;
    uint32_t       offset        = 0;
    if (me.lane == 0) {
        offset = kc_atomic_add(&in.cursors->n_output, n_units_of_16);
    }
    offset = kc_shuffle(offset, 0);
    if (offset > in.n_output || n_units_of_16 > in.n_output - offset) {
        return made;
    }
    KC_GLOBAL uint8_t * const  unit  = in.output + 16 * (uint64_t) offset;
    KC_GLOBAL uint32_t * const words = (KC_GLOBAL uint32_t *) unit;
    if (me.lane == 0) {
        words[0] = range.base;
        words[1] = range.n_bits;
    }
    for (uint32_t group = me.lane; group < plane.n_groups; group += 32) {
        words[2 + group] = in.n_words[plane.groups + group];
    }
    for (uint32_t i = me.lane; i < n_scale_words; i += 32) {
        words[scales_offset / 4 + i] = packed_scales(scales, rows.n, range, i);
    }
    if (end + 2 * me.lane < 16 * n_units_of_16) {
        *(KC_GLOBAL uint16_t *) (unit + end + 2 * me.lane) = 0;
    }
    place.words  = (uint64_t) (unit + words_offset);
    place.states = (uint64_t) (unit + states_offset);
    made.outcome = made_ok;
    made.offset  = offset;
    made.n_bytes = 16 * n_units_of_16;
    return made;
}

// The kernel: a job is a plane of the wave.
KC_FN void lay_out_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in) {
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        unit_place place;
        const KC_COPY(encode_plane) plane = in.planes[i];
        const unit_made made              = lay_out_unit(me, in, plane, place);
        if (me.lane == 0) {
            in.places[i] = place;
            in.made[i]   = made;
        }
    }
}

// a group's words, from the chunks that hold them to where they belong; to is even
KC_FN void gather_words(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in, uint32_t chunk,
                        uint32_t n_words, uint64_t to) {
    const KC_GLOBAL uint16_t * const pool     = (const KC_GLOBAL uint16_t *) in.pool;
    // the first chunk is filled from its middle on, the others wholly
    const uint32_t                   lead     = (chunk_words - n_words % chunk_words) % chunk_words;
    const uint32_t                   n_chunks = (n_words + lead) / chunk_words;
    uint32_t                         number   = 0; // of `chunk`
    uint32_t                         next     = n_chunks > 1 ? in.next_chunk[chunk] : chunk;
    // lanes write 16 aligned bytes each; the first word is `shift` words after such a multiple
    const uint32_t                   shift    = (uint32_t) to % 16 / 2;
    for (uint32_t begin = 0; begin < n_words + shift; begin += 256) {
        const uint32_t first_here = begin > shift ? begin - shift : 0;
        if ((first_here + lead) / chunk_words > number) {
            chunk = next;
            number++;
            next = number + 1 < n_chunks ? in.next_chunk[chunk] : chunk;
        }
        const uint32_t first = begin + 8 * me.lane - shift; // wraps before the first word
        uint32_t       words[8];
        uint32_t       n_there = 0;
        KC_UNROLL
        for (int i = 0; i < 8; i++) {
            words[i] = 0;
            if (first + i < n_words) {
                const uint32_t at   = first + i + lead;
                const uint32_t from = at / chunk_words == number ? chunk : next;
                words[i]            = pool[(uint64_t) from * chunk_words + at % chunk_words];
                n_there++;
            }
        }
        const uint64_t address = to - 2 * shift + 2 * (uint64_t) (begin + 8 * me.lane);
        if (n_there == 8) {
            kc_write_16((KC_GLOBAL uint8_t *) address, words[0] | words[1] << 16, words[2] | words[3] << 16,
                        words[4] | words[5] << 16, words[6] | words[7] << 16);
            continue;
        }
        KC_UNROLL
        for (int i = 0; i < 8; i++) {
            if (first + i < n_words) {
                kc_write((KC_GLOBAL uint16_t *) address + i, (uint16_t) words[i]);
            }
        }
    }
}

// The kernel: a job is a group.
KC_FN void gather_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in) {
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const uint32_t     unit  = in.groups[i].unit;
        const uint32_t     group = in.groups[i].first_group;
        const encode_plane plane = in.planes[unit];
        const unit_place   place = in.places[unit];
        if (place.states == 0) {
            continue;
        }
        const uint32_t channel = 32 * group + me.lane;
        if (channel < plane.n_channels) {
            ((KC_GLOBAL uint32_t *) place.states)[channel] = in.states[plane.channels + channel];
        }
        const uint32_t n_words = in.n_words[plane.groups + group];
        const uint64_t to      = place.words + 2 * (uint64_t) in.first_word[plane.groups + group];
        gather_words(me, in, in.first_chunk[plane.groups + group], n_words, to);
    }
}

} // namespace kernels
