// Archives of a cache on a device, through llama.cpp: ordering with its graphs, failures of the device, layers here and
// there.
//   test-archives-cuda [NAME]     ROUNDS: environment variable, of the ordering test; 1,000 if it is not set
#include "cuda_faults.h"
#include "ggml-backend.h"
#include "llama-cachegen.h"
#include "page_fixture.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <thread>

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr uint32_t n_prompt = 150;

ggml_backend_dev_t gpu() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    CHECK(device != nullptr);
    return device;
}

// freed before main() ends: after that CUDA's runtime may be gone, which llama.cpp takes for a failure
std::vector<std::pair<int32_t, llama_model_ptr>> models;

// n_device_layers: of 2, the output not counted
llama_model * model(int32_t n_device_layers = 99) {
    for (const auto & one : models) {
        if (one.first == n_device_layers) {
            return one.second.get();
        }
    }
    tiny_llama shape;
    shape.device          = gpu();
    shape.n_device_layers = n_device_layers;
    models.emplace_back(n_device_layers, make_tiny_llama(shape));
    return models.back().second.get();
}

const std::vector<cache_layout> & layouts() {
    static const std::vector<cache_layout> all = {
        { GGML_TYPE_F16, GGML_TYPE_F16, true },   { GGML_TYPE_F16, GGML_TYPE_F16, false },
        { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true }, { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, true },
        { GGML_TYPE_F32, GGML_TYPE_F32, false },  { GGML_TYPE_Q8_0, GGML_TYPE_F16, false },
    };
    return all;
}

llama_context_ptr new_context(llama_model * of, const cache_layout & layout) {
    llama_context_ptr ctx = make_context(of, layout);
    CHECK(ctx != nullptr);
    return ctx;
}

// the whole sequence as llama.cpp itself saves it: positions and cells
byte_vector state_of(llama_context * ctx, llama_seq_id seq_id) {
    byte_vector bytes(llama_state_seq_get_size(ctx, seq_id));
    CHECK_EQ(llama_state_seq_get_data(ctx, bytes.data(), bytes.size(), seq_id), bytes.size());
    return bytes;
}

struct coded {
    bool is_lossy;

    int32_t save(llama_context * ctx, llama_seq_id seq_id, int32_t n, byte_vector & bytes, uint32_t flags = 0) const {
        llama_cachegen_profile profile = {};
        profile.struct_size            = sizeof(profile);
        profile.block_tokens           = 64;
        profile.n_exact_tokens         = 4;
        profile.n_models               = 4;
        profile.n_classes              = 4;
        uint32_t n_components          = 0;
        CHECK_EQ(llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, nullptr, 0, &n_components), 0);
        std::vector<llama_cachegen_component_caps> caps(n_components);
        CHECK_EQ(llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, caps.data(), n_components, &n_components), 0);
        std::vector<llama_cachegen_coding> codings;
        for (const auto & one : caps) {
            codings.push_back({ one.layer, one.kind, is_lossy ? 31u : 0u, GGML_TYPE_BF16, 1 });
        }
        llama_cachegen_options options = {};
        options.struct_size            = sizeof(options);
        options.n_threads              = 2;
        options.flags                  = flags;
        uint64_t n_bytes               = 0;
        bytes.clear();
        return llama_cachegen_export(
            ctx, seq_id, 0, n, &profile, codings.data(), n_components,
            [](void * to, uint64_t offset, const void * piece, uint64_t n_piece) {
                auto & all = *static_cast<byte_vector *>(to);
                all.resize(std::max<size_t>(all.size(), offset + n_piece));
                memcpy(all.data() + offset, piece, n_piece);
                return 0;
            },
            &bytes, &options, &n_bytes, nullptr);
    }
};

int32_t restore(llama_context * ctx, llama_seq_id seq_id, const byte_vector & bytes, int32_t n, uint32_t flags = 0) {
    llama_cachegen_options options = {};
    options.struct_size            = sizeof(options);
    options.n_threads              = 2;
    options.flags                  = flags;
    return llama_cachegen_import_archive(ctx, seq_id, 0, bytes.data(), bytes.size(), 0, uint32_t(n), &options, nullptr);
}

void remove(llama_context * ctx, llama_seq_id seq_id) {
    CHECK(llama_memory_seq_rm(llama_get_memory(ctx), seq_id, -1, -1));
}

// decode without waiting for it
void start_decode(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, const std::vector<llama_token> & tokens) {
    CHECK_EQ(try_decode(ctx, seq_id, p0, tokens), 0);
}

std::vector<float> last_logits(llama_context * ctx) {
    const float * logits = llama_get_logits_ith(ctx, -1); // waits
    return { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))) };
}

