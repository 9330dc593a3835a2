#include "llama-cachegen-stamp.h"

#include "llama-kv-page.h"

#include <string>

#if !defined(LLAMA_CACHEGEN_PATCH_DIGEST) || !defined(LLAMA_CACHEGEN_LLAMA_COMMIT)
#    error "the build must define LLAMA_CACHEGEN_PATCH_DIGEST and LLAMA_CACHEGEN_LLAMA_COMMIT"
#endif

static_assert(sizeof(LLAMA_CACHEGEN_PATCH_DIGEST) == 64 + 1, "the patch digest is a SHA-256 in hexadecimal");
static_assert(sizeof(LLAMA_CACHEGEN_LLAMA_COMMIT) == 40 + 1, "the llama.cpp commit is a SHA-1 in hexadecimal");

const char * llama_cachegen_stamp_string() {
    static const std::string stamp = "abi " + std::to_string(LLAMA_KV_PAGE_ABI_VERSION) + ", patches " +
                                     std::string(LLAMA_CACHEGEN_PATCH_DIGEST).substr(0, 12) + ", llama.cpp " +
                                     std::string(LLAMA_CACHEGEN_LLAMA_COMMIT).substr(0, 12);
    return stamp.c_str();
}

extern "C" {

uint32_t llama_kv_page_abi_version(void) {
    return LLAMA_KV_PAGE_ABI_VERSION;
}

const char * llama_kv_page_patch_digest(void) {
    return LLAMA_CACHEGEN_PATCH_DIGEST;
}

const char * llama_kv_page_llama_commit(void) {
    return LLAMA_CACHEGEN_LLAMA_COMMIT;
}
}
