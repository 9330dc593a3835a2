#include "lcg3_archive.h"

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include "xxhash.h"

uint64_t cachegen::lcg3::digest_of(const void * bytes, uint64_t n_bytes) {
    return XXH3_64bits(bytes, n_bytes);
}
