#include "legacy_plan.h"

#include "bytes.h"
#include "native_tile.h"
#include "typed_store.h"

#include <algorithm>
#include <cstring>

namespace kernels {

using namespace cachegen;
using legacy::ckg1_record;
using ull = unsigned long long;

namespace {

uint64_t aligned(uint64_t n) {
    return (n + 15) / 16 * 16;
}

bool is_exact(const ckg1_record & record) {
    return record.kind == CACHEGEN_CKG1_EXACT;
}

uint64_t n_groups_of(const legacy::tile & tile) {
    return (uint64_t{ tile.n_channels } + 31) / 32;
}

// what launches are told of one record: a unit, its jobs, its groups' first streams
uint64_t told_bytes(const legacy::tile & tile) {
    return sizeof(legacy_unit) + n_groups_of(tile) * (sizeof(group_job) + (tile.version == 1 ? sizeof(uint32_t) : 0));
}

constexpr uint64_t gaps_bytes = 3 * 15; // before each of the three arrays

void check_exact(const ckg1_record & record, const legacy_destination & to, ull index) {
    if (to.rows.n_bytes != record.decoded_bytes) {
        fail(CACHEGEN_ERR_MISMATCH, "record %llu: %llu exact bytes, a destination of %llu", index,
             (ull) record.decoded_bytes, (ull) to.rows.n_bytes);
    }
}

void check_destination(const ckg1_record & record, const legacy_destination & to, ull index) {
    const legacy::tile & tile = record.content;
    cachegen_rows        rows = to.rows;
    rows.n_tokens             = 0; // of the tokens, those alone are looked at that this record has
    validate_rows(rows, ("the destination of record " + std::to_string(index)).c_str());
    if (rows.n_channels != tile.n_channels) {
        fail(CACHEGEN_ERR_MISMATCH, "record %llu: a tile of %u channels, a destination of %llu", index, tile.n_channels,
             (ull) rows.n_channels);
    }
    if (to.from_token > tile.n_tokens || to.n_wanted > tile.n_tokens - to.from_token) {
        fail(CACHEGEN_ERR_ARGUMENT, "record %llu: %u tokens from %u on, of a tile of %u", index, to.n_wanted,
             to.from_token, tile.n_tokens);
    }
    if (to.first_token > to.rows.n_tokens || to.n_wanted > to.rows.n_tokens - to.first_token) {
        fail(CACHEGEN_ERR_MISMATCH, "record %llu: %u tokens do not fit at token %llu of %llu", index, to.n_wanted,
             (ull) to.first_token, (ull) to.rows.n_tokens);
    }
    if (rows.cells == nullptr && to.rows.n_tokens > rows.n_rows) {
        fail(CACHEGEN_ERR_ARGUMENT, "record %llu: %llu tokens in %llu rows", index, (ull) to.rows.n_tokens,
             (ull) rows.n_rows);
    }
    for (uint64_t t = to.first_token; rows.cells != nullptr && t < to.first_token + to.n_wanted; t++) {
        if (rows.cells[t] >= rows.n_rows) {
            fail(CACHEGEN_ERR_ARGUMENT, "record %llu: token %llu is in cell %u of %llu", index, (ull) t, rows.cells[t],
                 (ull) rows.n_rows);
        }
    }
    if (rows.stride_bytes > UINT32_MAX || rows.n_rows > UINT32_MAX) {
        fail(CACHEGEN_ERR_UNSUPPORTED,
             "record %llu: a destination of %llu rows, %llu bytes from row to row, or channel to channel", index,
             (ull) rows.n_rows, (ull) rows.stride_bytes);
    }
    // a device writes elements and blocks' scales at multiples of their size only
    const uint64_t element_bytes = rows.type == CACHEGEN_TYPE_F32 ? 4 : 2;
    if (reinterpret_cast<uint64_t>(rows.data) % element_bytes != 0 || rows.stride_bytes % element_bytes != 0) {
        fail(CACHEGEN_ERR_UNSUPPORTED,
             "record %llu: a destination at address %llu with a stride of %llu; multiples "
             "of %llu are possible",
             index, (ull) reinterpret_cast<uint64_t>(rows.data), (ull) rows.stride_bytes, (ull) element_bytes);
    }
}

// first streams of a tile's groups, from its first one on
void add_group_streams(const legacy::tile & tile, std::vector<uint32_t> & to) {
    const uint8_t * const lengths = tile.lengths();
    uint32_t              offset  = 0; // below 2^32: check_tile() has compared the sum with the header
    for (uint32_t c = 0; c < tile.n_channels; c++) {
        if (c % 32 == 0) {
            to.push_back(offset);
        }
        offset += get_le<uint16_t>(lengths + 2 * size_t{ c });
    }
}

} // namespace

std::vector<legacy_destination> page_destinations(const legacy::ckg1_archive & archive, uint64_t page) {
    std::vector<legacy_destination> result(archive.records.size());
    auto * const                    begin = reinterpret_cast<uint8_t *>(page);
    for (size_t i = 0; i < result.size(); i++) {
        const ckg1_record & record = archive.records[i];
        if (is_exact(record)) {
            result[i].rows.data    = begin + record.output_offset;
            result[i].rows.n_bytes = record.decoded_bytes;
            continue;
        }
        const legacy::record_place place = legacy::place_of_record(archive, record, begin);
        result[i].rows                   = place.rows;
        result[i].first_token            = place.first_token;
        result[i].n_wanted               = record.content.n_tokens;
    }
    return result;
}

legacy_plan::legacy_plan(const legacy::ckg1_archive & archive, const std::vector<legacy_destination> & destinations,
                         uint64_t batch_bytes)
    : archive_(archive), destinations_(destinations) {
    const uint64_t n_records = archive.records.size();
    if (destinations.size() != n_records) {
        fail(CACHEGEN_ERR_ARGUMENT, "%zu destinations for %llu records", destinations.size(), (ull) n_records);
    }
    cell_lists_.assign(n_records, no_cell_list);
    legacy_batch batch{ 0, 0, 0, gaps_bytes };
    for (uint64_t i = 0; i < n_records; i++) {
        const ckg1_record &   record = archive.records[i];
        const cachegen_rows & rows   = destinations_[i].rows;
        if (rows.data == nullptr) {
            continue;
        }
        if (is_exact(record)) {
            check_exact(record, destinations_[i], i);
            continue;
        }
        check_destination(record, destinations_[i], i);
        if (rows.cells != nullptr) {
            if (rows.n_tokens > UINT32_MAX - cells_.all().size()) {
                fail(CACHEGEN_ERR_LIMIT, "record %llu: more cells than a device can be told of", (ull) i);
            }
            cell_lists_[i] = cells_.add(rows.cells, rows.n_tokens);
        }
        const uint64_t tile_bytes = aligned(record.content.n_bytes);
        const uint64_t n_bytes    = tile_bytes + told_bytes(record.content);
        if (batch.tiles_bytes != 0 && batch.n_bytes + n_bytes > batch_bytes) {
            batch.end_record = i;
            batches_.push_back(batch);
            batch = { i, i, 0, gaps_bytes };
        }
        batch.tiles_bytes += tile_bytes;
        batch.n_bytes += n_bytes;
    }
    batch.end_record = n_records;
    batches_.push_back(batch);
}

uint64_t legacy_plan::largest_batch_bytes() const {
    uint64_t largest = 0;
    for (const auto & batch : batches_) {
        largest = std::max(largest, batch.n_bytes);
    }
    return largest;
}

planned_batch legacy_plan::plan(const legacy_batch & batch, uint8_t * memory) const {
    planned_batch          result;
    std::vector<group_job> by_launch[2][n_store_kinds]; // by version - 1 and store
    uint64_t               offset = 0;
    for (uint64_t i = batch.first_record; i < batch.end_record; i++) {
        const ckg1_record &        record = archive_.records[i];
        const legacy_destination & to     = destinations_[i];
        if (to.rows.data == nullptr) {
            continue;
        }
        if (is_exact(record)) {
            result.exact_records.push_back(i);
            continue;
        }
        try {
            legacy::check_record_tile(archive_, i);
        } catch (const error &) {
            result.refused = std::current_exception();
            break;
        }
        const legacy::tile & tile = record.content;
        legacy_unit          unit{};
        unit.bytes_offset  = offset;
        unit.dest          = reinterpret_cast<uint64_t>(to.rows.data);
        unit.dest_stride   = static_cast<uint32_t>(to.rows.stride_bytes);
        unit.n_tokens      = tile.n_tokens;
        unit.n_channels    = tile.n_channels;
        unit.n_bins        = tile.n_bins;
        unit.group_streams = static_cast<uint32_t>(result.group_streams.size());
        unit.first_token   = to.from_token;
        unit.end_token     = to.from_token + to.n_wanted;
        unit.cells         = cell_lists_[i];
        unit.record        = static_cast<uint32_t>(i);
        if (unit.cells == no_cell_list) {
            unit.first_cell = static_cast<uint32_t>(to.first_token);
        } else {
            unit.cells += static_cast<uint32_t>(to.first_token);
        }
        if (tile.version == 1) {
            add_group_streams(tile, result.group_streams);
        }
        auto &     jobs  = by_launch[tile.version - 1][store_of(to.rows)];
        const auto index = static_cast<uint32_t>(result.units.size());
        for (uint32_t group = 0; group < n_groups_of(tile); group++) {
            jobs.push_back({ index, group });
        }
        result.units.push_back(unit);
        memcpy(memory + offset, tile.bytes, tile.n_bytes);
        offset += aligned(tile.n_bytes);
    }
    for (uint32_t version = 1; version <= 2; version++) {
        for (uint32_t store = 0; store < n_store_kinds; store++) {
            const auto & jobs = by_launch[version - 1][store];
            if (!jobs.empty()) {
                result.launches.push_back(
                    { version, store, static_cast<uint32_t>(result.jobs.size()), static_cast<uint32_t>(jobs.size()) });
                result.jobs.insert(result.jobs.end(), jobs.begin(), jobs.end());
            }
        }
    }
    return result;
}

} // namespace kernels
