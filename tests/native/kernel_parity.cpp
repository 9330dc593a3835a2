#include "kernel_parity.h"

#include "archive_decoder.h"
#include "cachegen.h"
#include "codec_types.h"
#include "harness.h"
#include "kernel_pages.h"
#include "status.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

namespace kernel_parity {

namespace {

struct plane_case {
    cachegen_lcg3_plane plane{};
    bytes               source;
    uint32_t            type          = 0; // of the destination
    uint32_t            is_transposed = 0;
    uint32_t            n_rot         = 0;
    uint32_t            wanted_from   = 0;
    bool                is_scattered  = false;
    bool                is_left_out   = false;
};

struct page_case {
    uint32_t                n_tokens;
    cachegen_lcg3_options   options{};
    std::vector<plane_case> planes;
    uint32_t                first_token = 0;
    uint32_t                n_wanted    = 0;
};

plane_case make_plane(std::mt19937 & random, uint32_t n_tokens, uint32_t mode, uint32_t type, uint32_t n_channels,
                      bool is_odd) {
    plane_case result;
    auto &     plane               = result.plane;
    plane.struct_size              = sizeof(plane);
    plane.layer                    = static_cast<int32_t>(random() % 40);
    plane.kind                     = 1 + random() % 3;
    plane.mode                     = mode;
    plane.type                     = type;
    plane.n_channels               = n_channels;
    plane.first_token              = random() % 4 == 0 ? random() % n_tokens : 0;
    constexpr uint32_t rotations[] = { 0, 0, 0, 64, 64, 128, 256, 512, 16 };
    plane.n_rot                    = rotations[random() % 9];
    if (plane.n_rot != 0 && n_channels % plane.n_rot != 0) {
        plane.n_rot = 0;
    }
    if (mode == CACHEGEN_LCG3_LOSSY) {
        constexpr uint32_t symbols[] = { 3, 13, 15, 31, 33, 63 };
        constexpr uint32_t scales[]  = { CACHEGEN_TYPE_F32, CACHEGEN_TYPE_F16, CACHEGEN_TYPE_BF16 };
        plane.n_symbols              = symbols[random() % 6];
        plane.scale_type             = scales[random() % 3];
        plane.is_unrotated           = plane.n_rot != 0 && random() % 2;
    }
    const uint32_t           n      = n_tokens - plane.first_token;
    const std::vector<float> values = make_values(random, n, n_channels, is_odd);
    const cachegen_rows      rows   = rows_for(result.source, type, 0, n, n, n_channels, nullptr);
    check_ok(cachegen_store_rows(&rows, 0, n, values.data()));
    if (is_odd && mode != CACHEGEN_LCG3_LOSSY && !is_block_type(type)) {
        // NaN and infinities survive
        for (size_t i = 0; i + 4 <= result.source.size(); i += 4 * (1 + random() % 500)) {
            constexpr uint32_t odd[] = { 0x7f800000, 0xff800000, 0x7fc00001, 0xffa00000, 0x80000000 };
            memcpy(&result.source[i], &odd[random() % 5], 4);
        }
    }
    return result;
}

bytes encode(const page_case & page) {
    std::vector<cachegen_lcg3_plane> planes;
    std::vector<cachegen_rows>       sources;
    for (const auto & p : page.planes) {
        planes.push_back(p.plane);
        const uint32_t n = page.n_tokens - p.plane.first_token;
        sources.push_back(rows_for(const_cast<bytes &>(p.source), p.plane.type, 0, n, n, p.plane.n_channels, nullptr));
    }
    bytes archive;
    check_ok(encode_on_host(planes, sources, page.options, archive));
    return archive;
}

// destinations in host and in device memory, filled alike
struct destinations {
    kernels::device &                      device;
    std::vector<bytes>                     host;
    std::vector<std::vector<uint32_t>>     cells;
    std::vector<cachegen_lcg3_destination> expected;
    std::vector<cachegen_lcg3_destination> on_device;

