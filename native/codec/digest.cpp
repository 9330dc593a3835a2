#include "digest_body.h"
#include "isa.h"
#include "lcg3_archive.h"

#include <new>

namespace cachegen::lcg3 {

namespace {

constexpr digest_functions digest_baseline = { digest_here, update_here };

const digest_functions & active_digest() {
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: return digest_avx2;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: return digest_avx512;
#endif
        default: return digest_baseline;
    }
}

} // namespace

uint64_t digest_of(const void * bytes, uint64_t n_bytes) {
    return active_digest().digest(bytes, n_bytes);
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
        active_digest().update(state_, bytes, n_bytes);
    }
}

uint64_t stream_digest::value() const {
    return XXH3_64bits_digest(static_cast<const XXH3_state_t *>(state_));
}

} // namespace cachegen::lcg3