// copies and fills on streams that nobody waits for
class side_streams {
  public:
    side_streams() : thread_([this] { work(); }) {}
    ~side_streams() {
        is_stopping_ = true;
        thread_.join();
    }

  private:
    void work() {
        constexpr size_t n_bytes = 64 << 20;
        cudaStream_t     streams[2];
        void *           memory = nullptr;
        void *           host   = nullptr;
        bool             is_ok  = cudaMalloc(&memory, 2 * n_bytes) == cudaSuccess &&
                                  cudaHostAlloc(&host, n_bytes, cudaHostAllocDefault) == cudaSuccess;
        for (auto & stream : streams) {
            is_ok = is_ok && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
        }
        for (uint32_t i = 0; is_ok && !is_stopping_; i++) {
            is_ok =
                cudaMemcpyAsync(memory, host, n_bytes, cudaMemcpyHostToDevice, streams[0]) == cudaSuccess &&
                cudaMemsetAsync(static_cast<uint8_t *>(memory) + n_bytes, int(i), n_bytes, streams[1]) == cudaSuccess &&
                cudaStreamSynchronize(streams[i % 2]) == cudaSuccess;
        }
        if (!is_ok) {
            printf("side streams: %s\n", cudaGetErrorString(cudaGetLastError()));
            abort();
        }
        cudaDeviceSynchronize();
        cudaFree(memory);
        cudaFreeHost(host);
        for (auto & stream : streams) {
            cudaStreamDestroy(stream);
        }
    }

    std::atomic<bool> is_stopping_{ false };
    std::thread       thread_;
};

std::string name_of(const cache_layout & layout, bool is_lossy) {
    return to_string(layout) + (is_lossy ? ", lossy" : ", exact");
}

} // namespace

// A save comes after the graphs before it, a restore before those after it, whatever else the device does.
TEST(ordering) {
    const char *   text     = getenv("ROUNDS");
    const uint32_t n_rounds = text ? uint32_t(atoi(text)) : 1000;
    struct pair_of_contexts {
        llama_context_ptr hasty;
        llama_context_ptr patient; // waits before and after everything
    };
    std::vector<pair_of_contexts> contexts;
    for (const auto & layout : layouts()) {
        contexts.push_back({ new_context(model(), layout), new_context(model(), layout) });
    }
    const side_streams disturbed;
    cuda_faults::delay(300);
    for (uint32_t round = 0; round < n_rounds; round++) {
        const cache_layout & layout = layouts()[round % layouts().size()];
        const coded          how{ round / layouts().size() % 4 != 3 };
        SCOPE("round " + std::to_string(round) + ", " + name_of(layout, how.is_lossy));
        auto &        at = contexts[round % contexts.size()];
        const auto    a  = at.hasty.get();
        const auto    b  = at.patient.get();
        const int32_t n  = 60 + int32_t(round * 7 % 90);
        start_decode(a, 0, 0, random_tokens(uint32_t(n - 3), round));
        start_decode(a, 0, n - 3, random_tokens(3, round + 1));
        byte_vector at_once, later;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(a, 0, n, at_once));
        llama_synchronize(a);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(a, 0, n, later));
        CHECK(at_once == later);

        start_decode(a, 0, n, random_tokens(2, round + 2)); // still running when its cells are given up
        remove(a, 0);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(a, 0, at_once, n));
        start_decode(a, 0, n, random_tokens(1, round + 3));

        CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(b, 0, at_once, n));
        cudaDeviceSynchronize();
        start_decode(b, 0, n, random_tokens(1, round + 3));
        cudaDeviceSynchronize();
        CHECK(last_logits(a) == last_logits(b));
        CHECK(state_of(a, 0) == state_of(b, 0));
        remove(a, 0);
        remove(b, 0);
    }
    cuda_faults::delay(0);
    printf("ordering: %u rounds\n", n_rounds);
}