    destinations(kernels::device & device, const page_case & page, std::mt19937 & random) : device(device) {
        try {
            make(page, random);
        } catch (...) {
            release();
            throw;
        }
    }

    ~destinations() { release(); }

    destinations(const destinations &)             = delete;
    destinations & operator=(const destinations &) = delete;

    void release() {
        for (size_t i = 0; i < on_device.size(); i++) {
            device.release(address(i));
        }
    }

    void make(const page_case & page, std::mt19937 & random) {
        const uint64_t end = uint64_t{ page.first_token } + page.n_wanted;
        host.resize(page.planes.size());
        cells.resize(page.planes.size());
        for (size_t i = 0; i < page.planes.size(); i++) {
            const auto & p     = page.planes[i];
            const auto   begin = std::max({ page.first_token, p.plane.first_token, p.wanted_from });
            const auto   n     = static_cast<uint32_t>(end - std::min<uint64_t>(begin, end));
            const auto   rows  = p.is_scattered ? n + 9 : std::max(n, 1u);
            if (p.is_scattered) {
                std::vector<uint32_t> all(rows);
                std::iota(all.begin(), all.end(), 0);
                std::shuffle(all.begin(), all.end(), random);
                cells[i].assign(all.begin(), all.begin() + n);
                cells[i].reserve(1); // never NULL
            }
            cachegen_lcg3_destination destination{};
            destination.rows = rows_for(host[i], p.type, p.is_transposed, n, rows, p.plane.n_channels,
                                        p.is_scattered ? cells[i].data() : nullptr);
            if (is_block_type(p.type) && random() % 3 == 0) {
                // rows that are not aligned to more than a block
                destination.rows.stride_bytes += 2;
                destination.rows.n_bytes = rows * destination.rows.stride_bytes;
                host[i].resize(destination.rows.n_bytes);
                destination.rows.data = host[i].data();
            }
            for (auto & byte : host[i]) {
                byte = static_cast<uint8_t>(random());
            }
            destination.n_rot               = p.n_rot;
            destination.first_token         = p.wanted_from;
            cachegen_lcg3_destination there = destination;
            if (p.is_left_out) {
                destination.rows.data = nullptr;
                there.rows.data       = nullptr;
            } else {
                there.rows.data = reinterpret_cast<void *>(device.allocate(std::max<size_t>(host[i].size(), 1)));
            }
            expected.push_back(destination);
            on_device.push_back(there);
            if (there.rows.data != nullptr) {
                device.upload(address(i), host[i].data(), host[i].size());
            }
        }
    }

    uint64_t address(size_t i) const { return reinterpret_cast<uint64_t>(on_device[i].rows.data); }

