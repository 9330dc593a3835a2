// From a file to the first token on a device, and from the cache to a file: llama.cpp's own state file beside an
// archive of the same cache, in turn. Weights are random (the shape is Qwen3-0.6B's), files are in the page cache.
// Restored cells are compared with what libcachegen decodes on the processor, saved archives with what it encodes, byte
// by byte.
//   bench-restore-cuda FOLDER [TOKENS [REPEATS]]
#include "cachegen.h"
#include "llama-cachegen.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "tiny_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace {

using clock_type = std::chrono::steady_clock;

double ms_since(clock_type::time_point t) {
    return std::chrono::duration<double, std::milli>(clock_type::now() - t).count();
}

[[noreturn]] void die(const std::string & what) {
    printf("failed: %s\n%s\n", what.c_str(), take_log().c_str());
    exit(1);
}

void check_codec(int32_t status) {
    if (status != CACHEGEN_OK) {
        die(std::string(cachegen_status_name(status)) + ": " + cachegen_last_message());
    }
}

struct samples {
    std::vector<double> ms;
    double              median() {
        std::sort(ms.begin(), ms.end());
        return ms.empty() ? 0 : ms[ms.size() / 2];
    }
};

llama_model_ptr make_qwen3() {
    gguf_context * gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.architecture", "qwen3");
    gguf_set_val_u32(gguf, "qwen3.vocab_size", 151936);
    gguf_set_val_u32(gguf, "qwen3.context_length", 40960);
    gguf_set_val_u32(gguf, "qwen3.embedding_length", 1024);
    gguf_set_val_u32(gguf, "qwen3.block_count", 28);
    gguf_set_val_u32(gguf, "qwen3.feed_forward_length", 3072);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count", 16);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count_kv", 8);
    gguf_set_val_u32(gguf, "qwen3.attention.key_length", 128);
    gguf_set_val_u32(gguf, "qwen3.attention.value_length", 128);
    gguf_set_val_f32(gguf, "qwen3.rope.freq_base", 1e6f);
    gguf_set_val_f32(gguf, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");
    llama_model_ptr model = make_model(gguf, 1, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU), 999);
    gguf_free(gguf);
    return model;
}

double decode(llama_context * ctx, const llama_token * tokens, int32_t n, int32_t p0, std::vector<float> * logits) {
    const auto t_start = clock_type::now();
    for (int32_t i = 0; i < n; i += 2048) {
        const int32_t n_now = std::min(2048, n - i);
        llama_batch   batch = llama_batch_init(n_now, 0, 1);
        batch.n_tokens      = n_now;
        for (int32_t j = 0; j < n_now; j++) {
            batch.token[j]     = tokens[i + j];
            batch.pos[j]       = p0 + i + j;
            batch.n_seq_id[j]  = 1;
            batch.seq_id[j][0] = 0;
            batch.logits[j]    = i + j == n - 1;
        }
        const int32_t status = llama_decode(ctx, batch);
        llama_batch_free(batch);
        if (status != 0) {
            die("llama_decode");
        }
    }
    llama_synchronize(ctx);
    const float * last = llama_get_logits_ith(ctx, -1);
    if (logits) {
        logits->assign(last, last + 151936);
    }
    return ms_since(t_start);
}

std::vector<uint8_t> read_tensor(const ggml_tensor * tensor, size_t n_bytes) {
    std::vector<uint8_t> bytes(n_bytes);
    ggml_backend_tensor_get(tensor, bytes.data(), 0, n_bytes);
    return bytes;
}

struct mapped_file {
    int    fd;
    void * bytes   = nullptr;
    size_t n_bytes = 0;
    explicit mapped_file(const std::string & path) : fd(open(path.c_str(), O_RDONLY)) {
        struct stat info;
        if (fd < 0 || fstat(fd, &info) != 0) {
            die(path);
        }
        n_bytes = static_cast<size_t>(info.st_size);
        bytes   = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    }
    ~mapped_file() {
        munmap(bytes, n_bytes);
        close(fd);
    }
};

struct row_case {
    ggml_type type_k;
    ggml_type type_v;
};

struct open_file {
    int fd;
};

