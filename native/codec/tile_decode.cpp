#include "arithmetic_coder.h"
#include "bytes.h"
#include "lcg3_dequantize.h"
#include "native_tile.h"
#include "symbol_unpack.h"
#include "tile.h"
#include "typed_store.h"

#include <algorithm>
#include <memory>

namespace cachegen::legacy {

namespace {

using ull = unsigned long long;

// values unpacked and stored at a time
constexpr uint64_t chunk_values = 16384;

// LMCache's quantiser has the same values as LCG3's: level i of 2c + 1 is (i - c) / c, times the token's maximum
void make_levels(uint32_t n_levels, float * levels) {
    const auto centre = static_cast<float>(n_levels / 2);
    std::fill(levels, levels + 64, 0.0f);
    for (uint32_t i = 0; i < n_levels; i++) {
        levels[i] = (static_cast<float>(i) - centre) / centre;
    }
}

void check_maxima(const tile & source) {
    for (uint32_t t = 0; t < source.n_tokens; t++) {
        const auto     maximum = get_le<float>(source.maxima() + 4 * size_t{ t });
        const uint16_t half    = fp32_to_fp16(maximum);
        if (half >= 0x7c00) { // the sign's bit, or infinite or a NaN as F16
            fail(CACHEGEN_ERR_TABLE, "token %u: maximum %g is no magnitude that F16 can hold", t, maximum);
        }
    }
}

// LCG1
void check_streams(const tile & source) {
    const uint64_t  n_channels = source.n_channels;
    const uint8_t * tables     = source.after_maxima();
    const uint8_t * lengths    = source.lengths();
    uint64_t        sum        = 0;
    for (uint64_t c = 0; c < n_channels; c++) {
        if (!is_cdf(tables + 2 * c * n_cdf_entries)) {
            fail(CACHEGEN_ERR_TABLE, "the table of channel %llu does not rise strictly from 0 to 65,535", (ull) c);
        }
    }
    for (uint64_t c = 0; c < n_channels; c++) {
        const uint32_t length = get_le<uint16_t>(lengths + 2 * c);
        if (length < 1 || length > max_stream_bytes) {
            fail(CACHEGEN_ERR_GEOMETRY, "channel %llu: a stream of %u bytes; 1 to 256 are possible", (ull) c, length);
        }
        sum += length;
    }
    if (sum != source.stream_bytes) {
        fail(CACHEGEN_ERR_GEOMETRY, "streams of %llu bytes, %u by the header", (ull) sum, source.stream_bytes);
    }
}

// LCG2
void check_unused_bits(const tile & source) {
    const uint64_t n_values  = uint64_t{ source.n_channels } * source.n_tokens;
    const auto     last_bits = static_cast<uint32_t>(n_values * source.symbol_bits() % 8);
    if (last_bits != 0 && source.after_maxima()[source.stream_bytes - 1] >> last_bits != 0) {
        fail(CACHEGEN_ERR_RESERVED, "the unused bits of the last byte are not zero");
    }
}

void check_symbols(const tile & source, const uint8_t * symbols, uint64_t n, uint64_t first, const char * where) {
    uint8_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        largest = std::max(largest, symbols[i]);
    }
    if (largest >= source.n_levels()) {
        fail(CACHEGEN_ERR_STREAM, "%s %llu on: symbol %u of %u bins", where, (ull) first, largest, source.n_bins);
    }
}

bool is_fp16_rows(const cachegen_rows & rows) {
    return rows.type == CACHEGEN_TYPE_F16 && !rows.is_transposed;
}

// LCG1: 32 channels at a time, whose symbols then look like a group's of LCG3
void decode_streams(const tile & source, const uint8_t * row_tables, const cachegen_rows & destination,
                    uint64_t first_token) {
    const uint64_t  n_channels = source.n_channels;
    const uint8_t * tables     = source.after_maxima();
    const uint8_t * lengths    = source.lengths();
    const uint8_t * streams    = source.streams();

    const auto &         fp16      = lcg3::fp16_rows();
    const auto           from_fp16 = converters().from_fp16;
    const uint32_t       n_tokens  = source.n_tokens;
    std::vector<uint8_t> symbols(size_t{ n_tokens } * 32);
    std::vector<uint8_t> halves(symbols.size() * 2);
    std::vector<float>   values(symbols.size());
    for (uint64_t first = 0; first < n_channels; first += 32) {
        const uint64_t n = std::min<uint64_t>(32, n_channels - first);
        for (uint64_t c = 0; c < n; c++) {
            const uint32_t length = get_le<uint16_t>(lengths + 2 * (first + c));
            decode_arithmetic(streams, length, tables + 2 * (first + c) * n_cdf_entries, n_tokens, &symbols[c], 32);
            streams += length;
        }
        check_symbols(source, symbols.data(), symbols.size(), first, "channels from");
        if (is_fp16_rows(destination) && n == 32) {
            auto * const data = static_cast<uint8_t *>(destination.data) + 2 * first;
            fp16.look_up(symbols.data(), source.n_levels(), row_tables, n_tokens,
                         destination.cells ? data : data + first_token * destination.stride_bytes,
                         destination.stride_bytes, destination.cells ? destination.cells + first_token : nullptr);
            continue;
        }
        fp16.look_up(symbols.data(), source.n_levels(), row_tables, n_tokens, halves.data(), 64, nullptr);
        from_fp16(halves.data(), values.size(), values.data());
        store_tile(destination, first_token, n_tokens, first, n, values.data(), 32);
    }
}

// LCG2: some tokens at a time, all channels
void decode_packed(const tile & source, const uint8_t * row_tables, const cachegen_rows & destination,
                   uint64_t first_token) {
    const uint64_t  n_channels = source.n_channels;
    const uint8_t * packed     = source.after_maxima();
    const uint32_t  bits       = source.symbol_bits();
    const auto      unpack     = bits == 4 ? unpackers().unpack_4 : unpackers().unpack_5;
    const auto      look_up    = lcg3::fp16_rows().look_up_row;
    const auto      from_fp16  = converters().from_fp16;

    // chunks begin at whole bytes: eight tokens do, whatever the number of channels
    const uint64_t             chunk_tokens = std::max<uint64_t>(8, chunk_values / n_channels / 8 * 8);
    const uint64_t             n_buffer     = std::min<uint64_t>(chunk_tokens, source.n_tokens) * n_channels;
    const bool                 is_direct    = is_fp16_rows(destination);
    std::unique_ptr<uint8_t[]> symbols(new uint8_t[n_buffer]);
    std::vector<uint8_t>       row(is_direct ? 0 : 2 * n_channels);
    std::vector<float>         values(is_direct ? 0 : n_buffer);
    for (uint64_t t = 0; t < source.n_tokens; t += chunk_tokens) {
        const uint64_t n = std::min<uint64_t>(chunk_tokens, source.n_tokens - t);
        unpack(packed + t * n_channels * bits / 8, n * n_channels, symbols.get());
        check_symbols(source, symbols.get(), n * n_channels, t, "tokens from");
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t * const table = row_tables + (t + i) * lcg3::row_table_bytes;
            const uint64_t        token = first_token + t + i;
            uint8_t * const       to =
                is_direct ? static_cast<uint8_t *>(destination.data) +
                                (destination.cells ? destination.cells[token] : token) * destination.stride_bytes
                          : row.data();
            look_up(&symbols[i * n_channels], n_channels, source.n_levels(), table, to);
            if (!is_direct) {
                from_fp16(row.data(), n_channels, &values[i * n_channels]);
            }
        }
        if (!is_direct) {
            store_tile(destination, first_token + t, n, 0, n_channels, values.data(), n_channels);
        }
    }
}

} // namespace