    bytes read(size_t i) const {
        bytes result(host[i].size());
        device.download(result.data(), address(i), result.size());
        return result;
    }
};

struct part_range {
    uint64_t offset;
    uint64_t n_bytes;
};

// what libcachegen and the device make of an archive
struct outcome {
    int32_t     status = CACHEGEN_OK;
    std::string message;
};

outcome decode_on_device(kernels::device & device, const bytes & archive, const page_case & page,
                         const std::vector<cachegen_lcg3_destination> & rows, bool is_in_threads) {
    outcome result;
    result.status = cachegen::guard([&] {
        kernels::archive_decoder decoder(device, archive.data(), archive.size(), archive.size(), page.first_token,
                                         page.n_wanted, rows);
        cachegen_lcg3 *          reader = nullptr;
        const int32_t opened = cachegen_lcg3_open_metadata(archive.data(), archive.size(), archive.size(), &reader);
        if (opened != CACHEGEN_OK) {
            cachegen::fail(static_cast<cachegen_status>(opened), "%s", cachegen_last_message());
        }
        const std::unique_ptr<cachegen_lcg3, void (*)(cachegen_lcg3 *)> owner(reader, cachegen_lcg3_close);
        cachegen_lcg3_info                                              info{};
        info.struct_size = sizeof(info);
        cachegen_lcg3_describe(reader, &info, nullptr, 0);
        std::vector<uint32_t> parts(info.n_blocks + 1);
        std::iota(parts.begin(), parts.end(), 0);
        if (is_in_threads) {
            const kernels::archive_decoder::source source{
                const_cast<bytes *>(&archive),
                [](void * whole, uint64_t offset, void * to, uint64_t n_bytes) {
                    memcpy(to, static_cast<bytes *>(whole)->data() + offset, n_bytes);
                    return 0;
                },
                [](void *, uint32_t) { return 0; },
            };
            decoder.run(parts.data(), parts.size(), source, 4);
        } else {
            for (const uint32_t part : parts) {
                uint64_t offset  = 0;
                uint64_t n_bytes = 0;
                cachegen_lcg3_part(reader, part, &offset, &n_bytes);
                decoder.part(part, archive.data() + offset, n_bytes);
            }
        }
        decoder.finish();
    });
    if (result.status != CACHEGEN_OK) {
        result.message = cachegen_last_message();
    }
    return result;
}

// part by part too, so that both see the same bytes in the same order
outcome decode_on_host(const bytes & archive, const page_case & page,
                       const std::vector<cachegen_lcg3_destination> & rows) {
    outcome         result;
    cachegen_lcg3 * reader = nullptr;
    result.status          = cachegen_lcg3_open_metadata(archive.data(), archive.size(), archive.size(), &reader);
    if (result.status == CACHEGEN_OK) {
        cachegen_lcg3_info info{};
        info.struct_size = sizeof(info);
        cachegen_lcg3_describe(reader, &info, nullptr, 0);
        for (uint32_t part = 0; part <= info.n_blocks && result.status == CACHEGEN_OK; part++) {
            uint64_t offset  = 0;
            uint64_t n_bytes = 0;
            cachegen_lcg3_part(reader, part, &offset, &n_bytes);
            result.status = cachegen_lcg3_decode_part(reader, part, archive.data() + offset, n_bytes, page.first_token,
                                                      page.n_wanted, rows.data(), rows.size(), nullptr);
        }
    }
    if (result.status != CACHEGEN_OK) {
        result.message = cachegen_last_message();
    }
    cachegen_lcg3_close(reader);
    return result;
}

std::string name_of(const plane_case & p) {
    const char * mode   = p.plane.mode == CACHEGEN_LCG3_LOSSY   ? "lossy"
                          : p.plane.mode == CACHEGEN_LCG3_EXACT ? "exact"
                                                                : "raw";
    std::string  result = mode;
    if (p.plane.mode != CACHEGEN_LCG3_LOSSY) {
        result += std::string(" ") + type_name(p.plane.type);
    }
    result += std::string(" -> ") + type_name(p.type);
    if (p.is_transposed) {
        result += ", transposed";
    }
    const uint32_t coded = p.plane.mode == CACHEGEN_LCG3_LOSSY && p.plane.is_unrotated ? 0 : p.plane.n_rot;
    return result + (coded != p.n_rot ? ", rotated" : "");
}

page_case make_page(std::mt19937 & random, bool is_large) {
    page_case page;
    page.n_tokens                = is_large ? 500 + random() % 3000 : 1 + random() % 90;
    page.options.struct_size     = sizeof(page.options);
    page.options.block_tokens    = is_large ? 512 + random() % 1024 : 32 + random() % 40;
    page.options.n_exact_tokens  = random() % 3 * 2;
    page.options.n_models        = 1 + random() % 20;
    page.options.n_classes       = random() % 3 == 0 ? 1 : 1 + random() % 16;
    page.options.n_sample_tokens = 0;
    page.first_token             = random() % 2 ? 0 : random() % page.n_tokens;
    page.n_wanted = random() % 2 ? page.n_tokens - page.first_token : 1 + random() % (page.n_tokens - page.first_token);
    return page;
}

void complete(std::mt19937 & random, const page_case & page, plane_case & p, uint32_t type, uint32_t is_transposed) {
    p.type                         = type;
    p.is_transposed                = is_transposed;
    constexpr uint32_t rotations[] = { 0, 64, 128, 256, 32 };
    p.n_rot                        = random() % 2 ? p.plane.n_rot : rotations[random() % 5];
    if (p.n_rot != 0 && p.plane.n_channels % p.n_rot != 0) {
        p.n_rot = 0;
    }
    p.wanted_from  = random() % 5 == 0 ? random() % page.n_tokens : 0;
    p.is_scattered = random() % 2;
    p.is_left_out  = random() % 12 == 0;
}

// The same but for the bits of a NaN that arithmetic made: IEEE 754 leaves them open, and processors differ.
bool is_equal(const plane_case & p, const bytes & got, const bytes & expected) {
    if (got == expected || is_block_type(p.type)) {
        return got == expected;
    }
    const size_t   n_bytes  = p.type == CACHEGEN_TYPE_F32 ? 4 : 2;
    const uint32_t infinity = p.type == CACHEGEN_TYPE_F32 ? 0x7f800000 : p.type == CACHEGEN_TYPE_F16 ? 0x7c00 : 0x7f80;
    for (size_t b = 0; b < got.size(); b += n_bytes) {
        uint32_t x = 0;
        uint32_t y = 0;
        memcpy(&x, &got[b], n_bytes);
        memcpy(&y, &expected[b], n_bytes);
        const uint32_t sign = n_bytes == 4 ? 0x80000000 : 0x8000;
        if (x != y && ((x & ~sign) <= infinity || (y & ~sign) <= infinity)) {
            return false;
        }
    }
    return name_of(p).find("rotated") != std::string::npos;
}

void check_equal(const page_case & page, size_t i, const bytes & got, const bytes & expected) {
    const auto &         p = page.planes[i];
    const harness::scope what(name_of(p) + ", plane " + std::to_string(i) + ": " + std::to_string(p.plane.n_symbols) +
                              " symbols, " + std::to_string(p.plane.n_channels) + " channels, rotations " +
                              std::to_string(p.plane.n_rot) + (p.plane.is_unrotated ? " undone" : "") + " to " +
                              std::to_string(p.n_rot) + ", " + std::to_string(page.n_tokens) + " tokens");
    if (!is_equal(p, got, expected)) {
        size_t first = 0;
        size_t n     = 0;
        for (size_t b = got.size(); b-- > 0;) {
            if (got[b] != expected[b]) {
                first = b;
                n++;
            }
        }
        for (size_t b = first; b < std::min(first + 24, got.size()); b++) {
            printf("%02x/%02x ", got[b], expected[b]);
        }
        printf("%zu of %zu bytes differ, the first at %zu: %02x, expected %02x\n", n, got.size(), first, got[first],
               expected[first]);
    }
    CHECK(is_equal(p, got, expected));
}

void compare(kernels::device & device, const page_case & page, std::mt19937 & random, coverage & covered) {
    const bytes        archive = encode(page);
    const destinations at(device, page, random);
    const outcome      host = decode_on_host(archive, page, at.expected);
    check_ok(host.status);
    const outcome there = decode_on_device(device, archive, page, at.on_device, random() % 2);
    if (there.status != CACHEGEN_OK) {
        printf("device: %s: %s\n", cachegen_status_name(there.status), there.message.c_str());
    }
    CHECK_EQ(there.status, int32_t(CACHEGEN_OK));
    for (size_t i = 0; i < page.planes.size(); i++) {
        if (page.planes[i].is_left_out) {
            continue;
        }
        check_equal(page, i, at.read(i), at.host[i]);
        covered[name_of(page.planes[i])]++;
    }
}

} // namespace

coverage compare_pages(kernels::device & device, uint32_t n_rounds, bool is_large) {
    coverage covered;
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (const uint32_t mode : { CACHEGEN_LCG3_LOSSY, CACHEGEN_LCG3_EXACT, CACHEGEN_LCG3_RAW }) {
            for (const uint32_t from : types) {
                std::mt19937 random(1000 * round + 100 * mode + from);
                page_case    page = make_page(random, is_large);
                for (const uint32_t to : types) {
                    for (uint32_t is_transposed = 0; is_transposed < (is_block_type(to) ? 1u : 2u); is_transposed++) {
                        constexpr uint32_t whole[]  = { 32, 64, 128, 256, 320, 512 };
                        uint32_t           channels = whole[random() % (is_large ? 6 : 4)];
                        if (!is_block_type(from) && !is_block_type(to) && random() % 3 == 0) {
                            channels = 1 + random() % 100;
                        }
                        plane_case p = make_plane(random, page.n_tokens, mode, from, channels, round % 3 == 1);
                        complete(random, page, p, to, is_transposed);
                        page.planes.push_back(std::move(p));
                    }
                }
                const harness::scope what("round " + std::to_string(round));
                compare(device, page, random, covered);
            }
        }
    }
    return covered;
}

