#include "pinned_memory.h"

#include <mutex>
#include <vector>

namespace kernels {

namespace {

constexpr size_t   max_idle = 2; // what one encoder has
constexpr uint64_t step     = 1 << 20;

struct pinned_block {
    uint8_t * memory;
    uint64_t  n_bytes;
};

std::mutex                mutex;
std::vector<pinned_block> in_use;
std::vector<pinned_block> idle;

} // namespace

cudaError_t take_pinned(uint64_t n_bytes, uint8_t ** memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < idle.size(); i++) {
        if (idle[i].n_bytes >= n_bytes) {
            in_use.push_back(idle[i]);
            idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(i));
            *memory = in_use.back().memory;
            return cudaSuccess;
        }
    }
    pinned_block      block{ nullptr, (n_bytes + step - 1) / step * step };
    // portable: another device may be the next to use it
    const cudaError_t error = cudaHostAlloc(reinterpret_cast<void **>(&block.memory), block.n_bytes,
                                            cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaSuccess) {
        in_use.push_back(block);
        *memory = block.memory;
    }
    return error;
}

void give_pinned(uint8_t * memory) {
    if (memory == nullptr) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < in_use.size(); i++) {
        if (in_use[i].memory == memory) {
            idle.push_back(in_use[i]);
            in_use.erase(in_use.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
    }
    // the largest ones are kept
    while (idle.size() > max_idle) {
        size_t least = 0;
        for (size_t i = 1; i < idle.size(); i++) {
            least = idle[i].n_bytes < idle[least].n_bytes ? i : least;
        }
        cudaFreeHost(idle[least].memory);
        idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(least));
    }
}

void release_idle_pinned() {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto & block : idle) {
        cudaFreeHost(block.memory);
    }
    idle.clear();
}

} // namespace kernels
