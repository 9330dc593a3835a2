// Counting a sample's symbols: libcachegen's count_symbols() and count_pairs() in 32 lanes.
#pragma once

#include "encode_body.h"

namespace kernels {

// Counters of R x 32 channels in shared memory, a byte each: of symbols, then of distances to the symbol before. Four
// of a channel are a word, and such words of 32 channels lie side by side: lanes that count each in its own channel's
// need no atomics and meet in no bank.
template <int R> struct channel_counters {
    kc_shared memory;    // of the group of lanes
    uint32_t  n_words;   // of a channel
    uint32_t  n_symbols; // where the distances begin
};

// Counters of pairs, [models][classes][n_symbols], of the workgroup in shared memory, or in the device's.
template <int R> struct pair_counters {
    kc_shared memory;
    kc_shared class_of;
    uint32_t  n_symbols;
    uint32_t  first[R]; // index of those of the channel's model
    bool      is_channel[R];
};

template <int R> KC_FN uint32_t address_of(const KC_PRIVATE kc_thread & me,
                                           const KC_PRIVATE channel_counters<R> & counters, int r, uint32_t counter) {
    return counters.memory.base + 128 * ((uint32_t) r * counters.n_words + (counter >> 2)) + 4 * me.lane +
           (counter & 3);
}

// a token's symbols; lanes without a channel count too, for nothing
template <int R> KC_FN void count_token(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers &,
                                        const KC_PRIVATE channel_counters<R> & counters, bool is_first,
                                        const KC_PRIVATE uint32_t (&symbols)[R],
                                        const KC_PRIVATE uint32_t (&before)[R]) {
    uint32_t symbol_at[R];
    uint32_t distance_at[R];
    uint32_t n_symbol[R];
    uint32_t n_distance[R];
    // all are read before one is written: they are different ones, and need not wait for each other
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t distance = symbols[r] > before[r] ? symbols[r] - before[r] : before[r] - symbols[r];
        symbol_at[r]            = address_of<R>(me, counters, r, symbols[r]);
        distance_at[r]          = address_of<R>(me, counters, r, counters.n_symbols + distance);
        n_symbol[r]             = kc_read_u8(counters.memory, symbol_at[r]);
        n_distance[r]           = kc_read_u8(counters.memory, distance_at[r]);
    }
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        kc_write_u8(counters.memory, symbol_at[r], n_symbol[r] + 1);
        kc_write_u8(counters.memory, distance_at[r], n_distance[r] + (is_first ? 0 : 1));
    }
}

template <int R> KC_FN void count_token(const KC_PRIVATE kc_thread &, const KC_PRIVATE encode_buffers & in,
                                        const KC_PRIVATE pair_counters<R> & counters, bool is_first,
                                        const KC_PRIVATE uint32_t (&symbols)[R],
                                        const KC_PRIVATE uint32_t (&before)[R]) {
    if (is_first) {
        return;
    }
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t class_of_last = kc_read_u8(counters.class_of, counters.class_of.base + before[r]);
        const uint32_t counter       = counters.first[r] + class_of_last * counters.n_symbols + symbols[r];
        if (counters.is_channel[r] && in.set.n_entries != 0) {
            kc_atomic_add_u32(counters.memory, counters.memory.base + 4 * counter, 1);
        } else if (counters.is_channel[r]) {
            kc_atomic_add(in.counts + counter, 1);
        }
    }
}

// R adjacent groups of a stretch, which has no more tokens than a group has lanes
template <uint32_t SOURCE, int R, typename Counters>
KC_FN void count_stretch(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                         const KC_PRIVATE encode_plane & plane, uint32_t first_group,
                         const KC_PRIVATE Counters & counters) {
    constexpr int    T      = R >= 4 ? 2 : R == 2 ? 4 : 8;
    const block_rows rows   = rows_of(in, plane);
    const float      centre = (float) (in.set.n_symbols / 2);
    // one token's a lane; instead of a token that is not there, the last one
    const uint32_t   own    = me.lane < rows.n ? me.lane : rows.n - 1;
    const uint32_t   cell   = kc_read_only(in.cells + plane.cells + rows.first + own);
    const uint32_t   factor = kc_float_bits(factor_of(in.scales[plane.scales + own], plane.scale_type, centre));
    uint32_t         before[R];
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        before[r] = 0;
    }
    for (uint32_t row = 0; row < rows.n; row += T) {
        uint32_t       cells[T];
        raw_tile<R, T> raw;
        float          values[R][T];
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            cells[t] = kc_shuffle(cell, row + t);
        }
        load_tile<SOURCE, R, T>(me, plane, first_group, cells, raw);
        convert_tile<SOURCE, R, T>(me, plane, first_group, raw, values);
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            const float of_token = kc_float(kc_shuffle(factor, row + t));
            if (row + t >= rows.n) {
                continue;
            }
            uint32_t symbols[R];
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                symbols[r] = quantize(values[r][t], of_token, centre);
            }
            count_token<R>(me, in, counters, row + t == 0, symbols, before);
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                before[r] = symbols[r];
            }
        }
    }
}

