// What llama.cpp's tests/test-llama-archs.cpp needs of its `common` library, which this project does not build.
#pragma once

#include "llama-cpp.h"
#include "llama.h"

enum { LOG_LEVEL_DEBUG = 4, LOG_LEVEL_ERROR = 1 };

struct common_batch {
    explicit common_batch(llama_context * ctx) : batch(llama_batch_ext_init(ctx)) {}

    ~common_batch() { llama_batch_ext_free(batch); }

    void add(llama_token token, llama_pos pos, llama_seq_id seq_id, bool logits) {
        const int32_t i = llama_batch_ext_add_token(batch, seq_id, token);
        llama_batch_ext_set_pos(batch, i, &pos);
        llama_batch_ext_set_output_logits(batch, i, logits);
    }

    void clear() { llama_batch_ext_clear(batch); }

    llama_batch_ext * get() { return batch; }

    llama_batch_ext * batch;
};

inline void common_init() {}

inline void common_log_set_verbosity_thold(int) {}

inline int common_log_get_verbosity(ggml_log_level) {
    return LOG_LEVEL_ERROR;
}

inline int common_log_main() {
    return 0;
}

inline void common_log_flush(int) {}
