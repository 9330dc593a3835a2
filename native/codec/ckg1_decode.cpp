#include "bytes.h"
#include "ckg1.h"
#include "executor.h"
#include "native_tile.h"
#include "typed_store.h"

#include <algorithm>

namespace cachegen::legacy {

namespace {

using ull = unsigned long long;

// a stretch of the page, and whose it is
struct page_range {
    uint64_t offset;
    uint64_t n_bytes;
};

void check_record(const ckg1_record & record, ull index) {
    const tile &   content  = record.content;
    const uint32_t type     = type_of_kind(record.kind);
    const bool     is_block = type == CACHEGEN_TYPE_Q8_0 || type == CACHEGEN_TYPE_Q4_0;
    if (record.n_tokens != content.n_tokens) {
        fail(CACHEGEN_ERR_GEOMETRY, "record %llu: %llu tokens, its tile has %u", index, (ull) record.n_tokens,
             content.n_tokens);
    }
    if (is_block && content.n_channels % 32 != 0) {
        fail(CACHEGEN_ERR_GEOMETRY, "record %llu: %u channels in blocks of 32", index, content.n_channels);
    }
    // a tile's values are limited: no overflow
    const uint64_t expected = content.n_tokens * native_bytes(type, content.n_channels);
    if (record.decoded_bytes != expected) {
        fail(CACHEGEN_ERR_GEOMETRY, "record %llu: %llu bytes; its tile and kind give %llu", index,
             (ull) record.decoded_bytes, (ull) expected);
    }
    const bool is_unset = !is_transposed_kind(record.kind) && record.token_start == 0 && record.total_tokens == 0;
    if (!is_unset &&
        (record.token_start > record.total_tokens || record.n_tokens > record.total_tokens - record.token_start)) {
        fail(CACHEGEN_ERR_GEOMETRY, "record %llu: %llu tokens from %llu on, of %llu", index, (ull) record.n_tokens,
             (ull) record.token_start, (ull) record.total_tokens);
    }
}

// the slab that transposed records [begin, end) of one offset, sorted by token, cover
page_range check_slab(const ckg1_record * const * begin, const ckg1_record * const * end) {
    const ckg1_record & first = **begin;
    uint64_t            token = 0;
    for (const auto * i = begin; i != end; i++) {
        const ckg1_record & record = **i;
        if (record.kind != first.kind || record.total_tokens != first.total_tokens ||
            record.content.n_channels != first.content.n_channels) {
            fail(CACHEGEN_ERR_COVERAGE, "the slab at byte %llu of the page has tiles of different shapes",
                 (ull) first.output_offset);
        }
        if (record.token_start != token) {
            fail(CACHEGEN_ERR_COVERAGE, "the slab at byte %llu of the page has a gap or an overlap at token %llu",
                 (ull) first.output_offset, (ull) std::min(token, record.token_start));
        }
        token += record.n_tokens; // at most total_tokens by check_record()
    }
    if (token != first.total_tokens) {
        fail(CACHEGEN_ERR_COVERAGE, "the slab at byte %llu of the page ends at token %llu of %llu",
             (ull) first.output_offset, (ull) token, (ull) first.total_tokens);
    }
    const uint64_t n_values = mul_or_fail(token, first.content.n_channels, "a slab");
    return { first.output_offset, mul_or_fail(n_values, element_bytes_of_kind(first.kind), "a slab") };
}

void check_coverage(const ckg1_archive & archive) {
    std::vector<page_range>          ranges;
    std::vector<const ckg1_record *> transposed;
    for (const auto & record : archive.records) {
        if (is_transposed_kind(record.kind)) {
            transposed.push_back(&record);
        } else {
            ranges.push_back({ record.output_offset, record.decoded_bytes });
        }
    }
    std::sort(transposed.begin(), transposed.end(), [](const ckg1_record * a, const ckg1_record * b) {
        return a->output_offset != b->output_offset ? a->output_offset < b->output_offset
                                                    : a->token_start < b->token_start;
    });
    const auto * const end = transposed.data() + transposed.size();
    for (const auto * begin = transposed.data(); begin != end;) {
        const auto * next = begin;
        while (next != end && (*next)->output_offset == (*begin)->output_offset) {
            next++;
        }
        ranges.push_back(check_slab(begin, next));
        begin = next;
    }
    std::sort(ranges.begin(), ranges.end(), [](const page_range & a, const page_range & b) {
        return a.offset != b.offset ? a.offset < b.offset : a.n_bytes < b.n_bytes;
    });
    uint64_t covered = 0;
    for (const auto & range : ranges) {
        if (range.offset != covered) {
            fail(CACHEGEN_ERR_COVERAGE, "the page has %s at byte %llu", range.offset > covered ? "a gap" : "an overlap",
                 (ull) std::min(range.offset, covered));
        }
        covered = add_or_fail(covered, range.n_bytes, "the page");
    }
    if (covered != archive.page_bytes) {
        fail(CACHEGEN_ERR_COVERAGE, "the records cover %llu bytes of a page of %llu", (ull) covered,
             (ull) archive.page_bytes);
    }
}

// with the record's number in the message of whatever `body` throws
template <typename Body> void in_record(ull index, const Body & body) {
    try {
        body();
    } catch (const error & err) {
        throw error(err.status, "record " + std::to_string(index) + ": " + err.message);
    }
}

void decode_record(const ckg1_archive & archive, const ckg1_record & record, uint8_t * page) {
    if (record.kind == CACHEGEN_CKG1_EXACT) {
        memcpy(page + record.output_offset, archive.bytes + record.payload_offset, record.payload_bytes);
        return;
    }
    const record_place place = place_of_record(archive, record, page);
    decode_tile(record.content, place.rows, place.first_token);
}

} // namespace

uint32_t type_of_kind(uint32_t kind) {
    switch (kind) {
        case CACHEGEN_CKG1_F32_ROWS:
        case CACHEGEN_CKG1_F32_TRANSPOSED: return CACHEGEN_TYPE_F32;
        case CACHEGEN_CKG1_Q8_0_ROWS: return CACHEGEN_TYPE_Q8_0;
        case CACHEGEN_CKG1_Q4_0_ROWS: return CACHEGEN_TYPE_Q4_0;
        default: return CACHEGEN_TYPE_F16;
    }
}

uint32_t element_bytes_of_kind(uint32_t kind) {
    constexpr uint32_t bytes[n_ckg1_kinds] = { 2, 1, 2, 4, 4, 34, 18 };
    return bytes[kind];
}

ckg1_archive parse_ckg1(const void * bytes, uint64_t n_bytes) {
    const auto * begin = static_cast<const uint8_t *>(bytes);
    if (n_bytes >= 4 && memcmp(begin, "CKG1", 4) != 0) {
        fail(CACHEGEN_ERR_MAGIC, "not a CKG1 archive");
    }
    reader source(bytes, n_bytes);
    source.take(4, "the header");
    ckg1_archive   archive{ begin, n_bytes, source.get<uint64_t>("the header"), {} };
    const uint32_t n_records = source.get<uint32_t>("the header");
    if (archive.page_bytes == 0 || n_records == 0) {
        fail(CACHEGEN_ERR_GEOMETRY, "a page of %llu bytes in %u records", (ull) archive.page_bytes, n_records);
    }
    if (uint64_t{ n_records } * ckg1_record_bytes > source.remaining()) {
        fail(CACHEGEN_ERR_TRUNCATED, "%u records do not fit into %llu bytes", n_records, (ull) n_bytes);
    }
    archive.records.resize(n_records);
    for (uint32_t i = 0; i < n_records; i++) {
        ckg1_record &   record        = archive.records[i];
        const uint8_t * head          = source.take(ckg1_record_bytes, "a record's header");
        const uint32_t  element_bytes = head[1];
        record.kind                   = head[0];
        record.output_offset          = get_le<uint64_t>(head + 4);
        record.decoded_bytes          = get_le<uint64_t>(head + 12);
        record.n_tokens               = get_le<uint64_t>(head + 20);
        record.token_start            = get_le<uint64_t>(head + 28);
        record.total_tokens           = get_le<uint64_t>(head + 36);
        record.payload_bytes          = get_le<uint64_t>(head + 44);
        if (record.kind >= n_ckg1_kinds || element_bytes != element_bytes_of_kind(record.kind)) {
            fail(CACHEGEN_ERR_GEOMETRY, "record %u: elements of %u bytes of kind %u; kinds 0 to %u are possible", i,
                 element_bytes, record.kind, n_ckg1_kinds - 1);
        }
        if (get_le<uint16_t>(head + 2) != 0) {
            fail(CACHEGEN_ERR_RESERVED, "record %u: its reserved bytes are not zero", i);
        }
        record.payload_offset   = source.offset();
        const uint8_t * payload = source.take(record.payload_bytes, "a record's payload");
        if (record.decoded_bytes == 0) {
            fail(CACHEGEN_ERR_GEOMETRY, "record %u decodes to no bytes", i);
        }
        if (record.kind == CACHEGEN_CKG1_EXACT) {
            if (record.payload_bytes != record.decoded_bytes) {
                fail(CACHEGEN_ERR_GEOMETRY, "record %u: %llu exact bytes for %llu", i, (ull) record.payload_bytes,
                     (ull) record.decoded_bytes);
            }
            continue;
        }
        in_record(i, [&] { record.content = parse_tile(payload, record.payload_bytes); });
        check_record(record, i);
    }
    source.end("the last record");
    check_coverage(archive);
    return archive;
}

void check_record_tile(const ckg1_archive & archive, uint64_t index) {
    const ckg1_record & record = archive.records[index];
    if (record.kind != CACHEGEN_CKG1_EXACT) {
        in_record(index, [&] { check_tile(record.content); });
    }
}

record_place place_of_record(const ckg1_archive & archive, const ckg1_record & record, uint8_t * page) {
    const bool    is_transposed = is_transposed_kind(record.kind);
    cachegen_rows rows{};
    rows.type          = type_of_kind(record.kind);
    rows.is_transposed = is_transposed;
    rows.n_tokens      = is_transposed ? record.total_tokens : record.n_tokens;
    rows.n_rows        = rows.n_tokens;
    rows.n_channels    = record.content.n_channels;
    rows.stride_bytes  = is_transposed ? record.total_tokens * element_bytes_of_kind(record.kind)
                                       : native_bytes(rows.type, rows.n_channels);
    rows.n_bytes       = archive.page_bytes - record.output_offset;
    rows.data          = page + record.output_offset;
    return { rows, is_transposed ? record.token_start : 0 };
}

} // namespace cachegen::legacy

