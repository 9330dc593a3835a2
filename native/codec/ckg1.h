// CKG1: a page as a list of records, each of them an LCG1 or LCG2 tile or exact bytes. docs/formats/ckg1.md specifies
// the bytes.
#pragma once

#include "cachegen.h"
#include "tile.h"

#include <cstdint>
#include <vector>

namespace cachegen::legacy {

constexpr uint32_t ckg1_header_bytes = 16;
constexpr uint32_t ckg1_record_bytes = 52;
constexpr uint32_t n_ckg1_kinds      = 7;

constexpr bool is_transposed_kind(uint32_t kind) {
    return kind == CACHEGEN_CKG1_F16_TRANSPOSED || kind == CACHEGEN_CKG1_F32_TRANSPOSED;
}

// cachegen_type of a kind other than exact
uint32_t type_of_kind(uint32_t kind);

// what a record's header says of its elements
uint32_t element_bytes_of_kind(uint32_t kind);

struct ckg1_record {
    uint32_t kind;
    uint64_t output_offset;
    uint64_t decoded_bytes;
    uint64_t n_tokens;
    uint64_t token_start;
    uint64_t total_tokens;
    uint64_t payload_offset; // in the archive
    uint64_t payload_bytes;
    tile     content; // of records other than exact ones
};

// An archive whose headers and coverage have been checked.
struct ckg1_archive {
    const uint8_t *          bytes;
    uint64_t                 n_bytes;
    uint64_t                 page_bytes;
    std::vector<ckg1_record> records;
};

ckg1_archive parse_ckg1(const void * bytes, uint64_t n_bytes);

// check_tile() of a record, whose number is then in the message; nothing to check of exact ones
void check_record_tile(const ckg1_archive & archive, uint64_t index);

// Where a record other than an exact one lies in its page.
struct record_place {
    cachegen_rows rows;
    uint64_t      first_token; // of rows
};

// page  IN  of all page_bytes, or where they would be: nothing is read
record_place place_of_record(const ckg1_archive & archive, const ckg1_record & record, uint8_t * page);

} // namespace cachegen::legacy
