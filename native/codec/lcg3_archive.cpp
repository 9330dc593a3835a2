#include "lcg3_archive.h"

#include "bit_pack.h"
#include "bytes.h"
#include "cachegen.h"

#include <algorithm>
#include <cmath>

namespace cachegen::lcg3 {

namespace {

using ull = unsigned long long;

uint64_t align_up(uint64_t n, uint64_t alignment) {
    return add_or_fail(n, alignment - 1, "an aligned offset") / alignment * alignment;
}

void check_zeros(const uint8_t * bytes, uint64_t n, const char * what) {
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            fail(CACHEGEN_ERR_RESERVED, "%s: byte %llu is %u, it must be 0", what, (ull) i, bytes[i]);
        }
    }
}

// bits of one coded value of a type
uint32_t value_bits(uint8_t type) {
    switch (type) {
        case CACHEGEN_TYPE_F32: return 32;
        case CACHEGEN_TYPE_F16: return 16;
        case CACHEGEN_TYPE_BF16: return 16;
        case CACHEGEN_TYPE_Q8_0: return 8;
        case CACHEGEN_TYPE_Q4_0: return 4;
        default: fail(CACHEGEN_ERR_UNSUPPORTED, "type %u is none of F32, F16, BF16, Q8_0, Q4_0", type);
    }
}

bool is_block_type(uint8_t type) {
    return type == CACHEGEN_TYPE_Q8_0 || type == CACHEGEN_TYPE_Q4_0;
}

uint64_t native_row_bytes(const plane_record & plane) {
    switch (plane.type) {
        case CACHEGEN_TYPE_F32: return uint64_t{ plane.n_channels } * 4;
        case CACHEGEN_TYPE_Q8_0: return uint64_t{ plane.n_channels } / 32 * 34;
        case CACHEGEN_TYPE_Q4_0: return uint64_t{ plane.n_channels } / 32 * 18;
        default: return uint64_t{ plane.n_channels } * 2;
    }
}

// what the header alone tells
header check_header(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes) {
    if (n_bytes < sizeof(header)) {
        fail(CACHEGEN_ERR_TRUNCATED, "%llu bytes, an LCG3 header has 64", (ull) n_bytes);
    }
    const auto head = get_le<header>(bytes);
    if (head.magic != magic) {
        fail(CACHEGEN_ERR_MAGIC, "not an LCG3 archive: it begins with 0x%08x", head.magic);
    }
    if (head.version != version || head.header_bytes != sizeof(header)) {
        fail(CACHEGEN_ERR_VERSION, "LCG3 version %u with a header of %u bytes; this library reads version %u with %zu",
             head.version, head.header_bytes, version, sizeof(header));
    }
    if (head.archive_bytes > archive_bytes) {
        fail(CACHEGEN_ERR_TRUNCATED, "the archive has %llu bytes, %llu are here", (ull) head.archive_bytes,
             (ull) archive_bytes);
    }
    if (head.archive_bytes < archive_bytes) {
        fail(CACHEGEN_ERR_TRAILING, "the archive has %llu bytes, %llu are here", (ull) head.archive_bytes,
             (ull) archive_bytes);
    }
    if (head.metadata_bytes > archive_bytes || head.metadata_bytes < sizeof(header) + sizeof(uint64_t)) {
        fail(CACHEGEN_ERR_GEOMETRY, "%llu bytes of metadata in an archive of %llu", (ull) head.metadata_bytes,
             (ull) archive_bytes);
    }
    if (head.reserved0 != 0) {
        fail(CACHEGEN_ERR_RESERVED, "the header's reserved number is %u, it must be 0", head.reserved0);
    }
    if (head.n_tokens < 1 || head.n_tokens > max_tokens || head.n_planes < 1 || head.n_planes > max_planes ||
        head.n_exact_tokens > max_exact_tokens || head.n_sets > max_sets || head.block_tokens < min_block_tokens ||
        head.block_tokens > max_block_tokens) {
        fail(CACHEGEN_ERR_LIMIT,
             "%u tokens, %u of them exact, blocks of %u, %u planes, %u sets: outside of this library's limits",
             head.n_tokens, head.n_exact_tokens, head.block_tokens, head.n_planes, head.n_sets);
    }
    if (head.n_exact_tokens > head.n_tokens) {
        fail(CACHEGEN_ERR_GEOMETRY, "%u exact tokens of %u", head.n_exact_tokens, head.n_tokens);
    }
    return head;
}

