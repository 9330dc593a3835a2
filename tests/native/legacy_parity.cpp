#include "legacy_parity.h"

#include "codec_types.h"
#include "harness.h"
#include "legacy_archives.h"
#include "legacy_decoder.h"
#include "status.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>

namespace kernel_parity {

namespace {

using kernels::legacy_destination;

struct outcome {
    int32_t     status = CACHEGEN_OK;
    std::string message;

    // the record that is refused, from "record 3: ..."; -1: none
    int64_t record() const {
        long long index = 0;
        return sscanf(message.c_str(), "record %lld:", &index) == 1 ? index : -1;
    }
};

outcome outcome_of(int32_t status) {
    return { status, status == CACHEGEN_OK ? "" : cachegen_last_message() };
}

outcome decode_on_device(kernels::device & device, const bytes & archive,
                         const std::vector<legacy_destination> & destinations, uint64_t batch_bytes) {
    return outcome_of(cachegen::guard([&] {
        kernels::legacy_decoder decoder(device, archive.data(), archive.size(), destinations, batch_bytes);
        decoder.decode();
    }));
}

// nothing, a tile or two, all
uint64_t batch_bytes_for(std::mt19937 & random) {
    constexpr uint64_t sizes[] = { 1, 20000, kernels::default_legacy_batch_bytes };
    return sizes[random() % 3];
}

// host memory and a copy of it on the device
struct mirrored {
    kernels::device & device;
    bytes             host;
    uint64_t          address = 0;

    mirrored(kernels::device & device, std::mt19937 & random, uint64_t n_bytes) : device(device), host(n_bytes) {
        std::generate(host.begin(), host.end(), [&] { return static_cast<uint8_t>(random()); });
        address = device.allocate(std::max<uint64_t>(n_bytes, 1));
        try {
            device.upload(address, host.data(), n_bytes);
        } catch (...) {
            device.release(address);
            throw;
        }
    }
    ~mirrored() { device.release(address); }
    mirrored(const mirrored &)             = delete;
    mirrored & operator=(const mirrored &) = delete;

    bytes read() const {
        bytes result(host.size());
        device.download(result.data(), address, result.size());
        return result;
    }
};

// what a part of an archive becomes
struct part_target {
    legacy_part               part;
    uint32_t                  type;
    uint32_t                  is_transposed;
    uint32_t                  first_wanted; // tokens of the part
    uint32_t                  n_wanted;
    bool                      is_left_out;
    std::vector<uint32_t>     cells; // empty: none
    cachegen_rows             rows{};
    std::unique_ptr<mirrored> memory;

