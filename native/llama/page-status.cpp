#include "page-status.h"

#include <cstdio>

namespace {

// a fixed buffer: reporting "out of memory" must not allocate
thread_local char g_message[1024] = "";

} // namespace

void page_fail(llama_kv_page_status status, const char * format, ...) {
    char    buffer[sizeof(g_message)];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    throw page_error(status, buffer);
}

int32_t page_set_error(llama_kv_page_status status, const char * message) noexcept {
    snprintf(g_message, sizeof(g_message), "%s", message);
    return status;
}

extern "C" {

const char * llama_kv_page_last_message(void) {
    return g_message;
}

const char * llama_kv_page_status_name(int32_t status) {
    switch (status) {
        case LLAMA_KV_PAGE_OK: return "OK";
        case LLAMA_KV_PAGE_ERR_ARGUMENT: return "ERR_ARGUMENT";
        case LLAMA_KV_PAGE_ERR_STRUCT_SIZE: return "ERR_STRUCT_SIZE";
        case LLAMA_KV_PAGE_ERR_BUFFER_SIZE: return "ERR_BUFFER_SIZE";
        case LLAMA_KV_PAGE_ERR_SEQ_ID: return "ERR_SEQ_ID";
        case LLAMA_KV_PAGE_ERR_MISSING: return "ERR_MISSING";
        case LLAMA_KV_PAGE_ERR_OCCUPIED: return "ERR_OCCUPIED";
        case LLAMA_KV_PAGE_ERR_GAP: return "ERR_GAP";
        case LLAMA_KV_PAGE_ERR_NO_CELLS: return "ERR_NO_CELLS";
        case LLAMA_KV_PAGE_ERR_BUSY: return "ERR_BUSY";
        case LLAMA_KV_PAGE_ERR_STALE: return "ERR_STALE";
        case LLAMA_KV_PAGE_ERR_INCOMPLETE: return "ERR_INCOMPLETE";
        case LLAMA_KV_PAGE_ERR_COMPONENTS: return "ERR_COMPONENTS";
        case LLAMA_KV_PAGE_ERR_TYPE: return "ERR_TYPE";
        case LLAMA_KV_PAGE_ERR_ROTATION: return "ERR_ROTATION";
        case LLAMA_KV_PAGE_ERR_LAYOUT: return "ERR_LAYOUT";
        case LLAMA_KV_PAGE_ERR_WIDTH: return "ERR_WIDTH";
        case LLAMA_KV_PAGE_ERR_CANCELLED: return "ERR_CANCELLED";
        case LLAMA_KV_PAGE_ERR_DIGEST: return "ERR_DIGEST";
        case LLAMA_KV_PAGE_ERR_ARCHIVE: return "ERR_ARCHIVE";
        case LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT: return "ERR_ARCHIVE_FORMAT";
        case LLAMA_KV_PAGE_ERR_NON_FINITE: return "ERR_NON_FINITE";
        case LLAMA_KV_PAGE_ERR_WINDOW: return "ERR_WINDOW";
        case LLAMA_KV_PAGE_REFUSED_NO_MEMORY: return "REFUSED_NO_MEMORY";
        case LLAMA_KV_PAGE_REFUSED_ENCODER: return "REFUSED_ENCODER";
        case LLAMA_KV_PAGE_REFUSED_ISWA: return "REFUSED_ISWA";
        case LLAMA_KV_PAGE_REFUSED_RECURRENT: return "REFUSED_RECURRENT";
        case LLAMA_KV_PAGE_REFUSED_HYBRID: return "REFUSED_HYBRID";
        case LLAMA_KV_PAGE_REFUSED_HYBRID_ISWA: return "REFUSED_HYBRID_ISWA";
        case LLAMA_KV_PAGE_REFUSED_HYBRID_IDX: return "REFUSED_HYBRID_IDX";
        case LLAMA_KV_PAGE_REFUSED_DSA: return "REFUSED_DSA";
        case LLAMA_KV_PAGE_REFUSED_DSA_ISWA: return "REFUSED_DSA_ISWA";
        case LLAMA_KV_PAGE_REFUSED_MSA: return "REFUSED_MSA";
        case LLAMA_KV_PAGE_REFUSED_DSV4: return "REFUSED_DSV4";
        case LLAMA_KV_PAGE_REFUSED_UNKNOWN: return "REFUSED_UNKNOWN";
        case LLAMA_KV_PAGE_REFUSED_SHARED: return "REFUSED_SHARED";
        case LLAMA_KV_PAGE_REFUSED_WINDOW: return "REFUSED_WINDOW";
        case LLAMA_KV_PAGE_REFUSED_CELL_EXT: return "REFUSED_CELL_EXT";
        case LLAMA_KV_PAGE_REFUSED_BACKEND: return "REFUSED_BACKEND";
        case LLAMA_KV_PAGE_REFUSED_CODEC: return "REFUSED_CODEC";
        case LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY: return "ERR_OUT_OF_MEMORY";
        case LLAMA_KV_PAGE_ERR_INTERNAL: return "ERR_INTERNAL";
        case LLAMA_KV_PAGE_ERR_WRITE: return "ERR_WRITE";
        default: return "UNKNOWN_STATUS";
    }
}
}
