// KV codec procs of the CPU backend: libcachegen on tensors in host memory.
#include "kv-codec-cpu.h"

#include "cachegen.h"
#include "codec_rows.h"
#include "executor.h"
#include "meter.h"
#include "status.h"

#include <memory>
#include <new>

namespace {

int32_t wrong_format() {
    return cachegen::set_error(CACHEGEN_ERR_UNSUPPORTED, "the CPU backend codes no format but LCG3");
}

int32_t out_of_memory() {
    return cachegen::set_error(CACHEGEN_ERR_OUT_OF_MEMORY, "out of memory");
}

bool supports(ggml_kv_codec_format format, ggml_type type, bool is_transposed, bool) {
    return format == GGML_KV_CODEC_FORMAT_LCG3 && codec_takes(type, is_transposed);
}

} // namespace

struct ggml_kv_codec_decoder {
    cachegen::memory_meter                              meter; // of all that follows
    cachegen_lcg3 *                                     reader = nullptr;
    cachegen::metered_vector<cachegen_lcg3_destination> destinations;
    cachegen::executor_ptr                              executor;
    uint64_t                                            first_token = 0;
    uint64_t                                            n_tokens    = 0;

    explicit ggml_kv_codec_decoder(uint64_t n_planes) : destinations(n_planes, metered()) {}

    ~ggml_kv_codec_decoder() { cachegen_lcg3_close(reader); }

  private:
    cachegen::metered_allocator<cachegen_lcg3_destination> metered() {
        const cachegen::metering of_decoder(&meter);
        return {};
    }
};

namespace {

ggml_kv_codec_decoder * decoder_new(ggml_backend_t, ggml_kv_codec_format format, const void * metadata,
                                    uint64_t n_bytes, uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                                    const ggml_kv_codec_rows * rows, uint64_t n_rows, uint32_t n_threads,
                                    int32_t * status) {
    if (format != GGML_KV_CODEC_FORMAT_LCG3) {
        *status = wrong_format();
        return nullptr;
    }
    try {
        auto                     decoder = std::make_unique<ggml_kv_codec_decoder>(n_rows);
        const cachegen::metering of_decoder(&decoder->meter);
        decoder->first_token = first_token;
        decoder->n_tokens    = n_tokens;
        decoder->executor    = cachegen::make_executor(n_threads);
        for (uint64_t i = 0; i < n_rows; i++) {
            decoder->destinations[i] = tensor_destination(rows[i]);
        }
        *status = cachegen_lcg3_open_metadata(metadata, n_bytes, archive_bytes, &decoder->reader);
        return *status == CACHEGEN_OK ? decoder.release() : nullptr;
    } catch (const std::bad_alloc &) {
        *status = out_of_memory();
        return nullptr;
    }
}

int32_t decoder_part(ggml_kv_codec_decoder * decoder, uint32_t part, const void * bytes, uint64_t n_bytes) {
    const cachegen::metering of_decoder(&decoder->meter);
    return cachegen_lcg3_decode_part(decoder->reader, part, bytes, n_bytes, decoder->first_token, decoder->n_tokens,
                                     decoder->destinations.data(), decoder->destinations.size(),
                                     decoder->executor.get());
}

int32_t decoder_finish(ggml_kv_codec_decoder *) {
    return CACHEGEN_OK; // every part was done when its call returned
}

void decoder_free(ggml_kv_codec_decoder * decoder) {
    delete decoder;
}

uint64_t decoder_peak_bytes(const ggml_kv_codec_decoder * decoder) {
    return decoder->meter.peak();
}

int32_t encode(ggml_backend_t, ggml_kv_codec_format format, const void * planes, const void * options,
               const ggml_kv_codec_rows * rows, uint64_t n_rows, uint32_t n_threads, ggml_kv_codec_write_t write,
               void * user_data, uint64_t * n_bytes, uint64_t * peak_bytes) {
    if (format != GGML_KV_CODEC_FORMAT_LCG3) {
        return wrong_format();
    }
    try {
        cachegen::memory_meter                  meter;
        const cachegen::metering                of_encoder(&meter);
        cachegen::metered_vector<cachegen_rows> sources(n_rows);
        for (uint64_t i = 0; i < n_rows; i++) {
            sources[i] = tensor_rows(rows[i]);
        }
        const cachegen::executor_ptr executor = cachegen::make_executor(n_threads);
        const cachegen_sink          sink{ user_data, write };
        const int32_t status = cachegen_lcg3_encode_to(static_cast<const cachegen_lcg3_plane *>(planes), sources.data(),
                                                       n_rows, static_cast<const cachegen_lcg3_options *>(options),
                                                       executor.get(), &sink, n_bytes);
        *peak_bytes          = meter.peak();
        return status;
    } catch (const std::bad_alloc &) {
        return out_of_memory();
    }
}

const ggml_kv_codec_procs procs = {
    GGML_KV_CODEC_VERSION, supports,     decoder_new,        decoder_part, nullptr,
    decoder_finish,        decoder_free, decoder_peak_bytes, encode,       cachegen_last_message
};

} // namespace

const struct ggml_kv_codec_procs * ggml_backend_cpu_kv_codec(void) {
    return &procs;
}
