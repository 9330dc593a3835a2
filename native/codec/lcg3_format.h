// What LCG3 bytes mean: constants and fixed records. docs/formats/lcg3.md is the specification.
#pragma once

#include <cstdint>

namespace cachegen::lcg3 {

constexpr uint32_t magic   = 0x3347434c; // "LCG3"
constexpr uint16_t version = 1;

// entropy coder: rANS with 32-bit states in [state_low, 2^32), 16-bit words and 10 probability bits
constexpr uint32_t n_lanes    = 32;
constexpr uint32_t prob_bits  = 10;
constexpr uint32_t prob_scale = 1u << prob_bits;
constexpr uint32_t state_low  = 1u << 16;

// limits a reader enforces before it allocates
constexpr uint32_t max_tokens       = 1u << 24;
constexpr uint32_t max_exact_tokens = 4096;
constexpr uint32_t max_planes       = 1u << 14;
constexpr uint32_t max_channels     = 1u << 20;
constexpr uint32_t min_block_tokens = 32;
constexpr uint32_t max_block_tokens = 1u << 16;
constexpr uint32_t max_sets         = 16;
constexpr uint32_t max_symbols      = 64;
constexpr uint32_t max_classes      = 16;
constexpr uint32_t max_models       = 256;
constexpr uint32_t max_rotation     = 1024;

// alignment of the parts of an archive, in bytes
constexpr uint64_t payload_alignment = 64;
constexpr uint64_t unit_alignment    = 16;

enum class plane_kind : uint8_t { k = 1, v = 2, aux = 3 };

enum class plane_mode : uint8_t {
    raw   = 0, // native rows as they are
    lossy = 1, // symbols of a quantiser, a scale for every token
    exact = 2, // the upper bits of every value as symbols, the rest as they are
};

constexpr uint8_t plane_flag_unrotated = 1; // the coded values are those before the Hadamard rotation

// Fixed part at offset 0; 64 bytes.
struct header {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;   // 64
    uint64_t archive_bytes;  // whole archive
    uint64_t metadata_bytes; // from offset 0 to the end of the metadata digest
    uint32_t n_tokens;
    uint32_t n_exact_tokens; // the first tokens, kept as native rows
    uint32_t block_tokens;
    uint32_t n_planes;
    uint32_t n_sets;
    uint32_t reserved0;   // 0
    char     profile[16]; // ASCII, for people; padded with zeros
};

static_assert(sizeof(header) == 64, "the header is 64 bytes");

// One component of the page; 24 bytes.
struct plane_record {
    int32_t  layer;
    uint8_t  kind;       // plane_kind
    uint8_t  mode;       // plane_mode
    uint8_t  type;       // of the source, cachegen_type
    uint8_t  scale_type; // lossy: F32, F16 or BF16, whose bit patterns the scales are; else 0
    uint32_t n_channels;
    uint16_t n_rot;       // rotation of the source, 0 for none
    uint8_t  flags;       // plane_flag_...
    uint8_t  set;         // lossy and exact: which symbol set
    uint8_t  raw_bits;    // exact: bits of a value below its symbol
    uint8_t  reserved[3]; // 0
    uint32_t first_token; // the plane holds tokens from this one on, as a sliding window does
};

static_assert(sizeof(plane_record) == 24, "a plane record is 24 bytes");

// Begins a symbol set; 8 bytes. Followed by values[n_symbols] (u32), class_of[n_symbols] (u8), frequencies, zeros to 8.
struct set_record {
    uint8_t  n_symbols;
    uint8_t  n_classes;
    uint8_t  initial_class;
    uint8_t  reserved0; // 0
    uint16_t n_models;
    uint16_t reserved1; // 0
};

static_assert(sizeof(set_record) == 8, "a set record is 8 bytes");

// Begins a lossy or exact unit; 8 bytes.
struct unit_record {
    uint32_t scale_base;  // added to every packed scale
    uint8_t  scale_bits;  // 0 to 32
    uint8_t  reserved[3]; // 0
};

static_assert(sizeof(unit_record) == 8, "a unit record is 8 bytes");

} // namespace cachegen::lcg3