    std::string name() const {
        return std::string(part.version == 1 ? "LCG1" : "LCG2") + " -> " + type_name(type) +
               (is_transposed ? ", transposed" : "");
    }
};

void make_target(kernels::device & device, std::mt19937 & random, part_target & target) {
    const uint32_t n_tokens     = target.part.n_tokens;
    target.first_wanted         = random() % 2 ? 0 : random() % n_tokens;
    target.n_wanted             = n_tokens - target.first_wanted;
    target.n_wanted             = random() % 2 ? target.n_wanted : 1 + random() % target.n_wanted;
    target.is_left_out          = random() % 10 == 0;
    const bool     is_scattered = random() % 2;
    const uint32_t n_rows       = target.n_wanted + (is_scattered ? 9 : random() % 3);
    if (is_scattered) {
        // runs of neighbours too
        std::vector<uint32_t> all(n_rows);
        std::iota(all.begin(), all.end(), 0);
        if (random() % 2) {
            std::shuffle(all.begin(), all.end(), random);
        } else {
            std::rotate(all.begin(), all.begin() + random() % n_rows, all.end());
        }
        target.cells.assign(all.begin(), all.begin() + target.n_wanted);
    }
    bytes none;
    target.rows = rows_for(none, target.type, target.is_transposed, target.n_wanted, n_rows, target.part.n_channels,
                           is_scattered ? target.cells.data() : nullptr);
    target.rows.stride_bytes += random() % 2 * 36;
    target.rows.n_bytes = target.rows.stride_bytes * (target.is_transposed ? target.part.n_channels : n_rows);
    target.memory       = std::make_unique<mirrored>(device, random, target.rows.n_bytes);
    target.rows.data    = target.memory->host.data();
}

/*
 * One record of a target. Where all of its tokens are wanted libcachegen decodes it at its place, else into rows of
 * F32, which hold F16 numbers as they are. begin  IN  the record's first token in the part
 */
legacy_destination decode_on_host(const part_target & target, const bytes & archive,
                                  const cachegen_ckg1_record & record, uint32_t begin) {
    legacy_destination to;
    const auto         end       = begin + static_cast<uint32_t>(record.n_tokens);
    const uint32_t     end_there = target.first_wanted + target.n_wanted;
    const uint32_t     from      = std::min(std::max(begin, target.first_wanted), end);
    const uint32_t     until     = std::max(std::min(end, end_there), from);
    to.rows                      = target.rows;
    to.rows.data                 = reinterpret_cast<void *>(target.memory->address);
    to.from_token                = from - begin;
    to.n_wanted                  = until - from;
    to.first_token               = to.n_wanted > 0 ? from - target.first_wanted : 0;
    if (target.is_left_out) {
        to.rows.data = nullptr;
        return to;
    }
    const uint8_t * const tile = archive.data() + record.payload_offset;
    if (to.n_wanted == record.n_tokens) {
        check_ok(cachegen_tile_decode(tile, record.payload_bytes, &target.rows, to.first_token));
        return to;
    }
    bytes               whole;
    const cachegen_rows rows =
        rows_for(whole, CACHEGEN_TYPE_F32, 0, record.n_tokens, record.n_tokens, record.n_channels, nullptr);
    check_ok(cachegen_tile_decode(tile, record.payload_bytes, &rows, 0));
    const auto * values = reinterpret_cast<const float *>(whole.data()) + size_t{ to.from_token } * record.n_channels;
    check_ok(cachegen_store_rows(&target.rows, to.first_token, to.n_wanted, values));
    return to;
}

void check_same(const bytes & got, const bytes & expected) {
    if (got != expected) {
        const auto at = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
        printf("byte %td of %zu: %02x, expected %02x\n", at, got.size(), got[at], expected[at]);
    }
    CHECK(got == expected);
}

// an archive of one format and rows of one width, into every type and layout
void compare_width(kernels::device & device, std::mt19937 & random, uint32_t version, uint32_t n_channels,
                   uint32_t most_tokens, coverage & covered) {
    std::vector<part_target> targets;
    std::vector<legacy_part> parts;
    for (const uint32_t type : types) {
        for (uint32_t is_transposed = 0; is_transposed < (is_block_type(type) ? 1u : 2u); is_transposed++) {
            if (is_block_type(type) && n_channels % 32 != 0) {
                continue;
            }
            part_target target{};
            target.part          = { version, kind_for(random, n_channels), random() % 2 ? 16u : 32u,
                                     1 + static_cast<uint32_t>(random() % most_tokens), n_channels };
            target.type          = type;
            target.is_transposed = is_transposed;
            make_target(device, random, target);
            parts.push_back(target.part);
            targets.push_back(std::move(target));
        }
    }
    const bytes                     archive = encode_legacy(random, parts);
    const auto                      records = records_of(archive);
    std::vector<legacy_destination> destinations;
    size_t                          next = 0;
    for (const auto & target : targets) {
        for (uint32_t token = 0; token < target.part.n_tokens; next++) {
            destinations.push_back(decode_on_host(target, archive, records.at(next), token));
            token += static_cast<uint32_t>(records[next].n_tokens);
            covered[target.name()] += !target.is_left_out;
        }
    }
    CHECK_EQ(next, records.size());
    const outcome there = decode_on_device(device, archive, destinations, batch_bytes_for(random));
    if (there.status != CACHEGEN_OK) {
        printf("device: %s\n", there.message.c_str());
    }
    CHECK_EQ(there.status, int32_t(CACHEGEN_OK));
    for (const auto & target : targets) {
        const harness::scope what(
            target.name() + ", " + std::to_string(target.part.n_bins) + " bins, " + std::to_string(n_channels) +
            " channels, tokens " + std::to_string(target.first_wanted) + " + " + std::to_string(target.n_wanted) +
            " of " + std::to_string(target.part.n_tokens) + (target.cells.empty() ? "" : ", scattered"));
        check_same(target.memory->read(), target.memory->host);
    }
}

// every kind of record, in an order that puts all rows at multiples of their elements
std::vector<legacy_part> parts_of_page(std::mt19937 & random, uint32_t most_tokens) {
    std::vector<legacy_part> parts;
    for (const uint32_t kind :
         { CACHEGEN_CKG1_F32_TRANSPOSED, CACHEGEN_CKG1_F32_ROWS, CACHEGEN_CKG1_F16_ROWS, CACHEGEN_CKG1_Q8_0_ROWS,
           CACHEGEN_CKG1_F16_TRANSPOSED, CACHEGEN_CKG1_Q4_0_ROWS, CACHEGEN_CKG1_EXACT }) {
        const bool     is_block   = kind == CACHEGEN_CKG1_Q8_0_ROWS || kind == CACHEGEN_CKG1_Q4_0_ROWS;
        const uint32_t n_channels = is_block ? 32 + 32 * (random() % 2) : 1 + random() % 70;
        const uint32_t n_tokens   = 1 + random() % most_tokens;
        parts.push_back(
            { static_cast<uint32_t>(1 + random() % 2), kind, random() % 2 ? 16u : 32u, n_tokens, n_channels });
    }
    return parts;
}

uint64_t page_bytes_of(const std::vector<cachegen_ckg1_record> & records) {
    uint64_t n_bytes = 0;
    for (const auto & record : records) {
        n_bytes += record.decoded_bytes;
    }
    return n_bytes;
}

// an archive as libcachegen decodes it, into the first bytes of `page`
outcome decode_page_on_host(const bytes & archive, bytes & page, uint64_t n_bytes) {
    cachegen_ckg1 * reader = nullptr;
    int32_t         status = cachegen_ckg1_open(archive.data(), archive.size(), &reader);
    if (status == CACHEGEN_OK) {
        status = cachegen_ckg1_decode(reader, page.data(), n_bytes, nullptr);
    }
    const outcome result = outcome_of(status);
    cachegen_ckg1_close(reader);
    return result;
}

constexpr uint64_t guard_bytes = 64; // after a page

// The same page by both. n_bytes  IN  of the page before the archive was damaged
outcome compare_page(kernels::device & device, std::mt19937 & random, const bytes & archive, uint64_t n_bytes) {
    mirrored                        page(device, random, n_bytes + guard_bytes);
    const bytes                     before = page.host;
    const outcome                   host   = decode_page_on_host(archive, page.host, n_bytes);
    // where the damaged archive says; one that says nothing is refused whatever its destinations are
    std::vector<legacy_destination> destinations;
    uint64_t                        n_told = n_bytes;
    cachegen::guard([&] {
        const auto parsed = cachegen::legacy::parse_ckg1(archive.data(), archive.size());
        n_told            = parsed.page_bytes;
        destinations      = kernels::page_destinations(parsed, page.address);
    });
    CHECK_EQ(n_told, n_bytes);
    const outcome there = decode_on_device(device, archive, destinations, batch_bytes_for(random));
    if (host.status != there.status || host.record() != there.record()) {
        printf("host: %s; device: %s\n", host.message.c_str(), there.message.c_str());
    }
    CHECK_EQ(there.status, host.status);
    CHECK_EQ(there.record(), host.record());
    const bytes got = page.read();
    if (host.status != CACHEGEN_ERR_STREAM) {
        check_same(got, page.host); // up to a refused record
        CHECK(host.status == CACHEGEN_OK || host.record() >= 0 || got == before);
        return host;
    }
    const auto records = records_of(archive);
    for (int64_t i = 0; i < host.record(); i++) {
        const auto & record = records[static_cast<size_t>(i)];
        if (record.kind != CACHEGEN_CKG1_F16_TRANSPOSED && record.kind != CACHEGEN_CKG1_F32_TRANSPOSED) {
            CHECK(memcmp(&got[record.output_offset], &page.host[record.output_offset], record.decoded_bytes) == 0);
        }
    }
    CHECK(memcmp(&got[n_bytes], &before[n_bytes], guard_bytes) == 0);
    return host;
}

} // namespace

coverage compare_legacy_parts(kernels::device & device, uint32_t n_rounds, bool is_large) {
    coverage covered;
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (const uint32_t version : { 1u, 2u }) {
            for (const uint32_t head : { 64u, 80u, 96u, 128u, 256u, 0u }) {
                std::mt19937         random(1000 * round + 300 * version + head);
                // 80 channels fill no block: such heads come in twos; 0: a width that fills nothing
                const uint32_t       n_heads    = head == 80 ? 2 : 1 + random() % (is_large ? 8 : 2);
                const uint32_t       n_channels = head == 0 ? 1 + random() % 100 : n_heads * head;
                const harness::scope what("round " + std::to_string(round));
                // ranges over several tiles too
                const uint32_t       most_tokens = is_large ? 900 : head == 0 ? 600 : 50;
                compare_width(device, random, version, n_channels, most_tokens, covered);
            }
        }
    }
    return covered;
}

