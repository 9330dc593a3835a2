// Decoding an LCG3 archive into typed rows, one task a unit.
#include "bit_pack.h"
#include "bytes.h"
#include "executor.h"
#include "hadamard.h"
#include "lcg3_archive.h"
#include "lcg3_dequantize.h"
#include "lcg3_request.h"
#include "native_tile.h"
#include "typed_store.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace cachegen::lcg3 {

namespace {

using ull = unsigned long long;

// floats of a tile: small enough to stay in the first-level cache between decoding and storing
constexpr uint32_t tile_values = 4096;

// groups decoded side by side: see decode_symbols_function
constexpr uint32_t min_groups_a_span = 2;

float scale_from_bits(uint32_t bits, uint8_t type) {
    float value;
    if (type == CACHEGEN_TYPE_F16) {
        return fp16_to_fp32(static_cast<uint16_t>(bits));
    }
    bits = type == CACHEGEN_TYPE_BF16 ? bits << 16 : bits;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// What one task works on.
struct unit_task {
    const archive *                   source;
    const payload *                   bytes;
    uint32_t                          block;
    uint32_t                          plane;
    uint64_t                          first_token; // of the wanted range, in the archive
    uint64_t                          n_tokens;
    const cachegen_lcg3_destination * destination;

    const plane_record & record() const { return source->planes[plane]; }
    uint32_t             coded_rotation() const { return lcg3::coded_rotation(record()); }
    bool                 is_rotation_equal() const { return coded_rotation() == destination->n_rot; }
};

// rotate a tile of values from how they are coded to how the destination wants them, and store it
void store_values(const unit_task & task, uint64_t archive_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, float * values, uint64_t value_stride) {
    const uint64_t begin = std::max(archive_token, task.first_token);
    const uint64_t end   = std::min(archive_token + n_tokens, task.first_token + task.n_tokens);
    if (begin >= end) {
        return;
    }
    values += (begin - archive_token) * value_stride;
    if (!task.is_rotation_equal()) {
        if (task.coded_rotation() != 0) {
            hadamard_rows(values, end - begin, value_stride, n_channels, task.coded_rotation());
        }
        if (task.destination->n_rot != 0) {
            hadamard_rows(values, end - begin, value_stride, n_channels, task.destination->n_rot);
        }
    }
    store_tile(task.destination->rows, begin - task.first_token, end - begin, first_channel, n_channels, values,
               value_stride);
}

// native rows of the plane's type, all channels or a stretch of them
void store_native(const unit_task & task, uint64_t archive_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, const uint8_t * tile, uint64_t row_stride) {
    const uint64_t begin = std::max(archive_token, task.first_token);
    const uint64_t end   = std::min(archive_token + n_tokens, task.first_token + task.n_tokens);
    if (begin >= end) {
        return;
    }
    tile += (begin - archive_token) * row_stride;
    const auto & rows    = task.destination->rows;
    // a rotated source row is rotated whatever its coded values are
    const bool   is_same = rows.type == task.record().type && task.record().n_rot == task.destination->n_rot;
    if (is_same) {
        place_native(rows, begin - task.first_token, end - begin, first_channel, n_channels, tile, row_stride);
        return;
    }
    cachegen_rows native{};
    native.type         = task.record().type;
    native.n_tokens     = end - begin;
    native.n_rows       = end - begin;
    native.n_channels   = n_channels;
    native.stride_bytes = row_stride;
    native.n_bytes      = (end - begin) * row_stride;
    native.data         = const_cast<uint8_t *>(tile); // only read
    metered_vector<float> values(n_channels);
    for (uint64_t t = begin; t < end; t++) {
        load_tile(native, t - begin, 1, 0, n_channels, values.data(), n_channels);
        if (task.record().n_rot != task.destination->n_rot) {
            if (task.record().n_rot != 0) {
                hadamard_rows(values.data(), 1, n_channels, n_channels, task.record().n_rot);
            }
            if (task.destination->n_rot != 0) {
                hadamard_rows(values.data(), 1, n_channels, n_channels, task.destination->n_rot);
            }
        }
        store_tile(rows, t - task.first_token, 1, first_channel, n_channels, values.data(), n_channels);
    }
}

// The groups of some adjacent channels, decoded in step.
class span_decoder {
  public:
    span_decoder(const unit_task & task, const unit_view & unit, uint32_t first_group, uint32_t n_groups)
        : task_(task), first_group_(first_group), streams_(n_groups), next_symbols_(decode_symbols()) {
        const plane_record & plane        = task.record();
        const symbol_set &   set          = task.source->sets[plane.set];
        const uint8_t *      models       = task.source->models[task.plane];
        const uint32_t       model_stride = set.tables.n_classes << set.tables.log2_n_buckets;
        for (uint32_t g = 0; g < n_groups; g++) {
            group_stream & stream        = streams_[g];
            stream.tables                = &set.tables;
            const uint32_t first_channel = (first_group + g) * n_lanes;
            for (uint32_t lane = 0; lane < n_lanes; lane++) {
                const uint32_t c          = first_channel + lane;
                const bool     is_channel = c < plane.n_channels;
                stream.model_offset[lane] = (is_channel ? models[c] : set.tables.n_models) * model_stride;
                stream.state[lane]        = is_channel ? get_le<uint32_t>(unit.states + 4 * size_t{ c }) : state_low;
                stream.last_symbol_class[lane] = set.tables.initial_class;
            }
            stream.next_word       = unit.group_words[first_group + g];
            stream.end_of_words    = unit.group_words[first_group + g + 1];
            stream.end_of_readable = task.bytes->end();
        }
    }

    // symbols: OUT [n_groups][n_tokens][32]
    void next(uint32_t n_tokens, uint8_t * symbols) {
        if (!next_symbols_(streams_.data(), static_cast<uint32_t>(streams_.size()), n_tokens, symbols)) {
            fail_stream("the words end too early");
        }
    }

    void finish() const {
        for (const group_stream & stream : streams_) {
            if (stream.next_word != stream.end_of_words) {
                fail_stream("words are left over");
            }
            for (const uint32_t state : stream.state) {
                if (state != state_low) {
                    fail_stream("a final state is not 65,536");
                }
            }
        }
    }

  private:
    [[noreturn]] void fail_stream(const char * what) const {
        fail(CACHEGEN_ERR_STREAM, "block %u, plane %u, %zu channels from %u on: %s; no encoder wrote this", task_.block,
             task_.plane, streams_.size() * n_lanes, first_group_ * n_lanes, what);
    }

    const unit_task &            task_;
    uint32_t                     first_group_;
    metered_vector<group_stream> streams_;
    decode_symbols_function      next_symbols_;
};

// the wanted ones of n_tokens tokens of one whole group, as F16 rows
void store_fp16(const unit_task & task, uint64_t archive_token, uint64_t n_tokens, uint32_t group,
                const uint8_t * symbols, uint32_t n_levels, const uint8_t * tables, const fp16_look_up & fp16) {
    const uint64_t begin = std::max(archive_token, task.first_token);
    const uint64_t end   = std::min(archive_token + n_tokens, task.first_token + task.n_tokens);
    if (begin >= end) {
        return;
    }
    const auto &   rows  = task.destination->rows;
    const uint64_t skip  = begin - archive_token;
    const uint64_t token = begin - task.first_token;
    auto * const   data  = static_cast<uint8_t *>(rows.data) + size_t{ group } * n_lanes * 2;
    fp16.look_up(symbols + skip * n_lanes, n_levels, tables + skip * row_table_bytes, end - begin,
                 rows.cells ? data : data + token * rows.stride_bytes, rows.stride_bytes,
                 rows.cells ? rows.cells + token : nullptr);
}

void decode_lossy(const unit_task & task, const unit_view & unit) {
    const plane_record & plane = task.record();
    const symbol_set &   set   = task.source->sets[plane.set];

    float levels[max_symbols] = {};
    memcpy(levels, set.values, sizeof(float) * set.record.n_symbols);
    metered_vector<float> scales(unit.n_rows);
    for (uint32_t t = 0; t < unit.n_rows; t++) {
        scales[t] = scale_from_bits(checked_scale(*task.source, unit, task.block, task.plane, t), plane.scale_type);
    }

    // groups are decoded side by side, as many as a rotation spans and at least two
    const uint32_t rotation = task.is_rotation_equal() ? 0 : std::max(task.coded_rotation(), task.destination->n_rot);
    const uint32_t groups_a_span = std::max(min_groups_a_span, rotation / n_lanes);
    const uint32_t span_channels = groups_a_span * n_lanes;
    const uint32_t tile_tokens   = std::max(1u, tile_values / span_channels);
    metered_array<float>   values(size_t{ tile_tokens } * span_channels);
    metered_array<uint8_t> symbols(size_t{ tile_tokens } * span_channels);
    const auto             to_values = dequantize();

    // F16 rows of whole groups need no detour over F32
    const auto &         rows      = task.destination->rows;
    const bool           is_direct = task.is_rotation_equal() && rows.type == CACHEGEN_TYPE_F16 && !rows.is_transposed;
    const fp16_look_up & fp16      = fp16_rows();
    metered_vector<uint8_t> row_tables;
    if (is_direct) {
        row_tables.resize(unit.n_rows * row_table_bytes);
        fp16.make_tables(levels, set.record.n_symbols, scales.data(), unit.n_rows, row_tables.data());
    }
    const uint64_t block_token = task.source->unit_first_token(task.block, task.plane);
    for (uint32_t first_group = 0; first_group < unit.n_groups; first_group += groups_a_span) {
        const uint32_t n_groups   = std::min(groups_a_span, unit.n_groups - first_group);
        const uint32_t n_channels = std::min(n_groups * n_lanes, plane.n_channels - first_group * n_lanes);
        const uint32_t n_direct   = is_direct ? n_channels / n_lanes : 0;
        span_decoder   span(task, unit, first_group, n_groups);
        for (uint32_t t = 0; t < unit.n_rows; t += tile_tokens) {
            const uint32_t n = std::min(tile_tokens, unit.n_rows - t);
            span.next(n, symbols.get());
            for (uint32_t g = 0; g < n_groups; g++) {
                const uint8_t * of_group = &symbols[size_t{ g } * n * n_lanes];
                if (g < n_direct) {
                    store_fp16(task, block_token + t, n, first_group + g, of_group, set.record.n_symbols,
                               &row_tables[t * row_table_bytes], fp16);
                } else {
                    to_values(of_group, levels, set.record.n_symbols, &scales[t], n, &values[g * n_lanes],
                              span_channels);
                }
            }
            const uint32_t done = n_direct * n_lanes;
            if (done < n_channels) {
                store_values(task, block_token + t, n, first_group * n_lanes + done, n_channels - done, &values[done],
                             span_channels);
            }
        }
        span.finish();
    }
}

// Puts the symbols' upper bits and the raw lower ones together.
class bit_joiner {
  public:
    bit_joiner(const unit_task & task, const unit_view & unit, const symbol_set & set)
        : task_(task), plane_(task.record()), unit_(unit), end_(task.bytes->end()) {
        for (uint32_t s = 0; s < set.record.n_symbols; s++) {
            upper_[s] = static_cast<uint32_t>(uint64_t{ set.values[s] } << plane_.raw_bits);
        }
    }

    // n_channels of one token, 32 or a row's rest, from a multiple of 32 on
    void join(uint32_t row, uint32_t first_channel, uint32_t n_channels, const uint8_t * symbols,
              uint8_t * native) const {
        uint32_t codes[n_lanes] = {};
        if (plane_.raw_bits != 0) {
            unpack_run(unit_.packed_raw, uint64_t{ row } * plane_.n_channels + first_channel, n_channels,
                       plane_.raw_bits, end_, codes);
        }
        for (uint32_t lane = 0; lane < n_channels; lane++) {
            codes[lane] |= upper_[symbols[lane]];
        }
        switch (plane_.type) {
            case CACHEGEN_TYPE_F32:
                for (uint32_t lane = 0; lane < n_channels; lane++) {
                    put_le<uint32_t>(native + 4 * lane, codes[lane]);
                }
                break;
            case CACHEGEN_TYPE_Q8_0:
                put_le<uint16_t>(native, block_scale(row, first_channel));
                for (uint32_t i = 0; i < 32; i++) {
                    native[2 + i] = static_cast<uint8_t>(codes[i]);
                }
                break;
            case CACHEGEN_TYPE_Q4_0:
                put_le<uint16_t>(native, block_scale(row, first_channel));
                for (uint32_t i = 0; i < 16; i++) {
                    native[2 + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
                }
                break;
            default:
                for (uint32_t lane = 0; lane < n_channels; lane++) {
                    put_le<uint16_t>(native + 2 * lane, static_cast<uint16_t>(codes[lane]));
                }
        }
    }

  private:
    uint16_t block_scale(uint32_t row, uint32_t first_channel) const {
        const uint64_t index = uint64_t{ row } * unit_.n_scales_a_row + first_channel / 32;
        return static_cast<uint16_t>(checked_scale(*task_.source, unit_, task_.block, task_.plane, index));
    }

    const unit_task &    task_;
    const plane_record & plane_;
    const unit_view &    unit_;
    const uint8_t *      end_;
    uint32_t             upper_[max_symbols] = {};
};

void decode_exact(const unit_task & task, const unit_view & unit) {
    const plane_record & plane = task.record();
    const symbol_set &   set   = task.source->sets[plane.set];

    const bool     has_conversion = plane.type != task.destination->rows.type || plane.n_rot != task.destination->n_rot;
    const uint32_t rotation       = has_conversion ? std::max<uint32_t>(plane.n_rot, task.destination->n_rot) : 0;
    const uint32_t groups_a_span  = std::max(min_groups_a_span, rotation / n_lanes);
    const uint32_t span_channels  = groups_a_span * n_lanes;
    const uint32_t tile_tokens    = std::max(1u, tile_values / span_channels);
    const uint64_t row_stride     = native_bytes(plane.type, span_channels);
    const bit_joiner       joiner(task, unit, set);
    metered_array<uint8_t> native(tile_tokens * row_stride);
    metered_array<uint8_t> symbols(size_t{ tile_tokens } * span_channels);

    const uint64_t block_token = task.source->unit_first_token(task.block, task.plane);
    for (uint32_t first_group = 0; first_group < unit.n_groups; first_group += groups_a_span) {
        const uint32_t n_groups   = std::min(groups_a_span, unit.n_groups - first_group);
        const uint32_t n_channels = std::min(n_groups * n_lanes, plane.n_channels - first_group * n_lanes);
        span_decoder   span(task, unit, first_group, n_groups);
        for (uint32_t t = 0; t < unit.n_rows; t += tile_tokens) {
            const uint32_t n = std::min(tile_tokens, unit.n_rows - t);
            span.next(n, symbols.get());
            for (uint32_t g = 0; g < n_groups; g++) {
                const uint32_t first = (first_group + g) * n_lanes;
                for (uint32_t i = 0; i < n; i++) {
                    joiner.join(t + i, first, std::min(n_lanes, plane.n_channels - first),
                                &symbols[(size_t{ g } * n + i) * n_lanes],
                                &native[i * row_stride + native_bytes(plane.type, size_t{ g } * n_lanes)]);
                }
            }
            store_native(task, block_token + t, n, first_group * n_lanes, n_channels, native.get(), row_stride);
        }
        span.finish();
    }
}

void decode_raw(const unit_task & task) {
    check_raw_unit(*task.source, *task.bytes, task.block, task.plane);
    const plane_record & plane     = task.record();
    const uint64_t       row_bytes = native_bytes(plane.type, plane.n_channels);
    const uint64_t       n_rows    = task.source->unit_n_tokens(task.block, task.plane);
    const uint64_t       begin     = task.source->unit_begin(task.block, task.plane);
    store_native(task, task.source->unit_first_token(task.block, task.plane), n_rows, 0, plane.n_channels,
                 task.bytes->at(begin), row_bytes);
}

void decode_unit(const unit_task & task) {
    const auto mode = static_cast<plane_mode>(task.record().mode);
    if (task.source->unit_n_tokens(task.block, task.plane) == 0) {
        return; // the plane begins later
    }
    if (mode == plane_mode::raw) {
        decode_raw(task);
        return;
    }
    const unit_view unit = parse_unit(*task.source, *task.bytes, task.block, task.plane);
    if (mode == plane_mode::lossy) {
        decode_lossy(task, unit);
    } else {
        decode_exact(task, unit);
    }
}

void decode_exact_rows(const decode_request & request, const payload & bytes) {
    const archive & source = *request.source;
    uint64_t        offset = source.exact_offset;
    for (uint32_t p = 0; p < source.head.n_planes; p++) {
        const plane_record & plane     = source.planes[p];
        const uint64_t       row_bytes = native_bytes(plane.type, plane.n_channels);
        const uint32_t       n_rows    = source.n_exact_rows(p);
        const token_range    range     = request.range(p);
        if (request.destinations[p].rows.data != nullptr && n_rows > 0 && range.n > 0) {
            const unit_task task{ &source, &bytes, 0, p, range.first, range.n, &request.destinations[p] };
            store_native(task, plane.first_token, n_rows, 0, plane.n_channels, bytes.at(offset), row_bytes);
        }
        offset += n_rows * row_bytes;
    }
}

void decode_blocks(const decode_request & request, const payload & bytes, uint32_t first_block, uint32_t n_blocks,
                   const cachegen_executor * executor) {
    const auto & wanted = request.wanted;
    run_tasks(executor, uint64_t{ n_blocks } * wanted.size(), [&](uint64_t i) {
        const uint32_t    p     = wanted[i % wanted.size()];
        const token_range range = request.range(p);
        decode_unit({ request.source, &bytes, first_block + static_cast<uint32_t>(i / wanted.size()), p, range.first,
                      range.n, &request.destinations[p] });
    });
}

} // namespace

void decode(const archive & source, const payload & bytes, uint64_t first_token, uint64_t n_tokens,
            const cachegen_lcg3_destination * destinations, const cachegen_executor * executor) {
    const decode_request request  = make_request(source, first_token, n_tokens, destinations);
    const auto [first_block, end] = request.blocks();
    const uint32_t n_blocks       = end - first_block;
    const uint32_t from_block     = first_block; // a structured binding cannot be captured
    run_tasks(executor, uint64_t{ n_blocks } + 1, [&](uint64_t i) {
        if (i > 0) {
            check_part_digest(source, bytes, from_block + static_cast<uint32_t>(i));
        } else if (request.has_exact_rows()) {
            check_part_digest(source, bytes, 0);
        }
    });
    if (request.has_exact_rows()) {
        decode_exact_rows(request, bytes);
    }
    decode_blocks(request, bytes, first_block, n_blocks, executor);
}

// Part 0 is what lies between the metadata and the first block, part 1 + b is block b: together the rest of the
// archive.
payload part_of(const archive & source, uint32_t part) {
    return part == 0
               ? payload{ nullptr, source.head.metadata_bytes, source.unit_offsets[0] - source.head.metadata_bytes }
               : payload{ nullptr, source.block_begin(part - 1),
                          source.block_end(part - 1) - source.block_begin(part - 1) };
}

void decode_part(const archive & source, uint32_t part, const payload & bytes, uint64_t first_token, uint64_t n_tokens,
                 const cachegen_lcg3_destination * destinations, const cachegen_executor * executor) {
    const decode_request request = make_request(source, first_token, n_tokens, destinations);
    if (part == 0) {
        check_padding(source, bytes);
    }
    check_part_digest(source, bytes, part);
    if (part == 0) {
        if (request.has_exact_rows()) {
            decode_exact_rows(request, bytes);
        }
        return;
    }
    const uint32_t block          = part - 1;
    const auto [first_block, end] = request.blocks();
    if (block >= first_block && block < end) {
        decode_blocks(request, bytes, block, 1, executor);
    }
}

} // namespace cachegen::lcg3

struct cachegen_lcg3 {
    cachegen::lcg3::archive archive;
    cachegen::lcg3::payload whole; // bytes NULL if only the metadata is here
};

using namespace cachegen;

static void check_whole(const cachegen_lcg3 & reader) {
    if (reader.whole.bytes == nullptr) {
        fail(CACHEGEN_ERR_ARGUMENT, "only the metadata was opened; decode part after part");
    }
}

int32_t cachegen_lcg3_open(const void * archive, uint64_t n_bytes, struct cachegen_lcg3 ** reader) {
    return guard([&] {
        if (archive == nullptr || reader == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "archive or reader is NULL");
        }
        *reader                    = nullptr;
        auto                parsed = lcg3::parse_metadata(archive, n_bytes, n_bytes);
        const lcg3::payload whole{ static_cast<const uint8_t *>(archive), 0, n_bytes };
        lcg3::check_padding(parsed, whole);
        *reader = new cachegen_lcg3{ std::move(parsed), whole };
    });
}

