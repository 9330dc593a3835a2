#include "encoder_parity.h"

#include "archive_encoder.h"
#include "codec_types.h"
#include "executor.h"
#include "harness.h"
#include "kernel_pages.h"
#include "status.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace encoder_parity {

namespace {

using kernel_parity::bytes;
using kernel_parity::check_ok;
using kernel_parity::make_values;

struct plane_case {
    cachegen_lcg3_plane   plane{};
    bytes                 data;
    std::vector<uint32_t> cells;
    cachegen_rows         rows{};
};

struct page_case {
    uint32_t                                n_tokens = 0;
    cachegen_lcg3_options                   options{};
    kernels::archive_encoder::memory_limits limits;
    std::vector<plane_case>                 planes;
};

// An encoder's result.
struct outcome {
    int32_t     status = CACHEGEN_OK;
    std::string message;
    bytes       archive;
    unit_counts counts;
};

// rows of a plane, filled with values; what lies between them is of no use
void fill(std::mt19937 & random, plane_case & p, uint32_t is_transposed, bool is_scattered,
          const std::vector<float> & values) {
    const uint32_t n      = static_cast<uint32_t>(values.size() / p.plane.n_channels);
    const uint32_t n_rows = is_scattered ? n + 9 : n;
    if (is_scattered) {
        std::vector<uint32_t> all(n_rows);
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), random);
        p.cells.assign(all.begin(), all.begin() + n);
    }
    p.rows = kernel_parity::rows_for(p.data, p.plane.type, is_transposed, n, n_rows, p.plane.n_channels,
                                     is_scattered ? p.cells.data() : nullptr);
    for (auto & byte : p.data) {
        byte = static_cast<uint8_t>(random());
    }
    check_ok(cachegen_store_rows(&p.rows, 0, n, values.data()));
}

void set_lossy(std::mt19937 & random, cachegen_lcg3_plane & plane) {
    constexpr uint32_t symbols[] = { 3, 13, 15, 31, 33, 63 };
    constexpr uint32_t scales[]  = { CACHEGEN_TYPE_F32, CACHEGEN_TYPE_F16, CACHEGEN_TYPE_BF16 };
    plane.n_symbols              = symbols[random() % 6];
    plane.scale_type             = scales[random() % 3];
    plane.is_unrotated           = plane.n_rot != 0 && random() % 4 != 0;
}

plane_case make_plane(std::mt19937 & random, const page_case & page, uint32_t mode, uint32_t type,
                      uint32_t is_transposed, uint32_t n_channels, bool is_odd) {
    plane_case p;
    auto &     plane               = p.plane;
    plane.struct_size              = sizeof(plane);
    plane.layer                    = static_cast<int32_t>(random() % 40);
    plane.kind                     = 1 + random() % 3;
    plane.mode                     = mode;
    plane.type                     = type;
    plane.n_channels               = n_channels;
    plane.first_token              = random() % 4 == 0 ? random() % page.n_tokens : 0;
    constexpr uint32_t rotations[] = { 0, 0, 16, 32, 64, 64, 128, 128, 256, 512 };
    plane.n_rot                    = rotations[random() % 10];
    if (plane.n_rot != 0 && n_channels % plane.n_rot != 0) {
        plane.n_rot = n_channels % 64 == 0 ? 64 : 0;
    }
    if (mode == CACHEGEN_LCG3_LOSSY) {
        set_lossy(random, plane);
    }
    const uint32_t     n      = page.n_tokens - plane.first_token;
    std::vector<float> values = make_values(random, n, n_channels, is_odd);
    for (size_t i = random() % 50; is_odd && i < values.size(); i += 1 + random() % 300) {
        values[i] = -0.0f;
    }
    fill(random, p, is_transposed, random() % 2, values);
    return p;
}

page_case make_page(std::mt19937 & random, bool is_large) {
    constexpr uint32_t blocks[] = { 32, 37, 64, 256 };
    page_case          page;
    page.n_tokens             = is_large ? 500 + random() % 3000 : 1 + random() % 150;
    page.options.struct_size  = sizeof(page.options);
    page.options.block_tokens = is_large ? 512 + random() % 1024 : blocks[random() % 4];
    if (random() % 4 == 0) { // blocks for waves of several, the last wave having fewer
        page.options.block_tokens = is_large ? 64 + random() % 64 : 32;
        page.n_tokens             = is_large ? page.n_tokens : 200 + random() % 250;
    }
    page.options.n_exact_tokens  = random() % 2 * 4;
    page.options.n_models        = 1 + random() % 20;
    page.options.n_classes       = random() % 3 == 0 ? 1 : 1 + random() % 16;
    page.options.n_sample_tokens = random() % 2 ? 0 : 32 + random() % 64;
    if (random() % 2) {
        // for a part of a block's planes
        page.limits.pool_bytes   = (is_large ? 1 << 20 : 20 << 10) + random() % 20000;
        page.limits.output_bytes = page.limits.pool_bytes;
    }
    return page;
}

