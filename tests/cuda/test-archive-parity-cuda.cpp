// The CacheGen ABI on a device beside the processor: the same cells give the same archives, the same archives the same
// cells, damaged ones the same status and no trace. Without a device both sides are the processor, which tries the
// test.
#include "llama-cachegen.h"
#include "page_fixture.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr int32_t n_page  = 75; // exact tokens, whole blocks and one in part
constexpr int32_t n_block = 32;

ggml_backend_dev_t the_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
}

enum placement { on_host, on_device };

llama_model * model_at(placement where) {
    static const llama_model_ptr models[] = {
        make_tiny_llama(),
        [] {
            tiny_llama shape;
            shape.device          = the_device();
            shape.n_device_layers = shape.device != nullptr ? 999 : 0;
            return make_tiny_llama(shape);
        }(),
    };
    return models[where].get();
}

const std::vector<cache_layout> & layouts() {
    static const std::vector<cache_layout> all = [] {
        std::vector<cache_layout> result = typical_layouts();
        for (const auto type : { GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
            result.push_back({ type, type, true, true });
        }
        result.push_back({ GGML_TYPE_Q8_0, GGML_TYPE_F16, true, true });
        result.push_back({ GGML_TYPE_BF16, GGML_TYPE_F16, false, true });
        return result;
    }();
    return all;
}

void for_each_layout(const std::function<void(const cache_layout &)> & body) {
    for (const auto & layout : layouts()) {
        SCOPE(to_string(layout));
        if (!make_context(model_at(on_device), layout)) {
            printf("llama.cpp does not offer %s here\n", to_string(layout).c_str());
            continue;
        }
        body(layout);
    }
}

byte_vector state_of(llama_context * ctx, llama_seq_id seq_id) {
    byte_vector state(llama_state_seq_get_size(ctx, seq_id));
    CHECK_EQ(llama_state_seq_get_data(ctx, state.data(), state.size(), seq_id), state.size());
    return state;
}

byte_vector state_of(llama_context * ctx) {
    byte_vector state(llama_state_get_size(ctx));
    CHECK_EQ(llama_state_get_data(ctx, state.data(), state.size()), state.size());
    return state;
}

// a context on the processor with the same cells
llama_context_ptr copy_to_host(llama_context * ctx, const cache_layout & layout) {
    llama_context_ptr host  = make_context(model_at(on_host), layout);
    const byte_vector state = state_of(ctx, 0);
    CHECK_EQ(llama_state_seq_set_data(host.get(), state.data(), state.size(), 0), state.size());
    CHECK_SAME_BITS(state, state_of(host.get(), 0));
    return host;
}

// every component has to be coded by its backend
byte_vector export_archive(llama_context * ctx, int32_t n_tokens, bool is_lossy) {
    uint32_t n_components = 0;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, nullptr, 0, &n_components));
    std::vector<llama_cachegen_component_caps> caps(n_components);
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, caps.data(), n_components, &n_components));
    std::vector<llama_cachegen_coding> codings;
    for (const auto & c : caps) {
        CHECK(c.can_import && c.can_export);
        const uint32_t n_levels = c.kind == LLAMA_KV_PAGE_KIND_K ? 31 : 13;
        codings.push_back({ c.layer, c.kind, is_lossy ? n_levels : 0, GGML_TYPE_BF16, is_lossy });
    }
    llama_cachegen_profile profile{};
    profile.struct_size    = sizeof(profile);
    profile.block_tokens   = n_block;
    profile.n_exact_tokens = 4;
    profile.n_models       = 4;
    profile.n_classes      = 9;
    byte_vector bytes;
    const auto  write = [](void * to, uint64_t offset, const void * from, uint64_t n_bytes) {
        auto & all = *static_cast<byte_vector *>(to);
        all.resize(std::max<size_t>(all.size(), offset + n_bytes));
        memcpy(all.data() + offset, from, n_bytes);
        return int32_t(0);
    };
    uint64_t n_bytes = 0;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_export(ctx, 0, 0, n_tokens, &profile, codings.data(), n_components,
                                                         write, &bytes, nullptr, &n_bytes, nullptr));
    CHECK_EQ(bytes.size(), n_bytes);
    return bytes;
}

