#include "legacy_archives.h"

#include "codec_types.h"
#include "harness.h"

#include <algorithm>
#include <cstring>

namespace kernel_parity {

namespace {

constexpr size_t header_bytes = 16; // of an archive and of a tile
constexpr size_t record_bytes = 52;
constexpr size_t table_bytes  = 66;

template <typename T> T get(const bytes & from, size_t at) {
    T value;
    memcpy(&value, &from.at(at + sizeof(T) - 1) - (sizeof(T) - 1), sizeof(T));
    return value;
}

template <typename T> void put(bytes & to, size_t at, T value) {
    memcpy(&to.at(at + sizeof(T) - 1) - (sizeof(T) - 1), &value, sizeof(T));
}

bool is_transposed_kind(uint32_t kind) {
    return kind == CACHEGEN_CKG1_F16_TRANSPOSED || kind == CACHEGEN_CKG1_F32_TRANSPOSED;
}

uint32_t type_of(uint32_t kind) {
    switch (kind) {
        case CACHEGEN_CKG1_F32_ROWS:
        case CACHEGEN_CKG1_F32_TRANSPOSED: return CACHEGEN_TYPE_F32;
        case CACHEGEN_CKG1_Q8_0_ROWS: return CACHEGEN_TYPE_Q8_0;
        case CACHEGEN_CKG1_Q4_0_ROWS: return CACHEGEN_TYPE_Q4_0;
        default: return CACHEGEN_TYPE_F16;
    }
}

bytes encode_part(std::mt19937 & random, const legacy_part & part) {
    bytes              source;
    cachegen_ckg1_part told{};
    told.kind   = part.kind;
    told.n_bins = part.n_bins;
    if (part.kind == CACHEGEN_CKG1_EXACT) {
        source.resize(part.n_tokens);
        std::generate(source.begin(), source.end(), [&] { return static_cast<uint8_t>(random()); });
        told.rows.data    = source.data();
        told.rows.n_bytes = source.size();
    } else {
        const auto values = make_values(random, part.n_tokens, part.n_channels, random() % 2);
        told.rows = rows_for(source, type_of(part.kind), is_transposed_kind(part.kind), part.n_tokens, part.n_tokens,
                             part.n_channels, nullptr);
        check_ok(cachegen_store_rows(&told.rows, 0, part.n_tokens, values.data()));
    }
    void *   made    = nullptr;
    uint64_t n_bytes = 0;
    check_ok(cachegen_ckg1_encode(&told, 1, part.version, nullptr, &made, &n_bytes));
    bytes archive(static_cast<uint8_t *>(made), static_cast<uint8_t *>(made) + n_bytes);
    cachegen_free(made);
    return archive;
}

// a table that rises strictly from 0 to 65,535, most of it narrow
void put_table(std::mt19937 & random, bytes & archive, size_t at) {
    const uint32_t        width = 1 + (random() % 2 ? 65534 : 40 + random() % 400);
    const uint32_t        first = random() % (65535 - std::min<uint32_t>(width, 65500) + 1);
    std::vector<uint32_t> all;
    while (all.size() < 31) {
        const uint32_t value = std::min<uint32_t>(std::max<uint32_t>(1, first + random() % width), 65534);
        if (std::find(all.begin(), all.end(), value) == all.end()) {
            all.push_back(value);
        }
    }
    std::sort(all.begin(), all.end());
    put<uint16_t>(archive, at, 0);
    for (size_t i = 0; i < 31; i++) {
        put<uint16_t>(archive, at + 2 + 2 * i, static_cast<uint16_t>(all[i]));
    }
    put<uint16_t>(archive, at + 64, 65535);
}

} // namespace

uint32_t kind_for(std::mt19937 & random, uint32_t n_channels) {
    constexpr uint32_t kinds[] = {
        CACHEGEN_CKG1_F16_ROWS,       CACHEGEN_CKG1_F16_TRANSPOSED, CACHEGEN_CKG1_F32_ROWS,
        CACHEGEN_CKG1_F32_TRANSPOSED, CACHEGEN_CKG1_Q8_0_ROWS,      CACHEGEN_CKG1_Q4_0_ROWS
    };
    return kinds[random() % (n_channels % 32 == 0 ? 6 : 4)];
}

// an archive a part, as the versions of their tiles differ, and all of their records in one
bytes encode_legacy(std::mt19937 & random, const std::vector<legacy_part> & parts) {
    bytes    whole      = { 'C', 'K', 'G', '1', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    uint64_t page_bytes = 0;
    uint32_t n_records  = 0;
    for (const auto & part : parts) {
        bytes archive = encode_part(random, part);
        for (size_t at = header_bytes; at < archive.size();) {
            put(archive, at + 4, get<uint64_t>(archive, at + 4) + page_bytes);
            at += record_bytes + get<uint64_t>(archive, at + 44);
            n_records++;
        }
        page_bytes += get<uint64_t>(archive, 4);
        whole.insert(whole.end(), archive.begin() + header_bytes, archive.end());
    }
    put(whole, 4, page_bytes);
    put(whole, 12, n_records);
    return whole;
}

bytes legacy_edges(std::mt19937 & random, bool is_refused) {
    constexpr uint32_t n_channels  = 70;
    constexpr size_t   tables      = header_bytes + 4;
    constexpr size_t   lengths     = tables + table_bytes * n_channels;
    constexpr size_t   streams     = lengths + 2 * size_t{ n_channels };
    constexpr size_t   tile        = header_bytes + record_bytes;
    constexpr size_t   last        = 31; // with 32 bins tiles have symbols up to 30
    const uint32_t     one_refused = is_refused ? random() % n_channels : n_channels;
    bytes              archive(tile + streams + 4 * size_t{ n_channels });
    memcpy(archive.data(), "CKG1", 4);
    put(archive, 4, uint64_t{ 2 * n_channels });
    put(archive, 12, uint32_t{ 1 });
    archive[header_bytes + 1] = 2;
    put(archive, header_bytes + 12, uint64_t{ 2 * n_channels });
    put(archive, header_bytes + 20, uint64_t{ 1 });
    put(archive, header_bytes + 44, uint64_t{ archive.size() - tile });
    memcpy(&archive[tile], "LCG1", 4);
    archive[tile + 4] = 32;
    put(archive, tile + 6, uint16_t{ 1 });
    put(archive, tile + 8, n_channels);
    put(archive, tile + 12, 4 * n_channels);
    put(archive, tile + header_bytes, 1.0f);
    for (uint32_t c = 0; c < n_channels; c++) {
        const size_t table = tile + tables + table_bytes * c;
        put_table(random, archive, table);
        put(archive, tile + lengths + 2 * size_t{ c }, uint16_t{ 4 });
        // the span is 2^32: a symbol's codes begin at its bound, with 16 zeros after it
        const uint32_t bound = get<uint16_t>(archive, table + 2 * (1 + random() % (last - 1)));
        const uint32_t code  = c == one_refused ? UINT32_MAX : (bound << 16) - random() % 2;
        for (size_t i = 0; i < 4; i++) { // highest bits first
            archive[tile + streams + 4 * size_t{ c } + i] = static_cast<uint8_t>(code >> (24 - 8 * i));
        }
    }
    return archive;
}

std::vector<cachegen_ckg1_record> records_of(const bytes & archive) {
    cachegen_ckg1 * reader = nullptr;
    check_ok(cachegen_ckg1_open(archive.data(), archive.size(), &reader));
    uint64_t page_bytes = 0;
    uint64_t n_records  = 0;
    cachegen_ckg1_describe(reader, &page_bytes, &n_records, nullptr, 0);
    std::vector<cachegen_ckg1_record> records(n_records);
    check_ok(cachegen_ckg1_describe(reader, &page_bytes, &n_records, records.data(), n_records));
    cachegen_ckg1_close(reader);
    return records;
}

void damage(std::mt19937 & random, legacy_damage how, bytes & archive) {
    const auto all  = records_of(archive);
    const auto flip = [&](size_t from, size_t n) {
        for (uint32_t i = 0; i < 1 + random() % 3; i++) {
            archive[from + random() % n] ^= static_cast<uint8_t>(1u << random() % 8);
        }
    };
    if (how == legacy_damage::bits) {
        flip(0, archive.size());
        return;
    }
    if (how == legacy_damage::sizes) {
        archive.resize(random() % 2 ? random() % archive.size() : archive.size() + 1 + random() % 9);
        return;
    }
    // one or two records
    for (uint32_t n = 1 + random() % 2; n > 0; n--) {
        const auto & record = all[random() % all.size()];
        if (record.kind == CACHEGEN_CKG1_EXACT) {
            continue;
        }
        const size_t maxima = record.payload_offset + header_bytes;
        const size_t tables = maxima + 4 * record.n_tokens;
        const size_t end    = record.payload_offset + record.payload_bytes;
        if (how == legacy_damage::contents) {
            flip(maxima, end - maxima);
        } else if (how == legacy_damage::maxima) {
            constexpr uint32_t odd[] = { 0x80000000, 0xbf800000, 0x7f800000, 0x7fc00000, 0x477ff000, // refused
                                         0x477fefff, 0x00000001, 0x33000000, 0x38000000, 0x00000000 };
            put(archive, maxima + 4 * (random() % record.n_tokens), odd[random() % 10]);
        } else if (record.tile_version == 1) {
            const size_t lengths = tables + table_bytes * record.n_channels;
            const size_t streams = lengths + 2 * size_t{ record.n_channels };
            if (how == legacy_damage::tables) {
                for (uint32_t i = 0; i < 1 + random() % 4; i++) {
                    put_table(random, archive, tables + table_bytes * (random() % record.n_channels));
                }
            }
            if (random() % 2) {
                std::generate(archive.begin() + static_cast<std::ptrdiff_t>(streams),
                              archive.begin() + static_cast<std::ptrdiff_t>(end),
                              [&] { return static_cast<uint8_t>(random()); });
            }
            for (uint32_t i = 0; how == legacy_damage::streams && i < 6; i++) {
                const size_t one     = lengths + 2 * (random() % record.n_channels);
                const size_t another = lengths + 2 * (random() % record.n_channels);
                const auto   n       = static_cast<uint16_t>(random() % 3);
                put(archive, one, static_cast<uint16_t>(get<uint16_t>(archive, one) + n));
                put(archive, another, static_cast<uint16_t>(get<uint16_t>(archive, another) - n));
            }
        } else if (random() % 2) {
            archive[end - 1] |= 0x80; // unused, if any bit is
        } else {
            flip(tables, end - tables);
        }
    }
}

} // namespace kernel_parity
