// KV codec procs of the CUDA and HIP backends: see ggml-kv-codec.h.
#pragma once

#include "ggml-kv-codec.h"

// the procs, for ggml_backend_reg_get_proc_address()
const struct ggml_kv_codec_procs * ggml_backend_cuda_kv_codec(void);
