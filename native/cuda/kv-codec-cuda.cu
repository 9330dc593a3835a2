// KV codec procs of the CUDA backend: archives are decoded on the stream of the graphs that read the cache.
#include "kv-codec-cuda.h"

#include "archive_decoder.h"
#include "cachegen.h"
#include "common.cuh"
#include "cuda/cuda_device.h"
#include "ggml-backend-impl.h"
#include "status.h"

#include <memory>

namespace {

thread_local const char * own_message = nullptr;

int32_t own_failure(int32_t status, const char * message) {
    own_message = message;
    return status;
}

const char * last_message() {
    return own_message ? own_message : cachegen_last_message();
}

bool supports(ggml_kv_codec_format format, ggml_type type, bool is_transposed, bool is_encode) {
    if (format != GGML_KV_CODEC_FORMAT_LCG3 || is_encode) {
        return false;
    }
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16: return true;
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_0: return !is_transposed;
        default: return false;
    }
}

kernels::device_rows device_rows(const ggml_kv_codec_rows & rows) {
    kernels::device_rows result{};
    if (rows.tensor == nullptr) {
        return result;
    }
    const ggml_tensor & tensor = *rows.tensor;
    result.type                = static_cast<uint32_t>(tensor.type);
    result.is_transposed       = rows.is_transposed;
    result.address             = reinterpret_cast<uint64_t>(tensor.data) + rows.offset;
    result.stride_bytes        = rows.is_transposed ? rows.n_cells * ggml_type_size(tensor.type)
                                                    : ggml_row_size(tensor.type, static_cast<int64_t>(rows.n_channels));
    result.n_rows              = rows.n_cells;
    result.n_channels          = static_cast<uint32_t>(rows.n_channels);
    result.n_rot               = rows.n_rot;
    result.first_token         = rows.first_token;
    result.n_tokens            = rows.n_tokens;
    result.cells               = rows.cells;
    return result;
}

} // namespace

struct ggml_kv_codec_decoder {
    uint32_t                 n_threads; // that read and check
    kernels::cuda_device     device;
    kernels::archive_decoder decoder;

    ggml_kv_codec_decoder(int index, cudaStream_t stream, const void * metadata, uint64_t n_bytes,
                          uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                          const std::vector<kernels::device_rows> & rows, uint32_t n_threads)
        : n_threads(n_threads), device(index, stream),
          decoder(device, metadata, n_bytes, archive_bytes, first_token, n_tokens, rows) {}
};

namespace {

ggml_kv_codec_decoder * decoder_new(ggml_backend_t backend, ggml_kv_codec_format format, const void * metadata,
                                    uint64_t n_bytes, uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                                    const ggml_kv_codec_rows * rows, uint64_t n_rows, uint32_t n_threads,
                                    int32_t * status) {
    if (format != GGML_KV_CODEC_FORMAT_LCG3) {
        *status = own_failure(CACHEGEN_ERR_UNSUPPORTED, "the CUDA backend decodes no format but LCG3");
        return nullptr;
    }
    own_message                    = nullptr;
    ggml_kv_codec_decoder * result = nullptr;
    *status                        = cachegen::guard([&] {
        auto &                            context = *static_cast<ggml_backend_cuda_context *>(backend->context);
        std::vector<kernels::device_rows> destinations(n_rows);
        for (uint64_t i = 0; i < n_rows; i++) {
            destinations[i] = device_rows(rows[i]);
        }
        result = std::make_unique<ggml_kv_codec_decoder>(context.device, context.stream(), metadata, n_bytes,
                                                         archive_bytes, first_token, n_tokens, destinations, n_threads)
                     .release();
    });
    return result;
}

int32_t decoder_part(ggml_kv_codec_decoder * decoder, uint32_t part, const void * bytes, uint64_t n_bytes) {
    own_message = nullptr;
    return cachegen::guard([&] { decoder->decoder.part(part, bytes, n_bytes); });
}

int32_t decoder_run(ggml_kv_codec_decoder * decoder, const uint32_t * parts, uint64_t n_parts,
                    const ggml_kv_codec_source * source) {
    own_message = nullptr;
    return cachegen::guard([&] {
        decoder->decoder.run(parts, n_parts, { source->user_data, source->read, source->next }, decoder->n_threads);
    });
}

int32_t decoder_finish(ggml_kv_codec_decoder * decoder) {
    own_message = nullptr;
    return cachegen::guard([&] { decoder->decoder.finish(); });
}

void decoder_free(ggml_kv_codec_decoder * decoder) {
    delete decoder;
}

uint64_t decoder_peak_bytes(const ggml_kv_codec_decoder * decoder) {
    return decoder->decoder.device_bytes() + decoder->decoder.host_bytes();
}

int32_t encode(ggml_backend_t, ggml_kv_codec_format, const void *, const void *, const ggml_kv_codec_rows *, uint64_t,
               uint32_t, ggml_kv_codec_write_t, void *, uint64_t *, uint64_t *) {
    return own_failure(CACHEGEN_ERR_UNSUPPORTED, "the CUDA backend does not encode");
}

const ggml_kv_codec_procs procs = {
    GGML_KV_CODEC_VERSION, supports,     decoder_new,        decoder_part, decoder_run,
    decoder_finish,        decoder_free, decoder_peak_bytes, encode,       last_message
};

} // namespace

const struct ggml_kv_codec_procs * ggml_backend_cuda_kv_codec(void) {
    return &procs;
}
