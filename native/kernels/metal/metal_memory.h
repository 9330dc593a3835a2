// Buffers by the addresses that plans and kernels use: MTLBuffer.gpuAddress plus an offset.
#pragma once

#include "metal_cpp.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace kernels {

// where an address is
struct metal_place {
    NS::SharedPtr<MTL::Buffer> buffer;
    uint64_t                   offset;
};

// All functions on any thread; they throw cachegen::error.
class metal_memory {
  public:
    explicit metal_memory(MTL::Device * device) : device_(NS::RetainPtr(device)) {}
    metal_memory(const metal_memory &)             = delete;
    metal_memory & operator=(const metal_memory &) = delete;

    // A buffer that nothing else knows: zero bytes become 16, as there is no empty one.
    NS::SharedPtr<MTL::Buffer> make_private(uint64_t n_bytes, const char * what) const;
    NS::SharedPtr<MTL::Buffer> make_shared(uint64_t n_bytes, const char * what) const;
    // One that holds what is in memory now. Memory of whole pages is not copied if Metal can have it as it is: it has
    // to stay until the commands that use the buffer are done.
    NS::SharedPtr<MTL::Buffer> make_shared(const void * bytes, uint64_t n_bytes, const char * what) const;

    // from now on its addresses are known, and launches may use it; returns its first address
    uint64_t    add(const NS::SharedPtr<MTL::Buffer> & buffer);
    // 0 or unknown does nothing
    void        remove(uint64_t address);
    void        remove_all();
    // of all of [address, address + n_bytes)
    metal_place find(uint64_t address, uint64_t n_bytes) const;

    // Name all of them for the launches of an encoder: kernels find them by address, so that nothing else does. Returns
    // the version of what was named.
    uint64_t use_all(MTL::ComputeCommandEncoder * encoder) const;
    // changes with every add()
    uint64_t version() const;

  private:
    NS::SharedPtr<MTL::Device>                     device_;
    mutable std::mutex                             mutex_;
    std::map<uint64_t, NS::SharedPtr<MTL::Buffer>> buffers_; // by first address
    uint64_t                                       version_ = 1;
};

} // namespace kernels
