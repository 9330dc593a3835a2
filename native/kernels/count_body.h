// Counting a sample's symbols: libcachegen's count_symbols() and count_pairs() in 32 lanes.
#pragma once

#include "quantize_body.h"

namespace kernels {

/*
 * The kernel: a job is R adjacent groups of a plane's stretch of the sample; all stretches of a channel count in the
 * same place.
 * in.counts  IN/OUT  without classes: [channels][2][n_symbols], how often each symbol occurs, and each distance to the
 *                    symbol before; with classes: [models][classes][n_symbols], how often each symbol follows each
 * class
 */
template <uint32_t SOURCE, int R>
KC_FN void count_kernel(const KC_PRIVATE kc_thread & me, const KC_PRIVATE encode_buffers & in) {
    constexpr int  T           = R >= 4 ? 2 : R == 2 ? 4 : 8;
    const uint32_t n_symbols   = in.set.n_symbols;
    const bool     has_classes = in.class_of != nullptr;
    const float    centre      = (float) (n_symbols / 2);
    for (uint32_t i = me.workgroup * me.n_groups + me.group; i < in.n_jobs; i += me.n_workgroups * me.n_groups) {
        const encode_plane plane       = in.planes[in.groups[i].unit];
        const block_rows   rows        = rows_of(in, plane);
        const uint32_t     first_group = in.groups[i].first_group;
        uint32_t           before[R];
        uint32_t           counts[R]; // index of the lane's
        bool               is_channel[R];
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const uint32_t channel = (first_group + r) * 32 + me.lane;
            is_channel[r]          = channel < plane.n_channels;
            before[r]              = 0;
            counts[r]              = plane.counts + 2 * n_symbols * channel;
            if (has_classes) {
                counts[r] = is_channel[r] ? in.models[plane.models + channel] * in.set.n_classes * n_symbols : 0;
            }
        }
        for (uint32_t row = 0; row < rows.n; row += T) {
            uint32_t       cells[T];
            raw_tile<R, T> raw;
            float          values[R][T];
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                // instead of a token that is not there, the last one
                const uint32_t there = row + t < rows.n ? row + t : rows.n - 1;
                cells[t]             = kc_read_only(in.cells + plane.cells + rows.first + there);
            }
            load_tile<SOURCE, R, T>(me, plane, first_group, cells, raw);
            convert_tile<SOURCE, R, T>(me, plane, first_group, raw, values);
            KC_UNROLL
            for (int t = 0; t < T; t++) {
                if (row + t >= rows.n) {
                    continue;
                }
                const float factor = factor_of(in.scales[plane.scales + row + t], plane.scale_type, centre);
                KC_UNROLL
                for (int r = 0; r < R; r++) {
                    const uint32_t symbol   = quantize(values[r][t], factor, centre);
                    const bool     is_first = row + t == 0;
                    if (is_channel[r] && !has_classes) {
                        const uint32_t distance = symbol > before[r] ? symbol - before[r] : before[r] - symbol;
                        kc_atomic_add(in.counts + counts[r] + symbol, 1);
                        if (!is_first) {
                            kc_atomic_add(in.counts + counts[r] + n_symbols + distance, 1);
                        }
                    }
                    if (is_channel[r] && has_classes && !is_first) {
                        kc_atomic_add(in.counts + counts[r] + in.class_of[before[r]] * n_symbols + symbol, 1);
                    }
                    before[r] = symbol;
                }
            }
        }
    }
}

} // namespace kernels
