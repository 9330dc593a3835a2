// The Metal decoder and encoder beside libcachegen on a real device: see test-metal-text.cpp, which runs the same text
// without one.
//   test-kernels-metal [TEST ...]
#include "../native/encoder_parity.h"
#include "../native/harness.h"
#include "../native/kernel_parity.h"
#include "../native/legacy_parity.h"
#include "metal/metal_device.h"

#include <cstdlib>

namespace {

NS::SharedPtr<MTL::Device> default_device() {
    static const auto device = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
    if (!device || !kernels::is_metal_device_supported(device.get())) {
        fprintf(stderr, "there is no device of Metal 3\n");
        exit(77);
    }
    return device;
}

// a device with a queue of its own: tests have no graphs
struct owned_device {
    NS::SharedPtr<MTL::Device>       handle = default_device();
    NS::SharedPtr<MTL::CommandQueue> queue  = NS::TransferPtr(handle->newCommandQueue());
    kernels::metal_device            device{ handle.get(), queue.get(), {} };
};

} // namespace

TEST(pages) {
    owned_device own;
    kernel_parity::print(kernel_parity::compare_pages(own.device, 20, false));
}

TEST(rotated_blocks) {
    owned_device own;
    kernel_parity::compare_rotated_blocks(own.device);
}

TEST(large_pages) {
    owned_device own;
    kernel_parity::compare_pages(own.device, 1, true);
}

TEST(damaged) {
    owned_device   own;
    const uint64_t n_refused = kernel_parity::compare_damaged(own.device, 2000);
    printf("damaged: 2000 archives, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 250);
}

TEST(encoded_pages) {
    owned_device                own;
    encoder_parity::unit_counts counts;
    kernel_parity::print(encoder_parity::compare_archives(own.device, 60, false, counts));
    printf("%llu units made, %llu without room\n", static_cast<unsigned long long>(counts.n_made),
           static_cast<unsigned long long>(counts.n_without_room));
    CHECK(counts.n_made > 1000);
    CHECK(counts.n_counted > 250);
    CHECK(counts.n_without_room < counts.n_made / 8);
}

TEST(encoded_large_pages) {
    owned_device                own;
    encoder_parity::unit_counts counts;
    encoder_parity::compare_archives(own.device, 2, true, counts);
    CHECK(counts.n_made > 100);
}

TEST(counted_samples) {
    owned_device own;
    CHECK(encoder_parity::compare_counts(own.device, 200) > 100);
}

TEST(encoding_refused) {
    owned_device own;
    CHECK(encoder_parity::compare_refused(own.device, 200) > 50);
}

TEST(encoding_without_room) {
    owned_device own;
    const auto   counts = encoder_parity::compare_without_room(own.device);
    CHECK(counts.n_made > 0);
    CHECK(counts.n_without_room > 0);
}

TEST(legacy_parts) {
    owned_device own;
    const auto   covered = kernel_parity::compare_legacy_parts(own.device, 20, false);
    kernel_parity::print(covered);
    CHECK_EQ(covered.size(), size_t(16));
}

TEST(legacy_large_parts) {
    owned_device own;
    kernel_parity::compare_legacy_parts(own.device, 1, true);
}

TEST(legacy_pages) {
    owned_device own;
    CHECK_EQ(kernel_parity::compare_legacy_pages(own.device, 100), uint64_t(100));
}

TEST(legacy_damaged) {
    owned_device own;
    const auto   statuses = kernel_parity::compare_damaged_legacy(own.device, 4000);
    kernel_parity::print(statuses);
    CHECK(statuses.count("OK") > 0);
    CHECK(statuses.size() > 5);
}

TEST(legacy_corpus) {
    owned_device own;
    CHECK(kernel_parity::compare_legacy_corpus(own.device, CKG1_CORPUS).size() > 3);
}

TEST(legacy_edges) {
    owned_device own;
    CHECK_EQ(kernel_parity::compare_legacy_edges(own.device, 200), uint64_t(200));
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
