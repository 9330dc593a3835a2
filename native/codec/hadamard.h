// The Hadamard rotation of quantised KV caches.
#pragma once

#include <cstdint>

namespace cachegen {

/*
 * Rotate every n_rot adjacent values of each row by the normalised Hadamard matrix.
 * The order of operations is part of the contract, so that every backend gives the same bits; it is that of llama.cpp's
 * CPU operation: first every value times the F32 nearest to 1 / sqrt(n_rot), then butterflies (u + v, u - v) over the
 * distances 1, 2, 4, ... n_rot / 2.
 * values  IN/OUT  n_rows rows of n_channels, value_stride floats apart; n_channels is a multiple of n_rot
 */
void hadamard_rows(float * values, uint64_t n_rows, uint64_t value_stride, uint64_t n_channels, uint32_t n_rot);

} // namespace cachegen
