// What every page test needs: contexts, decoding, pages as values, and "its future is the same".
#pragma once

#include "ggml.h"
#include "harness.h"
#include "llama-cpp.h"
#include "llama-kv-page.h"
#include "llama.h"
#include "tiny_model.h"

#include <cstdint>
#include <string>
#include <vector>

// cells a sequence can have: llama.cpp rounds up to 256
constexpr uint32_t n_cells = 256;

struct cache_layout {
    ggml_type type_k     = GGML_TYPE_F16;
    ggml_type type_v     = GGML_TYPE_F16;
    bool      flash_attn = false; // off: V is stored transposed
    bool      unified    = true;  // off: a pool of cells for each sequence
    uint32_t  n_seq_max  = 3;
};

std::string to_string(const cache_layout & layout);

// rows and transposed, one pool and several, plain and quantised with rotation (head size 64)
const std::vector<cache_layout> & typical_layouts();

// NULL if llama.cpp does not offer the combination
llama_context_ptr make_context(llama_model * model, const cache_layout & layout);

std::vector<llama_token> random_tokens(uint32_t n, uint64_t seed, uint32_t n_vocab = 64);

// Status of llama_decode(). Logits of the last token if it is 0.
int32_t try_decode(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, const std::vector<llama_token> & tokens,
                   std::vector<float> * logits = nullptr);

// Fails the test if llama_decode() fails.
std::vector<float> decode(llama_context * ctx, llama_seq_id seq_id, llama_pos p0,
                          const std::vector<llama_token> & tokens);

// Logits of n greedy steps after `token` at position p0.
std::vector<float> greedy(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, llama_token token, uint32_t n);

struct page {
    int32_t                              p0 = 0;
    llama_kv_page_info                   info{};
    std::vector<llama_kv_page_component> components;
    std::vector<uint8_t>                 payload;
    llama_kv_page_stats                  stats{};

    uint32_t n_tokens() const { return info.n_tokens; }
};

llama_kv_page_info    new_info();
llama_kv_page_stats   new_stats();
llama_kv_page_options new_options(uint32_t flags = LLAMA_KV_PAGE_FLAG_DIGEST, uint32_t n_threads = 0);

// Fails the test if it fails, or if describe, size and export do not agree.
page export_page(llama_context * ctx, llama_seq_id seq_id, int32_t p0, int32_t p1);

// Status.
int32_t import_page(llama_context * ctx, llama_seq_id seq_id, const page & page,
                    uint32_t flags = LLAMA_KV_PAGE_FLAG_DIGEST, llama_kv_page_stats * stats = nullptr);

void check_same_page(const page & a, const page & b);

llama_pos pos_max(llama_context * ctx, llama_seq_id seq_id);

#define CHECK_STATUS(expected, call) check_status((expected), (call), #expected, #call, __FILE__, __LINE__)

// also checks that a failure leaves a message, which it returns
std::string check_status(int32_t expected, int32_t actual, const char * expected_text, const char * call,
                         const char * file, int line);

// Two contexts with the same history, seq 0: 20 tokens, seq 1: 10 tokens. One is touched by the test, the other is not.
struct twins {
    static constexpr int32_t n_seq0 = 20;
    static constexpr int32_t n_seq1 = 10;

    explicit twins(llama_model * model, const cache_layout & layout);

    // 16 greedy tokens of seq 0 and 2 of seq 1 have the same logits in both; afterwards the history is as before
    void check_same_future();

    llama_context_ptr touched;
    llama_context_ptr untouched;
};
