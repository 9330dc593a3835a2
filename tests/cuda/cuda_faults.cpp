#include "cuda_faults.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <thread>

namespace {

std::atomic<uint32_t> n_counted{ 0 };
std::atomic<uint32_t> armed_at{ UINT32_MAX };
std::atomic<uint32_t> most_delay_us{ 0 };
std::atomic<uint32_t> random_state{ 1 };

bool fails_now() {
    return n_counted.fetch_add(1) == armed_at.load();
}

template <typename Function> Function real(const char * name) {
    void * found = dlsym(RTLD_NEXT, name);
    if (found == nullptr) {
        fprintf(stderr, "%s is not the CUDA runtime's shared library's: %s\n", name, dlerror());
        abort();
    }
    return reinterpret_cast<Function>(found);
}

void CUDART_CB wait_a_while(void * microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(microseconds)));
}

// the stream's own wait, so that what others put on their streams gets ahead
void delay_stream(cudaStream_t stream) {
    const uint32_t most = most_delay_us;
    if (most == 0) {
        return;
    }
    const uint32_t random = random_state.fetch_add(0x9E3779B9) * 2654435761u >> 8;
    if (random % 4 == 0) {
        cudaLaunchHostFunc(stream, wait_a_while, reinterpret_cast<void *>(uintptr_t{ random / 4 % most }));
    }
}

} // namespace

uint32_t cuda_faults::n_calls() {
    return n_counted.exchange(0);
}

void cuda_faults::arm(uint32_t at) {
    n_counted = 0;
    armed_at  = at;
}

void cuda_faults::delay(uint32_t most_us) {
    most_delay_us = most_us;
}

// Calls that the backend's codec makes and that can fail. Waiting for a stream is not among them: ggml does it too, and
// ends the process if it fails.
#define REPLACED(name, error, parameters, arguments, before)                                                           \
    extern "C" cudaError_t CUDARTAPI name parameters {                                                                 \
        static const auto function = real<cudaError_t(CUDARTAPI *) parameters>(#name);                                 \
        before;                                                                                                        \
        return fails_now() ? (error) : function arguments;                                                             \
    }

REPLACED(cudaMalloc, cudaErrorMemoryAllocation, (void ** pointer, size_t n_bytes), (pointer, n_bytes), )
REPLACED(cudaHostAlloc, cudaErrorMemoryAllocation, (void ** pointer, size_t n_bytes, unsigned int flags),
         (pointer, n_bytes, flags), )
REPLACED(cudaMemcpyAsync, cudaErrorUnknown,
         (void * to, const void * from, size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream),
         (to, from, n_bytes, kind, stream), delay_stream(stream))
REPLACED(cudaMemcpy2DAsync, cudaErrorUnknown,
         (void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width, size_t height,
          cudaMemcpyKind kind, cudaStream_t stream),
         (to, to_pitch, from, from_pitch, width, height, kind, stream), delay_stream(stream))
REPLACED(cudaMemsetAsync, cudaErrorUnknown, (void * to, int value, size_t n_bytes, cudaStream_t stream),
         (to, value, n_bytes, stream), delay_stream(stream))
REPLACED(cudaLaunchKernel, cudaErrorLaunchOutOfResources,
         (const void * kernel, dim3 grid, dim3 block, void ** arguments, size_t shared_bytes, cudaStream_t stream),
         (kernel, grid, block, arguments, shared_bytes, stream), delay_stream(stream))
REPLACED(cudaFuncSetAttribute, cudaErrorInvalidValue, (const void * kernel, cudaFuncAttribute attribute, int value),
         (kernel, attribute, value), )
REPLACED(cudaDeviceGetAttribute, cudaErrorInvalidValue, (int * value, cudaDeviceAttr attribute, int device),
         (value, attribute, device), )
REPLACED(cudaStreamCreateWithFlags, cudaErrorMemoryAllocation, (cudaStream_t * stream, unsigned int flags),
         (stream, flags), )
REPLACED(cudaStreamWaitEvent, cudaErrorUnknown, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
         (stream, event, flags), )
REPLACED(cudaEventCreateWithFlags, cudaErrorMemoryAllocation, (cudaEvent_t * event, unsigned int flags),
         (event, flags), )
REPLACED(cudaEventRecord, cudaErrorUnknown, (cudaEvent_t event, cudaStream_t stream), (event, stream), )
REPLACED(cudaEventSynchronize, cudaErrorUnknown, (cudaEvent_t event), (event), )