uint64_t compare_legacy_pages(kernels::device & device, uint32_t n_rounds) {
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937         random(50 + round);
        // one in four has parts of several tiles
        const bytes          archive = encode_legacy(random, parts_of_page(random, round % 4 == 3 ? 400 : 40));
        const harness::scope what("page " + std::to_string(round));
        CHECK_EQ(compare_page(device, random, archive, page_bytes_of(records_of(archive))).status,
                 int32_t(CACHEGEN_OK));
    }
    return n_rounds;
}

coverage compare_damaged_legacy(kernels::device & device, uint32_t n_rounds) {
    coverage statuses;
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937 random(900 + round);
        bytes        archive = encode_legacy(random, parts_of_page(random, 20));
        const auto   n_bytes = page_bytes_of(records_of(archive));
        const auto   how     = static_cast<legacy_damage>(round % n_legacy_damages);
        damage(random, how, archive);
        const harness::scope what("round " + std::to_string(round));
        statuses[cachegen_status_name(compare_page(device, random, archive, n_bytes).status)]++;
    }
    return statuses;
}

uint64_t compare_truncated_legacy(kernels::device & device) {
    std::mt19937 random(3);
    const bytes  archive = encode_legacy(random, { { 1, CACHEGEN_CKG1_F16_ROWS, 32, 3, 8 },
                                                   { 2, CACHEGEN_CKG1_F16_TRANSPOSED, 16, 5, 7 },
                                                   { 2, CACHEGEN_CKG1_EXACT, 32, 11, 0 } });
    const auto   n_bytes = page_bytes_of(records_of(archive));
    for (size_t n = 1; n < archive.size(); n++) {
        const harness::scope what("cut at byte " + std::to_string(n));
        const bytes          cut(archive.begin(), archive.begin() + static_cast<std::ptrdiff_t>(n));
        CHECK(compare_page(device, random, cut, n_bytes).status != CACHEGEN_OK);
    }
    return archive.size() - 1;
}

