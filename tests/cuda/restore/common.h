// What all parts of the benchmark of restores use.
#pragma once

#include "cachegen.h"
#include "ggml.h"

#include <chrono>
#include <stdexcept>
#include <string>

// milliseconds since it was made
class stopwatch {
  public:
    double ms() const {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline void check_codec(int32_t status) {
    if (status != CACHEGEN_OK) {
        throw std::runtime_error(std::string(cachegen_status_name(status)) + ": " + cachegen_last_message());
    }
}

struct cache_types {
    ggml_type k;
    ggml_type v;
};

// "Q8_0/F16"
std::string to_string(const cache_types & types);
