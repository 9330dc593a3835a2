// Archives of caches on a device without a codec: refused unasked, by way of host memory if asked for.
#include "fake_device.h"
#include "llama-cachegen.h"
#include "page_fixture.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr int32_t  n_page  = 100;
constexpr uint32_t n_exact = 4;
constexpr uint32_t n_block = 32;

// what lies on the device: the output is a layer too
enum placement { on_host = 0, last_layer = 2, all_layers = 3 };

llama_model * model_at(placement where) {
    static std::vector<llama_model_ptr> models(4);
    if (!models[where]) {
        tiny_llama shape;
        shape.device          = where == on_host ? nullptr : fake_device::device();
        shape.n_device_layers = where;
        models[where]         = make_tiny_llama(shape);
    }
    return models[where].get();
}

llama_cachegen_options options_with(uint32_t flags, uint32_t n_threads = 2) {
    llama_cachegen_options options = {};
    options.struct_size            = sizeof(options);
    options.flags                  = flags;
    options.n_threads              = n_threads;
    return options;
}

llama_cachegen_stats new_archive_stats() {
    llama_cachegen_stats stats = {};
    stats.struct_size          = sizeof(stats);
    return stats;
}

std::vector<llama_cachegen_component_caps> caps_of(llama_context * ctx) {
    uint32_t n = 0;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, nullptr, 0, &n));
    std::vector<llama_cachegen_component_caps> caps(n);
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, caps.data(), n, &n));
    return caps;
}

int32_t write(void * user_data, uint64_t offset, const void * piece, uint64_t n_bytes) {
    auto & bytes = *static_cast<byte_vector *>(user_data);
    bytes.resize(std::max<size_t>(bytes.size(), offset + n_bytes));
    memcpy(bytes.data() + offset, piece, n_bytes);
    return 0;
}

// status
int32_t export_archive(llama_context * ctx, llama_seq_id seq_id, uint32_t n_levels, uint32_t flags, byte_vector & bytes,
                       llama_cachegen_stats & stats) {
    llama_cachegen_profile profile = {};
    profile.struct_size            = sizeof(profile);
    profile.block_tokens           = n_block;
    profile.n_exact_tokens         = n_exact;
    profile.n_models               = 4;
    profile.n_classes              = 4;
    memcpy(profile.name, "test", 4);
    std::vector<llama_cachegen_coding> codings;
    for (const auto & c : caps_of(ctx)) {
        codings.push_back({ c.layer, c.kind, n_levels, GGML_TYPE_F32, 0 });
    }
    const auto options = options_with(flags);
    uint64_t   n_bytes = 0;
    stats              = new_archive_stats();
    bytes.clear();
    const int32_t status = llama_cachegen_export(ctx, seq_id, 0, n_page, &profile, codings.data(),
                                                 uint32_t(codings.size()), write, &bytes, &options, &n_bytes, &stats);
    CHECK(status != LLAMA_KV_PAGE_OK || n_bytes == bytes.size());
    return status;
}

int32_t import_archive(llama_context * ctx, llama_seq_id seq_id, const byte_vector & bytes, uint32_t flags,
                       llama_cachegen_stats & stats, uint32_t first_token = 0, uint32_t n_tokens = n_page) {
    const auto options = options_with(flags);
    stats              = new_archive_stats();
    return llama_cachegen_import_archive(ctx, seq_id, 0, bytes.data(), bytes.size(), first_token, n_tokens, &options,
                                         &stats);
}

// everything that llama.cpp saves of a context
byte_vector state_of(llama_context * ctx) {
    byte_vector state(llama_state_get_size(ctx));
    CHECK_EQ(llama_state_get_data(ctx, state.data(), state.size()), state.size());
    return state;
}

byte_vector state_of(llama_context * ctx, llama_seq_id seq_id) {
    byte_vector state(llama_state_seq_get_size(ctx, seq_id));
    CHECK_EQ(llama_state_seq_get_data(ctx, state.data(), state.size(), seq_id), state.size());
    return state;
}

void for_each_case(const std::function<void(const cache_layout &, placement)> & body) {
    for (const auto & layout : typical_layouts()) {
        for (const placement where : { last_layer, all_layers }) {
            SCOPE(to_string(layout) + (where == all_layers ? ", all on the device" : ", one layer on the device"));
            body(layout, where);
        }
    }
}

// Holes, so that an import comes in several runs of cells.
llama_context_ptr fragmented_context(const cache_layout & layout, placement where) {
    llama_context_ptr ctx = make_context(model_at(where), layout);
    CHECK(ctx != nullptr);
    for (int32_t i = 0; i < 16; ++i) { // all 256 cells of one pool
        decode(ctx.get(), 0, 8 * i, random_tokens(8, 50 + uint64_t(i)));
        decode(ctx.get(), 1, 8 * i, random_tokens(8, 60 + uint64_t(i)));
    }
    llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, -1, -1);
    return ctx;
}

