// The KV codec procs of the Metal backend as llama.cpp's own registration gives them, over tensors that ggml has
// allocated in shared and in private buffers of the fake device.
#include "cachegen.h"
#include "codec_types.h"
#include "fake_metal.h"
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-kv-codec.h"
#include "ggml-metal.h"
#include "ggml_metal.h"
#include "harness.h"
#include "kernel_pages.h"
#include "metal/metal_library.h"
#include "objc_runtime.h"

#include <memory>
#include <numeric>

namespace {

using kernel_parity::bytes;
using kernel_parity::check_ok;

constexpr uint32_t n_tokens   = 150;
constexpr uint32_t n_cells    = 192;
constexpr uint32_t n_channels = 64;

// K of F16, K of Q8_0, transposed V of F16
struct component {
    ggml_type type;
    bool      is_transposed;
};
constexpr component components[] = { { GGML_TYPE_F16, false }, { GGML_TYPE_Q8_0, false }, { GGML_TYPE_F16, true } };

const ggml_kv_codec_procs & procs() {
    const auto get = reinterpret_cast<ggml_backend_kv_codec_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_metal_reg(), GGML_KV_CODEC_PROC));
    CHECK(get != nullptr);
    CHECK_EQ(get()->version, uint32_t(GGML_KV_CODEC_VERSION));
    return *get();
}

// A cache in a Metal buffer: a second tensor before each, so that none but the first begins with the buffer.
class cache {
  public:
    explicit cache(ggml_backend_dev_t device) : backend_(ggml_backend_dev_init(device, nullptr)) {
        ggml_init_params params{};
        params.mem_size = 64 * ggml_tensor_overhead();
        params.no_alloc = true;
        context_        = ggml_init(params);
        for (const auto & one : components) {
            ggml_new_tensor_1d(context_, GGML_TYPE_F32, 33);
            tensors_.push_back(ggml_new_tensor_2d(context_, one.type, n_channels, n_cells));
        }
        buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(context_, ggml_backend_dev_buffer_type(device));
        CHECK(buffer_ != nullptr);
        cells_.resize(n_tokens);
        std::iota(cells_.begin(), cells_.end(), 0);
        std::swap(cells_[3], cells_[90]); // scattered
        for (size_t i = 0; i < tensors_.size(); i++) {
            ggml_kv_codec_rows rows{};
            rows.tensor        = tensors_[i];
            rows.n_cells       = n_cells;
            rows.n_channels    = n_channels;
            rows.is_transposed = components[i].is_transposed;
            rows.n_tokens      = n_tokens;
            rows.cells         = cells_.data();
            rows_.push_back(rows);
        }
    }

    ~cache() {
        ggml_backend_buffer_free(buffer_);
        ggml_free(context_);
        ggml_backend_free(backend_);
    }

    cache(const cache &)             = delete;
    cache & operator=(const cache &) = delete;

    ggml_backend_t                          backend() const { return backend_; }
    const std::vector<ggml_tensor *> &      tensors() const { return tensors_; }
    const std::vector<uint32_t> &           cells() const { return cells_; }
    const std::vector<ggml_kv_codec_rows> & rows() const { return rows_; }
    MTL::Buffer *                           metal() const { return fake_ggml_metal::buffer_of(tensors_[0]); }
    uint64_t                                offset(size_t i) const {
        return static_cast<uint64_t>(static_cast<uint8_t *>(tensors_[i]->data) -
                                     static_cast<uint8_t *>(ggml_backend_buffer_get_base(buffer_)));
    }
    std::string bytes_of(size_t i) const { return fake_metal::bytes_of(metal(), offset(i), ggml_nbytes(tensors_[i])); }
    // what a graph does to all of it, when its turn comes
    void        fill(uint8_t value) const {
        fake_metal::fill_later(fake_ggml_metal::queue(), metal(), 0, ggml_backend_buffer_get_size(buffer_) / 4 * 4,
                               value);
    }

  private:
    ggml_backend_t                  backend_;
    ggml_context *                  context_;
    ggml_backend_buffer_t           buffer_;
    std::vector<ggml_tensor *>      tensors_;
    std::vector<uint32_t>           cells_;
    std::vector<ggml_kv_codec_rows> rows_;
};

struct page {
    std::vector<cachegen_lcg3_plane> planes;
    cachegen_lcg3_options            options{};
};

page make_page() {
    page result;
    for (size_t i = 0; i < 3; i++) {
        cachegen_lcg3_plane plane{};
        plane.struct_size = sizeof(plane);
        plane.layer       = static_cast<int32_t>(i);
        plane.kind        = components[i].is_transposed ? CACHEGEN_KIND_V : CACHEGEN_KIND_K;
        plane.mode        = i == 1 ? CACHEGEN_LCG3_EXACT : CACHEGEN_LCG3_LOSSY;
        plane.type        = static_cast<uint32_t>(components[i].type);
        plane.n_channels  = n_channels;
        plane.n_symbols   = i == 1 ? 0 : 15;
        plane.scale_type  = i == 1 ? 0 : CACHEGEN_TYPE_F16;
        result.planes.push_back(plane);
    }
    result.options.struct_size  = sizeof(result.options);
    result.options.block_tokens = 64;
    result.options.n_models     = 4;
    result.options.n_classes    = 4;
    return result;
}

