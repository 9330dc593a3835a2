/*
 * What Metal's kernels are told: records that the host fills and the device reads, with the same layout on both sides
 * (metal_layout.h, asserted by both compilers).
 *
 * How buffers are bound. Every kernel takes one record at buffer index 0, copied into the command with setBytes, and,
 * if its launch shape says so, threadgroup memory at index 0. All other memory goes by 64-bit device addresses in the
 * record, and in the records that it leads to (unit_job::dest, encode_plane::data ...): MTLBuffer.gpuAddress plus an
 * offset, as jobs.h has them for the other devices. That takes Metal 3 (MTLGPUFamilyMetal3, macOS 13); a device without
 * it has no KV codec. Nothing binds the buffers behind addresses, so the host
 *   - makes every one of them resident for the command: useResource with its usage, or a residency set;
 *   - gives rows of tensors (cachegen_rows::data) as gpuAddress plus an offset to decoders and encoders, and memory of
 *     allocate_host() by device::address_of();
 *   - orders launches itself: the buffers' own hazard tracking sees what useResource is told, no more.
 * An address is 0 where a launch has no such memory. Addresses of archive bytes are multiples of 16.
 */
#pragma once

#include "../encode_jobs.h"
#include "../legacy_jobs.h"

namespace kernels {

// launch_buffers
struct metal_decode_arguments {
    uint64_t  units;       // unit_job
    uint64_t  groups;      // group_job
    uint64_t  bytes;       // uint8_t, of the part
    uint64_t  n_bytes;     // that may be read
    uint64_t  table;       // table_entry
    uint64_t  values;      // uint32_t
    uint64_t  models;      // uint8_t
    uint64_t  cells;       // uint32_t
    uint64_t  group_words; // uint32_t
    uint64_t  errors;      // uint32_t, written
    uint32_t  n_groups;
    set_shape set;
    uint32_t  reserved; // 0
};

// legacy_buffers
struct metal_legacy_arguments {
    uint64_t units;         // legacy_unit
    uint64_t jobs;          // group_job
    uint64_t bytes;         // uint8_t
    uint64_t cells;         // uint32_t
    uint64_t group_streams; // uint32_t
    uint64_t errors;        // uint32_t, written
    uint32_t n_jobs;
    uint32_t reserved; // 0
};

// encode_buffers
struct metal_encode_arguments {
    uint64_t         planes;      // encode_plane
    uint64_t         groups;      // group_job
    uint64_t         cells;       // uint32_t
    uint64_t         models;      // uint8_t
    uint64_t         table;       // encode_entry
    uint64_t         slots;       // uint16_t
    uint64_t         class_of;    // uint8_t; 0: counting without a context
    uint64_t         counts;      // uint32_t, written; this and those below
    uint64_t         scales;      // uint32_t
    uint64_t         n_words;     // uint32_t
    uint64_t         first_chunk; // uint32_t
    uint64_t         first_word;  // uint32_t
    uint64_t         states;      // uint32_t
    uint64_t         places;      // unit_place
    uint64_t         cursors;     // encode_cursors
    uint64_t         pool;        // uint8_t
    uint64_t         next_chunk;  // uint32_t
    uint64_t         made;        // unit_made, in memory that the host reads
    uint64_t         output;      // uint8_t, the same
    uint32_t         n_jobs;
    uint32_t         wave_begin;
    uint32_t         page_end;
    uint32_t         n_pool;
    uint32_t         n_output;
    encode_set_shape set;
    uint32_t         block_tokens;
    uint32_t         reserved; // 0
};

} // namespace kernels

#include "metal_layout.h"
