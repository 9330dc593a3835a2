// From a file to the first token on a device, and from the cache to a file: llama.cpp's own state file, the native rows
// and an archive of the same cache, in turn. Files are in the page cache, and for a second table on a disk and dropped.
// Restored cells are compared with those saved, or with what libcachegen decodes on the processor, saved archives with
// what it encodes, byte by byte.
#include "bench_options.h"
#include "row.h"
#include "tiny_model.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <thread>

namespace {

const char * usage =
    "usage: %s FOLDER [OPTIONS]\n"
    "  FOLDER holds one row's files at a time: in memory, a tmpfs say\n"
    "  --tokens N          of the cache (19000)\n"
    "  --repeats N         rounds, after one that warms up (7)\n"
    "  --rows K/V,...      types of the cache\n"
    "  --threads N         of imports and exports (all)\n"
    "  --model FILE        a GGUF instead of random weights; greedy tokens after the restore are compared too\n"
    "  --text FILE         what it evaluates\n"
    "  --cold FOLDER       on a disk: the table of files that are not in memory\n"
    "  --cold-rows K/V,... (F16/F16,Q8_0/Q8_0,Q4_0/Q4_0)\n"
    "  --cold-repeats N    (3)\n"
    "  --json FILE         results, written after every row\n"
    "  --commit HEX        of the source, for the results; else the variable LLAMA_CACHEGEN_COMMIT\n"
    "  --device cpu        a small model on the processor, to try the benchmark\n";

constexpr const char * three_rows = "F16/F16,Q8_0/Q8_0,Q4_0/Q4_0";
constexpr const char * all_rows   = "F16/F16,F32/F32,Q8_0/Q8_0,Q8_0/F16,Q8_0/F32,Q4_0/F16,Q4_0/Q4_0";

std::vector<cache_types> parse_rows(const std::string & words) {
    std::vector<cache_types> rows;
    std::istringstream       in(words);
    for (std::string word; std::getline(in, word, ',');) {
        const size_t n_before = rows.size();
        for (const auto k : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
            for (const auto v : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
                if (to_string(cache_types{ k, v }) == word) {
                    rows.push_back({ k, v });
                }
            }
        }
        if (rows.size() == n_before) {
            throw std::runtime_error("no row " + word + "; say K/V, such as Q8_0/F16");
        }
    }
    return rows;
}

bench_model make_bench_model(const bench_options & options) {
    const int32_t      n_tokens = options.number("tokens", 19000);
    ggml_backend_dev_t device   = nullptr;
    if (options.text("device") != "cpu") {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
        if (device == nullptr) {
            throw std::runtime_error("there is no GPU; --device cpu tries the benchmark without one");
        }
    }
    if (options.has("model") != options.has("text")) {
        throw std::runtime_error("--model and --text go together");
    }
    return options.has("model") ? load_model(options.text("model"), options.text("text"), device, n_tokens)
                                : make_synthetic(device, n_tokens);
}

json describe(const bench_model & model, int n_repeats) {
    char words[128] = {};
    llama_model_desc(model.model.get(), words, sizeof(words));
    json to;
    to["model"]   = { { "name", model.name }, { "description", words }, { "is_synthetic", model.is_synthetic } };
    to["profile"] = "balanced";
    to["tokens"]  = model.n_tokens();
    to["repeats"] = n_repeats;
    to["threads"] = model.n_threads;
    return to;
}

int run(const bench_options & options) {
    const std::string folder    = options.words[0];
    const int         n_repeats = options.number("repeats", 7);
    const auto        rows      = parse_rows(options.text("rows", options.has("model") ? three_rows : all_rows));
    const auto        cold_rows = parse_rows(options.text("cold-rows", three_rows));
    if (options.has("cold") && std::filesystem::equivalent(folder, options.text("cold"))) {
        throw std::runtime_error("--cold names the folder of the files in memory: choose another, on a disk");
    }
    const stopwatch since;
    bench_model     model  = make_bench_model(options);
    model.n_threads        = options.number("threads", static_cast<int32_t>(std::thread::hardware_concurrency()));
    const std::string card = ggml_backend_dev_description(model.device);
    printf("%s on %s, ready in %.0f ms; %d tokens, %d repeats, page cache warm\n", model.name.c_str(), card.c_str(),
           since.ms(), model.n_tokens(), n_repeats);
    fflush(stdout);
    json results = new_results("bench-restore-cuda", options.text("commit"), card);
    results.update(describe(model, n_repeats));
    results["rows"] = json::array();

    cachegen_executor * pool = nullptr;
    check_codec(cachegen_executor_new(std::max(1u, std::thread::hardware_concurrency()), &pool));
    const std::unique_ptr<cachegen_executor, decltype(&cachegen_executor_free)> executor(pool, cachegen_executor_free);
    bool                                                                        is_all_good = true;
    for (const auto & types : rows) {
        const row_files files(folder);
        const row_setup row = new_row(model, executor.get(), types, n_repeats);
        row_results     of_row{ types, {}, {}, nullptr, nullptr };
        greedy_run      original;
        if (!model.is_synthetic) {
            original = run_greedily(row, nullptr);
        }
        {
            cell_bytes expected;
            of_row.save    = measure_saves(row, files, expected);
            of_row.restore = measure_restores(row, files, expected);
        }
        if (!model.is_synthetic) {
            of_row.after = std::make_unique<agreement>(measure_agreement(row, files, original));
        }
        const bool is_cold = std::any_of(cold_rows.begin(), cold_rows.end(),
                                         [&](const cache_types & one) { return one.k == types.k && one.v == types.v; });
        if (options.has("cold") && is_cold) {
            of_row.cold = std::make_unique<cold_results>(
                measure_cold(row, files, options.text("cold"), options.number("cold-repeats", 3)));
        }
        print_row(row, of_row);
        is_all_good = is_all_good && is_good(of_row);
        results["rows"].push_back(row_json(row, of_row));
        if (options.has("json")) {
            write_results(options.text("json"), results);
        }
    }
    return is_all_good ? 0 : 1;
}

} // namespace

int main(int argc, char ** argv) {
    try {
        const bench_options options(argc, argv,
                                    { "tokens", "repeats", "rows", "threads", "model", "text", "cold", "cold-rows",
                                      "cold-repeats", "json", "commit", "device" });
        if (options.words.size() != 1) {
            printf(usage, argv[0]);
            return 2;
        }
        ggml_backend_load_all();
        capture_log();
        return run(options);
    } catch (const std::exception & err) {
        printf("failed: %s\n%s\n", err.what(), take_log().c_str());
        return 1;
    }
}
