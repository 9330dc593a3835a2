// LCG3 archives out of fuzzed bytes. The first byte of an input says what is done with the rest, which is the archive.
#pragma once

#include "fuzz.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace fuzz::lcg3 {

enum choice : uint8_t {
    RESEAL     = 1,  // digests are made to fit; without it few changes get past them
    RESIZE     = 2,  // magic, version, sizes and sums of frequencies are made to fit
    RANGE      = 4,  // some of the tokens, scattered over cells; else all of them
    ROTATE     = 8,  // the destination is rotated
    OTHERS     = 16, // Q4_0, BF16 and transposed F16; else F16, Q8_0 and transposed F32
    NATIVE     = 32, // the archive's own types instead of either
    BEST_ISA   = 64, // instruction set of a target that uses one
    SECOND_USE = 128 // the target's own: part by part, or a page to encode
};

inline uint64_t align(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) / alignment * alignment;
}

// Where an archive's parts lie, as far as its header says so; written without the library's parser.
struct parts {
    uint64_t metadata_bytes = 0;
    uint64_t sizes          = 0; // of units
    uint64_t n_units        = 0;
    uint32_t n_blocks       = 0;
    uint32_t n_planes       = 0;
    uint64_t digests        = 0; // of the exact rows, then of blocks
    uint64_t exact_begin    = 0;
    uint64_t exact_bytes    = 0;
    uint64_t payload        = 0;
};

inline bool find_parts(const uint8_t * archive, uint64_t n_bytes, parts & res) {
    if (n_bytes < 64 + 8) {
        return false;
    }
    res.metadata_bytes       = get<uint64_t>(archive + 16);
    const auto n_tokens      = get<uint32_t>(archive + 24);
    const auto n_exact       = get<uint32_t>(archive + 28);
    const auto block_tokens  = get<uint32_t>(archive + 32);
    res.n_planes             = get<uint32_t>(archive + 36);
    const uint64_t max_units = n_bytes / 4;
    if (res.metadata_bytes < 64 + 8 || res.metadata_bytes > n_bytes || n_exact > n_tokens || block_tokens == 0 ||
        res.n_planes > max_units) {
        return false;
    }
    const uint32_t n_coded = n_tokens - n_exact;
    res.n_blocks           = n_coded / block_tokens + (n_coded % block_tokens != 0);
    res.n_units            = uint64_t{ res.n_blocks } * res.n_planes;
    const uint64_t tail    = align(4 * res.n_units, 8) + 8 * (uint64_t{ res.n_blocks } + 1) + 8;
    if (res.n_units > max_units || tail + 64 + 24 * uint64_t{ res.n_planes } > res.metadata_bytes) {
        return false;
    }
    res.sizes       = res.metadata_bytes - tail;
    res.digests     = res.metadata_bytes - 8 * (uint64_t{ res.n_blocks } + 2);
    res.exact_begin = align(res.metadata_bytes, 64);
    for (uint32_t p = 0; p < res.n_planes; p++) {
        const uint8_t * record = archive + 64 + 24 * uint64_t{ p };
        const uint64_t  n_rows = n_exact - std::min(n_exact, get<uint32_t>(record + 20));
        res.exact_bytes += n_rows * row_bytes(record[6], get<uint32_t>(record + 8));
    }
    res.payload = align(res.exact_begin + res.exact_bytes, 64);
    return true;
}

// Digests that fit the bytes: what somebody who means harm would write.
inline void reseal(uint8_t * archive, uint64_t n_bytes) {
    parts at;
    if (find_parts(archive, n_bytes, at) && at.payload <= n_bytes) {
        put(archive + at.digests, uint64_t{ XXH3_64bits(archive + at.exact_begin, at.exact_bytes) });
        uint64_t begin = at.payload;
        for (uint64_t b = 0; b < at.n_blocks; b++) {
            uint64_t end = begin;
            for (uint64_t p = 0; p < at.n_planes; p++) {
                end += get<uint32_t>(archive + at.sizes + 4 * (b * at.n_planes + p));
            }
            if (end > n_bytes) {
                break;
            }
            put(archive + at.digests + 8 * (b + 1), uint64_t{ XXH3_64bits(archive + begin, end - begin) });
            begin = end;
        }
    }
    if (n_bytes >= 64 + 8) {
        const auto metadata_bytes = get<uint64_t>(archive + 16);
        if (metadata_bytes >= 64 + 8 && metadata_bytes <= n_bytes) {
            put(archive + metadata_bytes - 8, uint64_t{ XXH3_64bits(archive, metadata_bytes - 8) });
        }
    }
}

