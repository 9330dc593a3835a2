// CKG1 archives of LCG1 and LCG2 tiles for tests of the device kernels: sound ones, and damaged in every way.
#pragma once

#include "kernel_pages.h"

#include <random>
#include <vector>

namespace kernel_parity {

// One component of a page; it becomes records of up to 256 tokens.
struct legacy_part {
    uint32_t version; // 1 LCG1, 2 LCG2
    uint32_t kind;    // enum cachegen_ckg1_kind
    uint32_t n_bins;
    uint32_t n_tokens; // exact: bytes
    uint32_t n_channels;
};

// values as caches hold them, some rows of zeros, of equal extremes, of tiny numbers
bytes encode_legacy(std::mt19937 & random, const std::vector<legacy_part> & parts);

/*
 * One LCG1 tile of one token, 70 channels of F16 rows: the code of each channel is the first of a symbol, or the last
 * one before it. is_refused  IN  one code is the last that there is, of a symbol that no tile has
 */
bytes legacy_edges(std::mt19937 & random, bool is_refused);

// a kind of record that can hold so many channels
uint32_t kind_for(std::mt19937 & random, uint32_t n_channels);

// the records of an archive that libcachegen opens
std::vector<cachegen_ckg1_record> records_of(const bytes & archive);

enum class legacy_damage {
    bits,     // some flipped, anywhere
    contents, // some flipped in what a tile has after its header
    maxima,   // a maximum that F16 cannot hold, or an odd one that it can
    tables,   // LCG1: tables that rise, but are no tile's
    streams,  // LCG1: lengths that have the same sum; random symbols. LCG2: symbols and unused bits
    sizes,    // cut, or longer
};

constexpr uint32_t n_legacy_damages = 6;

void damage(std::mt19937 & random, legacy_damage how, bytes & archive);

} // namespace kernel_parity