coverage compare_rotated_blocks(kernels::device & device) {
    coverage     covered;
    std::mt19937 random(5);
    for (const uint32_t n_rot : { 32u, 64u, 128u, 256u }) {
        for (const bool is_huge : { false, true }) {
            page_case page   = make_page(random, false);
            page.n_tokens    = 75;
            page.first_token = 0;
            page.n_wanted    = page.n_tokens;
            for (const uint32_t to : { CACHEGEN_TYPE_Q8_0, CACHEGEN_TYPE_Q4_0 }) {
                plane_case p = make_plane(random, page.n_tokens, CACHEGEN_LCG3_LOSSY, CACHEGEN_TYPE_F32, 512, true);
                p.plane.first_token       = 0;
                p.plane.n_rot             = 0;
                p.plane.is_unrotated      = 0;
                p.plane.scale_type        = CACHEGEN_TYPE_F32;
                std::vector<float> values = make_values(random, page.n_tokens, 512, true);
                for (size_t i = 0; is_huge && i < values.size(); i++) {
                    // finite, but not all of them when a rotation has added them up
                    values[i] *= i / 512 % 5 < 3 ? 3e38f / (1 + std::abs(values[i])) : 1.0f;
                }
                const cachegen_rows rows =
                    rows_for(p.source, CACHEGEN_TYPE_F32, 0, page.n_tokens, page.n_tokens, 512, nullptr);
                check_ok(cachegen_store_rows(&rows, 0, page.n_tokens, values.data()));
                p.type         = to;
                p.n_rot        = n_rot;
                p.is_scattered = random() % 2;
                page.planes.push_back(std::move(p));
            }
            const harness::scope what("rotated by " + std::to_string(n_rot) + (is_huge ? ", huge" : ""));
            compare(device, page, random, covered);
        }
    }
    return covered;
}