// archives made on the host
byte_vector archive_of(const cache_layout & layout, uint32_t n_levels) {
    const llama_context_ptr ctx = make_context(model_at(on_host), layout);
    decode(ctx.get(), 0, 0, random_tokens(n_page, 11));
    byte_vector          bytes;
    llama_cachegen_stats stats;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, export_archive(ctx.get(), 0, n_levels, 0, bytes, stats));
    CHECK_EQ(stats.n_host_staged, 0u);
    return bytes;
}

} // namespace

TEST(the_fake_device_computes_what_the_host_does) {
    for_each_case([](const cache_layout & layout, placement where) {
        const llama_context_ptr host   = make_context(model_at(on_host), layout);
        const llama_context_ptr device = make_context(model_at(where), layout);
        fake_device::take_counts();
        CHECK_SAME_BITS(decode(host.get(), 0, 0, random_tokens(n_page, 11)),
                        decode(device.get(), 0, 0, random_tokens(n_page, 11)));
        CHECK_SAME_BITS(state_of(host.get(), 0), state_of(device.get(), 0));
        CHECK(fake_device::take_counts().n_gets > 0); // the state was read through the device
        uint32_t n_on_device = 0;
        for (const auto & c : caps_of(device.get())) {
            const bool is_there = std::string(c.backend) == "Fake";
            n_on_device += is_there;
            CHECK_EQ(c.can_import, uint32_t(!is_there));
            CHECK_EQ(c.can_export, uint32_t(!is_there));
            CHECK_EQ(c.can_stage, 1u);
        }
        CHECK_EQ(n_on_device, where == all_layers ? 4u : 2u);
    });
}

TEST(native_pages_do_not_hold_a_device_s_cache) {
    for_each_case([](const cache_layout & layout, placement where) {
        const llama_context_ptr ctx  = make_context(model_at(where), layout);
        auto                    info = new_info();
        decode(ctx.get(), 0, 0, random_tokens(n_page, 11));
        CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_BACKEND, llama_kv_page_describe(ctx.get(), 0, 0, n_page, &info, nullptr, 0));
        CHECK(std::strstr(llama_kv_page_last_message(), "Fake") != nullptr);
    });
}

TEST(without_the_flag_a_device_without_codec_is_refused) {
    for_each_case([](const cache_layout & layout, placement where) {
        const byte_vector       bytes = archive_of(layout, 0);
        const llama_context_ptr ctx   = fragmented_context(layout, where);
        const byte_vector       state = state_of(ctx.get());
        llama_cachegen_stats    stats;
        byte_vector             out;
        llama_cachegen_import * import  = nullptr;
        const auto              options = options_with(0);
        fake_device::take_counts();
        CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, import_archive(ctx.get(), 2, bytes, 0, stats));
        CHECK(std::strstr(llama_kv_page_last_message(), "HOST_STAGED") != nullptr);
        CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, llama_cachegen_validate(ctx.get(), 2, 0, bytes.data(), bytes.size(),
                                                                          bytes.size(), 0, n_page, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC,
                     llama_cachegen_import_begin(ctx.get(), 2, 0, bytes.data(), bytes.size(), bytes.size(), 0, n_page,
                                                 &options, &import));
        CHECK_EQ(fake_device::take_counts().n_sets, 0u);
        llama_memory_seq_rm(llama_get_memory(ctx.get()), 1, -1, -1);
        decode(ctx.get(), 0, 0, random_tokens(n_page, 11));
        CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, export_archive(ctx.get(), 0, 0, 0, out, stats));
        CHECK(out.empty());

        const llama_context_ptr again = fragmented_context(layout, where);
        CHECK_SAME_BITS(state_of(again.get()), state);
    });
}

TEST(staged_imports_equal_those_of_the_host) {
    for_each_case([](const cache_layout & layout, placement where) {
        for (const uint32_t n_levels : { 0u, 31u }) {
            const byte_vector       bytes  = archive_of(layout, n_levels);
            const llama_context_ptr host   = fragmented_context(layout, on_host);
            const llama_context_ptr device = fragmented_context(layout, where);
            llama_cachegen_stats    on_cpu;
            llama_cachegen_stats    stats;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(host.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, on_cpu));
            CHECK_EQ(on_cpu.n_host_staged, 0u); // asked for, not needed
            fake_device::take_counts();
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(device.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats));
            const auto counts = fake_device::take_counts();
            CHECK_EQ(stats.n_host_staged, where == all_layers ? 4u : 2u);
            CHECK_EQ(stats.n_components, 4u);
            CHECK_EQ(stats.n_backends, 1u);
            CHECK_EQ(stats.n_cell_runs, on_cpu.n_cell_runs);
            CHECK(!layout.unified || stats.n_cell_runs > 1);
            CHECK(stats.peak_transient_bytes >
                  stats.native_bytes * stats.n_host_staged / stats.n_components * n_block / n_page);
            CHECK(counts.n_sets >= 4u * stats.n_host_staged); // part by part
            CHECK(counts.max_bytes <= stats.native_bytes / stats.n_components * 2 * n_block / n_page);
            CHECK_SAME_BITS(state_of(host.get()), state_of(device.get()));
            CHECK_SAME_BITS(greedy(host.get(), 2, n_page, 7, 8), greedy(device.get(), 2, n_page, 7, 8));

            // a part of it that begins and ends inside of blocks
            llama_memory_seq_rm(llama_get_memory(host.get()), 2, -1, -1);
            llama_memory_seq_rm(llama_get_memory(device.get()), 2, -1, -1);
            CHECK_STATUS(LLAMA_KV_PAGE_OK,
                         import_archive(host.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats, 2, 50));
            CHECK_STATUS(LLAMA_KV_PAGE_OK,
                         import_archive(device.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats, 2, 50));
            CHECK_SAME_BITS(state_of(host.get(), 2), state_of(device.get(), 2));
        }
    });
}