header parse_header(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes) {
    const header head = check_header(bytes, n_bytes, archive_bytes);
    if (head.metadata_bytes > n_bytes) {
        fail(CACHEGEN_ERR_TRUNCATED, "%llu bytes of metadata, %llu are here", (ull) head.metadata_bytes, (ull) n_bytes);
    }
    // before sizes are believed
    const uint64_t digest_offset = head.metadata_bytes - sizeof(uint64_t);
    const auto *   begin         = static_cast<const uint8_t *>(bytes);
    if (digest_of(bytes, digest_offset) != get_le<uint64_t>(begin + digest_offset)) {
        fail(CACHEGEN_ERR_DIGEST, "the metadata does not match its digest; the archive is damaged");
    }
    bool has_ended = false;
    for (const char c : head.profile) {
        if ((has_ended && c != 0) || (c != 0 && (c < 0x21 || c > 0x7e))) {
            fail(CACHEGEN_ERR_RESERVED, "the profile name is not printable ASCII padded with zeros");
        }
        has_ended |= c == 0;
    }
    return head;
}

void check_plane(const plane_record & plane, uint32_t index, uint32_t n_sets, uint32_t n_tokens) {
    if (plane.kind < 1 || plane.kind > 3 || plane.mode > 2) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "plane %u: kind %u, mode %u", index, plane.kind, plane.mode);
    }
    const uint32_t n_bits = value_bits(plane.type);
    if (plane.n_channels < 1 || plane.n_channels > max_channels ||
        (is_block_type(plane.type) && plane.n_channels % 32 != 0)) {
        fail(CACHEGEN_ERR_GEOMETRY, "plane %u: %u channels of type %u", index, plane.n_channels, plane.type);
    }
    if (plane.first_token >= n_tokens) {
        fail(CACHEGEN_ERR_GEOMETRY, "plane %u begins at token %u of %u", index, plane.first_token, n_tokens);
    }
    if (plane.n_rot != 0 && (plane.n_rot < 2 || plane.n_rot > max_rotation || (plane.n_rot & (plane.n_rot - 1)) != 0 ||
                             plane.n_channels % plane.n_rot != 0)) {
        fail(CACHEGEN_ERR_GEOMETRY, "plane %u: a rotation of %u values in %u channels", index, plane.n_rot,
             plane.n_channels);
    }
    const auto mode         = static_cast<plane_mode>(plane.mode);
    const bool is_unrotated = plane.flags == plane_flag_unrotated;
    if ((plane.flags != 0 && !is_unrotated) || (is_unrotated && (mode != plane_mode::lossy || plane.n_rot == 0))) {
        fail(CACHEGEN_ERR_RESERVED, "plane %u: flags 0x%02x", index, plane.flags);
    }
    for (const uint8_t byte : plane.reserved) {
        if (byte != 0) {
            fail(CACHEGEN_ERR_RESERVED, "plane %u: a reserved byte is not 0", index);
        }
    }
    if (mode == plane_mode::raw ? plane.set != 0 : plane.set >= n_sets) {
        fail(CACHEGEN_ERR_TABLE, "plane %u: set %u of %u", index, plane.set, n_sets);
    }
    if (mode == plane_mode::lossy) {
        if (plane.scale_type != CACHEGEN_TYPE_F32 && plane.scale_type != CACHEGEN_TYPE_F16 &&
            plane.scale_type != CACHEGEN_TYPE_BF16) {
            fail(CACHEGEN_ERR_UNSUPPORTED, "plane %u: scales of type %u", index, plane.scale_type);
        }
    } else if (plane.scale_type != 0) {
        fail(CACHEGEN_ERR_RESERVED, "plane %u: a scale type %u without scales", index, plane.scale_type);
    }
    if (mode == plane_mode::exact ? plane.raw_bits >= n_bits : plane.raw_bits != 0) {
        fail(CACHEGEN_ERR_GEOMETRY, "plane %u: %u raw bits of %u", index, plane.raw_bits, n_bits);
    }
}