uint64_t compare_damaged(kernels::device & device, uint32_t n_rounds) {
    uint64_t n_refused = 0;
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937 random(77 + round);
        page_case    page = make_page(random, false);
        for (uint32_t i = 0; i < 3; i++) {
            plane_case p = make_plane(random, page.n_tokens, i, types[random() % 5], 64, false);
            complete(random, page, p, types[random() % 5], 0);
            page.planes.push_back(std::move(p));
        }
        bytes           archive = encode(page);
        cachegen_lcg3 * reader  = nullptr;
        check_ok(cachegen_lcg3_open(archive.data(), archive.size(), &reader));
        cachegen_lcg3_info info{};
        info.struct_size = sizeof(info);
        cachegen_lcg3_describe(reader, &info, nullptr, 0);
        // a few bytes of one part changed, and its digest made to fit
        const uint32_t part    = random() % (info.n_blocks + 1);
        uint64_t       offset  = 0;
        uint64_t       n_bytes = 0;
        cachegen_lcg3_part(reader, part, &offset, &n_bytes);
        cachegen_lcg3_close(reader);
        if (n_bytes == 0) {
            continue;
        }
        for (uint32_t i = 0; i < 1 + random() % 3; i++) {
            archive[offset + random() % n_bytes] ^= static_cast<uint8_t>(1u << random() % 8);
        }
        if (random() % 8 != 0) {
            cachegen::lcg3::archive parsed =
                cachegen::lcg3::parse_metadata(archive.data(), archive.size(), archive.size());
            const uint64_t begin   = part == 0 ? parsed.exact_offset : offset;
            const uint64_t covered = part == 0 ? parsed.exact_bytes : n_bytes;
            const uint64_t digest  = cachegen::lcg3::digest_of(archive.data() + begin, covered);
            const auto     at      = static_cast<size_t>(parsed.digests - archive.data());
            memcpy(&archive[at + 8 * size_t{ part }], &digest, 8);
            const uint64_t last     = parsed.head.metadata_bytes - 8;
            const uint64_t metadata = cachegen::lcg3::digest_of(archive.data(), last);
            memcpy(&archive[last], &metadata, 8);
        }
        const harness::scope what("round " + std::to_string(round) + ", part " + std::to_string(part));
        const destinations   at(device, page, random);
        const outcome        host       = decode_on_host(archive, page, at.expected);
        const outcome        there      = decode_on_device(device, archive, page, at.on_device, false);
        // the device's host looks at all units of a part before any symbol is decoded
        const bool           is_earlier = host.status == CACHEGEN_ERR_STREAM && there.status != CACHEGEN_OK;
        if (host.status != there.status && !is_earlier) {
            printf("host: %s; device: %s\n", host.message.c_str(), there.message.c_str());
        }
        CHECK(there.status == host.status || is_earlier);
        n_refused += host.status != CACHEGEN_OK;
        for (size_t i = 0; i < page.planes.size() && host.status == CACHEGEN_OK; i++) {
            if (!page.planes[i].is_left_out) {
                check_equal(page, i, at.read(i), at.host[i]);
            }
        }
    }
    return n_refused;
}

