// What the fuzz targets share. A target defines LLVMFuzzerTestOneInput; libFuzzer or regression-driver.cpp calls it.
#pragma once

#include "../native/codec_types.h"
#include "cachegen.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n    last message: %s\n", __FILE__, __LINE__, #condition,               \
                    cachegen_last_message());                                                                          \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

namespace fuzz {

// the instruction sets of this processor, found once
inline const std::vector<uint32_t> & isas() {
    static const std::vector<uint32_t> found = [] {
        std::vector<uint32_t> all;
        for (uint32_t isa = CACHEGEN_ISA_SCALAR; isa <= CACHEGEN_ISA_NEON; isa++) {
            if (cachegen_isa_select(isa) == CACHEGEN_OK) {
                all.push_back(isa);
            }
        }
        return all;
    }();
    return found;
}

inline void use_isa(uint32_t isa) {
    FUZZ_CHECK(cachegen_isa_select(isa) == CACHEGEN_OK);
}

// a status of the interface that hostile bytes may cause
inline int32_t check_status(int32_t status) {
    FUZZ_CHECK(strcmp(cachegen_status_name(status), "UNKNOWN") != 0);
    FUZZ_CHECK(status != CACHEGEN_ERR_INTERNAL);
    FUZZ_CHECK(status != CACHEGEN_ERR_OUT_OF_MEMORY);
    FUZZ_CHECK(status == CACHEGEN_OK || cachegen_last_message()[0] != 0);
    return status;
}

// numbers out of the input, zeros after its end
class input {
  public:
    input(const uint8_t * data, size_t size) : data_(data), size_(size) {}

    uint8_t byte() {
        if (size_ == 0) {
            return 0;
        }
        size_--;
        return *data_++;
    }

    uint32_t below(uint32_t n) { return byte() % n; }

    uint32_t number() {
        const uint32_t low = byte();
        return low | static_cast<uint32_t>(byte()) << 8;
    }

    const uint8_t * rest() const { return data_; }
    size_t          size() const { return size_; }

  private:
    const uint8_t * data_;
    size_t          size_;
};

template <typename T> T get(const uint8_t * at) {
    T value;
    memcpy(&value, at, sizeof(value));
    return value;
}

template <typename T> void put(uint8_t * at, T value) {
    memcpy(at, &value, sizeof(value));
}

// exactly as many bytes as asked for, so that a sanitizer sees the first one beside them
struct buffer {
    explicit buffer(size_t n) : data(new uint8_t[n]), n_bytes(n) { memset(data.get(), 0xAA, n); }
    buffer(const uint8_t * bytes, size_t n) : data(new uint8_t[n]), n_bytes(n) {
        if (n > 0) {
            memcpy(data.get(), bytes, n);
        }
    }

    bool operator==(const buffer & other) const {
        return n_bytes == other.n_bytes && memcmp(data.get(), other.data.get(), n_bytes) == 0;
    }

    std::unique_ptr<uint8_t[]> data;
    size_t                     n_bytes;
};

// rows without gaps in a buffer of their own
struct typed_rows {
    typed_rows(uint32_t type, bool is_transposed, uint64_t n_tokens, uint64_t n_channels)
        : bytes(n_tokens * row_bytes(type, n_channels)) {
        rows.type          = type;
        rows.is_transposed = is_transposed;
        rows.n_tokens      = n_tokens;
        rows.n_rows        = n_tokens;
        rows.n_channels    = n_channels;
        rows.stride_bytes  = is_transposed ? n_tokens * row_bytes(type, 1) : row_bytes(type, n_channels);
        rows.n_bytes       = bytes.n_bytes;
        rows.data          = bytes.data.get();
    }

    buffer        bytes;
    cachegen_rows rows{};
};

} // namespace fuzz
