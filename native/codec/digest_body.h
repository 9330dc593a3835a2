// The functions of digest.h, for the instruction set of the file that includes this.
#pragma once

#include "digest.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace cachegen::lcg3 {

namespace {

uint64_t digest_here(const void * bytes, uint64_t n_bytes) {
    return XXH3_64bits(bytes, n_bytes);
}

void update_here(void * state, const void * bytes, uint64_t n_bytes) {
    XXH3_64bits_update(static_cast<XXH3_state_t *>(state), bytes, n_bytes);
}

} // namespace

} // namespace cachegen::lcg3
