// Every architecture that llama.cpp can run: either its pages go through bit by bit, or every entry point refuses it
// with the status of its memory class. This is the one white-box test: models come from llama.cpp's own test of all
// architectures, which uses its internal headers.
#include "every_architecture.h"
#include "page_fixture.h"

#include <functional>
#include <map>

namespace {

constexpr int32_t n_page = 24;

llama_context_ptr make_case_context(llama_model * model, bool flash_attn) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = n_cells;
    params.n_batch              = 64;
    params.n_ubatch             = 64;
    params.n_seq_max            = 2;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.kv_unified           = true;
    params.flash_attn_type      = flash_attn ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_context_ptr(llama_init_from_model(model, params));
}

llama_kv_page_caps caps_of(llama_context * ctx) {
    llama_kv_page_caps caps = {};
    caps.struct_size        = sizeof(caps);
    CHECK_EQ(llama_kv_page_get_caps(ctx, &caps), LLAMA_KV_PAGE_OK);
    return caps;
}

bool is_refusal(int32_t status) {
    return strncmp(llama_kv_page_status_name(status), "REFUSED_", 8) == 0;
}

void check_refused_everywhere(llama_context * ctx, int32_t status) {
    llama_kv_page_component component = {};
    component.layer                   = 0;
    component.kind                    = LLAMA_KV_PAGE_KIND_K;
    component.type                    = GGML_TYPE_F16;
    component.n_tokens                = 1;

    auto                        info          = new_info();
    uint64_t                    payload_bytes = 0;
    std::vector<uint8_t>        payload(64);
    llama_kv_page_reservation * handle = nullptr;

    const std::vector<std::function<int32_t()>> entry_points = {
        [&] { return llama_kv_page_describe(ctx, 0, 0, 1, &info, nullptr, 0); },
        [&] { return llama_kv_page_describe(ctx, 0, 0, 1, &info, &component, 1); },
        [&] { return llama_kv_page_size(ctx, 0, 0, 1, &payload_bytes); },
        [&] {
            return llama_kv_page_export(ctx, 0, 0, 1, payload.data(), payload.size(), nullptr, 0, nullptr, nullptr);
        },
        [&] {
            return llama_kv_page_import(ctx, 1, 0, &component, 1, payload.data(), payload.size(), nullptr, nullptr);
        },
        [&] { return llama_kv_page_reserve(ctx, 1, 0, &component, 1, &handle); },
    };
    std::string message;
    for (const auto & entry_point : entry_points) {
        const std::string got = CHECK_STATUS(status, entry_point());
        CHECK(message.empty() || got == message);
        message = got;
    }
    CHECK(handle == nullptr);
}

void check_round_trip(llama_model * model, const llama_context_ptr & src, bool flash_attn) {
    const llama_context_ptr dst = make_case_context(model, flash_attn);
    decode(src.get(), 0, 0, random_tokens(n_page, 1));
    const page page = export_page(src.get(), 0, 0, n_page);
    CHECK_EQ(page.components.size(), caps_of(src.get()).n_components);
    CHECK_EQ(import_page(dst.get(), 1, page), LLAMA_KV_PAGE_OK);
    CHECK_EQ(pos_max(dst.get(), 1), n_page - 1);
    check_same_page(page, export_page(dst.get(), 1, 0, n_page));
    CHECK_SAME_BITS(greedy(src.get(), 0, n_page, 7, 2), greedy(dst.get(), 1, n_page, 7, 2));
}

// llama.cpp's own state of a sequence, which drains every memory class
void check_state_round_trip(llama_model * model, const llama_context_ptr & src) {
    const llama_context_ptr dst = make_case_context(model, true);
    decode(src.get(), 0, 0, random_tokens(n_page, 1));
    std::vector<uint8_t> state(llama_state_seq_get_size(src.get(), 0));
    CHECK_EQ(llama_state_seq_get_data(src.get(), state.data(), state.size(), 0), state.size());
    CHECK_EQ(llama_state_seq_set_data(dst.get(), state.data(), state.size(), 1), state.size());
    CHECK_EQ(pos_max(dst.get(), 1), n_page - 1);
}