TEST(staged_exports_equal_those_of_the_host) {
    for_each_case([](const cache_layout & layout, placement where) {
        for (const uint32_t n_levels : { 0u, 31u }) {
            const llama_context_ptr host   = fragmented_context(layout, on_host);
            const llama_context_ptr device = fragmented_context(layout, where);
            decode(host.get(), 2, 0, random_tokens(n_page, 11));
            decode(device.get(), 2, 0, random_tokens(n_page, 11));
            byte_vector          expected;
            byte_vector          got;
            llama_cachegen_stats stats;
            CHECK_STATUS(LLAMA_KV_PAGE_OK,
                         export_archive(host.get(), 2, n_levels, LLAMA_CACHEGEN_HOST_STAGED, expected, stats));
            CHECK_EQ(stats.n_host_staged, 0u);
            fake_device::take_counts();
            CHECK_STATUS(LLAMA_KV_PAGE_OK,
                         export_archive(device.get(), 2, n_levels, LLAMA_CACHEGEN_HOST_STAGED, got, stats));
            CHECK_EQ(stats.n_host_staged, where == all_layers ? 4u : 2u);
            CHECK_EQ(stats.n_backends, 1u);
            CHECK_SAME_BITS(expected, got);
            // a block at a time, and no plane as a whole
            CHECK(fake_device::take_counts().max_bytes <=
                  stats.native_bytes / stats.n_components * 2 * n_block / n_page);
        }
    });
}

TEST(a_write_that_fails_leaves_nothing) {
    for_each_case([](const cache_layout & layout, placement where) {
        const byte_vector       bytes  = archive_of(layout, 31);
        const llama_context_ptr ctx    = fragmented_context(layout, where);
        const llama_context_ptr twin   = fragmented_context(layout, where);
        const byte_vector       before = state_of(ctx.get());
        llama_cachegen_stats    stats;
        fake_device::take_counts();
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats));
        const uint64_t n_sets = fake_device::take_counts().n_sets;
        llama_memory_seq_rm(llama_get_memory(ctx.get()), 2, -1, -1);
        for (uint64_t n_good = 0; n_good < n_sets; n_good += std::max<uint64_t>(1, n_sets / 16)) {
            SCOPE("after " + std::to_string(n_good) + " writes");
            fake_device::fail_set_after(int64_t(n_good));
            const std::string message = CHECK_STATUS(
                LLAMA_KV_PAGE_ERR_INTERNAL, import_archive(ctx.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats));
            CHECK(message.find("refuses a write") != std::string::npos);
            fake_device::fail_set_after(-1);
            CHECK_EQ(pos_max(ctx.get(), 2), -1);
            CHECK_SAME_BITS(before, state_of(ctx.get()));
        }
        CHECK_SAME_BITS(greedy(twin.get(), 1, 128, 7, 8), greedy(ctx.get(), 1, 128, 7, 8));
    });
}

TEST(damaged_blocks_leave_nothing) {
    for_each_case([](const cache_layout & layout, placement where) {
        byte_vector             bytes  = archive_of(layout, 0);
        const llama_context_ptr ctx    = fragmented_context(layout, where);
        const byte_vector       before = state_of(ctx.get());
        llama_cachegen_stats    stats;
        bytes[bytes.size() - 100] ^= 1;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARCHIVE, import_archive(ctx.get(), 2, bytes, LLAMA_CACHEGEN_HOST_STAGED, stats));
        CHECK_EQ(pos_max(ctx.get(), 2), -1);
        CHECK_SAME_BITS(before, state_of(ctx.get()));
    });
}

TEST(types_that_the_codec_does_not_know_stay_refused) {
    cache_layout layout;
    layout.type_k               = GGML_TYPE_Q5_0;
    layout.flash_attn           = true;
    const llama_context_ptr ctx = make_context(model_at(all_layers), layout);
    CHECK(ctx != nullptr);
    decode(ctx.get(), 0, 0, random_tokens(n_page, 11));
    byte_vector          out;
    llama_cachegen_stats stats;
    CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, export_archive(ctx.get(), 0, 0, LLAMA_CACHEGEN_HOST_STAGED, out, stats));
    CHECK_EQ(caps_of(ctx.get())[0].can_stage, 0u);
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, export_archive(ctx.get(), 0, 0, 2, out, stats));
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
