// The arithmetic coder of CacheGen as LMCache has it: I. H. Witten, R. M. Neal, J. G. Cleary, CACM 30(6), 1987, with
// 32-bit bounds and 16-bit tables. One stream a channel.
#pragma once

#include <cstdint>
#include <vector>

namespace cachegen {

// entries of a table: 33 for 32 symbols, strictly rising from 0 to 65,535; the last symbol reaches to 65,536
constexpr uint32_t n_cdf_entries = 33;

// entry i = 65,503 * (symbols below i) / n, rounded down, plus i; symbols: n of them, stride apart, each below 32
void build_cdf(const uint8_t * symbols, uint64_t stride, uint32_t n, uint16_t * cdf);

// true if it rises strictly from 0 to 65,535; cdf: n_cdf_entries numbers of 16 bits, any alignment
bool is_cdf(const uint8_t * cdf);

/*
 * Code n symbols, stride apart, each below 32.
 * stream  OUT its bytes are appended, at least one
 */
void encode_arithmetic(const uint8_t * symbols, uint64_t stride, uint32_t n, const uint16_t * cdf,
                       std::vector<uint8_t> & stream);

/*
 * Read n symbols. Bytes after the end count as zero; any bytes give some symbols.
 * cdf      IN  as for is_cdf(), which it passed
 * symbols  OUT n, stride apart
 */
void decode_arithmetic(const uint8_t * stream, uint32_t n_bytes, const uint8_t * cdf, uint32_t n, uint8_t * symbols,
                       uint64_t stride);

} // namespace cachegen