void parse_frequencies(reader & input, symbol_set & set, uint32_t index) {
    const size_t n_symbols       = set.record.n_symbols;
    const size_t n_distributions = size_t{ set.record.n_models } * set.record.n_classes;
    // every frequency takes at least one byte, so this is checked against what is there
    if (n_distributions * n_symbols > input.remaining()) {
        fail(CACHEGEN_ERR_TRUNCATED, "set %u: %zu frequencies, %llu bytes are left", index, n_distributions * n_symbols,
             (ull) input.remaining());
    }
    set.frequencies.resize(n_distributions * n_symbols);
    for (size_t d = 0; d < n_distributions; d++) {
        uint32_t sum = 0;
        for (size_t s = 0; s < n_symbols; s++) {
            uint32_t frequency = input.get<uint8_t>("a frequency");
            if (frequency == 255) {
                frequency = input.get<uint16_t>("a frequency");
                if (frequency < 255 || frequency > prob_scale) {
                    fail(CACHEGEN_ERR_TABLE, "set %u: frequency %u in three bytes", index, frequency);
                }
            }
            set.frequencies[d * n_symbols + s] = static_cast<uint16_t>(frequency);
            sum += frequency;
        }
        if (sum != prob_scale) {
            fail(CACHEGEN_ERR_TABLE, "set %u: the frequencies of distribution %zu sum to %u, not to 1,024", index, d,
                 sum);
        }
    }
}

symbol_set parse_set(reader & input, uint32_t index) {
    symbol_set set{};
    set.record          = input.get<set_record>("a symbol set");
    const auto & record = set.record;
    if (record.reserved0 != 0 || record.reserved1 != 0) {
        fail(CACHEGEN_ERR_RESERVED, "set %u: a reserved byte is not 0", index);
    }
    if (record.n_symbols < 2 || record.n_symbols > max_symbols || record.n_classes < 1 ||
        record.n_classes > max_classes || record.n_models < 1 || record.n_models > max_models ||
        record.initial_class >= record.n_classes) {
        fail(CACHEGEN_ERR_TABLE, "set %u: %u symbols, %u classes, the first %u, %u models", index, record.n_symbols,
             record.n_classes, record.initial_class, record.n_models);
    }
    memcpy(set.values, input.take(4 * size_t{ record.n_symbols }, "symbol values"), 4 * size_t{ record.n_symbols });

    const uint8_t * class_of = input.take(record.n_symbols, "symbol classes");
    for (uint32_t s = 0; s < record.n_symbols; s++) {
        const uint32_t before = s == 0 ? 0 : class_of[s - 1];
        if (class_of[s] >= record.n_classes || class_of[s] < before || class_of[s] > before + (s > 0)) {
            fail(CACHEGEN_ERR_TABLE, "set %u: symbol %u has class %u after %u; classes go up from 0 one by one", index,
                 s, class_of[s], before);
        }
    }
    parse_frequencies(input, set, index);
    const uint64_t n_padding = (8 - input.offset() % 8) % 8;
    check_zeros(input.take(n_padding, "padding"), n_padding, "padding after a symbol set");

    set.tables                = {};
    set.tables.n_symbols      = record.n_symbols;
    set.tables.n_classes      = record.n_classes;
    set.tables.n_models       = record.n_models;
    set.tables.log2_n_buckets = log2_buckets(record.n_symbols);
    set.tables.initial_class  = record.initial_class;
    memcpy(set.tables.class_of, class_of, record.n_symbols);

    const size_t n_distributions = size_t{ record.n_models } * record.n_classes;
    set.buckets.resize((n_distributions + record.n_classes) << set.tables.log2_n_buckets);
    for (size_t d = 0; d < n_distributions; d++) {
        build_buckets(&set.frequencies[d * record.n_symbols], record.n_symbols,
                      &set.buckets[d << set.tables.log2_n_buckets]);
    }
    uint16_t null_model[max_symbols] = { prob_scale };
    for (size_t d = n_distributions; d < n_distributions + record.n_classes; d++) {
        build_buckets(null_model, record.n_symbols, &set.buckets[d << set.tables.log2_n_buckets]);
    }
    return set;
}

