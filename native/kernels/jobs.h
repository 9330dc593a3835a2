// What a launch is told: plain records that the host fills and a device reads.
#pragma once

#include "address_spaces.h"

namespace kernels {

// how values become bytes of a destination
enum store_kind : uint32_t {
    store_f32             = 0,
    store_f16             = 1,
    store_bf16            = 2,
    store_q8_0            = 3,
    store_q4_0            = 4,
    store_f32_transposed  = 5,
    store_f16_transposed  = 6,
    store_bf16_transposed = 7,
};

KC_CONSTANT uint32_t n_store_kinds = 8;

// Shared memory of a group of lanes that decodes n_side adjacent groups: rings, scales and cells of 32 tokens, and a
// tile of blocks. dispatch.h compares it with what the kernels have.
constexpr uint32_t decode_group_bytes(uint32_t store, uint32_t n_side) {
    const bool has_tile = (store == store_q8_0 || store == store_q4_0) && n_side > 1;
    return (n_side > 4 ? n_side : 4) * 512 + 32 * 8 + (has_tile ? 2176 : 0);
}

// Decoding entry of a bucket, one 64-bit word: the own symbol in the low half, the alias in the high one, each
//   bits  0-10  frequency
//   bits 11-16  symbol
//   bits 17-20  class of the symbol
//   bits 22-31  own: the bucket's divider, alias: the rank of the first slot above it
using table_entry = uint64_t;

KC_CONSTANT uint32_t no_cell = 0xffffffffu;

// One unit of an archive: a block's tokens of one plane. Offsets without another word are from the launch's bytes.
struct unit_job {
    uint64_t bytes_offset; // of the unit
    uint64_t dest;         // address of the destination's row 0, channel 0
    uint64_t native;       // address of the unit's native rows: expand writes them, place reads them
    uint32_t dest_stride;  // bytes from row to row; transposed: from channel to channel
    uint32_t n_rows;
    uint32_t n_channels;
    uint32_t n_groups;
    uint32_t scales_offset; // from the unit
    uint32_t raw_offset;    // from the unit
    uint32_t words_offset;  // from the unit
    uint32_t scale_base;
    uint32_t scale_bits;
    uint32_t scale_type;     // cachegen_type of a lossy scale
    uint32_t n_scales_a_row; // exact block types: blocks of a row
    uint32_t raw_bits;
    uint32_t is_exact;
    uint32_t native_type; // cachegen_type of the native rows
    uint32_t models;      // index of the plane's model numbers
    uint32_t group_words; // index of its groups' first words, n_groups + 1 of them
    uint32_t first_row;   // rows [first_row, end_row) are wanted
    uint32_t end_row;
    uint32_t cells;         // index of the cell of first_row
    uint32_t undo_rotation; // sizes, 0 for none
    uint32_t apply_rotation;
    uint32_t is_same;         // place: the bytes as they are
    float    rotation_factor; // 1 / sqrt of the one rotation of a fused decode
};

// what one group of lanes decodes: adjacent groups of a unit
struct group_job {
    uint32_t unit;
    uint32_t first_group;
};

// The shape of a symbol set's tables on the device.
struct set_shape {
    uint32_t n_entries; // of the table: (n_models + 1) x n_classes << log2_n_buckets
    uint32_t n_models;
    uint32_t n_classes;
    uint32_t log2_n_buckets;
    uint32_t initial_class;
    uint32_t n_symbols;
};

// why a unit failed, in `errors`
enum unit_error : uint32_t { unit_ok = 0, unit_words_short = 1, unit_words_left = 2, unit_final_state = 3 };

// All that a launch reads and writes.
struct launch_buffers {
    const KC_GLOBAL unit_job *    units;
    const KC_GLOBAL group_job *   groups;
    uint32_t                      n_groups;
    const KC_GLOBAL uint8_t *     bytes;
    uint64_t                      n_bytes; // that may be read
    const KC_GLOBAL table_entry * table;
    const KC_GLOBAL uint32_t *    values; // 64 of the set: levels, or upper bits
    const KC_GLOBAL uint8_t *     models;
    const KC_GLOBAL uint32_t *    cells;
    const KC_GLOBAL uint32_t *    group_words;
    KC_GLOBAL uint32_t *          errors; // one a unit: enum unit_error | group << 8
    set_shape                     set;
};

} // namespace kernels