outcome encode_on_host(const page_case & page) {
    std::vector<cachegen_lcg3_plane> planes;
    std::vector<cachegen_rows>       sources;
    for (const auto & p : page.planes) {
        planes.push_back(p.plane);
        sources.push_back(p.rows);
        sources.back().data  = const_cast<uint8_t *>(p.data.data());
        sources.back().cells = p.cells.empty() ? nullptr : p.cells.data();
    }
    outcome result;
    result.status = kernel_parity::encode_on_host(planes, sources, page.options, result.archive);
    if (result.status != CACHEGEN_OK) {
        result.message = cachegen_last_message();
    }
    return result;
}

int32_t append(void * archive, uint64_t offset, const void * from, uint64_t n_bytes) {
    auto & to = *static_cast<bytes *>(archive);
    to.resize(std::max<size_t>(to.size(), offset + n_bytes));
    memcpy(to.data() + offset, from, n_bytes);
    return 0;
}

// the planes' rows in a device's memory
struct device_rows {
    kernels::device &          device;
    std::vector<cachegen_rows> rows;

    device_rows(kernels::device & device, const page_case & page) : device(device) {
        try {
            for (const auto & p : page.planes) {
                cachegen_rows there = p.rows;
                there.cells         = p.cells.empty() ? nullptr : p.cells.data();
                there.data          = reinterpret_cast<void *>(device.allocate(p.data.size()));
                rows.push_back(there);
                device.upload(reinterpret_cast<uint64_t>(there.data), p.data.data(), p.data.size());
            }
        } catch (...) {
            release();
            throw;
        }
    }

    ~device_rows() { release(); }

    device_rows(const device_rows &)             = delete;
    device_rows & operator=(const device_rows &) = delete;

    void release() {
        for (const auto & one : rows) {
            device.release(reinterpret_cast<uint64_t>(one.data));
        }
    }
};

outcome encode_on_device(kernels::device & device, const page_case & page, uint32_t n_threads) {
    outcome result;
    result.status = cachegen::guard([&] {
        const device_rows                at(device, page);
        std::vector<cachegen_lcg3_plane> planes;
        for (const auto & p : page.planes) {
            planes.push_back(p.plane);
        }
        const auto               executor = cachegen::make_executor(n_threads);
        kernels::archive_encoder encoder(device, at.rows, page.limits);
        const uint64_t           n_bytes =
            encoder.encode(planes.data(), page.options, executor.get(), { &result.archive, append });
        if (n_bytes != result.archive.size()) {
            cachegen::fail(CACHEGEN_ERR_INTERNAL, "an archive of another size");
        }
        result.counts = { encoder.n_made(), encoder.n_without_room(), encoder.n_counted(),
                          encoder.blocks_a_wave() > 1 ? encoder.n_made() : 0 };
    });
    if (result.status != CACHEGEN_OK) {
        result.message = cachegen_last_message();
    }
    return result;
}

std::string name_of(const plane_case & p) {
    if (p.plane.mode != CACHEGEN_LCG3_LOSSY) {
        return p.plane.mode == CACHEGEN_LCG3_EXACT ? "exact" : "raw";
    }
    std::string result = std::string("lossy ") + type_name(p.plane.type);
    if (p.rows.is_transposed) {
        result += ", transposed";
    }
    return result + (p.plane.is_unrotated ? ", rotation of " + std::to_string(p.plane.n_rot) + " undone" : "");
}

void check_same(const page_case & page, const outcome & host, const outcome & there) {
    if (host.status != there.status) {
        printf("host: %s %s; device: %s %s\n", cachegen_status_name(host.status), host.message.c_str(),
               cachegen_status_name(there.status), there.message.c_str());
    }
    CHECK_EQ(there.status, host.status);
    if (host.status != CACHEGEN_OK || host.archive == there.archive) {
        CHECK(host.status != CACHEGEN_OK || host.archive == there.archive);
        return;
    }
    size_t first = 0;
    while (first < std::min(host.archive.size(), there.archive.size()) && host.archive[first] == there.archive[first]) {
        first++;
    }
    printf("archives of %zu and %zu bytes differ from byte %zu on; %u tokens, blocks of %u\n", host.archive.size(),
           there.archive.size(), first, page.n_tokens, page.options.block_tokens);
    for (const auto & p : page.planes) {
        printf("  %s: %u channels from token %u, %u symbols, scales of type %u%s\n", name_of(p).c_str(),
               p.plane.n_channels, p.plane.first_token, p.plane.n_symbols, p.plane.scale_type,
               p.cells.empty() ? "" : ", scattered");
    }
    CHECK_SAME_BITS(there.archive, host.archive);
}

} // namespace

