// What the benchmarks measured, for people and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using json = nlohmann::ordered_json;

// changes when a field of a benchmark's JSON changes its meaning or goes
constexpr int bench_schema_version = 1;

struct samples {
    std::vector<double> ms; // in the order they were taken

    void   add(double one) { ms.push_back(one); }
    double median() const;
    double least() const;
    double most() const;

    // "23.58 (22.43 to 25.36)"
    std::string text(int n_digits) const;
};

void to_json(json & to, const samples & from);

/*
 * The beginning of a benchmark's results: schema, commit, processor, threads, card, driver and runtime.
 * commit  IN  of the source; empty: the variable LLAMA_CACHEGEN_COMMIT, or null
 * card    IN  name of the device; empty: null
 */
json new_results(const std::string & benchmark, const std::string & commit, const std::string & card);

/*
 * A kernel's row of results, with its roofline: the time a copy of as many bytes takes, and its share of the kernel's.
 * rows          IN  what it stores or loads
 * ms            IN  samples
 * moved_bytes   IN  that it has to read and write at least
 * bytes_per_ms  IN  that a copy was measured to read and write
 */
json kernel_row(const std::string & kernel, const std::string & rows, uint32_t n_classes, double n_symbols,
                const samples & ms, double moved_bytes, double bytes_per_ms);

// All of it or nothing: the file is written beside its place and then renamed. Throws std::runtime_error.
void write_results(const std::string & path, const json & results);