// what the pinned llama.cpp gives these architectures; any other is checked against itself only
const std::map<llm_arch, int32_t> & expected_statuses() {
    static const std::map<llm_arch, int32_t> res = {
        { LLM_ARCH_LLAMA, LLAMA_KV_PAGE_OK },
        { LLM_ARCH_QWEN3, LLAMA_KV_PAGE_OK },
        { LLM_ARCH_DEEPSEEK2, LLAMA_KV_PAGE_OK },
        { LLM_ARCH_DREAM, LLAMA_KV_PAGE_REFUSED_NO_MEMORY },
        { LLM_ARCH_LLADA, LLAMA_KV_PAGE_REFUSED_NO_MEMORY },
        { LLM_ARCH_T5, LLAMA_KV_PAGE_REFUSED_ENCODER },
        { LLM_ARCH_GEMMA3, LLAMA_KV_PAGE_REFUSED_ISWA },
        { LLM_ARCH_OPENAI_MOE, LLAMA_KV_PAGE_REFUSED_ISWA },
        { LLM_ARCH_MAMBA, LLAMA_KV_PAGE_REFUSED_RECURRENT },
        { LLM_ARCH_MAMBA2, LLAMA_KV_PAGE_REFUSED_RECURRENT },
        { LLM_ARCH_QWEN35, LLAMA_KV_PAGE_REFUSED_HYBRID },
        { LLM_ARCH_FALCON_H1, LLAMA_KV_PAGE_REFUSED_HYBRID },
        { LLM_ARCH_JAMBA, LLAMA_KV_PAGE_REFUSED_HYBRID },
        { LLM_ARCH_LFM2, LLAMA_KV_PAGE_REFUSED_HYBRID_ISWA },
        { LLM_ARCH_QWEN4EXP, LLAMA_KV_PAGE_REFUSED_HYBRID_IDX },
        { LLM_ARCH_GLM5_NEXT, LLAMA_KV_PAGE_REFUSED_HYBRID_IDX },
        { LLM_ARCH_DEEPSEEK32, LLAMA_KV_PAGE_REFUSED_DSA },
        { LLM_ARCH_GLM_DSA, LLAMA_KV_PAGE_REFUSED_DSA },
        { LLM_ARCH_DOTS3NOTE, LLAMA_KV_PAGE_REFUSED_DSA_ISWA },
        { LLM_ARCH_MINIMAX_M3, LLAMA_KV_PAGE_REFUSED_MSA },
        { LLM_ARCH_DEEPSEEK4, LLAMA_KV_PAGE_REFUSED_DSV4 },
        { LLM_ARCH_QWEN2VL, LLAMA_KV_PAGE_REFUSED_CELL_EXT },
        { LLM_ARCH_QWEN3VL, LLAMA_KV_PAGE_REFUSED_CELL_EXT },
    };
    return res;
}

} // namespace

TEST(every_architecture) {
    std::map<std::string, std::vector<std::string>> by_status;
    uint32_t                                        n_ok      = 0;
    uint32_t                                        n_refused = 0;
    uint32_t                                        n_failed  = 0;
    for (const auto & c : all_cases()) {
        SCOPE(c.name());
        try {
            const llama_model_ptr   model = make_case(c);
            const llama_context_ptr ctx   = make_case_context(model.get(), true);
            CHECK(ctx != nullptr);
            const int32_t status = caps_of(ctx.get()).status;

            const auto expected = expected_statuses().find(c.arch);
            if (expected != expected_statuses().end()) {
                CHECK_STATUS(expected->second, status);
            }
            if (status == LLAMA_KV_PAGE_OK) {
                check_round_trip(model.get(), ctx, true);
                check_round_trip(model.get(), make_case_context(model.get(), false), false);
                n_ok++;
            } else {
                CHECK(is_refusal(status));
                check_refused_everywhere(ctx.get(), status);
                if (status != LLAMA_KV_PAGE_REFUSED_NO_MEMORY && status != LLAMA_KV_PAGE_REFUSED_ENCODER) {
                    check_state_round_trip(model.get(), ctx);
                }
                n_refused++;
            }
            by_status[llama_kv_page_status_name(status)].push_back(c.name());
        } catch (const harness::failure &) {
            n_failed++;
        } catch (const std::exception & err) {
            printf("%s: %s\n", c.name().c_str(), err.what());
            n_failed++;
        }
    }
    for (const auto & [status, names] : by_status) {
        printf("%-20s %3zu:", status.c_str(), names.size());
        for (const auto & name : names) {
            printf(" %s", name.c_str());
        }
        printf("\n");
    }
    // by name: a status that nothing reaches is not tested
    for (const auto & [arch, status] : expected_statuses()) {
        SCOPE(llm_arch_name(arch));
        CHECK(by_status.count(llama_kv_page_status_name(status)) == 1);
    }
    printf("architectures: %u round trips ok, %u refused, %u failed\n", n_ok, n_refused, n_failed);
    CHECK_EQ(n_failed, 0u);
}

// multi-head latent attention keeps no V
TEST(mla_has_only_k) {
    const llama_model_ptr   model = make_case({ LLM_ARCH_DEEPSEEK2, true });
    const llama_context_ptr ctx   = make_case_context(model.get(), true);
    decode(ctx.get(), 0, 0, random_tokens(n_page, 1));
    const page page = export_page(ctx.get(), 0, 0, n_page);
    CHECK_EQ(page.components.size(), 2u);
    for (const auto & component : page.components) {
        CHECK_EQ(component.kind, LLAMA_KV_PAGE_KIND_K);
        CHECK_EQ(component.transposed, 0u);
    }
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
