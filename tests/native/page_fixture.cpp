#include "page_fixture.h"

#include <algorithm>

std::string to_string(const cache_layout & layout) {
    return std::string("K ") + ggml_type_name(layout.type_k) + ", V " + ggml_type_name(layout.type_v) +
           (layout.flash_attn ? " in rows" : " transposed") + (layout.unified ? ", one pool" : ", a pool each");
}

const std::vector<cache_layout> & typical_layouts() {
    static const std::vector<cache_layout> layouts = {
        { GGML_TYPE_F16, GGML_TYPE_F16, false, true },
        { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, true, true },
        { GGML_TYPE_F32, GGML_TYPE_F32, false, false },
        { GGML_TYPE_F16, GGML_TYPE_F16, true, false },
    };
    return layouts;
}

llama_context_ptr make_context(llama_model * model, const cache_layout & layout) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = layout.unified ? n_cells : n_cells * layout.n_seq_max;
    params.n_batch              = n_cells;
    params.n_ubatch             = 64;
    params.n_seq_max            = layout.n_seq_max;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.type_k               = layout.type_k;
    params.type_v               = layout.type_v;
    params.kv_unified           = layout.unified;
    params.flash_attn_type      = layout.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_context_ptr(llama_init_from_model(model, params));
}

std::vector<llama_token> random_tokens(uint32_t n, uint64_t seed, uint32_t n_vocab) {
    std::vector<llama_token> tokens(n);
    uint64_t                 state = seed * 0x9e3779b97f4a7c15u + 1;
    for (auto & token : tokens) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        token = llama_token((state >> 33) % n_vocab);
    }
    return tokens;
}

int32_t try_decode(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, const std::vector<llama_token> & tokens,
                   std::vector<float> * logits) {
    llama_batch batch = llama_batch_init(int32_t(tokens.size()), 0, 1);
    batch.n_tokens    = int32_t(tokens.size());
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = p0 + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq_id;
        batch.logits[i]    = i + 1 == batch.n_tokens;
    }
    const int32_t status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status == 0 && logits) {
        const float * last = llama_get_logits_ith(ctx, -1);
        logits->assign(last, last + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))));
    }
    return status;
}

std::vector<float> decode(llama_context * ctx, llama_seq_id seq_id, llama_pos p0,
                          const std::vector<llama_token> & tokens) {
    std::vector<float> logits;
    CHECK_EQ(try_decode(ctx, seq_id, p0, tokens, &logits), 0);
    return logits;
}

std::vector<float> greedy(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, llama_token token, uint32_t n) {
    std::vector<float> all;
    for (uint32_t i = 0; i < n; ++i) {
        const std::vector<float> logits = decode(ctx, seq_id, p0 + llama_pos(i), { token });
        token                           = llama_token(std::max_element(logits.begin(), logits.end()) - logits.begin());
        all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
}

llama_kv_page_info new_info() {
    llama_kv_page_info info    = {};
    info.struct_size           = sizeof(info);
    info.component_struct_size = sizeof(llama_kv_page_component);
    return info;
}

llama_kv_page_stats new_stats() {
    llama_kv_page_stats stats = {};
    stats.struct_size         = sizeof(stats);
    return stats;
}

llama_kv_page_options new_options(uint32_t flags, uint32_t n_threads) {
    llama_kv_page_options options = {};
    options.struct_size           = sizeof(options);
    options.flags                 = flags;
    options.n_threads             = n_threads;
    return options;
}

page export_page(llama_context * ctx, llama_seq_id seq_id, int32_t p0, int32_t p1) {
    page res;
    res.p0   = p0;
    res.info = new_info();
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_describe(ctx, seq_id, p0, p1, &res.info, nullptr, 0));
    CHECK_EQ(res.info.n_tokens, uint32_t(p1 - p0));
    CHECK_EQ(res.info.pos_begin, p0);

    std::vector<llama_kv_page_component> described(res.info.n_components);
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_kv_page_describe(ctx, seq_id, p0, p1, &res.info, described.data(), res.info.n_components));

    uint64_t payload_bytes = 0;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_size(ctx, seq_id, p0, p1, &payload_bytes));
    CHECK_EQ(payload_bytes, res.info.payload_bytes);

    res.components.resize(res.info.n_components);
    res.payload.assign(payload_bytes, 0xA5); // what export does not write shows
    res.stats          = new_stats();
    const auto options = new_options();
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_kv_page_export(ctx, seq_id, p0, p1, res.payload.data(), payload_bytes, res.components.data(),
                                      res.info.n_components, &options, &res.stats));
    CHECK_EQ(res.stats.payload_bytes, payload_bytes);

    // components lie one after the other, aligned, with zeros between them
    uint64_t end = 0;
    for (uint32_t i = 0; i < res.info.n_components; ++i) {
        const auto & component = res.components[i];
        CHECK_EQ(component.offset % 64, 0u);
        CHECK(component.offset >= end && component.offset - end < 64);
        for (uint64_t j = end; j < component.offset; ++j) {
            CHECK_EQ(res.payload[j], 0);
        }
        CHECK_EQ(component.n_bytes, uint64_t(component.n_tokens) * component.row_bytes);
        CHECK_EQ(component.row_bytes, ggml_row_size(ggml_type(component.type), component.n_channels));
        end = component.offset + component.n_bytes;

        described[i].xxh3 = component.xxh3;
        CHECK(memcmp(&described[i], &component, sizeof(component)) == 0);
    }
    CHECK(payload_bytes >= end && payload_bytes - end < 64);
    for (uint64_t j = end; j < payload_bytes; ++j) {
        CHECK_EQ(res.payload[j], 0);
    }
    return res;
}

