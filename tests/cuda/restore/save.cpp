#include "row.h"

#include <cstdio>
#include <cstring>

namespace {

// Encode and write. Returns the time until the file is closed.
double save_archive(const row_setup & row, const std::string & path, llama_cachegen_stats & stats) {
    const cachegen_lcg3_options lcg3 = balanced_options();
    llama_cachegen_profile      profile{};
    profile.struct_size     = sizeof(profile);
    profile.block_tokens    = lcg3.block_tokens;
    profile.n_exact_tokens  = lcg3.n_exact_tokens;
    profile.n_models        = lcg3.n_models;
    profile.n_classes       = lcg3.n_classes;
    profile.n_sample_tokens = lcg3.n_sample_tokens;
    memcpy(profile.name, lcg3.profile, sizeof(profile.name));
    std::vector<llama_cachegen_coding> codings;
    for (const auto & plane : balanced_planes(row.page)) {
        codings.push_back({ plane.layer, static_cast<int32_t>(plane.kind), plane.n_symbols,
                            static_cast<int32_t>(plane.scale_type), plane.is_unrotated });
    }
    stats                             = {};
    stats.struct_size                 = sizeof(stats);
    uint64_t                  n_bytes = 0;
    const stopwatch           since;
    written_file              file(path);
    const llama_cachegen_file to = { file.fd(), 0, 0 };
    llama_cachegen_options    options{};
    options.struct_size = sizeof(options);
    options.file        = &to; // written by several threads
    if (llama_cachegen_export(row.ctx.get(), 0, 0, row.n_tokens(), &profile, codings.data(),
                              static_cast<uint32_t>(codings.size()), written_file::write, &file, &options, &n_bytes,
                              &stats) != 0) {
        throw std::runtime_error(std::string("export: ") + llama_kv_page_last_message());
    }
    file.close();
    return since.ms();
}

double save_state(const row_setup & row, const std::string & path) {
    const stopwatch since;
    if (llama_state_seq_save_file(row.ctx.get(), path.c_str(), 0, row.model.tokens.data(),
                                  static_cast<size_t>(row.n_tokens())) == 0) {
        throw std::runtime_error("llama_state_seq_save_file");
    }
    return since.ms();
}

void save_native(const row_setup & row, const std::string & path) {
    const auto                  planes  = native_planes(row.page);
    const cachegen_lcg3_options options = native_options(row.page);
    written_file                file(path);
    const cachegen_sink         sink    = { &file, written_file::write };
    uint64_t                    n_bytes = 0;
    check_codec(cachegen_lcg3_encode_to(planes.data(), row.page.rows.data(), planes.size(), &options, row.executor,
                                        &sink, &n_bytes));
    file.close();
}

// is the file libcachegen's archive of the page? What that decodes to goes into `expected`.
bool is_our_archive(const row_setup & row, const std::string & path, cell_bytes & expected) {
    const auto                  planes  = balanced_planes(row.page);
    const cachegen_lcg3_options options = balanced_options();
    void *                      archive = nullptr;
    uint64_t                    n_bytes = 0;
    check_codec(cachegen_lcg3_encode(planes.data(), row.page.rows.data(), planes.size(), &options, row.executor,
                                     &archive, &n_bytes));
    expected = decode_archive(row.page, archive, n_bytes, row.executor);
    const mapped_file saved(path);
    const bool        is_same = saved.n_bytes == n_bytes && memcmp(saved.bytes, archive, n_bytes) == 0;
    cachegen_free(archive);
    return is_same;
}

} // namespace

save_results measure_saves(const row_setup & row, const row_files & files, cell_bytes & expected) {
    save_results results;
    save_native(row, files.native.path);
    for (int i = 0; i < row.n_repeats + 1; i++) {
        llama_cachegen_stats stats;
        // each goes to a new file: to empty one of these sizes takes long by itself
        std::remove(files.state.path.c_str());
        std::remove(files.archive.path.c_str());
        const double state_ms   = save_state(row, files.state.path);
        const double archive_ms = save_archive(row, files.archive.path, stats);
        if (i == 0) { // warms up
            results.is_same = is_our_archive(row, files.archive.path, expected);
            continue;
        }
        results.state.add(state_ms);
        results.archive.add(archive_ms);
        results.encode.add(stats.code_ms);
        results.write.add(stats.write_ms);
        results.peak_bytes = std::max(results.peak_bytes, stats.peak_transient_bytes);
    }
    return results;
}
