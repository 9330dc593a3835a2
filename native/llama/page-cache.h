// What pages and archives have in common: which cache of a context can be paged, and its cells.
#pragma once

#include "llama-context.h"
#include "llama-kv-cache.h"

#include <cstdint>
#include <vector>

// names for messages
const char * page_kind_name(int32_t kind);
const char * page_type_name(int32_t type);

// the context's cache, or a page_error that says why it cannot be paged
llama_kv_cache & page_cache(llama_context * ctx);

// One of the caches that make up a context's memory.
struct page_part {
    llama_kv_cache * cache;
    bool             is_windowed; // holds the last positions only
};

// the caches of a memory that archives can hold: a dense one, one with a window, or one of each
std::vector<page_part> page_parts(llama_context * ctx);

// throws REFUSED_BACKEND if a layer of the cache is not in host memory
void page_require_host(llama_context * ctx, const llama_kv_cache & cache);

// the buffer that holds a component
ggml_backend_buffer_t page_buffer(const ggml_tensor * tensor);

// sequence ids are below this
uint32_t page_seq_id_limit(const llama_context * ctx);
void     page_check_seq_id(const llama_context * ctx, int32_t seq_id);

// the cells of positions [p0, p1), in order; throws ERR_MISSING. The memory has been drained.
std::vector<uint32_t> page_find_cells(const llama_kv_cache & cache, int32_t seq_id, int32_t p0, int32_t p1);

// Reserve cells for n_tokens positions from p0 on and close the context's fence. The cells stay the cache's until one
// of the next two functions is called. A windowed cache may lack positions before p0.
const std::vector<uint32_t> & page_reserve_cells(llama_context * ctx, llama_kv_cache & cache, int32_t seq_id,
                                                 int32_t p0, uint32_t n_tokens);

// free them again, zeroed
void page_release_cells(llama_context * ctx, llama_kv_cache & cache);

// make them part of the sequence, all or nothing; throws ERR_STALE, and they are still to be released
void page_commit_cells(llama_context * ctx, const std::vector<llama_kv_cache *> & caches);
