#include "tiny_model.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace {

// splitmix64
uint64_t next_random(uint64_t & state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// FNV-1a: std::hash may differ from one library to the next
uint64_t hash_name(const char * name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; ++name) {
        hash = (hash ^ uint8_t(*name)) * 0x100000001b3u;
    }
    return hash;
}

// uniform with standard deviation 0.1; a prime number of them, so that rows of a matrix do not repeat soon
const std::vector<float> & random_weights() {
    static const std::vector<float> weights = [] {
        std::vector<float> res(262139);
        uint64_t           state = 1;
        for (float & weight : res) {
            weight = (float(next_random(state) >> 40) / float(1 << 24) - 0.5f) * 0.3464f;
        }
        return res;
    }();
    return weights;
}

void fill_tensor(ggml_tensor * tensor, void * userdata) {
    const auto & weights = random_weights();
    uint64_t     state   = *static_cast<const uint64_t *>(userdata) ^ hash_name(tensor->name);

    const int64_t      n = ggml_nelements(tensor);
    std::vector<float> values(n);
    for (int64_t i = 0; i < n;) {
        const size_t first = i == 0 ? next_random(state) % weights.size() : 0;
        const size_t n_run = std::min<size_t>(n - i, weights.size() - first);
        memcpy(values.data() + i, weights.data() + first, n_run * sizeof(float));
        i += int64_t(n_run);
    }
    if (strstr(tensor->name, "norm")) {
        std::transform(values.begin(), values.end(), values.begin(), [](float x) { return 1.0f + x; });
    } else if (strstr(tensor->name, "ssm_a")) { // a decay must be negative
        std::transform(values.begin(), values.end(), values.begin(), [](float x) { return -std::fabs(x); });
    }

    if (tensor->type == GGML_TYPE_F32) {
        ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    } else if (tensor->type == GGML_TYPE_F16) {
        std::vector<ggml_fp16_t> halves(n);
        ggml_fp32_to_fp16_row(values.data(), halves.data(), n);
        ggml_backend_tensor_set(tensor, halves.data(), 0, ggml_nbytes(tensor));
    } else {
        throw std::runtime_error(std::string("a tiny model cannot have tensors of type ") +
                                 ggml_type_name(tensor->type));
    }
}

std::mutex  g_log_mutex;
std::string g_log;

} // namespace

llama_model_ptr make_model(gguf_context * metadata, uint64_t seed, ggml_backend_dev_t device, int32_t n_device_layers) {
    llama_model_params params    = llama_model_default_params();
    ggml_backend_dev_t devices[] = { device, nullptr };
    params.devices               = devices;
    params.n_gpu_layers          = n_device_layers;
    params.progress_callback     = [](float, void *) { return true; }; // the default one prints dots

    llama_model_ptr model(llama_model_init_from_user(metadata, fill_tensor, &seed, params));
    if (!model) {
        throw std::runtime_error("llama.cpp does not load the tiny model: " + take_log());
    }
    return model;
}

llama_model_ptr make_tiny_llama(const tiny_llama & shape) {
    gguf_context * gguf = gguf_init_empty();

    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_u32(gguf, "llama.vocab_size", shape.n_vocab);
    gguf_set_val_u32(gguf, "llama.context_length", shape.n_ctx);
    gguf_set_val_u32(gguf, "llama.embedding_length", shape.n_embd);
    gguf_set_val_u32(gguf, "llama.block_count", shape.n_layer);
    gguf_set_val_u32(gguf, "llama.feed_forward_length", shape.n_ff);
    gguf_set_val_u32(gguf, "llama.attention.head_count", shape.n_head);
    gguf_set_val_u32(gguf, "llama.attention.head_count_kv", shape.n_head_kv);
    gguf_set_val_u32(gguf, "llama.attention.key_length", shape.head_dim);
    gguf_set_val_u32(gguf, "llama.attention.value_length", shape.head_dim);
    gguf_set_val_u32(gguf, "llama.rope.dimension_count", shape.head_dim);
    gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");

    try {
        llama_model_ptr model = make_model(gguf, shape.seed, shape.device, shape.n_device_layers);
        gguf_free(gguf);
        return model;
    } catch (...) {
        gguf_free(gguf);
        throw;
    }
}

void capture_log() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) {
                const std::lock_guard<std::mutex> lock(g_log_mutex);
                if (g_log.size() < 16384) {
                    g_log += text;
                }
            }
        },
        nullptr);
}

std::string take_log() {
    const std::lock_guard<std::mutex> lock(g_log_mutex);
    std::string                       log;
    log.swap(g_log);
    return log;
}