void check_set_values(const archive & source, uint32_t index) {
    const plane_record & plane = source.planes[index];
    const symbol_set &   set   = source.sets[plane.set];
    for (uint32_t s = 0; s < set.record.n_symbols; s++) {
        if (static_cast<plane_mode>(plane.mode) == plane_mode::lossy) {
            float level;
            memcpy(&level, &set.values[s], sizeof(level));
            if (!(std::fabs(level) <= 1)) {
                fail(CACHEGEN_ERR_TABLE, "set %u, used by plane %u: level %u is not in [-1, 1]", plane.set, index, s);
            }
        } else {
            const uint32_t upper_bits = value_bits(plane.type) - plane.raw_bits;
            if (upper_bits < 32 && set.values[s] >> upper_bits != 0) {
                fail(CACHEGEN_ERR_TABLE, "set %u, used by plane %u: value 0x%x does not fit %u bits", plane.set, index,
                     set.values[s], upper_bits);
            }
        }
    }
}

} // namespace

uint32_t archive::unit_first_token(uint32_t block, uint32_t plane) const {
    return std::max(block_first_token(block), planes[plane].first_token);
}

uint32_t archive::unit_n_tokens(uint32_t block, uint32_t plane) const {
    const uint32_t begin = block_first_token(block);
    const uint32_t end   = begin + std::min(head.block_tokens, head.n_tokens - begin);
    return end - std::min(end, unit_first_token(block, plane));
}

uint32_t archive::n_exact_rows(uint32_t plane) const {
    return head.n_exact_tokens - std::min(head.n_exact_tokens, planes[plane].first_token);
}

uint64_t read_metadata_bytes(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes) {
    return check_header(bytes, n_bytes, archive_bytes).metadata_bytes;
}

uint32_t n_scales_a_row(const plane_record & plane) {
    if (static_cast<plane_mode>(plane.mode) == plane_mode::lossy) {
        return 1;
    }
    return is_block_type(plane.type) ? plane.n_channels / 32 : 0;
}

archive parse_metadata(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes) {
    archive result{};
    result.head = parse_header(bytes, n_bytes, archive_bytes);

    const header & head    = result.head;
    const uint32_t n_coded = head.n_tokens - head.n_exact_tokens;
    result.n_blocks        = n_coded / head.block_tokens + (n_coded % head.block_tokens != 0);
    const uint64_t n_units = uint64_t{ result.n_blocks } * head.n_planes; // below 2^34

    reader input(bytes, head.metadata_bytes - sizeof(uint64_t));
    input.take(sizeof(header), "the header");
    const uint8_t * records = input.take(head.n_planes * sizeof(plane_record), "plane records");
    result.planes.resize(head.n_planes);
    memcpy(result.planes.data(), records, head.n_planes * sizeof(plane_record));
    for (uint32_t p = 0; p < head.n_planes; p++) {
        check_plane(result.planes[p], p, head.n_sets, head.n_tokens);
    }

    const uint64_t tables_begin = input.offset();
    result.sets.reserve(head.n_sets);
    for (uint32_t s = 0; s < head.n_sets; s++) {
        result.sets.push_back(parse_set(input, s));
        result.sets.back().tables.buckets = result.sets.back().buckets.data();
    }
    result.models.resize(head.n_planes);
    for (uint32_t p = 0; p < head.n_planes; p++) {
        const plane_record & plane = result.planes[p];
        if (static_cast<plane_mode>(plane.mode) == plane_mode::raw) {
            continue;
        }
        check_set_values(result, p);
        result.models[p] = input.take(plane.n_channels, "model numbers");
        for (uint32_t c = 0; c < plane.n_channels; c++) {
            if (result.models[p][c] >= result.sets[plane.set].record.n_models) {
                fail(CACHEGEN_ERR_TABLE, "plane %u, channel %u: model %u of %u", p, c, result.models[p][c],
                     result.sets[plane.set].record.n_models);
            }
        }
    }
    const uint64_t n_padding = (8 - input.offset() % 8) % 8;
    check_zeros(input.take(n_padding, "padding"), n_padding, "padding after the model numbers");
    result.table_bytes = input.offset() - tables_begin;

    const uint8_t * sizes = input.take(4 * n_units, "unit sizes");
    check_zeros(input.take(4 * (n_units % 2), "padding"), 4 * (n_units % 2), "padding after the unit sizes");
    result.digests = input.take(8 * (uint64_t{ result.n_blocks } + 1), "block digests");
    if (input.remaining() != 0) {
        fail(CACHEGEN_ERR_GEOMETRY, "%llu bytes of metadata after the block digests", (ull) input.remaining());
    }

    uint64_t offset     = align_up(head.metadata_bytes, payload_alignment);
    result.exact_offset = offset;
    result.exact_bytes  = 0;
    for (uint32_t p = 0; p < head.n_planes; p++) {
        result.exact_bytes += result.n_exact_rows(p) * native_row_bytes(result.planes[p]); // below 2^48
    }
    offset = align_up(offset + result.exact_bytes, payload_alignment);
    result.unit_offsets.resize(n_units + 1);
    for (uint64_t u = 0; u < n_units; u++) {
        const auto unit_bytes = get_le<uint32_t>(sizes + 4 * u);
        if (unit_bytes % unit_alignment != 0) {
            fail(CACHEGEN_ERR_GEOMETRY, "unit %llu has %u bytes; units are multiples of 16", (ull) u, unit_bytes);
        }
        const auto block = static_cast<uint32_t>(u / head.n_planes);
        const auto plane = static_cast<uint32_t>(u % head.n_planes);
        if (unit_bytes != 0 && result.unit_n_tokens(block, plane) == 0) {
            fail(CACHEGEN_ERR_GEOMETRY, "unit %llu has %u bytes for no token: its plane begins later", (ull) u,
                 unit_bytes);
        }
        result.unit_offsets[u] = offset;
        offset += unit_bytes;
        if (offset > archive_bytes) {
            fail(CACHEGEN_ERR_GEOMETRY, "unit %llu ends at offset %llu, the archive at %llu", (ull) u, (ull) offset,
                 (ull) archive_bytes);
        }
    }
    result.unit_offsets[n_units] = offset;
    if (offset != archive_bytes) {
        fail(CACHEGEN_ERR_GEOMETRY, "the units end at offset %llu, the archive at %llu", (ull) offset,
             (ull) archive_bytes);
    }
    return result;
}

