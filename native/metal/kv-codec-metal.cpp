// KV codec procs of the Metal backend: archives are decoded, and lossy planes encoded, on the queue of the graphs that
// use the cache.
#include "kv-codec-metal.h"

#include "archive_decoder.h"
#include "archive_encoder.h"
#include "cachegen.h"
#include "codec_rows.h"
#include "executor.h"
#include "ggml-backend-impl.h"
#include "ggml-metal-device.h"
#include "ggml-metal.h"
#include "metal/metal_device.h"
#include "meter.h"
#include "status.h"

#include <algorithm>
#include <memory>

namespace {

ggml_metal_device_t device_of(ggml_backend_dev_t device) {
    return static_cast<ggml_metal_device_t>(device->context);
}

MTL::Device * metal_device_of(ggml_backend_dev_t device) {
    return static_cast<MTL::Device *>(ggml_metal_device_get_obj(device_of(device)));
}

// the one that llama.cpp uses: the system's default
bool has_device() {
    const ggml_backend_reg_t reg = ggml_backend_metal_reg();
    return ggml_backend_reg_dev_count(reg) > 0 &&
           kernels::is_metal_device_supported(metal_device_of(ggml_backend_reg_dev_get(reg, 0)));
}

bool supports(ggml_kv_codec_format format, ggml_type type, bool is_transposed, bool) {
    return format == GGML_KV_CODEC_FORMAT_LCG3 && codec_takes(type, is_transposed) && has_device();
}

// The tensors of a cache as the device sees them. What ggml has in tensor->data is the host's address, or for private
// buffers none that exists.
class metal_tensors {
  public:
    explicit metal_tensors(ggml_backend_t backend) : backend_(backend) {}

    // rows whose data is the address on the device
    cachegen_rows rows(const ggml_kv_codec_rows & of) {
        cachegen_rows result = tensor_rows(of);
        if (of.tensor != nullptr) {
            result.data = reinterpret_cast<void *>(address_of(of.tensor) + of.offset);
        }
        return result;
    }

    // that they lie in, each once
    const std::vector<MTL::Buffer *> & buffers() const { return buffers_; }

  private:
    uint64_t address_of(const ggml_tensor * tensor) {
        const ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
        if (buffer == nullptr || !ggml_backend_supports_buft(backend_, buffer->buft)) {
            cachegen::fail(CACHEGEN_ERR_MISMATCH, "tensor %s is not in memory of the Metal backend", tensor->name);
        }
        const ggml_metal_buffer_id id =
            ggml_metal_buffer_get_id(static_cast<ggml_metal_buffer_t>(buffer->context), tensor);
        if (id.metal == nullptr) {
            cachegen::fail(CACHEGEN_ERR_MISMATCH, "tensor %s is in no single Metal buffer", tensor->name);
        }
        auto * const metal = static_cast<MTL::Buffer *>(id.metal);
        if (std::find(buffers_.begin(), buffers_.end(), metal) == buffers_.end()) {
            buffers_.push_back(metal);
        }
        return metal->gpuAddress() + id.offs;
    }

    ggml_backend_t             backend_;
    std::vector<MTL::Buffer *> buffers_;
};

kernels::metal_device make_device(ggml_backend_t backend, const metal_tensors & tensors) {
    return { metal_device_of(backend->device),
             static_cast<MTL::CommandQueue *>(ggml_metal_device_get_queue(device_of(backend->device))),
             tensors.buffers() };
}

} // namespace

struct ggml_kv_codec_decoder {
    uint32_t                 n_threads; // that read and check
    kernels::metal_device    device;
    kernels::archive_decoder decoder;

    ggml_kv_codec_decoder(ggml_backend_t backend, const metal_tensors & tensors, const void * metadata,
                          uint64_t n_bytes, uint64_t archive_bytes, uint64_t first_token, uint64_t n_tokens,
                          const std::vector<cachegen_lcg3_destination> & destinations, uint32_t n_threads)
        : n_threads(n_threads), device(make_device(backend, tensors)),
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
            cachegen::fail(CACHEGEN_ERR_UNSUPPORTED, "the Metal backend decodes no format but LCG3");
        }
        metal_tensors                          tensors(backend);
        std::vector<cachegen_lcg3_destination> destinations;
        for (uint64_t i = 0; i < n_rows; i++) {
            destinations.push_back({ tensors.rows(rows[i]), rows[i].n_rot, rows[i].first_token });
        }
        result = std::make_unique<ggml_kv_codec_decoder>(backend, tensors, metadata, n_bytes, archive_bytes,
                                                         first_token, n_tokens, destinations, n_threads);
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
            cachegen::fail(CACHEGEN_ERR_UNSUPPORTED, "the Metal backend encodes no format but LCG3");
        }
        cachegen::memory_meter     meter;
        const cachegen::metering   counted(&meter);
        metal_tensors              tensors(backend);
        std::vector<cachegen_rows> sources;
        for (uint64_t i = 0; i < n_rows; i++) {
            sources.push_back(tensors.rows(rows[i]));
        }
        const auto               executor = cachegen::make_executor(n_threads);
        kernels::metal_device    device   = make_device(backend, tensors);
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

const struct ggml_kv_codec_procs * ggml_backend_metal_kv_codec(void) {
    return &procs;
}