tile parse_tile(const void * bytes, uint64_t n_bytes) {
    const auto * begin = static_cast<const uint8_t *>(bytes);
    const bool   is_1  = n_bytes >= 4 && memcmp(begin, "LCG1", 4) == 0;
    const bool   is_2  = n_bytes >= 4 && memcmp(begin, "LCG2", 4) == 0;
    if (n_bytes >= 4 && !is_1 && !is_2) {
        fail(CACHEGEN_ERR_MAGIC, "neither an LCG1 nor an LCG2 tile");
    }
    if (n_bytes < tile_header_bytes) {
        fail(CACHEGEN_ERR_TRUNCATED, "a tile of %llu bytes; its header alone has %u", (ull) n_bytes, tile_header_bytes);
    }
    tile result{};
    result.bytes          = begin;
    result.n_bytes        = n_bytes;
    result.version        = is_1 ? 1 : 2;
    result.n_bins         = begin[4];
    result.n_tokens       = get_le<uint16_t>(begin + 6);
    result.n_channels     = get_le<uint32_t>(begin + 8);
    result.stream_bytes   = get_le<uint32_t>(begin + 12);
    const uint32_t byte_5 = begin[5];
    if (result.n_bins != 16 && result.n_bins != 32) {
        fail(CACHEGEN_ERR_GEOMETRY, "%u bins; 16 or 32 are possible", result.n_bins);
    }
    if (is_1 && byte_5 != 0) {
        fail(CACHEGEN_ERR_RESERVED, "byte 5 of an LCG1 tile is %u, not 0", byte_5);
    }
    if (is_2 && byte_5 != result.symbol_bits()) {
        fail(CACHEGEN_ERR_GEOMETRY, "symbols of %u bits for %u bins", byte_5, result.n_bins);
    }
    if (result.n_tokens < 1 || result.n_tokens > max_tile_tokens || result.n_channels < 1) {
        fail(CACHEGEN_ERR_GEOMETRY, "%u tokens of %u channels; 1 to %u of 1 or more are possible", result.n_tokens,
             result.n_channels, max_tile_tokens);
    }
    const uint64_t n_values = uint64_t{ result.n_tokens } * result.n_channels;
    if (n_values > max_tile_values) {
        fail(CACHEGEN_ERR_LIMIT, "%llu values; a tile holds %llu at most", (ull) n_values, (ull) max_tile_values);
    }
    if (is_2 && result.stream_bytes != (n_values * result.symbol_bits() + 7) / 8) {
        fail(CACHEGEN_ERR_GEOMETRY, "%u bytes for %llu symbols of %u bits", result.stream_bytes, (ull) n_values,
             result.symbol_bits());
    }
    // all below 2^36: no overflow
    const uint64_t table_bytes = is_1 ? uint64_t{ result.n_channels } * 2 * (n_cdf_entries + 1) : 0;
    const uint64_t expected = tile_header_bytes + 4 * uint64_t{ result.n_tokens } + table_bytes + result.stream_bytes;
    if (n_bytes != expected) {
        fail(n_bytes < expected ? CACHEGEN_ERR_TRUNCATED : CACHEGEN_ERR_TRAILING,
             "a tile of %llu bytes; by its header it has %llu", (ull) n_bytes, (ull) expected);
    }
    return result;
}

