// What pages and archives have in common: which cache of a context can be paged, and its cells.
#pragma once

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-kv-page.h"
#include "llama-memory-recurrent.h"

#include <cstdint>
#include <vector>

// names for messages
const char * page_kind_name(int32_t kind);
const char * page_type_name(int32_t type);

// the context's cache, or a page_error that says why it cannot be paged
llama_kv_cache & page_cache(llama_context * ctx);

// One of the modules that make up a context's memory: a cache with a cell a token, or a state after the last token.
struct page_part {
    llama_kv_cache *         cache     = nullptr; // or
    llama_memory_recurrent * recurrent = nullptr;
    const llama_kv_cache *   like      = nullptr; // of an indexer: a page has to lie in the same cells of this cache

    // a cache that holds the last positions only
    bool is_windowed() const { return cache && cache->page_is_windowed(); }

    // the first position that a page which ends before p1 and begins at p0 has to have in this part
    int32_t begin(int32_t p0, int32_t p1) const;
};

// One tensor of a part.
struct page_tensor {
    size_t                  part;
    llama_kv_page_component description; // of one token; no offset, no digest
    ggml_tensor *           tensor;
    uint32_t                n_cells; // that the tensor has
};

// what archives can hold of a memory; throws REFUSED
std::vector<page_part> page_parts(llama_context * ctx);

// of all parts, for the pool of cells that serves the sequence: in the order of layers, those of a part in its order
std::vector<page_tensor> page_tensors(const std::vector<page_part> & parts, int32_t seq_id);

// the name of the context's memory class, or "none"
const char * page_memory_name(llama_context * ctx);

// throws REFUSED_BACKEND if a layer of the cache is not in host memory
void page_require_host(llama_context * ctx, const llama_kv_cache & cache);

// the buffer that holds a component
ggml_backend_buffer_t page_buffer(const ggml_tensor * tensor);

// sequence ids are below this
uint32_t page_seq_id_limit(const llama_context * ctx);
void     page_check_seq_id(const llama_context * ctx, int32_t seq_id);
void     page_check_seq_id(const llama_context * ctx, const std::vector<page_part> & parts, int32_t seq_id);

// the cells of positions [p0, p1), in order; throws ERR_MISSING. The memory has been drained.
std::vector<uint32_t> page_find_cells(const llama_kv_cache & cache, int32_t seq_id, int32_t p0, int32_t p1);

// the cells of a part, or the row of its state after position p1 - 1; throws ERR_MISSING
std::vector<uint32_t> page_find_cells(const page_part & part, int32_t seq_id, int32_t p0, int32_t p1);

// Reserve cells for n_tokens positions from p0 on and close the context's fence. The cells stay the cache's until
// they are released or committed. A windowed cache may lack positions before p0. `tokens`: their ids, or NULL.
const std::vector<uint32_t> & page_reserve_cells(llama_context * ctx, llama_kv_cache & cache, int32_t seq_id,
                                                 int32_t p0, uint32_t n_tokens, const int32_t * tokens = nullptr,
                                                 const llama_kv_cache * like = nullptr);

// The same for positions [from, p1) of a part of a page that begins at p0. `cells` has room for them.
void page_reserve_part(llama_context * ctx, const page_part & part, int32_t seq_id, int32_t p0, int32_t from,
                       int32_t p1, const int32_t * tokens, std::vector<uint32_t> & cells);

// free them again: cells zeroed, a state as it was
void page_release_part(llama_context * ctx, const page_part & part);

// prepare to commit: what takes time, and changes nothing that others see; throws ERR_STALE
void page_prepare_parts(const std::vector<page_part> & parts);

// make them part of the sequence, all or nothing; after page_prepare_parts(), with nothing done to the memory between
void page_commit_parts(llama_context * ctx, const std::vector<page_part> & parts, int32_t seq_id);