int32_t import_page(llama_context * ctx, llama_seq_id seq_id, const page & page, uint32_t flags,
                    llama_kv_page_stats * stats) {
    const auto options = new_options(flags);
    return llama_kv_page_import(ctx, seq_id, page.p0, page.components.data(), uint32_t(page.components.size()),
                                page.payload.data(), page.payload.size(), &options, stats);
}

void check_same_page(const page & a, const page & b) {
    CHECK_EQ(a.p0, b.p0);
    CHECK_EQ(a.components.size(), b.components.size());
    CHECK(memcmp(a.components.data(), b.components.data(), a.components.size() * sizeof(a.components[0])) == 0);
    CHECK_SAME_BITS(a.payload, b.payload);
}

llama_pos pos_max(llama_context * ctx, llama_seq_id seq_id) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id);
}

std::string check_status(int32_t expected, int32_t actual, const char * expected_text, const char * call,
                         const char * file, int line) {
    harness::n_checks()++;
    const std::string message = actual == LLAMA_KV_PAGE_OK ? "" : llama_kv_page_last_message();
    if (actual != expected) {
        harness::fail(file, line,
                      std::string(call) + "\n    expected: " + expected_text + " (" +
                          llama_kv_page_status_name(expected) +
                          ")\n    got:      " + llama_kv_page_status_name(actual) + ": " + message);
    }
    if (actual != LLAMA_KV_PAGE_OK && message.empty()) {
        harness::fail(file, line, std::string(call) + "\n    failed without a message");
    }
    return message;
}

twins::twins(llama_model * model, const cache_layout & layout)
    : touched(make_context(model, layout)), untouched(make_context(model, layout)) {
    for (llama_context * ctx : { touched.get(), untouched.get() }) {
        CHECK(ctx != nullptr);
        decode(ctx, 0, 0, random_tokens(n_seq0, 1));
        decode(ctx, 1, 0, random_tokens(n_seq1, 2));
    }
}

void twins::check_same_future() {
    const auto run = [](llama_context * ctx) {
        std::vector<float>       logits = greedy(ctx, 0, n_seq0, 5, 16);
        const std::vector<float> other  = greedy(ctx, 1, n_seq1, 6, 2);
        logits.insert(logits.end(), other.begin(), other.end());

        llama_memory_t memory = llama_get_memory(ctx);
        CHECK(llama_memory_seq_rm(memory, 1, n_seq1, -1));
        CHECK(llama_memory_seq_rm(memory, 0, n_seq0, -1));
        return logits;
    };
    CHECK_SAME_BITS(run(touched.get()), run(untouched.get()));
    for (llama_seq_id seq_id = 0; seq_id < 3; ++seq_id) {
        CHECK_EQ(pos_max(touched.get(), seq_id), pos_max(untouched.get(), seq_id));
    }
}
