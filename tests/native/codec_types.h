// The codec's types, for tests that go through all of them.
#pragma once

#include "cachegen.h"

#include <cstdint>

constexpr cachegen_type types[] = { CACHEGEN_TYPE_F32, CACHEGEN_TYPE_F16, CACHEGEN_TYPE_BF16, CACHEGEN_TYPE_Q8_0,
                                    CACHEGEN_TYPE_Q4_0 };

inline const char * type_name(uint32_t type) {
    switch (type) {
        case CACHEGEN_TYPE_F32: return "F32";
        case CACHEGEN_TYPE_F16: return "F16";
        case CACHEGEN_TYPE_BF16: return "BF16";
        case CACHEGEN_TYPE_Q8_0: return "Q8_0";
        default: return "Q4_0";
    }
}

inline bool is_block_type(uint32_t type) {
    return type == CACHEGEN_TYPE_Q8_0 || type == CACHEGEN_TYPE_Q4_0;
}

inline uint64_t row_bytes(uint32_t type, uint64_t n_channels) {
    switch (type) {
        case CACHEGEN_TYPE_F32: return 4 * n_channels;
        case CACHEGEN_TYPE_Q8_0: return n_channels / 32 * 34;
        case CACHEGEN_TYPE_Q4_0: return n_channels / 32 * 18;
        default: return 2 * n_channels;
    }
}
