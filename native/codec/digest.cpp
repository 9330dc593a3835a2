#include "lcg3_archive.h"

#include <new>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace cachegen::lcg3 {

uint64_t digest_of(const void * bytes, uint64_t n_bytes) {
    return XXH3_64bits(bytes, n_bytes);
}

stream_digest::stream_digest() : state_(XXH3_createState()) {
    if (state_ == nullptr) {
        throw std::bad_alloc();
    }
    XXH3_64bits_reset(static_cast<XXH3_state_t *>(state_));
}

stream_digest::~stream_digest() {
    XXH3_freeState(static_cast<XXH3_state_t *>(state_));
}

void stream_digest::update(const void * bytes, uint64_t n_bytes) {
    if (n_bytes > 0) {
        XXH3_64bits_update(static_cast<XXH3_state_t *>(state_), bytes, n_bytes);
    }
}

uint64_t stream_digest::value() const {
    return XXH3_64bits_digest(static_cast<const XXH3_state_t *>(state_));
}

} // namespace cachegen::lcg3
