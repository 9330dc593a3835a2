#include "row.h"

#include <cstdio>

namespace {

const char * yes_no(bool is) {
    return is ? "yes" : "NO";
}

double mib(uint64_t n_bytes) {
    return static_cast<double>(n_bytes) / 1048576.0;
}

double gb_per_s(uint64_t n_bytes, double ms) {
    return ms > 0 ? static_cast<double>(n_bytes) / 1e6 / ms : 0;
}

void print_cold(const row_results & results) {
    if (!results.cold->is_dropped) {
        printf("  cold: the files could not be dropped from memory\n");
        return;
    }
    printf("  cold, to first token:");
    for (int i = 0; i < 3; i++) {
        const auto & read = results.cold->read[i];
        printf("%s %s %s ms, a plain read %s ms, %.2f GB/s", i > 0 ? ";" : "", method_names[i],
               results.cold->first_token[i].text(1).c_str(), read.text(1).c_str(),
               gb_per_s(results.restore.of[i].n_bytes, read.median()));
    }
    printf("\n");
}

json cold_json(const cold_results & cold) {
    json to;
    to["dropped"] = cold.is_dropped;
    for (int i = 0; i < 3 && cold.is_dropped; i++) {
        to[method_names[i]] = { { "first_token_ms", cold.first_token[i] }, { "plain_read_ms", cold.read[i] } };
    }
    return to;
}

json method_json(method m, const method_results & results) {
    json to;
    to["file_bytes"]     = results.n_bytes;
    to["load_ms"]        = results.load;
    to["first_token_ms"] = results.first_token;
    if (m != method::state) {
        to["reserve_ms"]           = results.reserve;
        to["code_ms"]              = results.code;
        to["commit_ms"]            = results.commit;
        to["peak_transient_bytes"] = results.peak_bytes;
    }
    return to;
}

} // namespace

bool is_good(const row_results & results) {
    bool good = results.save.is_same;
    for (const auto & one : results.restore.of) {
        good = good && one.has_same_cells;
    }
    return good && results.restore.of[static_cast<int>(method::native)].has_same_logits;
}

void print_row(const row_setup & row, const row_results & results) {
    const auto & save    = results.save;
    const auto & state   = results.restore.of[static_cast<int>(method::state)];
    const auto & native  = results.restore.of[static_cast<int>(method::native)];
    const auto & archive = results.restore.of[static_cast<int>(method::archive)];
    const double first   = archive.first_token.median();
    printf("%s: native %.1f MB, archive %.1f MB (%.2f %%), recompute %.0f ms\n", to_string(results.types).c_str(),
           row.page.n_bytes / 1e6, archive.n_bytes / 1e6, 100.0 * archive.n_bytes / row.page.n_bytes, row.prefill_ms);
    printf(
        "  save: llama.cpp %s ms, archive %s ms (encode %.1f, of it writing %.1f, peak %.1f MiB): %.1fx; same file as libcachegen's: "
        "%s\n",
        save.state.text(0).c_str(), save.archive.text(1).c_str(), save.encode.median(), save.write.median(),
        mib(save.peak_bytes), save.state.median() / save.archive.median(), yes_no(save.is_same));
    printf("  restore to first token: llama.cpp %s ms; native control %s ms; archive %s ms: %.1fx and %.1fx\n",
           state.first_token.text(1).c_str(), native.first_token.text(2).c_str(), archive.first_token.text(2).c_str(),
           state.first_token.median() / first, native.first_token.median() / first);
    printf("  restore alone: llama.cpp %s ms\n", state.load.text(1).c_str());
    for (const auto m : { method::native, method::archive }) {
        const auto & one = results.restore.of[static_cast<int>(m)];
        printf("    %s %s ms (reserve %.2f, decode %.2f, commit %.2f, peak %.1f MiB)\n", name_of(m),
               one.load.text(2).c_str(), one.reserve.median(), one.code.median(), one.commit.median(),
               mib(one.peak_bytes));
    }
    printf("  cells as they have to be: llama.cpp %s, native control %s, archive %s; same logits: %s, %s; archive's "
           "top token: %s\n",
           yes_no(state.has_same_cells), yes_no(native.has_same_cells), yes_no(archive.has_same_cells),
           yes_no(state.has_same_logits), yes_no(native.has_same_logits),
           archive.has_same_top ? "the same" : "another");
    printf("  a decode step %s ms; reading and uploading the archive %s ms, %.1f GB/s; floor %.2f ms, the restore "
           "takes %.2f times that\n",
           results.restore.step.text(2).c_str(), results.restore.read_upload.text(2).c_str(),
           gb_per_s(archive.n_bytes, results.restore.read_upload.median()), results.restore.floor_ms(),
           first / results.restore.floor_ms());
    if (results.after) {
        printf("  %d greedy tokens: %d equal, %d before the first that differs; fed the same: KL mean %.5f, largest "
               "%.5f, same top token %d\n",
               results.after->n_tokens, results.after->n_equal, results.after->n_before, results.after->mean_kl,
               results.after->largest_kl, results.after->n_same_top);
    }
    if (results.cold) {
        print_cold(results);
    }
    fflush(stdout);
}

json row_json(const row_setup & row, const row_results & results) {
    const auto & of = results.restore.of;
    json         to;
    to["type_k"]          = ggml_type_name(results.types.k);
    to["type_v"]          = ggml_type_name(results.types.v);
    to["native_bytes"]    = row.page.n_bytes;
    to["prefill_ms"]      = row.prefill_ms;
    to["save"]["state"]   = { { "ms", results.save.state } };
    to["save"]["archive"] = { { "ms", results.save.archive },
                              { "encode_ms", results.save.encode },
                              { "write_ms", results.save.write },
                              { "peak_transient_bytes", results.save.peak_bytes } };
    for (const auto m : methods) {
        to["restore"][name_of(m)] = method_json(m, of[static_cast<int>(m)]);
    }
    to["step_ms"]        = results.restore.step;
    to["read_upload_ms"] = results.restore.read_upload;
    to["floor_ms"]       = results.restore.floor_ms();
    to["checks"]         = { { "saved_archive_is_libcachegens", results.save.is_same } };
    for (const auto m : methods) {
        to["checks"][std::string(name_of(m)) + "_cells"] = of[static_cast<int>(m)].has_same_cells;
    }
    to["checks"]["native_logits"]    = of[static_cast<int>(method::native)].has_same_logits;
    to["observed"]["state_logits"]   = of[static_cast<int>(method::state)].has_same_logits;
    to["observed"]["archive_logits"] = of[static_cast<int>(method::archive)].has_same_logits;
    to["observed"]["archive_top"]    = of[static_cast<int>(method::archive)].has_same_top;
    if (results.cold) {
        to["cold"] = cold_json(*results.cold);
    }
    if (results.after) {
        to["greedy"] = { { "tokens", results.after->n_tokens },       { "equal", results.after->n_equal },
                         { "before", results.after->n_before },       { "mean_kl", results.after->mean_kl },
                         { "largest_kl", results.after->largest_kl }, { "same_top", results.after->n_same_top } };
    }
    return to;
}
