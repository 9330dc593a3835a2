// The cells of a cache as they were before anything was saved, and archives made of them on the processor.
#pragma once

#include "common.h"
#include "llama-kv-cache.h"

#include <vector>

using cell_bytes = std::vector<std::vector<uint8_t>>; // of each component, row after row

// Cells 0 to n_tokens of every component.
struct cache_page {
    int32_t                                     n_tokens = 0;
    std::vector<llama_kv_cache::page_component> components;
    cell_bytes                                  cells;
    std::vector<cachegen_rows>                  rows; // of cells
    uint64_t                                    n_bytes = 0;

    // does the cache hold these now?
    bool has(const cell_bytes & expected) const;
};

// Throws std::runtime_error for a cache that is not one plain set of K and V rows.
cache_page read_page(llama_context * ctx, int32_t n_tokens);

// The profile `balanced` of docs/profiles.md.
std::vector<cachegen_lcg3_plane> balanced_planes(const cache_page & page);
cachegen_lcg3_options            balanced_options();

// The native control: rows as they are, in blocks of about as many bytes as those of other archives have.
std::vector<cachegen_lcg3_plane> native_planes(const cache_page & page);
cachegen_lcg3_options            native_options(const cache_page & page);

// What libcachegen decodes an archive to, on the processor.
cell_bytes decode_archive(const cache_page & page, const void * archive, uint64_t n_bytes,
                          const cachegen_executor * executor);
