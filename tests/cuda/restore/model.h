// Models whose caches are saved and restored: of random weights, or from a file.
#pragma once

#include "common.h"
#include "ggml-backend.h"
#include "llama-cpp.h"

#include <vector>

// more decode steps than any part of the benchmark takes after the restored tokens
constexpr int32_t max_steps = 80;

struct bench_model {
    llama_model_ptr          model;
    ggml_backend_dev_t       device = nullptr; // that computes it
    std::string              name;
    bool                     is_synthetic = true;
    std::vector<llama_token> tokens;        // those of the cache, and one to go on with
    int32_t                  n_threads = 1; // of contexts, and so of imports and exports

    int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()) - 1; }
    int32_t n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(model.get())); }
};

/*
 * Qwen3-0.6B's shape with random weights and random tokens. On the processor instead of a device: two small layers of
 * that kind, to try the benchmark itself.
 * device  IN  a GPU, or NULL for the processor
 */
bench_model make_synthetic(ggml_backend_dev_t device, int32_t n_tokens);

// A model from a file, all of it on the device, and the first tokens of a text. Throws if the text has too few.
bench_model load_model(const std::string & path, const std::string & text_path, ggml_backend_dev_t device,
                       int32_t n_tokens);

llama_context_ptr new_context(const bench_model & model, const cache_types & types);

// Evaluate tokens of sequence 0 from position p0 on and wait for them. Returns the last one's logits.
std::vector<float> decode(llama_context * ctx, const llama_token * tokens, int32_t n, int32_t p0);

llama_token most_likely(const std::vector<float> & logits);
