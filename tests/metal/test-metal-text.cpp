// The text of Metal's kernels, run lane by lane on the processor, beside libcachegen: every mode and type of source
// into every type and layout, LCG1 and LCG2 tiles, archives encoded from every type and layout, damaged archives. What
// this shows of Metal and what it does not: docs/backends.md.
#include "../native/encoder_parity.h"
#include "../native/harness.h"
#include "../native/kernel_parity.h"
#include "../native/legacy_parity.h"
#include "half.h"
#include "status.h"
#include "text_device.h"

#include <random>
#include <set>

namespace {

using kernels::metal_limits;
using kernels::metal_source;

constexpr uint32_t orders[] = { 0, 1, 2 }; // see lanes::run_options

constexpr metal_source sources[] = { metal_source::decode, metal_source::legacy, metal_source::encode };

std::string name_of(uint32_t order) {
    return "order " + std::to_string(order);
}

std::vector<text_kernels::entry> entries_of(metal_source source) {
    switch (source) {
        case metal_source::decode: return text_kernels::of_decode();
        case metal_source::legacy: return text_kernels::of_legacy();
        default: return text_kernels::of_encode();
    }
}

// kernels launched so far whose name begins so
uint64_t n_launched(const std::string & prefix) {
    uint64_t n = 0;
    for (const auto & [name, n_launches] : text_device::launched()) {
        n += name.compare(0, prefix.size(), prefix) == 0;
    }
    return n;
}

} // namespace

// launch_shape.cpp knows the sources' kernels, all of them and no others
TEST(kernel_names) {
    for (const auto source : sources) {
        std::set<std::string> texts;
        for (const auto & entry : entries_of(source)) {
            texts.insert(entry.name);
        }
        const auto                  names = kernels::kernel_names(source);
        const std::set<std::string> known(names.begin(), names.end());
        CHECK_EQ(known.size(), names.size());
        CHECK(known == texts);
    }
}

// every decoding launch fits into the limits, or is refused by name
TEST(launch_shapes) {
    const std::vector<std::string> names = kernels::kernel_names(metal_source::decode);
    const std::set<std::string>    known(names.begin(), names.end());
    for (const uint32_t store : { 0, 1, 2, 3, 4, 5, 6, 7 }) {
        for (const uint32_t n_side : { 1, 2, 4, 8 }) {
            for (const uint32_t n_entries : { 33 * 16, 33 * 9 * 16, 33 * 9 * 64 }) {
                kernels::launch_buffers in{};
                in.set.n_entries = n_entries;
                in.set.n_symbols = n_entries == 33 * 9 * 64 ? 63 : 15;
                in.n_groups      = 1000;
                const kernels::planned_launch launch{ kernels::launch_kind::decode, store, n_side, 0, 0, 1000 };
                const auto                    usual = shape_of(launch, in, {});
                const auto                    few   = shape_of(launch, in, { 32 << 10, 64, 7 });
                SCOPE(usual.kernel);
                CHECK(known.count(usual.kernel) > 0);
                CHECK_EQ(usual.kernel, few.kernel);
                CHECK_EQ(usual.store, store);
                CHECK_EQ(usual.n_threads, 128u);
                CHECK_EQ(few.n_threads, 64u);
                CHECK_EQ(usual.n_threadgroups, 250u);
                CHECK_EQ(few.n_threadgroups, 7u);
                CHECK(usual.threadgroup_bytes <= 32 << 10);
                CHECK_EQ(usual.threadgroup_bytes % 16, 0u);
                const uint32_t group_bytes = kernels::decode_group_bytes(store, n_side);
                const bool     is_shared   = 4 * group_bytes + 8 * n_entries <= 32 << 10;
                CHECK_EQ(usual.threadgroup_bytes, 4 * group_bytes + (is_shared ? 8 * n_entries : 0));
                CHECK_EQ(usual.kernel.find("_memory") == std::string::npos, is_shared);
                in.n_groups = 1;
                CHECK_EQ(shape_of(launch, in, {}).n_threads, 32u);
                bool is_refused = false;
                try {
                    shape_of(launch, in, { 1024, 256, 512 });
                } catch (const cachegen::error &) {
                    is_refused = true;
                }
                CHECK(is_refused);
            }
        }
    }
}

// the conversions of port_metal.h, which use no half of the device
TEST(conversions) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float value = cachegen::fp16_to_fp32(static_cast<uint16_t>(bits));
        const float made  = text_kernels::from_fp16(bits);
        if ((bits & 0x7fff) > 0x7c00) {
            CHECK(made != made);
            continue;
        }
        CHECK_EQ(cachegen::float_bits(made), cachegen::float_bits(value));
        // the numbers next to it and to where rounding changes
        for (const uint32_t step : { 0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu }) {
            for (const uint32_t of_f32 : { cachegen::float_bits(value) + step, cachegen::float_bits(value) - step }) {
                if ((of_f32 & 0x7fffffff) <= 0x7f800000) {
                    const float near = cachegen::float_from_bits(of_f32);
                    CHECK_EQ(text_kernels::to_fp16(near), uint32_t{ cachegen::fp32_to_fp16(near) });
                }
            }
        }
    }
    std::mt19937 random(1);
    for (int i = 0; i < 2000000; i++) {
        const auto bits = static_cast<uint32_t>(random());
        if ((bits & 0x7fffffff) <= 0x7f800000) {
            const float value = cachegen::float_from_bits(bits);
            CHECK_EQ(text_kernels::to_fp16(value), uint32_t{ cachegen::fp32_to_fp16(value) });
        }
    }
}

