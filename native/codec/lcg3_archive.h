// A parsed and validated LCG3 archive: everything before the payload, and where the payload's parts lie.
#pragma once

#include "lcg3_format.h"
#include "meter.h"
#include "rans_decode.h"

#include <cstdint>
#include <utility>

namespace cachegen::lcg3 {

// A set as it is stored, and its decoding tables.
struct symbol_set {
    set_record               record;
    uint32_t                 values[max_symbols]; // bit patterns: F32 levels of a lossy set, upper bits of an exact one
    metered_vector<uint16_t> frequencies;         // [n_models][n_classes][n_symbols]
    metered_vector<bucket>   buckets;             // [n_models + 1][n_classes][1 << log2_n_buckets]
    set_tables               tables;
};

// Bytes [offset, offset + n_bytes) of an archive, wherever they lie.
struct payload {
    const uint8_t * bytes;
    uint64_t        offset;
    uint64_t        n_bytes;

    const uint8_t * at(uint64_t archive_offset) const { return bytes + (archive_offset - offset); }
    const uint8_t * end() const { return bytes + n_bytes; }
};

struct archive {
    header                          head;
    uint32_t                        n_blocks;
    uint64_t                        table_bytes;
    metered_vector<plane_record>    planes;
    metered_vector<symbol_set>      sets;
    metered_vector<const uint8_t *> models; // of each plane: n_channels model numbers, or NULL
    metered_vector<uint64_t> unit_offsets; // [n_blocks][n_planes], from the archive's begin, and the end after the last
    const uint8_t *          digests;      // u64 of the exact rows, then of each block
    uint64_t                 exact_offset;
    uint64_t                 exact_bytes;

    uint64_t unit_begin(uint32_t block, uint32_t plane) const {
        return unit_offsets[uint64_t{ block } * head.n_planes + plane];
    }
    uint64_t unit_end(uint32_t block, uint32_t plane) const {
        return unit_offsets[uint64_t{ block } * head.n_planes + plane + 1];
    }
    uint64_t block_begin(uint32_t block) const { return unit_begin(block, 0); }
    uint64_t block_end(uint32_t block) const { return unit_end(block, head.n_planes - 1); }
    // first token of a block
    uint32_t block_first_token(uint32_t block) const { return head.n_exact_tokens + block * head.block_tokens; }
    // of a unit, whose plane may begin later than its block
    uint32_t unit_first_token(uint32_t block, uint32_t plane) const;
    uint32_t unit_n_tokens(uint32_t block, uint32_t plane) const; // 0: the unit has no bytes
    uint32_t n_exact_rows(uint32_t plane) const;
};

/*
 * Parse the metadata of an archive of archive_bytes, of which n_bytes are here, the metadata among them. Throws
 * cachegen::error; allocates in proportion to n_bytes at most.
 */
archive parse_metadata(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes);

// how long the metadata is, from the first 64 bytes
uint64_t read_metadata_bytes(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes);

// where a part lies: 0 is what lies between the metadata and the first block, 1 + b is block b; its bytes are NULL
payload part_of(const archive & source, uint32_t part);

// the bytes around the exact rows are zero
void check_padding(const archive & source, const payload & bytes);

// the bytes that the digest of a part is of: offset and end in the archive
std::pair<uint64_t, uint64_t> digested_range(const archive & source, uint32_t part);

// compare the digest of a part: that of digested_range()
void check_digest(const archive & source, uint32_t part, uint64_t digest);
// the same with a digest of its bytes
void check_part_digest(const archive & source, const payload & bytes, uint32_t part);

// XXH3, 64 bits
uint64_t digest_of(const void * bytes, uint64_t n_bytes);

// the same of bytes that come in pieces
class stream_digest {
  public:
    stream_digest();
    ~stream_digest();
    stream_digest(const stream_digest &)             = delete;
    stream_digest & operator=(const stream_digest &) = delete;

    void     update(const void * bytes, uint64_t n_bytes);
    uint64_t value() const;

  private:
    void * state_;
};

// One lossy or exact unit, its parts checked against its size.
struct unit_view {
    uint32_t                        n_rows;
    uint32_t                        n_groups;
    uint32_t                        scale_base;
    uint32_t                        scale_bits;
    uint32_t                        n_scales_a_row;
    const uint8_t *                 packed_scales;
    const uint8_t *                 packed_raw; // exact: n_rows x n_channels numbers of raw_bits bits
    const uint8_t *                 states;     // u32 of each channel
    const uint8_t *                 words_end;
    metered_vector<const uint8_t *> group_words; // n_groups + 1
};

unit_view parse_unit(const archive & source, const payload & bytes, uint32_t block, uint32_t plane);

// the bit pattern of a unit's scale, unless its plane cannot have such a one: ERR_TABLE
uint32_t checked_scale(const archive & source, const unit_view & unit, uint32_t block, uint32_t plane, uint64_t index);

// all of them
void check_scales(const archive & source, const unit_view & unit, uint32_t block, uint32_t plane);

// the size and padding of a raw unit
void check_raw_unit(const archive & source, const payload & bytes, uint32_t block, uint32_t plane);

// scales of a lossy plane: 1; of an exact one: its blocks' scales
uint32_t n_scales_a_row(const plane_record & plane);

} // namespace cachegen::lcg3
