// Copies between a page's packed components and the cells of host-resident K/V tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// adjacent cells [first, first + n)
struct page_cell_run {
    uint32_t first;
    uint32_t n;
};

// in the order of positions, so a run ends where the next cell is not the one after
std::vector<page_cell_run> page_cell_runs(const std::vector<uint32_t> & idxs);

// one component in host memory
struct page_host_tensor {
    uint8_t * data;       // of the stream's cells
    bool      transposed; // element (channel, cell) is at channel*n_cells + cell
    uint32_t  n_cells;
    uint32_t  n_channels;
    uint32_t  row_bytes; // bytes of one token
};

// `packed` holds n_tokens*row_bytes: rows in the order of positions, or channels of n_tokens elements if transposed.
// Both return XXH3-64 of the packed bytes if with_digest, else 0; the digest is taken chunk by chunk while the bytes
// are still in the CPU's cache.
uint64_t page_copy_out(const page_host_tensor & src, const std::vector<page_cell_run> & runs, uint32_t n_tokens,
                       uint8_t * packed, bool with_digest);
uint64_t page_copy_in(const page_host_tensor & dst, const std::vector<page_cell_run> & runs, uint32_t n_tokens,
                      const uint8_t * packed, bool with_digest);