namespace {

int32_t try_to_decode_one(kernels::device & device, std::string & why) {
    std::mt19937 random(5);
    page_case    page         = make_page(random, false);
    page.n_tokens             = 90;
    page.options.block_tokens = 40;
    page.first_token          = 0;
    page.n_wanted             = 90;
    for (const uint32_t mode : { CACHEGEN_LCG3_LOSSY, CACHEGEN_LCG3_EXACT, CACHEGEN_LCG3_RAW }) {
        plane_case p = make_plane(random, page.n_tokens, mode, CACHEGEN_TYPE_F16, 64, false);
        p.type       = CACHEGEN_TYPE_F16;
        page.planes.push_back(std::move(p));
    }
    const bytes   archive = encode(page);
    const int32_t status  = cachegen::guard([&] {
        const destinations at(device, page, random);
        const outcome      there = decode_on_device(device, archive, page, at.on_device, true);
        if (there.status != CACHEGEN_OK) {
            cachegen::fail(static_cast<cachegen_status>(there.status), "%s", there.message.c_str());
        }
    });
    why                   = status == CACHEGEN_OK ? "" : cachegen_last_message();
    return status;
}

} // namespace

bool is_of_device(int32_t status) {
    return status == CACHEGEN_OK || status == CACHEGEN_ERR_OUT_OF_MEMORY || status == CACHEGEN_ERR_INTERNAL ||
           status == CACHEGEN_ERR_UNSUPPORTED;
}

bool decode_one(kernels::device & device) {
    std::string   why;
    const int32_t status = try_to_decode_one(device, why);
    CHECK(status == CACHEGEN_OK || status == CACHEGEN_ERR_OUT_OF_MEMORY);
    return status == CACHEGEN_OK;
}

bool decode_one(kernels::device & device, std::string & why) {
    const int32_t status = try_to_decode_one(device, why);
    CHECK(is_of_device(status));
    return status == CACHEGEN_OK;
}

void print(const coverage & covered) {
    for (const auto & [name, n] : covered) {
        printf("  %-40s %6llu\n", name.c_str(), static_cast<unsigned long long>(n));
    }
}

} // namespace kernel_parity
