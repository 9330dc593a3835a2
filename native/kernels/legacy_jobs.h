// What a launch is told that decodes LCG1 or LCG2 tiles: plain records that the host fills and a device reads.
#pragma once

#include "jobs.h"

namespace kernels {

KC_CONSTANT uint32_t no_cell_list = 0xffffffffu;

// One tile, whose maxima, tables and lengths the host has looked at.
struct legacy_unit {
    uint64_t bytes_offset; // of the tile, in the launch's bytes; a multiple of 16
    uint64_t dest;         // address of the destination's row 0, channel 0
    uint32_t dest_stride;  // bytes from row to row; transposed: from channel to channel
    uint32_t n_tokens;
    uint32_t n_channels;
    uint32_t n_bins;        // 16 or 32
    uint32_t group_streams; // LCG1: index of its groups' first streams
    uint32_t first_token;   // tokens [first_token, end_token) are wanted
    uint32_t end_token;
    uint32_t cells;      // index of the cell of first_token, or no_cell_list: they follow first_cell
    uint32_t first_cell; // without a list
    uint32_t record;     // of the archive
};

// what all jobs of a launch have in common; a job is a unit's 32 channels
struct legacy_launch {
    uint32_t version; // 1 LCG1, 2 LCG2
    uint32_t store;   // enum store_kind
    uint32_t first_job;
    uint32_t n_jobs;
};

// why a record failed, in `errors`
enum legacy_error : uint32_t { legacy_ok = 0, legacy_symbol = 1 };

// All that a launch reads and writes.
struct legacy_buffers {
    const KC_GLOBAL legacy_unit * units;
    const KC_GLOBAL group_job *   jobs;
    uint32_t                      n_jobs;
    const KC_GLOBAL uint8_t *     bytes; // at a multiple of 16; readable up to one after the last tile
    const KC_GLOBAL uint32_t *    cells;
    const KC_GLOBAL uint32_t *
                         group_streams; // of each group of 32 channels: its first stream, from the tile's first one
    KC_GLOBAL uint32_t * errors;        // one a record: enum legacy_error | group << 8
};

} // namespace kernels