coverage compare_legacy_corpus(kernels::device & device, const char * folder) {
    coverage                           statuses;
    std::mt19937                       random(8);
    std::vector<std::filesystem::path> files;
    for (const auto & entry : std::filesystem::directory_iterator(folder)) {
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto & file : files) {
        const harness::scope what(file.string());
        std::ifstream        in(file, std::ios::binary);
        in.get(); // what a fuzz target does with the rest
        const bytes archive((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        uint64_t    n_bytes    = 0;
        bool        is_aligned = true;
        cachegen::guard([&] {
            const auto parsed = cachegen::legacy::parse_ckg1(archive.data(), archive.size());
            n_bytes           = parsed.page_bytes;
            for (const auto & record : parsed.records) {
                const uint32_t type = cachegen::legacy::type_of_kind(record.kind);
                is_aligned &= record.kind == CACHEGEN_CKG1_EXACT ||
                              record.output_offset % (type == CACHEGEN_TYPE_F32 ? 4 : 2) == 0;
            }
        });
        // a device refuses a page whose rows lie at no multiple of their elements
        if (is_aligned && !archive.empty()) {
            statuses[cachegen_status_name(compare_page(device, random, archive, n_bytes).status)]++;
        }
    }
    return statuses;
}

uint64_t compare_legacy_edges(kernels::device & device, uint32_t n_rounds) {
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937         random(20 + round);
        const bool           is_refused = round % 2;
        const bytes          archive    = legacy_edges(random, is_refused);
        const harness::scope what("round " + std::to_string(round));
        const int32_t        status = compare_page(device, random, archive, page_bytes_of(records_of(archive))).status;
        CHECK_EQ(status, int32_t(is_refused ? CACHEGEN_ERR_STREAM : CACHEGEN_OK));
    }
    return n_rounds;
}

void check_legacy_destinations(kernels::device & device) {
    std::mt19937          random(4);
    const bytes           archive = encode_legacy(random, { { 1, CACHEGEN_CKG1_F16_ROWS, 32, 9, 64 },
                                                            { 2, CACHEGEN_CKG1_F32_ROWS, 16, 9, 64 },
                                                            { 2, CACHEGEN_CKG1_EXACT, 32, 11, 0 } });
    mirrored              page(device, random, page_bytes_of(records_of(archive)));
    std::vector<uint32_t> cells(9);
    std::iota(cells.begin(), cells.end(), 0);
    const auto check = [&](int32_t expected, const auto & change) {
        auto destinations =
            kernels::page_destinations(cachegen::legacy::parse_ckg1(archive.data(), archive.size()), page.address);
        change(destinations);
        const outcome there = decode_on_device(device, archive, destinations, 1);
        if (there.status != expected) {
            printf("%s\n", there.message.c_str());
        }
        CHECK_EQ(there.status, expected);
        CHECK((page.read() == page.host) == (expected != CACHEGEN_OK));
    };
    using all = std::vector<legacy_destination>;
    check(CACHEGEN_ERR_ARGUMENT, [](all & to) { to.pop_back(); });
    check(CACHEGEN_ERR_MISMATCH, [](all & to) { to[0].rows.n_channels = 63; });
    check(CACHEGEN_ERR_MISMATCH, [](all & to) { to[1].first_token = 1; });
    check(CACHEGEN_ERR_MISMATCH, [](all & to) { to[1].first_token = UINT64_MAX; });
    check(CACHEGEN_ERR_MISMATCH, [](all & to) { to[2].rows.n_bytes--; });
    check(CACHEGEN_ERR_ARGUMENT, [](all & to) { to[0].from_token = 1; });
    check(CACHEGEN_ERR_ARGUMENT, [](all & to) { to[0].from_token = UINT32_MAX; });
    check(CACHEGEN_ERR_ARGUMENT, [](all & to) { to[0].rows.n_bytes = 9 * 128 - 1; });
    check(CACHEGEN_ERR_ARGUMENT, [](all & to) { to[0].rows.n_rows = 8; });
    check(CACHEGEN_ERR_ARGUMENT, [&](all & to) {
        cells[8]         = 9;
        to[0].rows.cells = cells.data();
    });
    check(CACHEGEN_ERR_UNSUPPORTED, [](all & to) { to[0].rows.type = 99; });
    check(CACHEGEN_ERR_UNSUPPORTED, [](all & to) {
        to[0].rows.data = static_cast<uint8_t *>(to[0].rows.data) + 1;
        to[0].rows.n_bytes--;
        to[0].n_wanted = 0;
    });
    check(CACHEGEN_ERR_UNSUPPORTED, [](all & to) {
        to[1].rows.stride_bytes += 2;
        to[1].rows.n_bytes += 16;
    });
    check(CACHEGEN_ERR_UNSUPPORTED, [](all & to) {
        to[0].rows.stride_bytes = uint64_t{ 1 } << 32;
        to[0].rows.n_bytes      = UINT64_MAX;
    });
    check(CACHEGEN_OK, [](all &) {});
}

namespace {

int32_t try_to_decode_legacy_one(kernels::device & device, std::string & why) {
    std::mt19937             random(6);
    std::vector<legacy_part> parts(6, { 1, CACHEGEN_CKG1_F16_ROWS, 32, 9, 40 });
    parts[1].version = 2;
    parts[3].version = 2;
    parts.push_back({ 2, CACHEGEN_CKG1_EXACT, 32, 11, 0 });
    const bytes   archive = encode_legacy(random, parts);
    const int32_t status  = cachegen::guard([&] {
        const mirrored page(device, random, page_bytes_of(records_of(archive)));
        const auto     parsed = cachegen::legacy::parse_ckg1(archive.data(), archive.size());
        const outcome  there  = decode_on_device(device, archive, kernels::page_destinations(parsed, page.address), 1);
        if (there.status != CACHEGEN_OK) {
            cachegen::fail(static_cast<cachegen_status>(there.status), "%s", there.message.c_str());
        }
    });
    why                   = status == CACHEGEN_OK ? "" : cachegen_last_message();
    return status;
}

} // namespace

bool decode_legacy_one(kernels::device & device) {
    std::string   why;
    const int32_t status = try_to_decode_legacy_one(device, why);
    CHECK(status == CACHEGEN_OK || status == CACHEGEN_ERR_OUT_OF_MEMORY);
    return status == CACHEGEN_OK;
}

bool decode_legacy_one(kernels::device & device, std::string & why) {
    const int32_t status = try_to_decode_legacy_one(device, why);
    CHECK(is_of_device(status));
    return status == CACHEGEN_OK;
}

} // namespace kernel_parity
