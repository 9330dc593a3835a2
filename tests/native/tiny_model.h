// Models small enough to build in milliseconds: metadata in memory, weights from a fixed random sequence.
#pragma once

#include "gguf.h"
#include "llama-cpp.h"
#include "llama.h"

#include <cstdint>
#include <string>

struct tiny_llama {
    uint32_t n_layer   = 2;
    uint32_t n_head    = 2;
    uint32_t n_head_kv = 2;
    uint32_t head_dim  = 64;
    uint32_t n_embd    = 64;
    uint32_t n_ff      = 64;
    uint32_t n_vocab   = 64;
    uint32_t n_ctx     = 512;
    uint64_t seed      = 1;

    // a device takes the last n_device_layers layers, the output being one more; NULL: all is on the CPU
    ggml_backend_dev_t device          = nullptr;
    int32_t            n_device_layers = 0;
};

// Never NULL: throws std::runtime_error.
llama_model_ptr make_tiny_llama(const tiny_llama & shape = {});

// The same for any architecture's metadata.
llama_model_ptr make_model(gguf_context * metadata, uint64_t seed = 1, ggml_backend_dev_t device = nullptr,
                           int32_t n_device_layers = 0);

// Keep llama.cpp's warnings and errors for take_log(), and all of its messages off the terminal.
void capture_log();

// What was kept since the last call.
std::string take_log();
