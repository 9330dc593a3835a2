#include "metal_memory.h"

#include "metal_errors.h"
#include "status.h"

#include <algorithm>
#include <unistd.h>

namespace kernels {

using namespace cachegen;

namespace {

bool is_of_pages(const void * bytes, uint64_t n_bytes) {
    const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return n_bytes > 0 && reinterpret_cast<uint64_t>(bytes) % page_bytes == 0 && n_bytes % page_bytes == 0;
}

} // namespace

NS::SharedPtr<MTL::Buffer> metal_memory::make_private(uint64_t n_bytes, const char * what) const {
    return owned(device_->newBuffer(std::max<uint64_t>(n_bytes, 16), MTL::ResourceStorageModePrivate), what);
}

NS::SharedPtr<MTL::Buffer> metal_memory::make_shared(uint64_t n_bytes, const char * what) const {
    return owned(device_->newBuffer(std::max<uint64_t>(n_bytes, 16), MTL::ResourceStorageModeShared), what);
}

NS::SharedPtr<MTL::Buffer> metal_memory::make_shared(const void * bytes, uint64_t n_bytes, const char * what) const {
    if (is_of_pages(bytes, n_bytes)) {
        const auto wrapped =
            NS::TransferPtr(device_->newBuffer(bytes, n_bytes, MTL::ResourceStorageModeShared, nullptr));
        if (wrapped.get() != nullptr) {
            return wrapped;
        } // else of several mappings, say
    }
    return owned(device_->newBuffer(bytes, n_bytes, MTL::ResourceStorageModeShared), what);
}

uint64_t metal_memory::add(const NS::SharedPtr<MTL::Buffer> & buffer) {
    const uint64_t address = buffer->gpuAddress();
    if (address == 0) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "Metal: a buffer without an address; macOS 13 is needed");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_[address] = buffer;
    version_++;
    return address;
}

void metal_memory::remove(uint64_t address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_.erase(address);
}

void metal_memory::remove_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_.clear();
}

metal_place metal_memory::find(uint64_t address, uint64_t n_bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto                        after = buffers_.upper_bound(address);
    if (after != buffers_.begin()) {
        const auto &   found  = *std::prev(after);
        const uint64_t offset = address - found.first;
        const uint64_t length = found.second->length();
        if (offset <= length && n_bytes <= length - offset) {
            return { found.second, offset };
        }
    }
    fail(CACHEGEN_ERR_INTERNAL, "Metal: no buffer has the %llu bytes at address %llx",
         static_cast<unsigned long long>(n_bytes), static_cast<unsigned long long>(address));
}

uint64_t metal_memory::version() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return version_;
}

uint64_t metal_memory::use_all(MTL::ComputeCommandEncoder * encoder) const {
    const std::lock_guard<std::mutex>  lock(mutex_);
    std::vector<const MTL::Resource *> resources;
    resources.reserve(buffers_.size());
    for (const auto & one : buffers_) {
        resources.push_back(one.second.get());
    }
    encoder->useResources(resources.data(), resources.size(), MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
    return version_;
}

} // namespace kernels
