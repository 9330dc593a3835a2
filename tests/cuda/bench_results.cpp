#include "bench_results.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#ifdef BENCH_CUDA
#    include <cuda_runtime.h>
#endif

namespace {

std::vector<double> sorted(std::vector<double> ms) {
    std::sort(ms.begin(), ms.end());
    return ms;
}

// the rest of the first line that begins with this, without ": "; null if there is none
json line_of(const char * path, const std::string & beginning) {
    std::ifstream file(path);
    std::string   line;
    while (std::getline(file, line)) {
        if (line.rfind(beginning, 0) == 0) {
            const size_t at = line.find_first_not_of(" \t:", beginning.size());
            return at == std::string::npos ? "" : line.substr(at);
        }
    }
    return nullptr;
}

} // namespace

double samples::median() const {
    return ms.empty() ? 0 : sorted(ms)[ms.size() / 2];
}

double samples::least() const {
    return ms.empty() ? 0 : *std::min_element(ms.begin(), ms.end());
}

double samples::most() const {
    return ms.empty() ? 0 : *std::max_element(ms.begin(), ms.end());
}

std::string samples::text(int n_digits) const {
    char words[96];
    snprintf(words, sizeof(words), "%.*f (%.*f to %.*f)", n_digits, median(), n_digits, least(), n_digits, most());
    return words;
}

void to_json(json & to, const samples & from) {
    to = from.ms;
}

json new_results(const std::string & benchmark, const std::string & commit, const std::string & card) {
    json results;
    results["schema_version"] = bench_schema_version;
    results["benchmark"]      = benchmark;
    const char * variable     = getenv("LLAMA_CACHEGEN_COMMIT");
    results["commit"]         = !commit.empty() ? json(commit) : variable != nullptr ? json(variable) : json(nullptr);
    results["cpu"]            = line_of("/proc/cpuinfo", "model name");
    results["threads"]        = std::max(1u, std::thread::hardware_concurrency());
    results["card"]           = card.empty() ? json(nullptr) : json(card);
    results["driver"]         = line_of("/proc/driver/nvidia/version", "NVRM version");
#ifdef BENCH_CUDA
    int version = 0;
    if (cudaDriverGetVersion(&version) == cudaSuccess) {
        results["cuda_of_driver"] = version;
    }
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
        results["cuda_runtime"] = version;
    }
#endif
    return results;
}

json kernel_row(const std::string & kernel, const std::string & rows, uint32_t n_classes, double n_symbols,
                const samples & ms, double moved_bytes, double bytes_per_ms) {
    const double median      = ms.median();
    const double roofline_ms = moved_bytes / bytes_per_ms;
    return { { "kernel", kernel },
             { "rows", rows },
             { "classes", n_classes },
             { "symbols", n_symbols },
             { "ms", ms },
             { "giga_symbols_per_s", n_symbols / 1e6 / median },
             { "moved_bytes", moved_bytes },
             { "roofline_ms", roofline_ms },
             { "roofline_share", roofline_ms / median } };
}

void write_results(const std::string & path, const json & results) {
    const std::string beside = path + ".part";
    std::ofstream     file(beside);
    file << results.dump(1, ' ', false, json::error_handler_t::replace) << '\n';
    file.close();
    if (!file || rename(beside.c_str(), path.c_str()) != 0) {
        throw std::runtime_error("cannot write " + path);
    }
}
