// Small random models of every architecture that llama.cpp can run. They come from llama.cpp's own test of all
// architectures, which uses its internal headers. For one source file of an executable.
#pragma once

#include "page_fixture.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wunused-function"
#endif
#define main test_llama_archs_main
#include "test-llama-archs.cpp"
#undef main
#if defined(__GNUC__)
#    pragma GCC diagnostic pop
#endif

#include <string>
#include <vector>

namespace {

struct model_case {
    llm_arch arch;
    bool     moe;

    std::string name() const { return std::string(llm_arch_name(arch)) + (moe ? " (MoE)" : ""); }
};

std::vector<model_case> all_cases() {
    std::vector<model_case> res;
    for (const llm_arch arch : llm_arch_all()) {
        // those that llama.cpp's test leaves out too
        if (!arch_supported(arch) || arch == LLM_ARCH_EAGLE3 || arch == LLM_ARCH_DFLASH) {
            continue;
        }
        for (const bool moe : { false, true }) {
            if (moe ? moe_implemented(arch) : !moe_mandatory(arch)) {
                res.push_back({ arch, moe });
            }
        }
    }
    return res;
}

llama_model_ptr make_case(const model_case & c) {
    const gguf_context_ptr gguf = get_gguf_ctx(c.arch, c.moe);
    return make_model(gguf.get());
}

} // namespace
