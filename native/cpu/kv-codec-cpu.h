// What the CPU backend registers under GGML_KV_CODEC_PROC.
#pragma once

#include "ggml-kv-codec.h"

#ifdef __cplusplus
extern "C" {
#endif

const struct ggml_kv_codec_procs * ggml_backend_cpu_kv_codec(void);

#ifdef __cplusplus
}
#endif
