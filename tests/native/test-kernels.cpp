// The kernels' own source, run lane by lane on the processor, beside libcachegen: every mode and type of source into
// every type and layout; damaged archives; every call to the device made to fail.
#include "archive_decoder.h"
#include "cpu/emulated_device.h"
#include "harness.h"
#include "kernel_parity.h"

TEST(pages) {
    for (uint32_t order = 0; order < 3; order++) {
        kernels::emulated_device device(order);
        const auto               covered = kernel_parity::compare_pages(device, order == 0 ? 4 : 1, false);
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

// tables that no workgroup has room for stay in the device's memory
TEST(large_tables) {
    kernels::emulated_device device(0, 4096);
    kernel_parity::compare_pages(device, 1, false);
    CHECK(device.n_launches(kernels::launch_kind::expand) > 0);
}

TEST(damaged) {
    kernels::emulated_device device;
    const uint64_t           n_refused = kernel_parity::compare_damaged(device, 400);
    printf("damaged: 400 archives, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 50);
}

// whatever call to the device fails, the failure comes out and no device memory is left over
TEST(failing_device) {
    uint64_t n_failed = 0;
    for (uint64_t at = 1;; at++) {
        kernels::emulated_device device;
        device.fail_at(at);
        const bool has_failed = !kernel_parity::decode_one(device);
        CHECK_EQ(device.n_allocations(), uint64_t(0));
        if (!has_failed) {
            break;
        }
        n_failed++;
    }
    printf("failing device: %llu calls failed\n", static_cast<unsigned long long>(n_failed));
    CHECK(n_failed > 20);
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
