// XXH3 as it is compiled for one instruction set: all give the same numbers.
#pragma once

#include <cstdint>

namespace cachegen::lcg3 {

struct digest_functions {
    uint64_t (*digest)(const void * bytes, uint64_t n_bytes);
    // state: an XXH3_state_t
    void (*update)(void * state, const void * bytes, uint64_t n_bytes);
};

extern const digest_functions digest_avx2;
extern const digest_functions digest_avx512;

} // namespace cachegen::lcg3
