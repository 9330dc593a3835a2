// A ggml device whose memory is not the host's, for machines that have none: its graphs are computed by the CPU
// backend, its buffers hide where their bytes are, and every access to them can be counted or made to fail.
#pragma once

#include "ggml-backend.h"

#include <cstdint>

namespace fake_device {

// for llama_model_params.devices; lives as long as the process, no other model gets it
ggml_backend_dev_t device();

struct counts {
    uint64_t n_sets    = 0; // writes of tensor data, in one piece or in rows
    uint64_t n_gets    = 0; // reads of tensor data
    uint64_t max_bytes = 0; // the most of one of them
};

// since the last call
counts take_counts();

// The write after n_good more ones throws std::runtime_error, once; a negative number: none does.
void fail_set_after(int64_t n_good);

} // namespace fake_device