// the same rows in the host's memory
struct host_rows {
    std::vector<bytes>         data;
    std::vector<cachegen_rows> rows;

    explicit host_rows(const cache & of) : data(3) {
        for (size_t i = 0; i < 3; i++) {
            rows.push_back(kernel_parity::rows_for(data[i], static_cast<uint32_t>(components[i].type),
                                                   components[i].is_transposed, n_tokens, n_cells, n_channels,
                                                   of.cells().data()));
        }
    }
};

int32_t append(void * archive, uint64_t offset, const void * from, uint64_t n_bytes) {
    auto & to = *static_cast<bytes *>(archive);
    to.resize(std::max<size_t>(to.size(), offset + n_bytes));
    memcpy(to.data() + offset, from, n_bytes);
    return 0;
}

// values of the F16 tensors, quantised for Q8_0
void set_values(host_rows & to) {
    std::mt19937 random(11);
    const auto   values = kernel_parity::make_values(random, n_cells, n_channels, false);
    for (size_t i = 0; i < 3; i++) {
        if (components[i].is_transposed) {
            for (uint32_t cell = 0; cell < n_cells; cell++) {
                for (uint32_t c = 0; c < n_channels; c++) {
                    ggml_fp32_to_fp16_row(
                        &values[size_t{ cell } * n_channels + c],
                        reinterpret_cast<ggml_fp16_t *>(to.data[i].data()) + size_t{ c } * n_cells + cell, 1);
                }
            }
        } else {
            ggml_quantize_chunk(components[i].type, values.data(), to.data[i].data(), 0, n_cells, n_channels, nullptr);
        }
    }
}

struct source_state {
    const bytes * archive;
    uint32_t      n_parts;
};

// all parts through decoder_run(), or one by one
int32_t decode(const cache & to, const bytes & archive, bool is_run) {
    int32_t    status  = 0;
    const auto decoder = std::unique_ptr<ggml_kv_codec_decoder, void (*)(ggml_kv_codec_decoder *)>(
        procs().decoder_new(to.backend(), GGML_KV_CODEC_FORMAT_LCG3, archive.data(), archive.size(), archive.size(), 0,
                            n_tokens, to.rows().data(), to.rows().size(), 3, &status),
        procs().decoder_free);
    CHECK_EQ(decoder == nullptr, status != 0);
    if (status != 0) {
        return status;
    }
    cachegen_lcg3 * reader = nullptr;
    check_ok(cachegen_lcg3_open_metadata(archive.data(), archive.size(), archive.size(), &reader));
    cachegen_lcg3_info info{};
    info.struct_size = sizeof(info);
    cachegen_lcg3_describe(reader, &info, nullptr, 0);
    std::vector<uint32_t> parts(info.n_blocks + 1);
    std::iota(parts.begin(), parts.end(), 0);
    if (is_run) {
        source_state               state{ &archive, 0 };
        const ggml_kv_codec_source source{ &state,
                                           [](void * user_data, uint64_t offset, void * bytes, uint64_t n_bytes) {
                                               const auto & of = *static_cast<source_state *>(user_data);
                                               memcpy(bytes, of.archive->data() + offset, n_bytes);
                                               return 0;
                                           },
                                           [](void * user_data, uint32_t) {
                                               static_cast<source_state *>(user_data)->n_parts++;
                                               return 0;
                                           } };
        status = procs().decoder_run(decoder.get(), parts.data(), parts.size(), &source);
        CHECK(status != 0 || state.n_parts == parts.size());
    } else {
        for (const uint32_t part : parts) {
            uint64_t offset  = 0;
            uint64_t n_bytes = 0;
            cachegen_lcg3_part(reader, part, &offset, &n_bytes);
            status = status != 0 ? status : procs().decoder_part(decoder.get(), part, archive.data() + offset, n_bytes);
        }
    }
    cachegen_lcg3_close(reader);
    status = status != 0 ? status : procs().decoder_finish(decoder.get());
    CHECK(procs().decoder_peak_bytes(decoder.get()) > 0);
    return status;
}

// use(device, is_shared) for buffers of both kinds; nothing is left over
template <typename Use> void with_buffers(const Use & use) {
    for (const bool is_shared : { true, false }) {
        SCOPE(is_shared ? "shared buffers" : "private buffers");
        fake_metal::settings with;
        with.is_unified = is_shared;
        fake_metal::set(with);
        fake_ggml_metal::open(is_shared);
        use(ggml_backend_reg_dev_get(ggml_backend_metal_reg(), 0));
        kernels::release_metal_libraries();
        fake_ggml_metal::close();
        if (objc::n_objects() != 0) {
            printf("left over: %s\n", objc::objects().c_str());
        }
        CHECK_EQ(objc::n_objects(), uint64_t(0));
    }
}

} // namespace