coverage compare_archives(kernels::device & device, uint32_t n_rounds, bool is_large, unit_counts & counts) {
    coverage covered;
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (const uint32_t type : types) {
            for (uint32_t is_transposed = 0; is_transposed < (is_block_type(type) ? 1u : 2u); is_transposed++) {
                std::mt19937 random(1000 * round + 10 * type + is_transposed);
                page_case    page = make_page(random, is_large);
                for (uint32_t i = 0; i < (is_large ? 12u : 4u); i++) {
                    constexpr uint32_t whole[]  = { 32, 64, 128, 256, 320, 512 };
                    uint32_t           channels = whole[random() % (is_large ? 6 : 4)];
                    if (!is_block_type(type) && random() % 3 == 0) {
                        channels = 1 + random() % 100;
                    }
                    const uint32_t mode = i % 4 != 3     ? CACHEGEN_LCG3_LOSSY
                                          : random() % 2 ? CACHEGEN_LCG3_EXACT
                                                         : CACHEGEN_LCG3_RAW;
                    page.planes.push_back(
                        make_plane(random, page, mode, type, is_transposed, channels, round % 3 == 1));
                }
                const harness::scope what("round " + std::to_string(round) + ", " + type_name(type) +
                                          (is_transposed ? ", transposed" : ""));
                const outcome        there = encode_on_device(device, page, 1 + random() % 3);
                check_same(page, encode_on_host(page), there);
                counts.n_made += there.counts.n_made;
                counts.n_counted += there.counts.n_counted;
                counts.n_in_wide_waves += there.counts.n_in_wide_waves;
                counts.n_without_room += there.counts.n_without_room;
                for (const auto & p : page.planes) {
                    covered[name_of(p)]++;
                }
            }
        }
    }
    return covered;
}

namespace {

// Planes that have their symbols in common, and what is counted of them.
struct sample_case {
    page_case                                              page;
    cachegen::metered_vector<cachegen::lcg3::source_plane> sources;
    cachegen::lcg3::sample_chunks                          chunks;
    uint32_t                                               n_symbols;
    uint32_t                                               n_models;
    uint32_t                                               n_classes;
    std::vector<uint8_t>                                   models; // of the channels of all planes
    uint8_t                                                class_of[cachegen::lcg3::max_symbols] = {};
};

sample_case make_sample(std::mt19937 & random, bool is_long, bool has_many_models, bool is_odd) {
    constexpr uint32_t symbols[] = { 3, 13, 31, 63 };
    sample_case        sample;
    page_case &        page = sample.page;
    page                    = make_page(random, false);
    page.n_tokens           = is_long ? 260 + random() % 60 : page.n_tokens;
    sample.n_symbols        = symbols[random() % 4];
    sample.n_models         = has_many_models ? 200 : 5;
    sample.n_classes        = has_many_models ? 16 : 3;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t type       = types[random() % 5];
        const uint32_t n_channels = is_block_type(type) ? 64 << random() % 2 : 1 + random() % 100;
        const uint32_t is_across  = is_block_type(type) ? 0 : random() % 2;
        page.planes.push_back(make_plane(random, page, CACHEGEN_LCG3_LOSSY, type, is_across, n_channels, is_odd));
        for (uint32_t c = 0; c < n_channels; c++) {
            sample.models.push_back(static_cast<uint8_t>(random() % sample.n_models));
        }
    }
    for (auto & p : page.planes) {
        if (is_long && &p == &page.planes[0]) { // one symbol alone: no counter counts higher
            const uint32_t n = page.n_tokens - p.plane.first_token;
            check_ok(cachegen_store_rows(&p.rows, 0, n, std::vector<float>(size_t{ n } * p.plane.n_channels).data()));
        }
        cachegen::lcg3::source_plane source{};
        source.rows               = &p.rows;
        source.n_symbols          = sample.n_symbols;
        source.record.kind        = static_cast<uint8_t>(p.plane.kind);
        source.record.mode        = CACHEGEN_LCG3_LOSSY;
        source.record.type        = static_cast<uint8_t>(p.plane.type);
        source.record.scale_type  = static_cast<uint8_t>(p.plane.scale_type);
        source.record.n_channels  = p.plane.n_channels;
        source.record.n_rot       = static_cast<uint16_t>(p.plane.n_rot);
        source.record.flags       = p.plane.is_unrotated ? cachegen::lcg3::plane_flag_unrotated : 0;
        source.record.first_token = p.plane.first_token;
        p.rows.data               = p.data.data();
        p.rows.cells              = p.cells.empty() ? nullptr : p.cells.data();
        sample.sources.push_back(source);
    }
    for (uint32_t t = random() % 8; t < page.n_tokens; t += is_long ? 32 : 32 + random() % 20) {
        const uint32_t n = is_long ? 32 : 1 + static_cast<uint32_t>(random() % 32);
        sample.chunks.emplace_back(t, std::min(page.n_tokens - t, n));
    }
    for (uint32_t s = 0; s < sample.n_symbols; s++) {
        sample.class_of[s] = static_cast<uint8_t>(s * sample.n_classes / sample.n_symbols);
    }
    return sample;
}

