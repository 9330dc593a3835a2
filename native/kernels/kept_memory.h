// Memory of a device that one use after another has, and that grows when one needs more.
#pragma once

#include "device.h"
#include "status.h"

namespace kernels {

class kept_memory {
  public:
    explicit kept_memory(device & device) : device_(device) {}
    ~kept_memory() { release(); }
    kept_memory(const kept_memory &)             = delete;
    kept_memory & operator=(const kept_memory &) = delete;

    uint64_t n_bytes() const { return n_bytes_; }

    // its address; what was there may be gone
    uint64_t at_least(uint64_t n_bytes) {
        if (n_bytes > n_bytes_) {
            release();
            address_ = device_.allocate(n_bytes);
            n_bytes_ = n_bytes;
        }
        return address_;
    }

    void release() {
        if (n_bytes_ == 0) {
            return;
        }
        try {
            device_.wait();
        } catch (const cachegen::error &) {
            // the memory goes all the same
        }
        device_.release(address_);
        n_bytes_ = 0;
    }

  private:
    device & device_;
    uint64_t address_ = 0;
    uint64_t n_bytes_ = 0;
};

} // namespace kernels
