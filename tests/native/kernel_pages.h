// Pages for tests of the device kernels: values as caches hold them, in rows of any type.
#pragma once

#include "cachegen.h"

#include <cstdint>
#include <random>
#include <vector>

namespace kernel_parity {

using bytes = std::vector<uint8_t>;

// prints the codec's message before it fails
void check_ok(int32_t status);

// channels of different spread, some outliers, tokens that resemble the one before
// is_odd  IN  some rows are of zeros, of equal extremes, of tiny numbers
std::vector<float> make_values(std::mt19937 & random, uint32_t n_tokens, uint32_t n_channels, bool is_odd);

// rows without gaps in data, which gets their size; cells may be NULL
cachegen_rows rows_for(bytes & data, uint32_t type, uint32_t is_transposed, uint64_t n_tokens, uint64_t n_rows,
                       uint32_t n_channels, const uint32_t * cells);

// cachegen_lcg3_encode() on this thread: its status, and what it made
int32_t encode_on_host(const std::vector<cachegen_lcg3_plane> & planes, const std::vector<cachegen_rows> & sources,
                       const cachegen_lcg3_options & options, bytes & archive);

} // namespace kernel_parity