// Every call of the CUDA runtime fails once.
TEST(failures_roll_back) {
    uint32_t n_failed_saves    = 0;
    uint32_t n_failed_restores = 0;
    uint32_t n_without_harm    = 0;
    for (const auto & layout : layouts()) {
        for (const bool is_lossy : { true, false }) {
            SCOPE(name_of(layout, is_lossy));
            const coded             how{ is_lossy };
            const llama_context_ptr ctx     = new_context(model(), layout);
            const llama_context_ptr patient = new_context(model(), layout);
            for (const auto & one : { ctx.get(), patient.get() }) {
                start_decode(one, 0, 0, random_tokens(n_prompt, 5));
                start_decode(one, 1, 0, random_tokens(20, 6));
            }
            byte_vector expected;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(ctx.get(), 0, n_prompt, expected));
            const byte_vector before[] = { state_of(ctx.get(), 0), state_of(ctx.get(), 1) };
            const auto        is_same  = [&] {
                return state_of(ctx.get(), 0) == before[0] && state_of(ctx.get(), 1) == before[1];
            };
            for (uint32_t at = 0;; at++) {
                SCOPE("save, call " + std::to_string(at));
                byte_vector bytes;
                cuda_faults::arm(at);
                const int32_t  status  = how.save(ctx.get(), 0, n_prompt, bytes);
                const uint32_t n_calls = cuda_faults::n_calls();
                cuda_faults::arm(UINT32_MAX);
                CHECK(is_same());
                if (status == LLAMA_KV_PAGE_OK) {
                    CHECK(bytes == expected);
                    if (n_calls <= at) {
                        break;
                    }
                    n_without_harm++;
                    continue;
                }
                CHECK(status == LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY || status == LLAMA_KV_PAGE_ERR_INTERNAL);
                CHECK(strstr(llama_kv_page_last_message(), "CUDA") != nullptr);
                n_failed_saves++;
            }
            remove(ctx.get(), 0);
            const byte_vector neighbour = state_of(ctx.get(), 1);
            for (uint32_t at = 0;; at++) {
                SCOPE("restore, call " + std::to_string(at));
                cuda_faults::arm(at);
                const int32_t  status  = restore(ctx.get(), 0, expected, n_prompt);
                const uint32_t n_calls = cuda_faults::n_calls();
                cuda_faults::arm(UINT32_MAX);
                CHECK(state_of(ctx.get(), 1) == neighbour);
                if (status == LLAMA_KV_PAGE_OK) {
                    remove(patient.get(), 0);
                    CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(patient.get(), 0, expected, n_prompt));
                    CHECK(state_of(ctx.get(), 0) == state_of(patient.get(), 0));
                    remove(ctx.get(), 0);
                    if (n_calls <= at) {
                        break;
                    }
                    n_without_harm++;
                    continue;
                }
                CHECK(status == LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY || status == LLAMA_KV_PAGE_ERR_INTERNAL);
                CHECK(strstr(llama_kv_page_last_message(), "CUDA") != nullptr);
                CHECK_EQ(pos_max(ctx.get(), 0), -1);
                n_failed_restores++;
                // whatever the cells hold now, attention that is masked from them stays finite
                if (at % 8 == 0) {
                    const auto logits = decode(ctx.get(), 1, 20, { 3 });
                    CHECK(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
                    CHECK(llama_memory_seq_rm(llama_get_memory(ctx.get()), 1, 20, -1));
                }
            }
        }
    }
    printf("failures: %u saves and %u restores failed, %u calls failed without harm\n", n_failed_saves,
           n_failed_restores, n_without_harm);
    CHECK(n_failed_saves > 0 && n_failed_restores > 0);
}

// One layer on the device, one in host memory.
TEST(layers_on_both_sides) {
    for (const auto & layout : layouts()) {
        for (const bool is_lossy : { true, false }) {
            SCOPE(name_of(layout, is_lossy));
            const coded             how{ is_lossy };
            const llama_context_ptr split = new_context(model(2), layout); // the output, and the last layer
            const llama_context_ptr whole = new_context(model(), layout);
            start_decode(whole.get(), 0, 0, random_tokens(n_prompt, 7));
            byte_vector bytes;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(whole.get(), 0, n_prompt, bytes));
            for (const bool is_again : { false, true }) {
                SCOPE(is_again ? "again" : "first");
                CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(split.get(), 0, bytes, n_prompt));
                remove(whole.get(), 0);
                CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(whole.get(), 0, bytes, n_prompt));
                CHECK(state_of(split.get(), 0) == state_of(whole.get(), 0));
                remove(split.get(), 0);
            }
            // a save is made in one place: by way of host memory, and only if the caller says so
            CHECK_STATUS(LLAMA_KV_PAGE_OK, restore(split.get(), 0, bytes, n_prompt));
            byte_vector again, again_whole;
            CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, how.save(split.get(), 0, n_prompt, again));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(split.get(), 0, n_prompt, again, LLAMA_CACHEGEN_HOST_STAGED));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, how.save(whole.get(), 0, n_prompt, again_whole));
            CHECK(again == again_whole);
        }
    }
}

int main(int argc, char ** argv) {
    setenv("GGML_CUDA_DISABLE_GRAPHS", "1", 1); // a captured graph takes no host function in
    ggml_backend_load_all();
    capture_log();
    const int status = harness::run(argc, argv);
    models.clear();
    return status;
}
