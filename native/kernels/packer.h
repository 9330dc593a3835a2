// Several arrays one after another, each at a multiple of 16: for one upload, or one allocation.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace kernels {

class packer {
  public:
    template <typename T> uint64_t add(const T * items, uint64_t n) {
        const uint64_t at = (bytes_.size() + 15) / 16 * 16;
        bytes_.resize(at + n * sizeof(T));
        if (n > 0) {
            memcpy(&bytes_[at], items, n * sizeof(T));
        }
        return at;
    }

    template <typename T> uint64_t add(const std::vector<T> & items) { return add(items.data(), items.size()); }

    const std::vector<uint8_t> & bytes() const { return bytes_; }

  private:
    std::vector<uint8_t> bytes_;
};

// the same without bytes
class space {
  public:
    uint64_t add(uint64_t n_bytes) {
        const uint64_t at = n_bytes_;
        n_bytes_ += (n_bytes + 15) / 16 * 16;
        return at;
    }

    uint64_t n_bytes() const { return n_bytes_; }

  private:
    uint64_t n_bytes_ = 0;
};

} // namespace kernels
