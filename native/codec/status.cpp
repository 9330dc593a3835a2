#include "status.h"

#include <cstdarg>
#include <cstdio>

namespace cachegen {

static thread_local char last_message[512];

void fail(cachegen_status status, const char * format, ...) {
    char    text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    throw error(status, text);
}

int32_t set_error(cachegen_status status, const char * message) noexcept {
    snprintf(last_message, sizeof(last_message), "%s", message);
    return status;
}

} // namespace cachegen

uint32_t cachegen_api_version(void) {
    return CACHEGEN_API_VERSION;
}

const char * cachegen_last_message(void) {
    return cachegen::last_message;
}

const char * cachegen_status_name(int32_t status) {
    switch (status) {
        case CACHEGEN_OK: return "OK";
        case CACHEGEN_ERR_ARGUMENT: return "ERR_ARGUMENT";
        case CACHEGEN_ERR_STRUCT_SIZE: return "ERR_STRUCT_SIZE";
        case CACHEGEN_ERR_BUFFER_SIZE: return "ERR_BUFFER_SIZE";
        case CACHEGEN_ERR_NON_FINITE: return "ERR_NON_FINITE";
        case CACHEGEN_ERR_ALPHABET: return "ERR_ALPHABET";
        case CACHEGEN_ERR_TRUNCATED: return "ERR_TRUNCATED";
        case CACHEGEN_ERR_TRAILING: return "ERR_TRAILING";
        case CACHEGEN_ERR_MAGIC: return "ERR_MAGIC";
        case CACHEGEN_ERR_VERSION: return "ERR_VERSION";
        case CACHEGEN_ERR_RESERVED: return "ERR_RESERVED";
        case CACHEGEN_ERR_GEOMETRY: return "ERR_GEOMETRY";
        case CACHEGEN_ERR_COVERAGE: return "ERR_COVERAGE";
        case CACHEGEN_ERR_TABLE: return "ERR_TABLE";
        case CACHEGEN_ERR_STREAM: return "ERR_STREAM";
        case CACHEGEN_ERR_DIGEST: return "ERR_DIGEST";
        case CACHEGEN_ERR_LIMIT: return "ERR_LIMIT";
        case CACHEGEN_ERR_UNSUPPORTED: return "ERR_UNSUPPORTED";
        case CACHEGEN_ERR_MISMATCH: return "ERR_MISMATCH";
        case CACHEGEN_ERR_CALLBACK: return "ERR_CALLBACK";
        case CACHEGEN_ERR_OUT_OF_MEMORY: return "ERR_OUT_OF_MEMORY";
        case CACHEGEN_ERR_INTERNAL: return "ERR_INTERNAL";
        default: return "UNKNOWN";
    }
}
