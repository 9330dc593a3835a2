#include "caller_bytes.h"

#include "cachegen.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace cachegen {

void * copy_for_caller(const std::vector<uint8_t> & bytes) {
    void * copy = malloc(bytes.empty() ? 1 : bytes.size());
    if (copy == nullptr) {
        throw std::bad_alloc();
    }
    if (!bytes.empty()) {
        memcpy(copy, bytes.data(), bytes.size());
    }
    return copy;
}

} // namespace cachegen

void cachegen_free(void * bytes) {
    free(bytes);
}
