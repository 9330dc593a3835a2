// The kernels' own source, run lane by lane on the processor, beside libcachegen: every mode and type of source into
// every type and layout; damaged archives; archives encoded from every type and layout; LCG1 and LCG2 tiles into every
// type and layout; every call to the device made to fail.
#include "archive_decoder.h"
#include "cpu/emulated_device.h"
#include "encoder_parity.h"
#include "harness.h"
#include "kernel_parity.h"
#include "legacy_parity.h"

namespace {

struct lane_setup {
    uint32_t wave_size;
    uint32_t order;
};

// as in lanes::run_options: groups as waves of their own, and two in a wave
constexpr lane_setup setups[] = { { 32, 0 }, { 32, 1 }, { 32, 2 }, { 64, 0 }, { 64, 1 }, { 64, 2 } };

bool is_first(const lane_setup & setup) {
    return setup.wave_size == 32 && setup.order == 0;
}

kernels::emulated_device device_of(const lane_setup & setup) {
    return kernels::emulated_device(setup.order, 227 << 10, setup.wave_size);
}

std::string name_of(const lane_setup & setup) {
    return "waves of " + std::to_string(setup.wave_size) + ", order " + std::to_string(setup.order);
}

// whatever call to the device fails, the failure comes out and no device memory is left over
void fail_every_call(bool (*succeeds)(kernels::device &)) {
    uint64_t n_failed = 0;
    for (uint64_t at = 1;; at++) {
        kernels::emulated_device device;
        device.fail_at(at);
        const bool has_failed = !succeeds(device);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
        if (!has_failed) {
            break;
        }
        n_failed++;
    }
    printf("failing device: %llu calls failed\n", static_cast<unsigned long long>(n_failed));
    CHECK(n_failed > 20);
}

} // namespace

TEST(pages) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto       device  = device_of(setup);
        const auto covered = kernel_parity::compare_pages(device, is_first(setup) ? 4 : 1, false);
        if (is_first(setup)) {
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
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto device = device_of(setup);
        CHECK_EQ(kernel_parity::compare_rotated_blocks(device).size(), 2u);
    }
}

// tables that no workgroup has room for stay in the device's memory
TEST(large_tables) {
    kernels::emulated_device device(0, 4096);
    kernel_parity::compare_pages(device, 1, false);
    CHECK(device.n_launches(kernels::launch_kind::expand) > 0);
}

// AMD's workgroups, four groups at least: of a page's sets some fit and some do not
TEST(tables_beside_64_kib) {
    kernels::emulated_device device(0, 64 << 10, 64, 4);
    kernel_parity::compare_pages(device, 1, false);
    CHECK(device.n_launches(kernels::launch_kind::decode) > 0);
    CHECK(device.n_launches(kernels::launch_kind::expand) > 0);
}

TEST(damaged) {
    for (const auto & setup : { setups[0], setups[5] }) {
        SCOPE(name_of(setup));
        auto           device    = device_of(setup);
        const uint64_t n_refused = kernel_parity::compare_damaged(device, 400);
        printf("damaged, %s: 400 archives, %llu refused\n", name_of(setup).c_str(),
               static_cast<unsigned long long>(n_refused));
        CHECK(n_refused > 50);
    }
}

TEST(failing_device) {
    fail_every_call(kernel_parity::decode_one);
}

TEST(encoded_pages) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto                        device = device_of(setup);
        encoder_parity::unit_counts counts;
        const auto covered = encoder_parity::compare_archives(device, is_first(setup) ? 12 : 3, false, counts);
        if (is_first(setup)) {
            kernel_parity::print(covered);
        }
        printf("%s: %llu sets counted, %llu units made, %llu of them in waves of several blocks, %llu without room\n",
               name_of(setup).c_str(), static_cast<unsigned long long>(counts.n_counted),
               static_cast<unsigned long long>(counts.n_made), static_cast<unsigned long long>(counts.n_in_wide_waves),
               static_cast<unsigned long long>(counts.n_without_room));
        CHECK(counts.n_made > 100);
        CHECK(counts.n_in_wide_waves > 20);
        CHECK(counts.n_counted > 50);
        CHECK(counts.n_without_room < counts.n_made / 8);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(counted_samples) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto device = device_of(setup);
        CHECK(encoder_parity::compare_counts(device, 30) > 20);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