void check_tile(const tile & source) {
    check_maxima(source);
    (source.version == 1 ? check_streams : check_unused_bits)(source);
}

void decode_tile(const tile & source, const cachegen_rows & destination, uint64_t first_token) {
    if (destination.n_channels != source.n_channels) {
        fail(CACHEGEN_ERR_MISMATCH, "a tile of %u channels, a destination of %llu", source.n_channels,
             (ull) destination.n_channels);
    }
    if (first_token > destination.n_tokens || source.n_tokens > destination.n_tokens - first_token) {
        fail(CACHEGEN_ERR_MISMATCH, "a tile of %u tokens does not fit at token %llu of %llu", source.n_tokens,
             (ull) first_token, (ull) destination.n_tokens);
    }
    check_tile(source);
    std::vector<float> maxima(source.n_tokens);
    memcpy(maxima.data(), source.maxima(), 4 * maxima.size());
    float levels[64];
    make_levels(source.n_levels(), levels);
    std::vector<uint8_t> row_tables(source.n_tokens * lcg3::row_table_bytes);
    lcg3::fp16_rows().make_tables(levels, source.n_levels(), maxima.data(), source.n_tokens, row_tables.data());
    (source.version == 1 ? decode_streams : decode_packed)(source, row_tables.data(), destination, first_token);
}

} // namespace cachegen::legacy

using namespace cachegen;

int32_t cachegen_tile_describe(const void * bytes, uint64_t n_bytes, struct cachegen_tile_info * info) {
    return guard([&] {
        if (bytes == nullptr || info == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "bytes or info is NULL");
        }
        if (info->struct_size != sizeof(*info)) {
            fail(CACHEGEN_ERR_STRUCT_SIZE, "cachegen_tile_info of %u bytes, this library's has %zu", info->struct_size,
                 sizeof(*info));
        }
        const legacy::tile tile = legacy::parse_tile(bytes, n_bytes);
        info->version           = tile.version;
        info->n_bins            = tile.n_bins;
        info->n_tokens          = tile.n_tokens;
        info->n_channels        = tile.n_channels;
        info->stream_bytes      = tile.stream_bytes;
    });
}

int32_t cachegen_tile_decode(const void * bytes, uint64_t n_bytes, const struct cachegen_rows * destination,
                             uint64_t first_token) {
    return guard([&] {
        if (bytes == nullptr || destination == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "bytes or destination is NULL");
        }
        const legacy::tile tile = legacy::parse_tile(bytes, n_bytes);
        validate_rows(*destination, "a destination");
        legacy::decode_tile(tile, *destination, first_token);
    });
}