struct cachegen_ckg1 {
    cachegen::legacy::ckg1_archive archive;
};

using namespace cachegen;

int32_t cachegen_ckg1_open(const void * archive, uint64_t n_bytes, struct cachegen_ckg1 ** reader) {
    return guard([&] {
        if (archive == nullptr || reader == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "archive or reader is NULL");
        }
        *reader = nullptr;
        *reader = new cachegen_ckg1{ legacy::parse_ckg1(archive, n_bytes) };
    });
}

void cachegen_ckg1_close(struct cachegen_ckg1 * reader) {
    delete reader;
}

int32_t cachegen_ckg1_describe(const struct cachegen_ckg1 * reader, uint64_t * page_bytes, uint64_t * n_records,
                               struct cachegen_ckg1_record * records, uint64_t capacity) {
    return guard([&] {
        if (reader == nullptr || page_bytes == nullptr || n_records == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader, page_bytes or n_records is NULL");
        }
        const auto & archive = reader->archive;
        *page_bytes          = archive.page_bytes;
        *n_records           = archive.records.size();
        if (records == nullptr) {
            return;
        }
        if (capacity < archive.records.size()) {
            fail(CACHEGEN_ERR_BUFFER_SIZE, "room for %llu records of %zu", (unsigned long long) capacity,
                 archive.records.size());
        }
        for (size_t i = 0; i < archive.records.size(); i++) {
            const auto & record = archive.records[i];
            records[i]          = {
                record.kind,          record.content.version, record.content.n_bins, record.content.n_channels,
                record.output_offset, record.decoded_bytes,   record.n_tokens,       record.token_start,
                record.total_tokens,  record.payload_offset,  record.payload_bytes
            };
        }
    });
}

int32_t cachegen_ckg1_decode(const struct cachegen_ckg1 * reader, void * page, uint64_t n_bytes,
                             const struct cachegen_executor * executor) {
    return guard([&] {
        if (reader == nullptr || page == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader or page is NULL");
        }
        const auto & archive = reader->archive;
        if (n_bytes != archive.page_bytes) {
            fail(CACHEGEN_ERR_BUFFER_SIZE, "room for %llu bytes, the page has %llu", (unsigned long long) n_bytes,
                 (unsigned long long) archive.page_bytes);
        }
        run_tasks(executor, archive.records.size(), [&](uint64_t i) {
            legacy::in_record(
                i, [&] { legacy::decode_record(archive, archive.records[i], static_cast<uint8_t *>(page)); });
        });
    });
}