void check_padding(const archive & source, const payload & bytes) {
    const uint64_t metadata_bytes = source.head.metadata_bytes;
    const uint64_t exact_end      = source.exact_offset + source.exact_bytes;
    check_zeros(bytes.at(metadata_bytes), source.exact_offset - metadata_bytes, "padding before the payload");
    check_zeros(bytes.at(exact_end), source.unit_offsets[0] - exact_end, "padding after the exact rows");
}

std::pair<uint64_t, uint64_t> digested_range(const archive & source, uint32_t part) {
    if (part == 0) {
        return { source.exact_offset, source.exact_offset + source.exact_bytes };
    }
    return { source.block_begin(part - 1), source.block_end(part - 1) };
}

void check_digest(const archive & source, uint32_t part, uint64_t digest) {
    if (digest == get_le<uint64_t>(source.digests + 8 * uint64_t{ part })) {
        return;
    }
    if (part == 0) {
        fail(CACHEGEN_ERR_DIGEST, "the exact rows do not match their digest; the archive is damaged");
    }
    fail(CACHEGEN_ERR_DIGEST, "block %u (tokens from %u) does not match its digest; the archive is damaged", part - 1,
         source.block_first_token(part - 1));
}

void check_part_digest(const archive & source, const payload & bytes, uint32_t part) {
    const auto [begin, end] = digested_range(source, part);
    check_digest(source, part, digest_of(bytes.at(begin), end - begin));
}

uint32_t checked_scale(const archive & source, const unit_view & unit, uint32_t block, uint32_t plane, uint64_t index) {
    const plane_record & record   = source.planes[plane];
    const bool           is_lossy = static_cast<plane_mode>(record.mode) == plane_mode::lossy;
    const uint64_t       largest  = !is_lossy                                ? 0xffffu
                                    : record.scale_type == CACHEGEN_TYPE_F32 ? 0x7f7fffffu
                                    : record.scale_type == CACHEGEN_TYPE_F16 ? 0x7bffu
                                                                             : 0x7f7fu;
    const uint64_t       bits = uint64_t{ unit.scale_base } + unpack_bits(unit.packed_scales, index, unit.scale_bits);
    if (bits > largest) {
        fail(CACHEGEN_ERR_TABLE, "block %u, plane %u: scale %llu of row %llu %s", block, plane,
             (ull) (index % unit.n_scales_a_row), (ull) (index / unit.n_scales_a_row),
             is_lossy ? "is negative or not finite" : "has more than 16 bits");
    }
    return static_cast<uint32_t>(bits);
}

void check_scales(const archive & source, const unit_view & unit, uint32_t block, uint32_t plane) {
    for (uint64_t i = 0; i < uint64_t{ unit.n_rows } * unit.n_scales_a_row; i++) {
        checked_scale(source, unit, block, plane, i);
    }
}

