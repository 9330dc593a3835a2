#include "model.h"

#include "tiny_model.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

namespace {

constexpr int32_t n_batch = 2048;

struct qwen3_shape {
    uint32_t n_vocab   = 151936;
    uint32_t n_embd    = 1024;
    uint32_t n_layer   = 28;
    uint32_t n_ff      = 3072;
    uint32_t n_head    = 16;
    uint32_t n_head_kv = 8;
};

llama_model_ptr make_qwen3(const qwen3_shape & shape, ggml_backend_dev_t device) {
    gguf_context * gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.architecture", "qwen3");
    gguf_set_val_u32(gguf, "qwen3.vocab_size", shape.n_vocab);
    gguf_set_val_u32(gguf, "qwen3.context_length", 40960);
    gguf_set_val_u32(gguf, "qwen3.embedding_length", shape.n_embd);
    gguf_set_val_u32(gguf, "qwen3.block_count", shape.n_layer);
    gguf_set_val_u32(gguf, "qwen3.feed_forward_length", shape.n_ff);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count", shape.n_head);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count_kv", shape.n_head_kv);
    gguf_set_val_u32(gguf, "qwen3.attention.key_length", 128);
    gguf_set_val_u32(gguf, "qwen3.attention.value_length", 128);
    gguf_set_val_f32(gguf, "qwen3.rope.freq_base", 1e6f);
    gguf_set_val_f32(gguf, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");
    llama_model_ptr model = make_model(gguf, 1, device, device != nullptr ? 999 : 0);
    gguf_free(gguf);
    return model;
}

std::string read_text(const std::string & path) {
    std::ifstream      file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || text.str().empty()) {
        throw std::runtime_error("cannot read " + path);
    }
    return text.str();
}

ggml_backend_dev_t or_processor(ggml_backend_dev_t device) {
    return device != nullptr ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

} // namespace

std::string to_string(const cache_types & types) {
    std::string words = std::string(ggml_type_name(types.k)) + "/" + ggml_type_name(types.v);
    std::transform(words.begin(), words.end(), words.begin(), [](unsigned char c) { return toupper(c); });
    return words;
}

bench_model make_synthetic(ggml_backend_dev_t device, int32_t n_tokens) {
    qwen3_shape shape;
    if (device == nullptr) {
        shape = { 512, 256, 2, 256, 4, 2 };
    }
    bench_model result;
    result.model  = make_qwen3(shape, device);
    result.device = or_processor(device);
    result.name =
        device != nullptr ? "Qwen3-0.6B's shape, synthetic weights" : "two small layers on the processor, synthetic";
    result.tokens.resize(static_cast<size_t>(n_tokens) + 1);
    uint32_t state = 7;
    for (auto & token : result.tokens) {
        state = state * 1664525 + 1013904223;
        token = static_cast<llama_token>((state >> 8) % shape.n_vocab);
    }
    return result;
}

bench_model load_model(const std::string & path, const std::string & text_path, ggml_backend_dev_t device,
                       int32_t n_tokens) {
    llama_model_params params    = llama_model_default_params();
    ggml_backend_dev_t devices[] = { device, nullptr };
    params.devices               = devices;
    params.n_gpu_layers          = device != nullptr ? 999 : 0;
    params.progress_callback     = [](float, void *) { return true; }; // the default one prints dots
    bench_model result;
    result.model.reset(llama_model_load_from_file(path.c_str(), params));
    if (!result.model) {
        throw std::runtime_error("cannot load " + path + ": " + take_log());
    }
    result.device       = or_processor(device);
    result.name         = path.substr(path.find_last_of('/') + 1);
    result.is_synthetic = false;
    const auto   text   = read_text(text_path);
    const auto * vocab  = llama_model_get_vocab(result.model.get());
    result.tokens.resize(text.size() + 16);
    const int32_t n = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), result.tokens.data(),
                                     static_cast<int32_t>(result.tokens.size()), true, false);
    if (n <= n_tokens) {
        throw std::runtime_error(text_path + " has " + std::to_string(n) + " tokens, " + std::to_string(n_tokens + 1) +
                                 " are needed");
    }
    result.tokens.resize(static_cast<size_t>(n_tokens) + 1);
    return result;
}

llama_context_ptr new_context(const bench_model & model, const cache_types & types) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = static_cast<uint32_t>((model.n_tokens() + max_steps + 2047) / 2048 * 2048);
    params.n_batch              = n_batch;
    params.n_ubatch             = n_batch;
    params.type_k               = types.k;
    params.type_v               = types.v;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.n_threads            = model.n_threads;
    llama_context_ptr ctx(llama_init_from_model(model.model.get(), params));
    if (!ctx) {
        throw std::runtime_error("no context: " + take_log());
    }
    return ctx;
}

std::vector<float> decode(llama_context * ctx, const llama_token * tokens, int32_t n, int32_t p0) {
    for (int32_t i = 0; i < n; i += n_batch) {
        const int32_t n_now = std::min(n_batch, n - i);
        llama_batch   batch = llama_batch_init(n_now, 0, 1);
        batch.n_tokens      = n_now;
        for (int32_t j = 0; j < n_now; j++) {
            batch.token[j]     = tokens[i + j];
            batch.pos[j]       = p0 + i + j;
            batch.n_seq_id[j]  = 1;
            batch.seq_id[j][0] = 0;
            batch.logits[j]    = i + j == n - 1;
        }
        const int32_t status = llama_decode(ctx, batch);
        llama_batch_free(batch);
        if (status != 0) {
            throw std::runtime_error("llama_decode: " + take_log());
        }
    }
    llama_synchronize(ctx);
    const float * last = llama_get_logits_ith(ctx, -1);
    return { last, last + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))) };
}

llama_token most_likely(const std::vector<float> & logits) {
    return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}
