// KV codec procs of the Metal backend: see ggml-kv-codec.h.
#pragma once

#include "ggml-kv-codec.h"

#ifdef __cplusplus
extern "C" {
#endif

// the procs, for ggml_backend_reg_get_proc_address()
const struct ggml_kv_codec_procs * ggml_backend_metal_kv_codec(void);

#ifdef __cplusplus
}
#endif
