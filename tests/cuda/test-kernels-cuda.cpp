// The CUDA decoder beside libcachegen on a real device: see test-kernels.cpp, which runs the same source without one.
#include "cuda/cuda_device.h"
#include "harness.h"
#include "kernel_parity.h"

namespace {

struct stream {
    cudaStream_t handle = nullptr;
    stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    ~stream() { cudaStreamDestroy(handle); }
};

} // namespace

TEST(pages) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::print(kernel_parity::compare_pages(device, 20, false));
}

TEST(large_pages) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    kernel_parity::compare_pages(device, 1, true);
}

TEST(damaged) {
    const stream         own;
    kernels::cuda_device device(0, own.handle);
    const uint64_t       n_refused = kernel_parity::compare_damaged(device, 2000);
    printf("damaged: 2000 archives, %llu refused\n", static_cast<unsigned long long>(n_refused));
    CHECK(n_refused > 250);
}

int main(int argc, char ** argv) {
    const int result = harness::run(argc, argv);
    kernels::release_staging_rings();
    return result;
}