int32_t cachegen_lcg3_open_metadata(const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                    struct cachegen_lcg3 ** reader) {
    return guard([&] {
        if (metadata == nullptr || reader == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "metadata or reader is NULL");
        }
        *reader = nullptr;
        *reader = new cachegen_lcg3{ lcg3::parse_metadata(metadata, n_bytes, archive_bytes), {} };
    });
}

int32_t cachegen_lcg3_metadata_bytes(const void * header, uint64_t n_bytes, uint64_t archive_bytes,
                                     uint64_t * metadata_bytes) {
    return guard([&] {
        if (header == nullptr || metadata_bytes == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "header or metadata_bytes is NULL");
        }
        *metadata_bytes = lcg3::read_metadata_bytes(header, n_bytes, archive_bytes);
    });
}

int32_t cachegen_lcg3_part(const struct cachegen_lcg3 * reader, uint32_t part, uint64_t * offset, uint64_t * n_bytes) {
    return guard([&] {
        if (reader == nullptr || offset == nullptr || n_bytes == nullptr || part > reader->archive.n_blocks) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader, offset or n_bytes is NULL, or there is no part %u", part);
        }
        const lcg3::payload bytes = lcg3::part_of(reader->archive, part);
        *offset                   = bytes.offset;
        *n_bytes                  = bytes.n_bytes;
    });
}

