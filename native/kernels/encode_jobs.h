// What an encoding launch is told: plain records that the host fills and a device reads.
#pragma once

#include "jobs.h"

namespace kernels {

// the words of a group lie in pieces of this size, linked from the stream's begin to its end
KC_CONSTANT uint32_t chunk_bytes = 1024;
KC_CONSTANT uint32_t chunk_words = chunk_bytes / 2;
KC_CONSTANT uint32_t no_chunk    = 0xffffffffu;

// instead of a token's scale, whose bit patterns are smaller
KC_CONSTANT uint32_t scale_non_finite = 0xffffffffu; // the row holds a NaN or an infinity
KC_CONSTANT uint32_t scale_too_large  = 0xfffffffeu; // no number of the scale's type is large enough

// groups of lanes of a workgroup that encodes: always, and where 32 lanes have one or two groups at a time
KC_CONSTANT uint32_t encode_groups_a_workgroup     = 8;
KC_CONSTANT uint32_t max_encode_groups_a_workgroup = 16;

// of a stretch of a sample, at most
KC_CONSTANT uint32_t sample_tokens = 32;

// adjacent stretches of a plane that are counted together, at most: their tokens have to fit into 8 bits
KC_CONSTANT uint32_t max_run_stretches = 7;
static_assert(max_run_stretches * sample_tokens <= 255, "counters are bytes");

// tokens that 32 lanes find the scales of
KC_CONSTANT uint32_t scale_tokens = 8;

// A lossy plane in one of the blocks of a wave; indexes are the same for all waves.
struct encode_plane {
    uint64_t data;        // address of the source's row 0, channel 0
    uint32_t stride;      // bytes from row to row; transposed: from channel to channel
    uint32_t first_token; // of the page: the plane begins with it
    uint32_t cells;       // index of the cell of its first token
    uint32_t n_channels;
    uint32_t n_groups;
    uint32_t models;   // index of its model numbers
    uint32_t scales;   // index of a block's first scale
    uint32_t groups;   // index of its first group
    uint32_t channels; // index of its first channel's final state
    uint32_t counts;   // counting: index of its first channel's counts
    uint32_t scale_type;
    uint32_t is_fp16;         // the source's numbers are F16
    uint32_t rotation;        // to be undone, 0 for none
    float    rotation_factor; // 1 / sqrt of it
    uint32_t block_token;     // of the wave's tokens: the block begins with it
    uint32_t n_stretches;     // counting: planes from this one on that a run has; of all but a run's first, 0
};

// The shape of a symbol set's encoding tables.
struct encode_set_shape {
    uint32_t n_entries; // of the table: n_models x n_classes << log2_stride; counting: see count_pairs()
    uint32_t n_classes;
    uint32_t log2_stride;
    uint32_t initial_class;
    uint32_t n_symbols;
};

// Encoding entry of a symbol in a distribution, one 64-bit word: libcachegen's encoder_symbol.
//   bits  0-31  reciprocal of the frequency
//   bits 32-47  frequency
//   bits 48-63  its first slot
using encode_entry = uint64_t;

enum unit_outcome : uint32_t { made_ok = 0, made_none = 1, made_non_finite = 2, made_too_large = 3 };

// What became of a unit, for the host.
struct unit_made {
    uint32_t outcome; // enum unit_outcome; made_none: no room, or no tokens
    uint32_t offset;  // in the output, in units of 16 bytes
    uint32_t n_bytes;
    uint32_t row; // of the first token whose values have no scale
};

// what gathering has to know of a unit
struct unit_place {
    uint64_t words;  // address of the unit's first word
    uint64_t states; // address of its states; 0: there is no unit
};

// what is taken from, in one wave
struct encode_cursors {
    uint32_t n_chunks;
    uint32_t n_output; // of 16 bytes
};

// All that a launch of a wave reads and writes.
struct encode_buffers {
    const KC_GLOBAL encode_plane * planes;       // of the wave
    const KC_GLOBAL group_job *    groups;       // of the launch: `unit` is a plane's number in the wave
    uint32_t                       n_jobs;       // of the launch: groups, tiles of tokens, or planes
    uint32_t                       wave_begin;   // token of the page with which the wave's first block begins
    uint32_t                       page_end;     // tokens of the page
    uint32_t                       block_tokens; // of all blocks but the page's last
    const KC_GLOBAL uint32_t *     cells;
    const KC_GLOBAL uint8_t *      models;
    // the set of an encoding launch
    encode_set_shape               set;
    const KC_GLOBAL encode_entry * table;
    const KC_GLOBAL uint16_t *     slots;    // 1,024 a distribution, by symbol and rank
    const KC_GLOBAL uint8_t *      class_of; // 64; counting symbols without a context: NULL
    KC_GLOBAL uint32_t *           counts;   // counting: see count_kernel()
    // between the launches
    KC_GLOBAL uint32_t *           scales;
    KC_GLOBAL uint32_t *           n_words;     // of each group; no_chunk: there was no room
    KC_GLOBAL uint32_t *           first_chunk; // of each group: of the stream's begin, the last one taken
    KC_GLOBAL uint32_t *           first_word;  // of each group, in its unit
    KC_GLOBAL uint32_t *           states;      // of each channel
    KC_GLOBAL unit_place *         places;      // of each plane
    KC_GLOBAL encode_cursors *     cursors;
    KC_GLOBAL uint8_t *            pool; // n_pool chunks
    KC_GLOBAL uint32_t *           next_chunk;
    uint32_t                       n_pool;
    // in the host's memory
    KC_GLOBAL unit_made *          made;
    KC_GLOBAL uint8_t *            output; // at a multiple of 16
    uint32_t                       n_output;
};

} // namespace kernels
