// KV codec procs of the CUDA backend, and of HIP's, which has the same source: archives are decoded, and lossy planes
// encoded, on the stream of the graphs that use the cache.
#include "kv-codec-cuda.h"

#include "archive_decoder.h"
#include "archive_encoder.h"
#include "cachegen.h"
#include "codec_rows.h"
#include "common.cuh"
#include "cuda/cuda_device.h"
#include "executor.h"
#include "ggml-backend-impl.h"
#include "meter.h"
#include "status.h"

#include <algorithm>
#include <memory>

namespace {

bool supports(ggml_kv_codec_format format, ggml_type type, bool is_transposed, bool) {
    return format == GGML_KV_CODEC_FORMAT_LCG3 && codec_takes(type, is_transposed);
}

} // namespace

struct ggml_kv_codec_decoder {
    uint32_t                 n_threads; // that read and check
    kernels::cuda_device     device;
    kernels::archive_decoder decoder;

    ggml_kv_codec_decoder(int index, cudaStream_t stream, const void * metadata, uint64_t n_bytes,
                          uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                          const std::vector<cachegen_lcg3_destination> & destinations, uint32_t n_threads)
        : n_threads(n_threads), device(index, stream),
          decoder(device, metadata, n_bytes, archive_bytes, first_token, n_tokens, destinations) {}
};

namespace {

ggml_kv_codec_decoder * decoder_new(ggml_backend_t backend, ggml_kv_codec_format format, const void * metadata,
                                    uint64_t n_bytes, uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                                    const ggml_kv_codec_rows * rows, uint64_t n_rows, uint32_t n_threads,
                                    int32_t * status) {
    std::unique_ptr<ggml_kv_codec_decoder> result;
    *status = cachegen::guard([&] {
        if (format != GGML_KV_CODEC_FORMAT_LCG3) {
            cachegen::fail(CACHEGEN_ERR_UNSUPPORTED, "the %s backend decodes no format but LCG3",
                           kernels::device_runtime);
        }
        auto &                                 context = *static_cast<ggml_backend_cuda_context *>(backend->context);
        std::vector<cachegen_lcg3_destination> destinations(n_rows);
        std::transform(rows, rows + n_rows, destinations.begin(), tensor_destination);
        result = std::make_unique<ggml_kv_codec_decoder>(context.device, context.stream(), metadata, n_bytes,
                                                         archive_bytes, first_token, n_tokens, destinations, n_threads);
    });
    return result.release();
}

int32_t decoder_part(ggml_kv_codec_decoder * decoder, uint32_t part, const void * bytes, uint64_t n_bytes) {
    return cachegen::guard([&] { decoder->decoder.part(part, bytes, n_bytes); });
}

int32_t decoder_run(ggml_kv_codec_decoder * decoder, const uint32_t * parts, uint64_t n_parts,
                    const ggml_kv_codec_source * source) {
    return cachegen::guard([&] {
        decoder->decoder.run(parts, n_parts, { source->user_data, source->read, source->next }, decoder->n_threads);
    });
}

int32_t decoder_finish(ggml_kv_codec_decoder * decoder) {
    return cachegen::guard([&] { decoder->decoder.finish(); });
}

void decoder_free(ggml_kv_codec_decoder * decoder) {
    delete decoder;
}

uint64_t decoder_peak_bytes(const ggml_kv_codec_decoder * decoder) {
    return decoder->decoder.device_bytes() + decoder->decoder.host_bytes();
}

// models, digests and what is not lossy are libcachegen's, from rows that it reads
int32_t encode(ggml_backend_t backend, ggml_kv_codec_format format, const void * planes, const void * options,
               const ggml_kv_codec_rows * rows, uint64_t n_rows, uint32_t n_threads, ggml_kv_codec_write_t write,
               void * user_data, uint64_t * n_bytes, uint64_t * peak_bytes) {
    return cachegen::guard([&] {
        if (format != GGML_KV_CODEC_FORMAT_LCG3) {
            cachegen::fail(CACHEGEN_ERR_UNSUPPORTED, "the %s backend encodes no format but LCG3",
                           kernels::device_runtime);
        }
        cachegen::memory_meter     meter;
        const cachegen::metering   counted(&meter);
        auto &                     context = *static_cast<ggml_backend_cuda_context *>(backend->context);
        std::vector<cachegen_rows> sources(n_rows);
        std::transform(rows, rows + n_rows, sources.begin(), tensor_rows);
        const auto               executor = cachegen::make_executor(n_threads);
        kernels::cuda_device     device(context.device, context.stream());
        kernels::archive_encoder encoder(device, sources);
        *n_bytes =
            encoder.encode(static_cast<const cachegen_lcg3_plane *>(planes),
                           *static_cast<const cachegen_lcg3_options *>(options), executor.get(), { user_data, write });
        *peak_bytes = meter.peak() + encoder.device_bytes() + encoder.host_bytes();
    });
}

const ggml_kv_codec_procs procs = { GGML_KV_CODEC_VERSION, supports,           decoder_new,
                                    decoder_part,          decoder_run,        decoder_finish,
                                    decoder_free,          decoder_peak_bytes, encode,
                                    cachegen_last_message };

} // namespace

const struct ggml_kv_codec_procs * ggml_backend_cuda_kv_codec(void) {
    return &procs;
}