// libcachegen's numbers of the first n_planes
void count_on_host(const sample_case & sample, uint32_t n_planes, cachegen::lcg3::channel_counts & counts,
                   std::vector<uint64_t> & pairs) {
    uint64_t first_channel = 0;
    for (uint32_t i = 0; i < n_planes; i++) {
        const auto & source = sample.sources[i];
        for (const auto & [first_token, n_chunk] : sample.chunks) {
            const uint64_t begin = std::max<uint64_t>(first_token, source.record.first_token);
            if (begin >= first_token + n_chunk) {
                continue;
            }
            const auto                    n = static_cast<uint32_t>(first_token + n_chunk - begin);
            cachegen::lcg3::token_symbols made;
            make_symbols(source, begin - source.record.first_token, n, false, made);
            for (uint32_t c = 0; c < source.record.n_channels; c += 32) {
                const uint32_t  n_active = std::min(32u, source.record.n_channels - c);
                const uint64_t  channel  = first_channel + c;
                const uint8_t * of_group = &made.symbols[size_t{ c } * n];
                cachegen::lcg3::count_symbols(of_group, n, n_active, channel, counts);
                cachegen::lcg3::count_pairs(of_group, n, n_active, &sample.models[channel], sample.class_of,
                                            sample.n_classes, sample.n_symbols, pairs.data());
            }
        }
        first_channel += source.record.n_channels;
    }
}

// of a set of the first n_planes
bool compare_set(kernels::sample_counter & counter, const sample_case & sample, uint32_t n_planes) {
    cachegen::metered_vector<uint32_t> numbers(n_planes);
    std::iota(numbers.begin(), numbers.end(), 0);
    uint64_t n_channels  = 0;
    bool     is_possible = true;
    for (uint32_t i = 0; i < n_planes; i++) {
        const auto & plane = sample.page.planes[i].plane;
        n_channels += plane.n_channels;
        is_possible &= !plane.is_unrotated || plane.n_rot <= kernels::max_encoded_rotation;
    }
    const cachegen::lcg3::sampled_set set{ &sample.sources, &numbers, &sample.chunks, sample.n_symbols };
    cachegen::lcg3::channel_counts    expected(n_channels, sample.n_symbols);
    cachegen::lcg3::channel_counts    found(n_channels, sample.n_symbols);
    std::vector<uint64_t>             expected_pairs(size_t{ sample.n_models } * sample.n_classes * sample.n_symbols);
    std::vector<uint64_t>             found_pairs(expected_pairs.size());
    count_on_host(sample, n_planes, expected, expected_pairs);
    CHECK_EQ(counter.count_symbols(set, found), is_possible);
    CHECK_EQ(counter.count_pairs(set, sample.models.data(), sample.class_of, sample.n_classes, sample.n_models,
                                 found_pairs.data()),
             is_possible);
    if (is_possible) {
        CHECK(found.counts == expected.counts);
        CHECK(found_pairs == expected_pairs);
    }
    return is_possible;
}

} // namespace

uint64_t compare_counts(kernels::device & device, uint32_t n_rounds) {
    uint64_t n_compared = 0;
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937            random(77 + round);
        const sample_case       sample = make_sample(random, round % 5 == 0, round % 3 == 0, round % 3 == 1);
        const device_rows       at(device, sample.page);
        kernels::sample_counter counter(device, at.rows);
        const harness::scope    what("round " + std::to_string(round));
        for (const uint32_t n_planes : { 2, 4 }) { // the second needs more memory
            n_compared += compare_set(counter, sample, n_planes);
        }
    }
    return n_compared;
}