// Frequencies that sum to 1,024 again: the first ones that can take the difference.
inline void repair_frequencies(uint8_t * archive, uint64_t n_bytes) {
    parts at;
    if (!find_parts(archive, n_bytes, at)) {
        return;
    }
    uint64_t offset = 64 + 24 * uint64_t{ at.n_planes };
    for (uint32_t set = 0; set < get<uint32_t>(archive + 40) && offset + 8 <= at.sizes; set++) {
        const uint64_t n_symbols       = archive[offset];
        const uint64_t n_distributions = uint64_t{ archive[offset + 1] } * get<uint16_t>(archive + offset + 4);
        offset += 8 + 5 * n_symbols;
        for (uint64_t d = 0; d < n_distributions && offset < at.sizes; d++) {
            const uint64_t begin      = offset;
            int32_t        difference = 1024;
            for (const bool is_repair : { false, true }) {
                offset = begin;
                for (uint64_t s = 0; s < n_symbols; s++) {
                    if (offset + 3 > at.sizes) {
                        return;
                    }
                    const bool    is_long = archive[offset] == 255;
                    const int32_t value   = is_long ? get<uint16_t>(archive + offset + 1) : archive[offset];
                    if (!is_repair) {
                        difference -= value;
                    } else if (difference != 0) {
                        const int32_t fixed =
                            std::min(std::max(value + difference, is_long ? 255 : 0), is_long ? 1024 : 254);
                        difference -= fixed - value;
                        if (is_long) {
                            put(archive + offset + 1, static_cast<uint16_t>(fixed));
                        } else {
                            archive[offset] = static_cast<uint8_t>(fixed);
                        }
                    }
                    offset += is_long ? 3 : 1;
                }
            }
        }
        offset = align(offset, 8);
    }
}

// After bytes were cut out or put in: the beginning says what it has to, and the last unit ends where the archive does.
inline void resize(uint8_t * archive, uint64_t n_bytes) {
    if (n_bytes < 64) {
        return;
    }
    memcpy(archive, "LCG3\1\0\x40\0", 8);
    put(archive + 8, n_bytes);
    parts at;
    if (!find_parts(archive, n_bytes, at) || at.n_units == 0) {
        return;
    }
    uint64_t end = at.payload;
    for (uint64_t u = 0; u + 1 < at.n_units; u++) {
        end += get<uint32_t>(archive + at.sizes + 4 * u);
    }
    if (end <= n_bytes) {
        put(archive + at.sizes + 4 * (at.n_units - 1), static_cast<uint32_t>(n_bytes - end));
    }
}

inline buffer archive_of(uint8_t choices, const uint8_t * bytes, size_t n) {
    buffer res(bytes, n);
    if (choices & RESIZE) {
        resize(res.data.get(), n);
        repair_frequencies(res.data.get(), n);
    }
    if (choices & RESEAL) {
        reseal(res.data.get(), n);
    }
    return res;
}

struct reader_deleter {
    void operator()(cachegen_lcg3 * reader) const { cachegen_lcg3_close(reader); }
};

using reader_ptr = std::unique_ptr<cachegen_lcg3, reader_deleter>;

// What an archive gave: one status a call, and the bytes of every successful decode.
struct outcome {
    std::vector<int32_t> statuses;
    std::vector<buffer>  decoded;

    bool ok(int32_t status) {
        statuses.push_back(check_status(status));
        return status == CACHEGEN_OK;
    }

    bool operator==(const outcome & other) const { return statuses == other.statuses && decoded == other.decoded; }
};

// What is decoded: an open reader and where its archive lies.
struct opened {
    reader_ptr                       reader;
    const buffer &                   archive;
    bool                             is_by_parts;
    cachegen_lcg3_info               info{};
    std::vector<cachegen_lcg3_plane> planes;
};

inline int32_t decode(const opened & from, uint32_t first_token, uint32_t n_tokens,
                      const std::vector<cachegen_lcg3_destination> & destinations) {
    const cachegen_lcg3 * reader = from.reader.get();
    if (!from.is_by_parts) {
        return cachegen_lcg3_decode(reader, first_token, n_tokens, destinations.data(), destinations.size(), nullptr);
    }
    int32_t status = CACHEGEN_OK;
    for (uint32_t part = 0; part <= from.info.n_blocks && status == CACHEGEN_OK; part++) {
        uint64_t offset  = 0;
        uint64_t n_bytes = 0;
        FUZZ_CHECK(cachegen_lcg3_part(reader, part, &offset, &n_bytes) == CACHEGEN_OK);
        FUZZ_CHECK(offset <= from.archive.n_bytes && n_bytes <= from.archive.n_bytes - offset);
        const buffer bytes(from.archive.data.get() + offset, n_bytes);
        status = cachegen_lcg3_decode_part(reader, part, bytes.data.get(), n_bytes, first_token, n_tokens,
                                           destinations.data(), destinations.size(), nullptr);
    }
    return status;
}

