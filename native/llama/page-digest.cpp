#include "page-digest.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

struct page_digest::state {
    XXH3_state_t xxh3;
};

page_digest::page_digest() : impl(new state) {
    XXH3_64bits_reset(&impl->xxh3);
}

page_digest::~page_digest() = default;

void page_digest::update(const void * data, size_t n_bytes) {
    XXH3_64bits_update(&impl->xxh3, data, n_bytes);
}

uint64_t page_digest::value() const {
    return XXH3_64bits_digest(&impl->xxh3);
}