int32_t write_piece(void * user_data, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    const auto * from = static_cast<const uint8_t *>(bytes);
    while (n_bytes > 0) {
        const ssize_t n =
            pwrite(static_cast<const open_file *>(user_data)->fd, from, n_bytes, static_cast<off_t>(offset));
        if (n <= 0) {
            return 1;
        }
        from += n;
        offset += static_cast<uint64_t>(n);
        n_bytes -= static_cast<uint64_t>(n);
    }
    return 0;
}

// Encode and write. Returns the time until the file is closed.
double save_archive(llama_context * ctx, const std::string & path, const cachegen_lcg3_options & lcg3, int32_t n_tokens,
                    const std::vector<cachegen_lcg3_plane> & planes, llama_cachegen_stats & stats) {
    llama_cachegen_profile profile{};
    profile.struct_size     = sizeof(profile);
    profile.block_tokens    = lcg3.block_tokens;
    profile.n_exact_tokens  = lcg3.n_exact_tokens;
    profile.n_models        = lcg3.n_models;
    profile.n_classes       = lcg3.n_classes;
    profile.n_sample_tokens = lcg3.n_sample_tokens;
    std::vector<llama_cachegen_coding> codings;
    for (const auto & plane : planes) {
        codings.push_back({ plane.layer, static_cast<int32_t>(plane.kind), plane.n_symbols,
                            static_cast<int32_t>(plane.scale_type), plane.is_unrotated });
    }
    stats                 = {};
    stats.struct_size     = sizeof(stats);
    uint64_t      n_bytes = 0;
    const auto    t_start = clock_type::now();
    open_file     file{ open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644) };
    const int32_t status =
        llama_cachegen_export(ctx, 0, 0, n_tokens, &profile, codings.data(), static_cast<uint32_t>(codings.size()),
                              write_piece, &file, nullptr, &n_bytes, &stats);
    if (status != 0 || close(file.fd) != 0) {
        die(std::string("export: ") + llama_kv_page_last_message());
    }
    return ms_since(t_start);
}