int32_t cachegen_lcg3_decode_part(const struct cachegen_lcg3 * reader, uint32_t part, const void * bytes,
                                  uint64_t n_bytes, uint64_t first_token, uint64_t n_tokens,
                                  const struct cachegen_lcg3_destination * destinations, uint64_t n_destinations,
                                  const struct cachegen_executor * executor) {
    return guard([&] {
        if (reader == nullptr || bytes == nullptr || destinations == nullptr ||
            n_destinations != reader->archive.head.n_planes || part > reader->archive.n_blocks) {
            fail(CACHEGEN_ERR_ARGUMENT,
                 "reader, bytes or destinations is NULL, there is not one destination a plane, or no part %u", part);
        }
        lcg3::payload here = lcg3::part_of(reader->archive, part);
        if (n_bytes != here.n_bytes) {
            fail(CACHEGEN_ERR_ARGUMENT, "%llu bytes, part %u has %llu", (unsigned long long) n_bytes, part,
                 (unsigned long long) here.n_bytes);
        }
        here.bytes = static_cast<const uint8_t *>(bytes);
        lcg3::decode_part(reader->archive, part, here, first_token, n_tokens, destinations, executor);
    });
}

void cachegen_lcg3_close(struct cachegen_lcg3 * reader) {
    delete reader;
}