TEST(support) {
    with_buffers([](ggml_backend_dev_t) {
        CHECK(procs().supports(GGML_KV_CODEC_FORMAT_LCG3, GGML_TYPE_F16, true, true));
        CHECK(procs().supports(GGML_KV_CODEC_FORMAT_LCG3, GGML_TYPE_Q4_0, false, false));
        CHECK(!procs().supports(GGML_KV_CODEC_FORMAT_LCG3, GGML_TYPE_Q4_0, true, false));
        CHECK(!procs().supports(GGML_KV_CODEC_FORMAT_LCG1, GGML_TYPE_F16, false, false));
    });
    fake_metal::settings with;
    with.has_metal3 = false;
    fake_metal::set(with);
    fake_ggml_metal::open(true);
    CHECK(!procs().supports(GGML_KV_CODEC_FORMAT_LCG3, GGML_TYPE_F16, false, false));
    fake_ggml_metal::close();
}

// an archive goes into the tensors as into the host's memory, whatever a graph did to them before
TEST(decode) {
    with_buffers([](ggml_backend_dev_t device) {
        const cache to(device);
        const page  of = make_page();
        host_rows   host(to);
        set_values(host);
        bytes archive;
        check_ok(kernel_parity::encode_on_host(of.planes, host.rows, of.options, archive));
        for (const bool is_run : { false, true }) {
            // both begin with the same bytes; the graph has not run yet
            const uint8_t before = is_run ? 0x5B : 0x5A;
            to.fill(before);
            std::vector<cachegen_lcg3_destination> expected;
            for (size_t i = 0; i < 3; i++) {
                std::fill(host.data[i].begin(), host.data[i].end(), before);
                expected.push_back({ host.rows[i], 0, 0 });
            }
            check_ok(decode(to, archive, is_run));
            cachegen_lcg3 * reader = nullptr;
            check_ok(cachegen_lcg3_open(archive.data(), archive.size(), &reader));
            check_ok(cachegen_lcg3_decode(reader, 0, n_tokens, expected.data(), expected.size(), nullptr));
            cachegen_lcg3_close(reader);
            for (size_t i = 0; i < 3; i++) {
                CHECK(to.bytes_of(i) == std::string(host.data[i].begin(), host.data[i].end()));
            }
            set_values(host);
        }
    });
}

// what is encoded is what a graph that nobody has waited for leaves in the tensors
TEST(encode) {
    with_buffers([](ggml_backend_dev_t device) {
        const cache from(device);
        const page  of = make_page();
        host_rows   host(from);
        set_values(host);
        bytes first;
        check_ok(kernel_parity::encode_on_host(of.planes, host.rows, of.options, first));
        from.fill(0);
        check_ok(decode(from, first, true)); // values that are not all the same
        for (size_t i = 0; i < 3; i++) {
            const std::string there = from.bytes_of(i);
            std::copy(there.begin(), there.end(), host.data[i].begin());
        }
        // a word of the first tensor's first row
        fake_metal::fill_later(fake_ggml_metal::queue(), from.metal(), from.offset(0), 4, 0x30);
        std::fill_n(host.data[0].begin(), 4, uint8_t{ 0x30 });
        bytes expected;
        check_ok(kernel_parity::encode_on_host(of.planes, host.rows, of.options, expected));
        bytes    archive;
        uint64_t n_bytes    = 0;
        uint64_t peak_bytes = 0;
        check_ok(procs().encode(from.backend(), GGML_KV_CODEC_FORMAT_LCG3, of.planes.data(), &of.options,
                                from.rows().data(), from.rows().size(), 2, append, &archive, &n_bytes, &peak_bytes));
        CHECK_EQ(n_bytes, uint64_t(archive.size()));
        CHECK(peak_bytes > 0);
        CHECK(archive == expected);
    });
}

TEST(refused) {
    with_buffers([](ggml_backend_dev_t device) {
        const cache to(device);
        int32_t     status = 0;
        CHECK(procs().decoder_new(to.backend(), GGML_KV_CODEC_FORMAT_LCG2, "", 0, 0, 0, 1, to.rows().data(), 3, 1,
                                  &status) == nullptr);
        CHECK_EQ(status, int32_t(CACHEGEN_ERR_UNSUPPORTED));
        // a tensor of the host's
        ggml_init_params params{};
        params.mem_size              = 1 << 20;
        ggml_context *     context   = ggml_init(params);
        ggml_kv_codec_rows elsewhere = to.rows()[0];
        elsewhere.tensor             = ggml_new_tensor_2d(context, GGML_TYPE_F16, n_channels, n_cells);
        CHECK(procs().decoder_new(to.backend(), GGML_KV_CODEC_FORMAT_LCG3, "", 0, 0, 0, 1, &elsewhere, 1, 1, &status) ==
              nullptr);
        CHECK_EQ(status, int32_t(CACHEGEN_ERR_MISMATCH));
        CHECK(std::string(procs().last_message()).find("not in memory of the Metal backend") != std::string::npos);
        ggml_free(context);
    });
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