void run(llama_model * model, const row_case & row, const std::string & folder, int32_t n_tokens, int n_repeats,
         const cachegen_executor * executor) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = 20480;
    params.n_batch              = 2048;
    params.n_ubatch             = 2048;
    params.type_k               = row.type_k;
    params.type_v               = row.type_v;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.n_threads            = static_cast<int32_t>(std::thread::hardware_concurrency());
    llama_context_ptr ctx(llama_init_from_model(model, params));
    if (!ctx) {
        die("no context");
    }
    auto *                   memory = llama_get_memory(ctx.get());
    auto *                   cache  = dynamic_cast<llama_kv_cache *>(ctx->get_memory());
    std::vector<llama_token> tokens(n_tokens + 1);
    uint32_t                 state = 7;
    for (auto & token : tokens) {
        state = state * 1664525 + 1013904223;
        token = static_cast<llama_token>((state >> 8) % 151936);
    }
    decode(ctx.get(), tokens.data(), 512, 0, nullptr); // graphs and kernels are ready
    llama_memory_seq_rm(memory, 0, -1, -1);
    const double       prefill_ms = decode(ctx.get(), tokens.data(), n_tokens, 0, nullptr);
    const std::string  state_path = folder + "/state.bin";
    auto               t_start    = clock_type::now();
    std::vector<float> expected_logits;
    decode(ctx.get(), &tokens[n_tokens], 1, n_tokens, &expected_logits);
    llama_memory_seq_rm(memory, 0, n_tokens, -1);

    // the archive is made on the processor, out of the device's cells
    const auto                        components = cache->page_components(0);
    std::vector<std::vector<uint8_t>> native;
    std::vector<cachegen_lcg3_plane>  planes;
    std::vector<cachegen_rows>        sources;
    native.reserve(components.size());
    uint64_t native_bytes = 0;
    for (const auto & c : components) {
        const size_t row_bytes = ggml_row_size(c.tensor->type, c.n_embd);
        native.push_back(read_tensor(c.tensor, row_bytes * n_tokens));
        native_bytes += native.back().size();
        cachegen_lcg3_plane plane{};
        plane.struct_size  = sizeof(plane);
        plane.layer        = static_cast<int32_t>(planes.size() / 2);
        plane.kind         = 1 + planes.size() % 2;
        plane.mode         = CACHEGEN_LCG3_LOSSY;
        plane.type         = static_cast<uint32_t>(c.tensor->type);
        plane.n_channels   = c.n_embd;
        plane.n_rot        = c.n_rot;
        plane.is_unrotated = c.n_rot != 0;
        plane.n_symbols    = planes.size() % 2 ? 13 : 31;
        plane.scale_type   = CACHEGEN_TYPE_BF16;
        cachegen_rows rows{};
        rows.type         = plane.type;
        rows.n_tokens     = static_cast<uint64_t>(n_tokens);
        rows.n_rows       = rows.n_tokens;
        rows.n_channels   = c.n_embd;
        rows.stride_bytes = row_bytes;
        rows.n_bytes      = native.back().size();
        rows.data         = native.back().data();
        planes.push_back(plane);
        sources.push_back(rows);
    }
    cachegen_lcg3_options options{};
    options.struct_size     = sizeof(options);
    options.block_tokens    = 1024;
    options.n_exact_tokens  = 4;
    options.n_models        = 32;
    options.n_classes       = 9;
    options.n_sample_tokens = 1024;
    void *   archive        = nullptr;
    uint64_t archive_bytes  = 0;
    check_codec(cachegen_lcg3_encode(planes.data(), sources.data(), planes.size(), &options, executor, &archive,
                                     &archive_bytes));
    const std::string    archive_path = folder + "/page.lcg3";
    samples              state_save_ms, archive_save_ms, state_ms, state_first_ms, import_ms, archive_first_ms;
    llama_cachegen_stats stats{};
    llama_cachegen_stats save_stats{};
    bool                 is_same_file = false;
    for (int i = 0; i < n_repeats + 1; i++) {
        t_start = clock_type::now();
        llama_state_seq_save_file(ctx.get(), state_path.c_str(), 0, tokens.data(), static_cast<size_t>(n_tokens));
        const double state_saved_ms   = ms_since(t_start);
        const double archive_saved_ms = save_archive(ctx.get(), archive_path, options, n_tokens, planes, save_stats);
        if (i == 0) {
            const mapped_file saved(archive_path);
            is_same_file = saved.n_bytes == archive_bytes && memcmp(saved.bytes, archive, archive_bytes) == 0;
            continue; // that was a warm-up, with a comparison in it
        }
        state_save_ms.ms.push_back(state_saved_ms);
        archive_save_ms.ms.push_back(archive_saved_ms);
    }
    std::vector<float> logits;
    for (int i = 0; i < n_repeats + 1; i++) {
        std::vector<llama_token> loaded(n_tokens + 1);
        size_t                   n_loaded = 0;
        llama_memory_seq_rm(memory, 0, -1, -1);
        t_start = clock_type::now();
        if (!llama_state_seq_load_file(ctx.get(), state_path.c_str(), 0, loaded.data(), loaded.size(), &n_loaded)) {
            die("llama_state_seq_load_file");
        }
        const double loaded_ms = ms_since(t_start);
        decode(ctx.get(), &tokens[n_tokens], 1, n_tokens, &logits);
        const double state_total_ms = ms_since(t_start);
        if (i == 0 && logits != expected_logits) {
            printf("note: llama.cpp's own restore changes the logits\n");
        }

        llama_memory_seq_rm(memory, 0, -1, -1);
        t_start           = clock_type::now();
        stats             = {};
        stats.struct_size = sizeof(stats);
        {
            const mapped_file         mapped(archive_path);
            const llama_cachegen_file file = { mapped.fd, 0, 0 };
            llama_cachegen_options    options{};
            options.struct_size  = sizeof(options);
            options.file         = &file;
            const int32_t status = llama_cachegen_import_archive(ctx.get(), 0, 0, mapped.bytes, mapped.n_bytes, 0,
                                                                 static_cast<uint32_t>(n_tokens), &options, &stats);
            if (status != 0) {
                die(std::string("import: ") + llama_kv_page_last_message());
            }
        }
        const double imported_ms = ms_since(t_start);
        if (i == 0) {
            // cells as libcachegen decodes them
            cachegen_lcg3 * reader = nullptr;
            check_codec(cachegen_lcg3_open(archive, archive_bytes, &reader));
            std::vector<std::vector<uint8_t>>      expected(components.size());
            std::vector<cachegen_lcg3_destination> destinations;
            for (size_t c = 0; c < components.size(); c++) {
                expected[c].resize(native[c].size());
                cachegen_lcg3_destination destination{};
                destination.rows      = sources[c];
                destination.rows.data = expected[c].data();
                destination.n_rot     = components[c].n_rot;
                destinations.push_back(destination);
            }
            check_codec(cachegen_lcg3_decode(reader, 0, static_cast<uint64_t>(n_tokens), destinations.data(),
                                             destinations.size(), executor));
            cachegen_lcg3_close(reader);
            for (size_t c = 0; c < components.size(); c++) {
                if (read_tensor(components[c].tensor, expected[c].size()) != expected[c]) {
                    die("component " + std::to_string(c) + " differs from libcachegen's decode");
                }
            }
            decode(ctx.get(), &tokens[n_tokens], 1, n_tokens, &logits);
            continue; // that was a warm-up, with a comparison in it
        }
        decode(ctx.get(), &tokens[n_tokens], 1, n_tokens, &logits);
        archive_first_ms.ms.push_back(ms_since(t_start));
        import_ms.ms.push_back(imported_ms);
        state_ms.ms.push_back(loaded_ms);
        state_first_ms.ms.push_back(state_total_ms);
    }
    cachegen_free(archive);
    const size_t top      = std::max_element(expected_logits.begin(), expected_logits.end()) - expected_logits.begin();
    const size_t top_ours = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const double state_median        = state_first_ms.median();
    const double archive_median      = archive_first_ms.median();
    const double state_save_median   = state_save_ms.median();
    const double archive_save_median = archive_save_ms.median();
    printf(
        "%s/%s: native %.1f MB, archive %.1f MB (%.2f %%), recompute %.0f ms\n"
        "  save: llama.cpp %.0f ms (%.0f to %.0f), archive %.1f ms (%.1f to %.1f; encode %.1f, peak %.1f MiB): %.1fx; "
        "same file as libcachegen's: %s\n"
        "  restore: llama.cpp %.1f ms, "
        "to first token %.1f ms (%.1f to %.1f); archive import %.2f ms (reserve %.2f, decode %.2f, commit %.2f, peak %.1f MiB), to "
        "first token %.2f ms (%.2f to %.2f): %.1fx; cells equal libcachegen's; same top token: %s\n",
        ggml_type_name(row.type_k), ggml_type_name(row.type_v), native_bytes / 1e6, archive_bytes / 1e6,
        100.0 * archive_bytes / native_bytes, prefill_ms, state_save_median, state_save_ms.ms.front(),
        state_save_ms.ms.back(), archive_save_median, archive_save_ms.ms.front(), archive_save_ms.ms.back(),
        save_stats.code_ms, save_stats.peak_transient_bytes / 1048576.0, state_save_median / archive_save_median,
        is_same_file ? "yes" : "no", state_ms.median(), state_median, state_first_ms.ms.front(),
        state_first_ms.ms.back(), import_ms.median(), stats.reserve_ms, stats.code_ms, stats.commit_ms,
        stats.peak_transient_bytes / 1048576.0, archive_median, archive_first_ms.ms.front(), archive_first_ms.ms.back(),
        state_median / archive_median, top == top_ours ? "yes" : "no");
    fflush(stdout);
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 2) {
        printf("usage: %s FOLDER [TOKENS [REPEATS]]\n", argv[0]);
        return 2;
    }
    const int32_t n_tokens  = argc > 2 ? atoi(argv[2]) : 19000;
    const int     n_repeats = argc > 3 ? atoi(argv[3]) : 7;
    ggml_backend_load_all();
    capture_log();
    cachegen_executor * executor = nullptr;
    check_codec(cachegen_executor_new(std::max(1u, std::thread::hardware_concurrency()), &executor));
    const auto            t_start = clock_type::now();
    const llama_model_ptr model   = make_qwen3();
    printf("Qwen3-0.6B's shape, synthetic weights, made in %.0f ms; %d tokens, %d repeats, page cache warm\n",
           ms_since(t_start), n_tokens, n_repeats);
    fflush(stdout);
    const row_case rows[] = {
        { GGML_TYPE_F16, GGML_TYPE_F16 },   { GGML_TYPE_F32, GGML_TYPE_F32 },  { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0 },
        { GGML_TYPE_Q8_0, GGML_TYPE_F16 },  { GGML_TYPE_Q8_0, GGML_TYPE_F32 }, { GGML_TYPE_Q4_0, GGML_TYPE_F16 },
        { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0 },
    };
    for (const auto & row : rows) {
        run(model.get(), row, argv[1], n_tokens, n_repeats, executor);
    }
    cachegen_executor_free(executor);
    return 0;
}
