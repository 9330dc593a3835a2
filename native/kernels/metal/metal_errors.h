// What Metal says when something fails, as the codec's errors.
#pragma once

#include "metal_cpp.h"

namespace kernels {

// Throws cachegen::error: ERR_INTERNAL with Metal's own words; error may be NULL, as Metal does not always say why.
[[noreturn]] void fail_with(const char * what, NS::Error * error);

// the error of a command buffer that is done, ERR_OUT_OF_MEMORY if it is that
[[noreturn]] void fail_with_commands(NS::Error * error);

// Takes over what a new...() or alloc() function returned. NULL throws ERR_OUT_OF_MEMORY: `what` could not be had.
template <typename T> NS::SharedPtr<T> owned(T * object, const char * what);

// keeps what Metal autoreleases; NULL throws as above
template <typename T> NS::SharedPtr<T> kept(T * object, const char * what);

[[noreturn]] void fail_without_memory(const char * what);

template <typename T> NS::SharedPtr<T> owned(T * object, const char * what) {
    if (object == nullptr) {
        fail_without_memory(what);
    }
    return NS::TransferPtr(object);
}

template <typename T> NS::SharedPtr<T> kept(T * object, const char * what) {
    if (object == nullptr) {
        fail_without_memory(what);
    }
    return NS::RetainPtr(object);
}

} // namespace kernels