void check_raw_unit(const archive & source, const payload & bytes, uint32_t block, uint32_t plane) {
    const uint64_t row_bytes = native_row_bytes(source.planes[plane]);
    const uint64_t n_rows    = source.unit_n_tokens(block, plane);
    const uint64_t begin     = source.unit_begin(block, plane);
    const uint64_t n_bytes   = source.unit_end(block, plane) - begin;
    if (n_bytes != align_up(n_rows * row_bytes, unit_alignment)) {
        fail(CACHEGEN_ERR_GEOMETRY, "block %u, plane %u: %llu bytes for %llu native rows of %llu", block, plane,
             (ull) n_bytes, (ull) n_rows, (ull) row_bytes);
    }
    for (uint64_t i = n_rows * row_bytes; i < n_bytes; i++) {
        if (*bytes.at(begin + i) != 0) {
            fail(CACHEGEN_ERR_RESERVED, "block %u, plane %u: padding that is not 0", block, plane);
        }
    }
}

unit_view parse_unit(const archive & source, const payload & bytes, uint32_t block, uint32_t plane_index) {
    const plane_record & plane = source.planes[plane_index];
    const uint64_t       begin = source.unit_begin(block, plane_index);
    reader               input(bytes.at(begin), source.unit_end(block, plane_index) - begin);

    unit_view unit{};
    unit.n_rows         = source.unit_n_tokens(block, plane_index);
    unit.n_groups       = (plane.n_channels + n_lanes - 1) / n_lanes;
    unit.n_scales_a_row = n_scales_a_row(plane);

    const auto record = input.get<unit_record>("a unit");
    unit.scale_base   = record.scale_base;
    unit.scale_bits   = record.scale_bits;
    if (record.reserved[0] != 0 || record.reserved[1] != 0 || record.reserved[2] != 0) {
        fail(CACHEGEN_ERR_RESERVED, "block %u, plane %u: a reserved byte is not 0", block, plane_index);
    }
    if (record.scale_bits > 32 || (unit.n_scales_a_row == 0 && (record.scale_bits != 0 || record.scale_base != 0))) {
        fail(CACHEGEN_ERR_GEOMETRY, "block %u, plane %u: scales of %u bits", block, plane_index, record.scale_bits);
    }
    const uint8_t * n_words = input.take(4 * uint64_t{ unit.n_groups }, "word counts");
    unit.states             = input.take(4 * uint64_t{ plane.n_channels }, "states");
    for (uint32_t c = 0; c < plane.n_channels; c++) {
        if (get_le<uint32_t>(unit.states + 4 * size_t{ c }) < state_low) {
            fail(CACHEGEN_ERR_STREAM, "block %u, plane %u: the state of channel %u is below 65,536", block, plane_index,
                 c);
        }
    }
    const auto take_packed = [&](uint64_t n, uint32_t width, const char * what) {
        const uint8_t * packed = input.take(packed_bytes(n, width), what);
        if (has_spare_bits(packed, n, width)) {
            fail(CACHEGEN_ERR_RESERVED, "block %u, plane %u: spare bits after the %s are not 0", block, plane_index,
                 what);
        }
        return packed;
    };
    unit.packed_scales = take_packed(uint64_t{ unit.n_rows } * unit.n_scales_a_row, unit.scale_bits, "scales");
    unit.packed_raw    = take_packed(uint64_t{ unit.n_rows } * plane.n_channels, plane.raw_bits, "raw bits");
    unit.group_words.resize(uint64_t{ unit.n_groups } + 1);
    for (uint32_t g = 0; g < unit.n_groups; g++) {
        unit.group_words[g] = input.take(2 * uint64_t{ get_le<uint32_t>(n_words + 4 * size_t{ g }) }, "words");
    }
    unit.words_end                  = input.take(0, "words");
    unit.group_words[unit.n_groups] = unit.words_end;
    if (input.remaining() >= unit_alignment) {
        fail(CACHEGEN_ERR_GEOMETRY, "block %u, plane %u: %llu bytes after the words", block, plane_index,
             (ull) input.remaining());
    }
    const uint64_t n_padding = input.remaining();
    check_zeros(input.take(n_padding, "padding"), n_padding, "padding after a unit's words");
    return unit;
}

} // namespace cachegen::lcg3