int32_t import_archive(llama_context * ctx, llama_seq_id seq_id, const byte_vector & bytes, uint32_t n_tokens,
                       const llama_cachegen_options * options = nullptr) {
    return llama_cachegen_import_archive(ctx, seq_id, 0, bytes.data(), bytes.size(), 0, n_tokens, options, nullptr);
}

// holes, so that an import comes in several runs of cells
llama_context_ptr fragmented_context(placement where, const cache_layout & layout) {
    llama_context_ptr ctx = make_context(model_at(where), layout);
    for (int32_t i = 0; i < 12; i++) {
        decode(ctx.get(), 0, 8 * i, random_tokens(8, 50 + uint64_t(i)));
        decode(ctx.get(), 1, 8 * i, random_tokens(8, 60 + uint64_t(i)));
    }
    llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, -1, -1);
    return ctx;
}

} // namespace

TEST(archives_and_cells_are_those_of_the_processor) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr device = make_context(model_at(on_device), layout);
        decode(device.get(), 0, 0, random_tokens(n_page, 11));
        const llama_context_ptr host = copy_to_host(device.get(), layout);
        for (const bool is_lossy : { true, false }) {
            SCOPE(is_lossy ? "lossy" : "exact");
            const byte_vector bytes = export_archive(device.get(), n_page, is_lossy);
            CHECK_SAME_BITS(bytes, export_archive(host.get(), n_page, is_lossy));
            const llama_context_ptr to_device = fragmented_context(on_device, layout);
            const llama_context_ptr to_host   = fragmented_context(on_host, layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to_device.get(), 0, bytes, n_page));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to_host.get(), 0, bytes, n_page));
            CHECK_SAME_BITS(state_of(to_host.get(), 0), state_of(to_device.get(), 0));
            if (!is_lossy) {
                CHECK_SAME_BITS(bytes, export_archive(to_device.get(), n_page, is_lossy));
            }
        }
    });
}

TEST(damaged_archives_leave_no_trace) {
    uint64_t n_refused = 0;
    for_each_layout([&](const cache_layout & layout) {
        const llama_context_ptr device = fragmented_context(on_device, layout);
        const llama_context_ptr host   = fragmented_context(on_host, layout);
        decode(device.get(), 0, 0, random_tokens(n_page, 11));
        const byte_vector good[] = { export_archive(device.get(), n_page, true),
                                     export_archive(device.get(), n_page, false) };
        const byte_vector before = state_of(device.get());
        uint64_t          random = 5;
        const auto        next   = [&](uint64_t n) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            return (random >> 33) % n;
        };
        for (int i = 0; i < 60; i++) {
            byte_vector bytes = good[i % 2];
            if (i % 5 == 0) {
                bytes.resize(next(bytes.size()));
            } else {
                bytes[i % 3 == 0 ? next(bytes.size()) : next(std::min<uint64_t>(bytes.size(), 512))] ^= 1 << next(8);
            }
            const int32_t expected = import_archive(host.get(), 2, bytes, n_page);
            CHECK_EQ(import_archive(device.get(), 2, bytes, n_page), expected);
            CHECK(expected != LLAMA_KV_PAGE_OK); // digests are over all of it
            CHECK_SAME_BITS(before, state_of(device.get()));
            n_refused++;
        }
        // stopped at every block
        for (int32_t n_allowed = 0;; n_allowed++) {
            int32_t                n_left = n_allowed;
            llama_cachegen_options options{};
            options.struct_size = sizeof(options);
            options.user_data   = &n_left;
            options.go_on       = [](void * left, uint64_t, uint64_t) {
                return int32_t((*static_cast<int32_t *>(left))-- > 0);
            };
            const int32_t status = import_archive(device.get(), 2, good[0], n_page, &options);
            if (status == LLAMA_KV_PAGE_OK) {
                CHECK(n_allowed > 2);
                break;
            }
            CHECK_EQ(status, int32_t(LLAMA_KV_PAGE_ERR_CANCELLED));
            CHECK_SAME_BITS(before, state_of(device.get()));
        }
    });
    printf("damaged: %llu archives refused, as on the processor\n", static_cast<unsigned long long>(n_refused));
}

int main(int argc, char ** argv) {
    ggml_backend_load_all();
    capture_log();
    const auto * device = the_device();
    printf("device: %s\n", device != nullptr ? ggml_backend_dev_description(the_device()) : "none, the processor");
    return harness::run(argc, argv);
}
