#include "row.h"

#include <algorithm>

row_setup new_row(const bench_model & model, const cachegen_executor * executor, const cache_types & types,
                  int n_repeats) {
    row_setup row{ model, executor, n_repeats, new_context(model, types), {}, {} };
    decode(row.ctx.get(), model.tokens.data(), std::min(512, model.n_tokens()), 0); // kernels are ready
    row.forget(-1);
    const stopwatch since;
    decode(row.ctx.get(), model.tokens.data(), model.n_tokens(), 0);
    row.prefill_ms = since.ms();
    row.logits     = row.step();
    row.forget(row.n_tokens());
    row.page = read_page(row.ctx.get(), row.n_tokens());
    return row;
}

restored restore(const row_setup & row, method m, const std::string & path) {
    const auto n_tokens = static_cast<uint32_t>(row.n_tokens());
    restored   result;
    row.forget(-1);
    if (m == method::state) {
        std::vector<llama_token> loaded(n_tokens + 1);
        size_t                   n_loaded = 0;
        const stopwatch          since;
        if (!llama_state_seq_load_file(row.ctx.get(), path.c_str(), 0, loaded.data(), loaded.size(), &n_loaded)) {
            throw std::runtime_error("llama_state_seq_load_file");
        }
        result.load_ms = since.ms();
        return result;
    }
    result.stats.struct_size = sizeof(result.stats);
    const stopwatch since;
    {
        const mapped_file         mapped(path);
        const llama_cachegen_file file = { mapped.fd, 0, 0 };
        llama_cachegen_options    options{};
        options.struct_size = sizeof(options);
        options.file        = &file;
        if (llama_cachegen_import_archive(row.ctx.get(), 0, 0, mapped.bytes, mapped.n_bytes, 0, n_tokens, &options,
                                          &result.stats) != 0) {
            throw std::runtime_error(std::string("import: ") + llama_kv_page_last_message());
        }
    }
    result.load_ms = since.ms();
    return result;
}

restored restore_to_first_token(const row_setup & row, method m, const std::string & path) {
    restored        result = restore(row, m, path); // what it forgets before is not in its own time
    const stopwatch since;
    result.logits   = row.step();
    result.total_ms = result.load_ms + since.ms();
    return result;
}

namespace {

// the first round: cells and logits instead of times
void compare(const row_setup & row, const row_files & files, method m, const cell_bytes & expected,
             method_results & results) {
    restore(row, m, files.of(m).path);
    results.has_same_cells  = row.page.has(expected);
    const auto logits       = row.step();
    results.has_same_logits = logits == row.logits;
    results.has_same_top    = most_likely(logits) == most_likely(row.logits);
    results.n_bytes         = files.of(m).n_bytes();
}

void take(const restored & one, method_results & results) {
    results.load.add(one.load_ms);
    results.first_token.add(one.total_ms);
    results.reserve.add(one.stats.reserve_ms);
    results.code.add(one.stats.code_ms);
    results.commit.add(one.stats.commit_ms);
    results.peak_bytes = std::max(results.peak_bytes, one.stats.peak_transient_bytes);
}

// each method is first, second and last in turn
method nth_of_round(int round, int n) {
    return methods[(round + n) % 3];
}

} // namespace

restore_results measure_restores(const row_setup & row, const row_files & files, const cell_bytes & expected) {
    restore_results results;
    for (const auto m : methods) {
        compare(row, files, m, m == method::archive ? expected : row.page.cells, results.of[static_cast<int>(m)]);
    }
    uploader upload(row.model.device, files.archive.n_bytes());
    upload.run(files.archive.path); // warms up
    for (int round = 0; round < row.n_repeats; round++) {
        for (int n = 0; n < 3; n++) {
            const method m = nth_of_round(round, n);
            take(restore_to_first_token(row, m, files.of(m).path), results.of[static_cast<int>(m)]);
        }
        row.forget(row.n_tokens());
        const stopwatch since;
        row.step();
        results.step.add(since.ms());
        results.read_upload.add(upload.run(files.archive.path));
    }
    return results;
}

cold_results measure_cold(const row_setup & row, const row_files & files, const std::string & folder, int n_repeats) {
    const row_files cold(folder);
    for (const auto m : methods) {
        copy_file(files.of(m).path, cold.of(m).path);
    }
    cold_results results;
    for (int round = 0; round < n_repeats; round++) {
        for (int n = 0; n < 3; n++) {
            const method m    = nth_of_round(round, n);
            const auto & path = cold.of(m).path;
            if (!drop_pages(path)) {
                return {};
            }
            results.first_token[static_cast<int>(m)].add(restore_to_first_token(row, m, path).total_ms);
            if (!drop_pages(path)) {
                return {};
            }
            results.read[static_cast<int>(m)].add(read_plainly(path));
        }
    }
    results.is_dropped = true;
    return results;
}
