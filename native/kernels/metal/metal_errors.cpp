#include "metal_errors.h"

#include "status.h"

#include <string>

namespace kernels {

using namespace cachegen;

namespace {

std::string words_of(NS::Error * error) {
    NS::String * const description = error != nullptr ? error->localizedDescription() : nullptr;
    const char * const words       = description != nullptr ? description->utf8String() : nullptr;
    return words != nullptr ? words : "Metal does not say why";
}

} // namespace

void fail_with(const char * what, NS::Error * error) {
    fail(CACHEGEN_ERR_INTERNAL, "Metal: %s: %s", what, words_of(error).c_str());
}

void fail_with_commands(NS::Error * error) {
    // the domain is always MTLCommandBufferErrorDomain
    const bool is_memory = error != nullptr && error->code() == MTL::CommandBufferErrorOutOfMemory;
    fail(is_memory ? CACHEGEN_ERR_OUT_OF_MEMORY : CACHEGEN_ERR_INTERNAL, "Metal: running the codec's commands: %s",
         words_of(error).c_str());
}

void fail_without_memory(const char * what) {
    fail(CACHEGEN_ERR_OUT_OF_MEMORY, "Metal: no memory for %s", what);
}

} // namespace kernels