TEST(pages) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device device(order);
        const auto  covered = kernel_parity::compare_pages(device, order == 0 ? 3 : 1, false);
        if (order == 0) {
            kernel_parity::print(covered);
        }
        CHECK_EQ(device.n_allocations(), uint64_t(0));
        for (const auto kind :
             { kernels::launch_kind::decode, kernels::launch_kind::expand, kernels::launch_kind::place }) {
            CHECK(device.n_launches(kind) > 0);
        }
    }
}

TEST(rotated_blocks) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device device(order);
        CHECK_EQ(kernel_parity::compare_rotated_blocks(device).size(), 2u);
    }
}

// no table fits: all are read where they are
TEST(tables_in_memory) {
    text_device device(0, { 7168, 64, 2 });
    kernel_parity::compare_pages(device, 1, false);
    encoder_parity::unit_counts counts;
    encoder_parity::compare_archives(device, 1, false, counts);
    CHECK(device.n_launches(kernels::launch_kind::decode) > 0);
    CHECK(counts.n_made > 0);
}

TEST(damaged) {
    text_device    device(2);
    const uint64_t n_refused = kernel_parity::compare_damaged(device, 300);
    printf("damaged: 300 archives, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 40);
}

TEST(encoded_pages) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device                 device(order);
        encoder_parity::unit_counts counts;
        const auto covered = encoder_parity::compare_archives(device, order == 0 ? 6 : 2, false, counts);
        if (order == 0) {
            kernel_parity::print(covered);
        }
        printf("%s: %llu sets counted, %llu units made, %llu without room\n", name_of(order).c_str(),
               static_cast<unsigned long long>(counts.n_counted), static_cast<unsigned long long>(counts.n_made),
               static_cast<unsigned long long>(counts.n_without_room));
        CHECK(counts.n_made > 50);
        CHECK(counts.n_in_wide_waves > 0);
        CHECK(counts.n_counted > 20);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(counted_samples) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device device(order);
        CHECK(encoder_parity::compare_counts(device, 20) > 10);
    }
}

TEST(encoding_refused) {
    text_device    device(1);
    const uint64_t n_refused = encoder_parity::compare_refused(device, 40);
    printf("refused: 40 pages, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 10);
}

TEST(encoding_without_room) {
    text_device device(2);
    const auto  counts = encoder_parity::compare_without_room(device);
    CHECK(counts.n_made > 0);
    CHECK(counts.n_without_room > 0);
}

TEST(legacy_parts) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device device(order);
        const auto  covered = kernel_parity::compare_legacy_parts(device, order == 0 ? 2 : 1, false);
        if (order == 0) {
            kernel_parity::print(covered);
            CHECK_EQ(covered.size(), size_t(16));
        }
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(legacy_pages) {
    text_device device(0);
    CHECK_EQ(kernel_parity::compare_legacy_pages(device, 8), uint64_t(8));
}

TEST(legacy_damaged) {
    text_device device(1);
    const auto  statuses = kernel_parity::compare_damaged_legacy(device, 400);
    kernel_parity::print(statuses);
    for (const char * status : { "OK", "ERR_TRUNCATED", "ERR_RESERVED", "ERR_GEOMETRY", "ERR_TABLE", "ERR_STREAM" }) {
        SCOPE(status);
        CHECK(statuses.count(status) > 0);
    }
}

TEST(legacy_corpus) {
    text_device device(2);
    const auto  statuses = kernel_parity::compare_legacy_corpus(device, CKG1_CORPUS);
    CHECK(statuses.count("OK") > 0 && statuses.at("OK") > 20);
    CHECK(statuses.size() > 3);
}

TEST(legacy_edges) {
    for (const uint32_t order : orders) {
        SCOPE(name_of(order));
        text_device device(order);
        CHECK_EQ(kernel_parity::compare_legacy_edges(device, 10), uint64_t(10));
    }
}

// the last one: which kernels the tests before have run
TEST(every_kind_of_kernel_has_run) {
    uint64_t n_kernels = 0;
    for (const auto source : sources) {
        n_kernels += kernels::kernel_names(source).size();
    }
    printf("%llu of %llu kernels have run\n", static_cast<unsigned long long>(n_launched("cachegen_")),
           static_cast<unsigned long long>(n_kernels));
    CHECK_EQ(n_launched("cachegen_lcg"), uint64_t(16));
    CHECK_EQ(n_launched("cachegen_place_"), uint64_t(8));
    CHECK_EQ(n_launched("cachegen_expand"), uint64_t(1));
    CHECK_EQ(n_launched("cachegen_lay_out") + n_launched("cachegen_gather"), uint64_t(2));
    for (const char * store : { "f32", "f16", "bf16", "q8_0", "q4_0" }) {
        SCOPE(store);
        CHECK(n_launched(std::string("cachegen_decode_") + store + "_") > 2);
        CHECK(n_launched(std::string("cachegen_scales_") + store + "_") > 1);
        CHECK(n_launched(std::string("cachegen_count_") + store + "_") > 1);
        CHECK(n_launched(std::string("cachegen_encode_") + store + "_") > 1);
    }
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