// values that have no symbol or no scale
TEST(encoding_refused) {
    kernels::emulated_device device;
    const uint64_t           n_refused = encoder_parity::compare_refused(device, 60);
    printf("refused: 60 pages, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 20);
    CHECK_EQ(device.n_allocations(), uint64_t(0));
}

// the device has no room for words that its sample did not promise: libcachegen makes those units
TEST(encoding_without_room) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto       device = device_of(setup);
        const auto counts = encoder_parity::compare_without_room(device);
        printf("without room: %llu units made, %llu left\n", static_cast<unsigned long long>(counts.n_made),
               static_cast<unsigned long long>(counts.n_without_room));
        CHECK(counts.n_made > 0);
        CHECK(counts.n_without_room > 0);
    }
}

// tables that no workgroup has room for: the archive is libcachegen's
TEST(encoding_large_tables) {
    kernels::emulated_device    device(0, 4096);
    encoder_parity::unit_counts counts;
    encoder_parity::compare_archives(device, 1, false, counts);
    CHECK_EQ(counts.n_made, uint64_t(0));
}

TEST(encoding_on_failing_device) {
    fail_every_call(encoder_parity::encode_one);
}

TEST(legacy_parts) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto       device  = device_of(setup);
        const auto covered = kernel_parity::compare_legacy_parts(device, is_first(setup) ? 4 : 1, false);
        if (is_first(setup)) {
            kernel_parity::print(covered);
            CHECK_EQ(covered.size(), size_t(16));
        }
        CHECK_EQ(device.n_allocations(), uint64_t(0));
        for (const uint32_t version : { 1, 2 }) {
            CHECK(device.n_legacy_launches(version) > 0);
        }
    }
}

TEST(legacy_pages) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto device = device_of(setup);
        CHECK_EQ(kernel_parity::compare_legacy_pages(device, 12), uint64_t(12));
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(legacy_damaged) {
    for (const auto & setup : { setups[0], setups[5] }) {
        SCOPE(name_of(setup));
        auto       device   = device_of(setup);
        const auto statuses = kernel_parity::compare_damaged_legacy(device, 600);
        if (is_first(setup)) {
            kernel_parity::print(statuses);
        }
        for (const char * status :
             { "OK", "ERR_TRUNCATED", "ERR_TRAILING", "ERR_RESERVED", "ERR_GEOMETRY", "ERR_TABLE", "ERR_STREAM" }) {
            SCOPE(status);
            CHECK(statuses.count(status) > 0);
        }
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(legacy_truncated) {
    kernels::emulated_device device;
    printf("cut at %llu lengths\n", static_cast<unsigned long long>(kernel_parity::compare_truncated_legacy(device)));
    CHECK_EQ(device.n_allocations(), uint64_t(0));
}

TEST(legacy_corpus) {
    for (const auto & setup : { setups[0], setups[5] }) {
        SCOPE(name_of(setup));
        auto       device   = device_of(setup);
        const auto statuses = kernel_parity::compare_legacy_corpus(device, CKG1_CORPUS);
        if (is_first(setup)) {
            kernel_parity::print(statuses);
        }
        CHECK(statuses.count("OK") > 0 && statuses.at("OK") > 20);
        CHECK(statuses.size() > 3);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(legacy_edges) {
    for (const auto & setup : setups) {
        SCOPE(name_of(setup));
        auto device = device_of(setup);
        CHECK_EQ(kernel_parity::compare_legacy_edges(device, 20), uint64_t(20));
        CHECK_EQ(device.n_allocations(), uint64_t(0));
    }
}

TEST(legacy_destinations) {
    kernels::emulated_device device;
    kernel_parity::check_legacy_destinations(device);
    CHECK_EQ(device.n_allocations(), uint64_t(0));
}

TEST(legacy_on_failing_device) {
    fail_every_call(kernel_parity::decode_legacy_one);
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