// the stretches of a job
template <uint32_t SOURCE, int R, typename Counters>
KC_FN void count_run(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                     const KC_PRIVATE group_job & job, const KC_PRIVATE Counters & counters) {
    const uint32_t n_stretches = in.planes[job.unit].n_stretches;
    for (uint32_t i = 0; i < n_stretches; i++) {
        const encode_plane plane = in.planes[job.unit + i];
        count_stretch<SOURCE, R>(me, in, plane, job.first_group, counters);
    }
}

// add what a run has counted to the device's counters, a channel's one after another as they lie there
template <int R> KC_FN void add_run(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in,
                                    const KC_PRIVATE encode_plane & plane, uint32_t first_group, uint32_t n_words,
                                    const KC_SHARED uint32_t * words) {
    for (uint32_t i = me.lane; i < R * 32 * n_words; i += 32) {
        const uint32_t of_run  = i / n_words; // the channel
        const uint32_t word    = i - of_run * n_words;
        const uint32_t channel = first_group * 32 + of_run;
        uint32_t       four    = words[(of_run / 32 * n_words + word) * 32 + (of_run & 31)];
        uint32_t       counter = plane.counts + 2 * in.set.n_symbols * channel + 4 * word;
        if (channel >= plane.n_channels) {
            continue;
        }
        for (; four != 0; four >>= 8) {
            if ((four & 255) != 0) {
                kc_atomic_add(in.counts + counter, four & 255);
            }
            counter++;
        }
    }
}

template <uint32_t SOURCE, int R> KC_FN void
count_symbols(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in, KC_SHARED uint32_t * shared) {
    const uint32_t             n_words  = (2 * in.set.n_symbols + 3) / 4;
    KC_SHARED uint32_t * const words    = shared + me.group * R * 32 * n_words;
    const channel_counters<R>  counters = { kc_shared_at(words), n_words, in.set.n_symbols };
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const group_job job = in.groups[i];
        for (uint32_t k = me.lane; k < R * 32 * n_words; k += 32) {
            words[k] = 0;
        }
        kc_sync_group();
        count_run<SOURCE, R>(me, in, job, counters);
        kc_sync_group(); // lanes add what others have counted
        const encode_plane plane = in.planes[job.unit];
        add_run<R>(me, in, plane, job.first_group, n_words, words);
        kc_sync_group();
    }
}

// in.set.n_entries  IN  counters of pairs; 0: shared memory has no room for them
template <uint32_t SOURCE, int R> KC_FN void
count_pairs(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in, KC_SHARED uint32_t * shared) {
    const uint32_t            n_of_model = in.set.n_classes * in.set.n_symbols;
    KC_SHARED uint8_t * const class_of   = (KC_SHARED uint8_t *) (shared + in.set.n_entries);
    for (uint32_t i = me.id; i < in.set.n_entries; i += 32 * me.n_groups) {
        shared[i] = 0;
    }
    load_classes(me, in, class_of);
    pair_counters<R> counters;
    counters.memory    = kc_shared_at(shared);
    counters.class_of  = kc_shared_at(class_of);
    counters.n_symbols = in.set.n_symbols;
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const group_job    job   = in.groups[i];
        const encode_plane plane = in.planes[job.unit];
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const uint32_t channel = (job.first_group + r) * 32 + me.lane;
            counters.is_channel[r] = channel < plane.n_channels;
            counters.first[r]      = counters.is_channel[r] ? in.models[plane.models + channel] * n_of_model : 0;
        }
        count_run<SOURCE, R>(me, in, job, counters);
    }
    kc_sync(); // all groups have counted
    for (uint32_t i = me.id; i < in.set.n_entries; i += 32 * me.n_groups) {
        if (shared[i] != 0) {
            kc_atomic_add(in.counts + i, shared[i]);
        }
    }
}

/*
 * The kernel: a job is R adjacent groups of a run of stretches of one plane. What is counted is added to in.counts.
 * in.class_of  IN      NULL: in.counts is [channels][2][n_symbols], how often each symbol occurs, and each distance to
 *                      the symbol before; else [models][classes][n_symbols], how often each symbol follows each class
 * shared       OUT     as count_workgroup_bytes() and count_group_bytes() say
 */
template <uint32_t SOURCE, int R> KC_FN void
count_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in, KC_SHARED uint32_t * shared) {
    if (in.class_of == nullptr) {
        count_symbols<SOURCE, R>(me, in, shared);
    } else {
        count_pairs<SOURCE, R>(me, in, shared);
    }
}

} // namespace kernels