uint64_t compare_refused(kernels::device & device, uint32_t n_rounds) {
    uint64_t n_refused = 0;
    for (uint32_t round = 0; round < n_rounds; round++) {
        std::mt19937 random(31 + round);
        page_case    page            = make_page(random, false);
        page.limits                  = {};
        page.n_tokens                = 100 + random() % 60;
        page.options.block_tokens    = 64;
        page.options.n_sample_tokens = 32; // the first ones
        const uint32_t  type         = types[random() % 3];
        constexpr float odd[]        = { INFINITY, -INFINITY, NAN, 65504.0f, 65505.0f, 3.4e38f, -3.4e38f };
        const uint32_t  n_channels   = random() % 2 ? 64 : 1 + random() % 90;
        for (uint32_t i = 0; i < 3; i++) {
            plane_case p = make_plane(random, page, CACHEGEN_LCG3_LOSSY, type, random() % 2, n_channels, false);
            if (p.plane.first_token > 0) {
                continue;
            }
            std::vector<float> values(size_t{ page.n_tokens } * n_channels);
            check_ok(cachegen_load_rows(&p.rows, 0, page.n_tokens, values.data()));
            if (random() % 2) {
                const size_t from                                 = 40 + random() % (page.n_tokens - 40);
                values[from * n_channels + random() % n_channels] = odd[random() % 7];
                check_ok(cachegen_store_rows(&p.rows, 0, page.n_tokens, values.data()));
            }
            page.planes.push_back(std::move(p));
        }
        if (page.planes.empty()) {
            continue;
        }
        const harness::scope what("round " + std::to_string(round));
        const outcome        host  = encode_on_host(page);
        const outcome        there = encode_on_device(device, page, 1);
        check_same(page, host, there);
        // of the device's own messages, that of a value without a scale is another
        if (host.status == CACHEGEN_ERR_NON_FINITE) {
            CHECK(there.message.find("holds a NaN or an infinity") != std::string::npos);
            CHECK_EQ(there.message, host.message);
        }
        n_refused += host.status != CACHEGEN_OK;
    }
    return n_refused;
}

unit_counts compare_without_room(kernels::device & device) {
    std::mt19937 random(9);
    page_case    page;
    page.n_tokens                = 400;
    page.options.struct_size     = sizeof(page.options);
    page.options.block_tokens    = 192;
    page.options.n_models        = 4;
    page.options.n_classes       = 4;
    page.options.n_sample_tokens = 32;
    for (uint32_t i = 0; i < 4; i++) {
        plane_case p;
        p.plane.struct_size       = sizeof(p.plane);
        p.plane.kind              = 1;
        p.plane.mode              = CACHEGEN_LCG3_LOSSY;
        p.plane.type              = CACHEGEN_TYPE_F16;
        p.plane.n_channels        = 64;
        p.plane.n_symbols         = 63;
        p.plane.scale_type        = CACHEGEN_TYPE_F32;
        std::vector<float> values = make_values(random, page.n_tokens, 64, false);
        // all that the models are made from, and the first block's most
        std::fill(values.begin(), values.begin() + 64 * 180, 0.0f);
        fill(random, p, 0, false, values);
        page.planes.push_back(std::move(p));
    }
    const outcome there = encode_on_device(device, page, 2);
    check_same(page, encode_on_host(page), there);
    return there.counts;
}

namespace {

outcome try_to_encode_one(kernels::device & device) {
    std::mt19937 random(5);
    page_case    page         = make_page(random, false);
    page.limits               = {};
    page.n_tokens             = 90;
    page.options.block_tokens = 40;
    for (const uint32_t mode : { CACHEGEN_LCG3_LOSSY, CACHEGEN_LCG3_EXACT, CACHEGEN_LCG3_RAW }) {
        page.planes.push_back(make_plane(random, page, mode, CACHEGEN_TYPE_F16, 0, 64, false));
    }
    return encode_on_device(device, page, 2);
}

} // namespace

bool encode_one(kernels::device & device) {
    const outcome there = try_to_encode_one(device);
    CHECK(there.status == CACHEGEN_OK || there.status == CACHEGEN_ERR_OUT_OF_MEMORY);
    return there.status == CACHEGEN_OK;
}

bool encode_one(kernels::device & device, std::string & why) {
    const outcome there = try_to_encode_one(device);
    CHECK(kernel_parity::is_of_device(there.status));
    why = there.message;
    return there.status == CACHEGEN_OK;
}

} // namespace encoder_parity
