// Little-endian integers at any alignment, and arithmetic on untrusted numbers that cannot overflow.
#pragma once

#include "status.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "libcachegen reads and writes archives on little-endian machines only"
#endif

namespace cachegen {

template <typename T> T get_le(const void * bytes) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    memcpy(&value, bytes, sizeof(T));
    return value;
}

template <typename T> void put_le(void * bytes, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    memcpy(bytes, &value, sizeof(T));
}

// a * b, or ERR_LIMIT with `what` in the message
inline uint64_t mul_or_fail(uint64_t a, uint64_t b, const char * what) {
    if (b != 0 && a > UINT64_MAX / b) {
        fail(CACHEGEN_ERR_LIMIT, "%s: %llu x %llu does not fit in 64 bits", what, (unsigned long long) a,
             (unsigned long long) b);
    }
    return a * b;
}

// a + b, or ERR_LIMIT with `what` in the message
inline uint64_t add_or_fail(uint64_t a, uint64_t b, const char * what) {
    if (a > UINT64_MAX - b) {
        fail(CACHEGEN_ERR_LIMIT, "%s: %llu + %llu does not fit in 64 bits", what, (unsigned long long) a,
             (unsigned long long) b);
    }
    return a + b;
}

// A view of input bytes that is only ever read after a check.
class reader {
  public:
    reader(const void * bytes, uint64_t n_bytes) : begin_(static_cast<const uint8_t *>(bytes)), n_bytes_(n_bytes) {}

    uint64_t offset() const { return offset_; }
    uint64_t remaining() const { return n_bytes_ - offset_; }

    // the next n bytes, or ERR_TRUNCATED
    const uint8_t * take(uint64_t n, const char * what) {
        if (n > remaining()) {
            fail(CACHEGEN_ERR_TRUNCATED, "%s needs %llu bytes at offset %llu, %llu are left", what,
                 (unsigned long long) n, (unsigned long long) offset_, (unsigned long long) remaining());
        }
        const uint8_t * bytes = begin_ + offset_;
        offset_ += n;
        return bytes;
    }

    template <typename T> T get(const char * what) { return get_le<T>(take(sizeof(T), what)); }

    void end(const char * what) const {
        if (remaining() != 0) {
            fail(CACHEGEN_ERR_TRAILING, "%s ends at offset %llu, but %llu bytes follow", what,
                 (unsigned long long) offset_, (unsigned long long) remaining());
        }
    }

  private:
    const uint8_t * begin_;
    uint64_t        n_bytes_;
    uint64_t        offset_ = 0;
};

} // namespace cachegen