int32_t cachegen_lcg3_describe(const struct cachegen_lcg3 * reader, struct cachegen_lcg3_info * info,
                               struct cachegen_lcg3_plane * planes, uint64_t capacity) {
    return guard([&] {
        if (reader == nullptr || info == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader or info is NULL");
        }
        if (info->struct_size != sizeof(*info)) {
            fail(CACHEGEN_ERR_STRUCT_SIZE, "cachegen_lcg3_info of %u bytes, this library's has %zu", info->struct_size,
                 sizeof(*info));
        }
        const auto & source  = reader->archive;
        info->n_planes       = source.head.n_planes;
        info->archive_bytes  = source.head.archive_bytes;
        info->metadata_bytes = source.head.metadata_bytes;
        info->table_bytes    = source.table_bytes;
        info->n_tokens       = source.head.n_tokens;
        info->n_exact_tokens = source.head.n_exact_tokens;
        info->block_tokens   = source.head.block_tokens;
        info->n_blocks       = source.n_blocks;
        info->n_sets         = source.head.n_sets;
        info->n_classes      = 1;
        for (const auto & set : source.sets) {
            info->n_classes = std::max<uint32_t>(info->n_classes, set.record.n_classes);
        }
        memcpy(info->profile, source.head.profile, sizeof(info->profile));
        if (planes == nullptr) {
            return;
        }
        if (capacity < source.head.n_planes) {
            fail(CACHEGEN_ERR_BUFFER_SIZE, "room for %llu planes of %u", (unsigned long long) capacity,
                 source.head.n_planes);
        }
        for (uint32_t p = 0; p < source.head.n_planes; p++) {
            const auto & record = source.planes[p];
            auto &       plane  = planes[p];
            plane               = {};
            plane.struct_size   = sizeof(plane);
            plane.layer         = record.layer;
            plane.kind          = record.kind;
            plane.mode          = record.mode;
            plane.type          = record.type;
            plane.n_channels    = record.n_channels;
            plane.n_rot         = record.n_rot;
            plane.is_unrotated  = record.flags & lcg3::plane_flag_unrotated;
            plane.n_symbols     = record.mode == CACHEGEN_LCG3_RAW ? 0 : source.sets[record.set].record.n_symbols;
            plane.scale_type    = record.scale_type;
            plane.first_token   = record.first_token;
            for (uint32_t b = 0; b < source.n_blocks; b++) {
                plane.payload_bytes += source.unit_end(b, p) - source.unit_begin(b, p);
                const bool is_here = reader->whole.bytes != nullptr;
                if (is_here && record.mode != CACHEGEN_LCG3_RAW && source.unit_n_tokens(b, p) > 0) {
                    const auto unit = lcg3::parse_unit(source, reader->whole, b, p);
                    plane.symbol_bytes += static_cast<uint64_t>(unit.words_end - unit.group_words[0]);
                }
            }
        }
    });
}

int32_t cachegen_lcg3_verify(const struct cachegen_lcg3 * reader, const struct cachegen_executor * executor) {
    return guard([&] {
        if (reader == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader is NULL");
        }
        check_whole(*reader);
        run_tasks(executor, uint64_t{ reader->archive.n_blocks } + 1, [&](uint64_t i) {
            lcg3::check_part_digest(reader->archive, reader->whole, static_cast<uint32_t>(i));
        });
    });
}

int32_t cachegen_lcg3_decode(const struct cachegen_lcg3 * reader, uint64_t first_token, uint64_t n_tokens,
                             const struct cachegen_lcg3_destination * destinations, uint64_t n_destinations,
                             const struct cachegen_executor * executor) {
    return guard([&] {
        if (reader == nullptr || destinations == nullptr || n_destinations != reader->archive.head.n_planes) {
            fail(CACHEGEN_ERR_ARGUMENT, "reader or destinations is NULL, or there is not one destination a plane");
        }
        check_whole(*reader);
        lcg3::decode(reader->archive, reader->whole, first_token, n_tokens, destinations, executor);
    });
}