// decode every plane that can be had in this type
inline void decode_as(const opened & from, uint32_t type, bool is_transposed, uint8_t choices, uint32_t first_token,
                      uint32_t n_tokens, outcome & res) {
    std::vector<std::unique_ptr<typed_rows>> rows(from.planes.size());
    std::vector<std::vector<uint32_t>>       cells(from.planes.size());
    std::vector<cachegen_lcg3_destination>   destinations(from.planes.size());
    for (size_t p = 0; p < from.planes.size(); p++) {
        const cachegen_lcg3_plane & plane    = from.planes[p];
        const uint32_t              own_type = choices & NATIVE ? plane.type : type;
        const uint32_t              end      = first_token + n_tokens;
        const uint32_t              n_rows   = end - std::min(end, std::max(first_token, plane.first_token));
        if (n_rows == 0 || (is_block_type(own_type) && (is_transposed || plane.n_channels % 32 != 0))) {
            continue;
        }
        rows[p]              = std::make_unique<typed_rows>(own_type, is_transposed, n_rows, plane.n_channels);
        destinations[p].rows = rows[p]->rows;
        if (choices & RANGE) { // runs of two, backwards
            for (uint32_t t = 0; t < n_rows; t++) {
                cells[p].push_back((n_rows - 1 - t) ^ (n_rows % 2 == 0 ? 1 : 0));
            }
            destinations[p].rows.cells = cells[p].data();
        }
        destinations[p].n_rot = plane.n_rot;
        if (choices & ROTATE) {
            destinations[p].n_rot = plane.n_channels % 64 == 0 ? 64 : plane.n_channels % 2 == 0 ? 2 : 0;
        }
    }
    if (res.ok(decode(from, first_token, n_tokens, destinations))) {
        for (auto & one : rows) {
            if (one) {
                res.decoded.push_back(std::move(one->bytes));
            }
        }
    }
}

// open, describe, verify and decode, or the metadata alone and then part by part; more than max_values values would
// only be slow
inline outcome read(uint8_t choices, const buffer & archive, uint64_t max_values, bool is_by_parts) {
    outcome         res;
    cachegen_lcg3 * reader   = nullptr;
    uint64_t        n_needed = archive.n_bytes;
    if (is_by_parts && !res.ok(cachegen_lcg3_metadata_bytes(archive.data.get(), std::min<uint64_t>(n_needed, 64),
                                                            archive.n_bytes, &n_needed))) {
        return res;
    }
    FUZZ_CHECK(n_needed <= archive.n_bytes);
    const buffer  needed(archive.data.get(), n_needed);
    const int32_t status = is_by_parts
                               ? cachegen_lcg3_open_metadata(needed.data.get(), n_needed, archive.n_bytes, &reader)
                               : cachegen_lcg3_open(needed.data.get(), n_needed, &reader);
    if (!res.ok(status)) {
        FUZZ_CHECK(reader == nullptr);
        return res;
    }
    opened from{ reader_ptr(reader), archive, is_by_parts };
    auto & info      = from.info;
    info.struct_size = sizeof(info);
    FUZZ_CHECK(cachegen_lcg3_describe(reader, &info, nullptr, 0) == CACHEGEN_OK);
    FUZZ_CHECK(info.archive_bytes == archive.n_bytes && info.n_exact_tokens <= info.n_tokens);
    from.planes.resize(info.n_planes);
    const bool is_described = res.ok(cachegen_lcg3_describe(reader, &info, from.planes.data(), from.planes.size()));
    if (!is_by_parts) {
        res.ok(cachegen_lcg3_verify(reader, nullptr));
    }
    uint64_t n_channels = 0;
    for (const auto & plane : from.planes) {
        n_channels += plane.n_channels;
    }
    // a damaged unit is not described
    if (!is_described || n_channels * info.n_tokens > max_values) {
        return res;
    }
    const uint32_t first    = choices & RANGE ? info.n_tokens / 3 : 0;
    const uint32_t n_tokens = choices & RANGE ? (info.n_tokens - first + 1) / 2 : info.n_tokens;
    if (choices & NATIVE) {
        decode_as(from, 0, (choices & OTHERS) != 0, choices, first, n_tokens, res);
    } else if (choices & OTHERS) {
        decode_as(from, CACHEGEN_TYPE_Q4_0, false, choices, first, n_tokens, res);
        decode_as(from, CACHEGEN_TYPE_BF16, false, choices, first, n_tokens, res);
        decode_as(from, CACHEGEN_TYPE_F16, true, choices, first, n_tokens, res);
    } else {
        decode_as(from, CACHEGEN_TYPE_F16, false, choices, first, n_tokens, res);
        decode_as(from, CACHEGEN_TYPE_Q8_0, false, choices, first, n_tokens, res);
        decode_as(from, CACHEGEN_TYPE_F32, true, choices, first, n_tokens, res);
    }
    return res;
}

} // namespace fuzz::lcg3
