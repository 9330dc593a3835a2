// The CUDA decoder and encoder beside libcachegen on a real device: see test-kernels.cpp, which runs the same source
// without one.
//   test-kernels-cuda [--few] [TEST ...]
// --few: a tenth of the pages, for tools that make them slow
#include "cuda/cuda_device.h"
#include "encoder_parity.h"
#include "harness.h"
#include "kernel_parity.h"
#include "legacy_parity.h"

namespace {

uint32_t divisor = 1; // 10 with --few

uint32_t many(uint32_t n) {
    return n / divisor;
}

// of what so many pages give; few of them vary more
uint32_t least(uint32_t n) {
    return divisor == 1 ? n : n / divisor / 2;
}

struct stream {
    cudaStream_t handle = nullptr;
    stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    ~stream() { cudaStreamDestroy(handle); }
};

} // namespace

TEST(pages) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::print(kernel_parity::compare_pages(device, many(20), false));
}

TEST(rotated_blocks) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::compare_rotated_blocks(device);
}

TEST(large_pages) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::compare_pages(device, 1, true);
}

TEST(damaged) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const uint64_t       n_refused = kernel_parity::compare_damaged(device, many(2000));
    printf("damaged: %u archives, %llu refused\n", many(2000), static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > least(250));
}

TEST(encoded_pages) {
    const stream                own;
    kernels::cuda_device        device(0, own.handle);
    encoder_parity::unit_counts counts;
    kernel_parity::print(encoder_parity::compare_archives(device, many(60), false, counts));
    printf("%llu units made, %llu of them in waves of several blocks, %llu without room\n",
           static_cast<unsigned long long>(counts.n_made), static_cast<unsigned long long>(counts.n_in_wide_waves),
           static_cast<unsigned long long>(counts.n_without_room));
    CHECK(counts.n_made > least(1000));
    CHECK(counts.n_in_wide_waves > least(200));
    CHECK(counts.n_counted > least(250));
    CHECK(counts.n_without_room < counts.n_made / 8);
}

TEST(encoded_large_pages) {
    const stream                own;
    kernels::cuda_device        device(0, own.handle);
    encoder_parity::unit_counts counts;
    encoder_parity::compare_archives(device, 2, true, counts);
    printf("%llu units made, %llu of them in waves of several blocks, %llu without room\n",
           static_cast<unsigned long long>(counts.n_made), static_cast<unsigned long long>(counts.n_in_wide_waves),
           static_cast<unsigned long long>(counts.n_without_room));
    CHECK(counts.n_made > 100);
    CHECK(counts.n_in_wide_waves > 50);
}

TEST(counted_samples) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    CHECK(encoder_parity::compare_counts(device, many(200)) > least(150));
}

TEST(encoding_refused) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const uint64_t       n_refused = encoder_parity::compare_refused(device, many(300));
    printf("refused: %u pages, %llu refused\n", many(300), static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > least(100));
}

TEST(encoding_without_room) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const auto           counts = encoder_parity::compare_without_room(device);
    CHECK(counts.n_made > 0);
    CHECK(counts.n_without_room > 0);
}

TEST(legacy_parts) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const auto           covered = kernel_parity::compare_legacy_parts(device, 20, false);
    kernel_parity::print(covered);
    CHECK_EQ(covered.size(), size_t(16));
}

TEST(legacy_large_parts) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::compare_legacy_parts(device, 2, true);
}

TEST(legacy_pages) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    CHECK_EQ(kernel_parity::compare_legacy_pages(device, 60), uint64_t(60));
}

TEST(legacy_damaged) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const auto           statuses = kernel_parity::compare_damaged_legacy(device, 3000);
    kernel_parity::print(statuses);
    CHECK(statuses.count("ERR_STREAM") > 0);
    CHECK(statuses.count("ERR_TABLE") > 0);
    CHECK(statuses.count("OK") > 0);
}

TEST(legacy_truncated) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    CHECK(kernel_parity::compare_truncated_legacy(device) > 500);
}

TEST(legacy_corpus) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const auto           statuses = kernel_parity::compare_legacy_corpus(device, CKG1_CORPUS);
    kernel_parity::print(statuses);
    CHECK(statuses.count("OK") > 0 && statuses.at("OK") > 20);
}

TEST(legacy_edges) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    CHECK_EQ(kernel_parity::compare_legacy_edges(device, 100), uint64_t(100));
}

TEST(legacy_destinations) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::check_legacy_destinations(device);
}

int main(int argc, char ** argv) {
    if (argc > 1 && std::string(argv[1]) == "--few") {
        divisor = 10;
        argc--;
        argv++;
    }
    const int result = harness::run(argc, argv);
    kernels::release_staging_rings();
    return result;
}
