#include "page-cache.h"

#include "page-status.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama-cparams.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache-msa.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <cinttypes>
#include <typeinfo>

const char * page_kind_name(int32_t kind) {
    return kind == LLAMA_KV_PAGE_KIND_K ? "K" : kind == LLAMA_KV_PAGE_KIND_V ? "V" : "unknown kind";
}

// ggml_type_name() reads past its table for types it does not know
const char * page_type_name(int32_t type) {
    return type >= 0 && type < GGML_TYPE_COUNT ? ggml_type_name(ggml_type(type)) : "unknown type";
}

//
// what can be paged
//

namespace {

// exactly this class: a class derived from it may keep more state
template <typename Memory> bool is_exactly(const llama_memory_i & memory) {
    return typeid(memory) == typeid(Memory);
}

} // namespace

namespace {

llama_memory_t memory_of(llama_context * ctx) {
    if (!ctx) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "ctx is NULL");
    }
    llama_memory_t memory = ctx->get_memory();
    if (!memory) {
        page_fail(LLAMA_KV_PAGE_REFUSED_NO_MEMORY, "the context has no memory, so there is nothing to save or restore");
    }
    return memory;
}

// what holds of every cache, whatever it is a part of
void check_cache(llama_context * ctx, const llama_kv_cache & cache) {
    if (llama_model_has_encoder(&ctx->get_model())) {
        page_fail(LLAMA_KV_PAGE_REFUSED_ENCODER,
                  "encoder-decoder model: a page would not hold the encoder's output its decoder attends to");
    }
    if (cache.page_is_shared()) {
        page_fail(LLAMA_KV_PAGE_REFUSED_SHARED,
                  "the cache shares its cells with the cache of another context; use that one");
    }
    if (cache.has_cell_ext()) {
        page_fail(LLAMA_KV_PAGE_REFUSED_CELL_EXT, "cells carry more than a position (M-RoPE or n-gram embeddings)");
    }
}

} // namespace

std::vector<page_part> page_parts(llama_context * ctx) {
    llama_memory_t         memory = memory_of(ctx);
    std::vector<page_part> parts;
    if (is_exactly<llama_kv_cache_iswa>(*memory)) {
        auto & iswa = static_cast<llama_kv_cache_iswa &>(*memory);
        parts       = { { iswa.get_base(), false }, { iswa.get_swa(), true } };
    } else if (is_exactly<llama_kv_cache>(*memory)) {
        auto & cache = static_cast<llama_kv_cache &>(*memory);
        parts        = { { &cache, cache.page_is_windowed() } };
    } else {
        page_cache(ctx); // says why not
    }
    for (const auto & part : parts) {
        check_cache(ctx, *part.cache);
    }
    return parts;
}

llama_kv_cache & page_cache(llama_context * ctx) {
    llama_memory_t memory = memory_of(ctx);

    static const char * later = "this memory class cannot be paged by this version";

    if (!is_exactly<llama_kv_cache>(*memory)) {
        const auto refuse = [&](llama_kv_page_status status, const char * what) {
            page_fail(status, "%s: %s", what, later);
        };
        if (is_exactly<llama_kv_cache_iswa>(*memory)) {
            page_fail(LLAMA_KV_PAGE_REFUSED_ISWA,
                      "interleaved sliding-window cache: native pages do not hold it, archives do");
        }
        if (is_exactly<llama_memory_recurrent>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_RECURRENT, "recurrent memory");
        }
        if (is_exactly<llama_memory_hybrid>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_HYBRID, "hybrid attention and recurrent memory");
        }
        if (is_exactly<llama_memory_hybrid_iswa>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_HYBRID_ISWA, "hybrid sliding-window and recurrent memory");
        }
        if (is_exactly<llama_memory_hybrid_idx>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_HYBRID_IDX, "hybrid memory with an indexer cache");
        }
        if (is_exactly<llama_kv_cache_dsa>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_DSA, "sparse-attention cache with an indexer");
        }
        if (is_exactly<llama_kv_cache_dsa_iswa>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_DSA_ISWA, "sliding-window sparse-attention cache with an indexer");
        }
        if (is_exactly<llama_kv_cache_msa>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_MSA, "multi-scale attention cache");
        }
        if (is_exactly<llama_kv_cache_dsv4>(*memory)) {
            refuse(LLAMA_KV_PAGE_REFUSED_DSV4, "DeepSeek V4 cache");
        }
        refuse(LLAMA_KV_PAGE_REFUSED_UNKNOWN, "unknown memory");
    }

    auto & cache = static_cast<llama_kv_cache &>(*memory);
    check_cache(ctx, cache);
    if (cache.page_is_windowed()) {
        page_fail(LLAMA_KV_PAGE_REFUSED_WINDOW, "the cache masks old positions by a window and reuses their cells");
    }
    return cache;
}

ggml_backend_buffer_t page_buffer(const ggml_tensor * tensor) {
    return tensor->buffer ? tensor->buffer : tensor->view_src->buffer;
}

void page_require_host(llama_context * ctx, const llama_kv_cache & cache) {
    for (const auto & component : cache.page_components(0)) {
        ggml_backend_buffer_t buffer = page_buffer(component.tensor);
        if (!ggml_backend_buffer_is_host(buffer)) {
            ggml_backend_t backend = ctx->get_backend(buffer);
            page_fail(LLAMA_KV_PAGE_REFUSED_BACKEND,
                      "layer %" PRIu32 " is on %s (%s), which is not host memory; create "
                      "the context with offload_kqv off",
                      component.il, backend ? ggml_backend_name(backend) : "no backend",
                      ggml_backend_buffer_name(buffer));
        }
    }
}

uint32_t page_seq_id_limit(const llama_context * ctx) {
    const llama_cparams & cparams = ctx->get_cparams();
    return cparams.kv_unified ? LLAMA_MAX_SEQ : cparams.n_seq_max;
}

void page_check_seq_id(const llama_context * ctx, int32_t seq_id) {
    if (seq_id < 0 || uint32_t(seq_id) >= page_seq_id_limit(ctx)) {
        page_fail(LLAMA_KV_PAGE_ERR_SEQ_ID, "sequence id %" PRId32 " is not one of 0 .. %" PRIu32, seq_id,
                  page_seq_id_limit(ctx) - 1);
    }
}

std::vector<uint32_t> page_find_cells(const llama_kv_cache & cache, int32_t seq_id, int32_t p0, int32_t p1) {
    llama_kv_cache::slot_info::idx_vec_t idxs;
    const llama_pos                      pos = cache.page_lookup(seq_id, p0, p1, idxs);
    if (pos != p1) {
        page_fail(LLAMA_KV_PAGE_ERR_MISSING,
                  "position %" PRId32 " of sequence %" PRId32
                  " is not in the cache exactly once; the sequence holds [%" PRId32 ", %" PRId32 "]",
                  pos, seq_id, cache.seq_pos_min(seq_id), cache.seq_pos_max(seq_id));
    }
    return idxs;
}

const std::vector<uint32_t> & page_reserve_cells(llama_context * ctx, llama_kv_cache & cache, int32_t seq_id,
                                                 int32_t p0, uint32_t n_tokens) {
    if (cache.page_reserved()) {
        page_fail(LLAMA_KV_PAGE_ERR_BUSY,
                  "another page reservation is open in this context; commit it or close it first");
    }

    // pending copies into the stream would overwrite the page, a pending shift would move it
    ctx->memory_drain();

    const llama_pos pos_max = cache.seq_pos_max(seq_id);
    if (p0 <= pos_max) {
        page_fail(LLAMA_KV_PAGE_ERR_OCCUPIED,
                  "sequence %" PRId32 " already holds positions up to %" PRId32 ", the page begins at %" PRId32
                  "; remove them or import into another sequence",
                  seq_id, pos_max, p0);
    }
    if (p0 > pos_max + 1 && !cache.page_is_windowed()) {
        page_fail(LLAMA_KV_PAGE_ERR_GAP,
                  "sequence %" PRId32 " ends before position %" PRId32 ", the page begins at %" PRId32
                  "; import the pages before it first",
                  seq_id, pos_max + 1, p0);
    }

    const auto * slot = cache.page_reserve(seq_id, p0, n_tokens);
    if (!slot) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "%" PRIu32 " tokens do not fit: %" PRIu32 " of %" PRIu32
                  " cells are in use; raise n_ctx or remove sequences",
                  n_tokens, cache.get_cells(seq_id).get_used(), cache.get_size());
    }
    ctx->page_fence(true);
    return slot->idxs[0];
}

void page_release_cells(llama_context * ctx, llama_kv_cache & cache) {
    cache.page_rollback();
    ctx->page_fence(false);
}

void page_commit_cells(llama_context * ctx, const std::vector<llama_kv_cache *> & caches) {
    for (auto * cache : caches) {
        if (!cache->page_prepare()) {
            page_fail(
                LLAMA_KV_PAGE_ERR_STALE,
                "the sequence was cut or shifted, the memory was cleared, or its cells were taken, while the page "
                "was written");
        }
    }
    for (auto * cache : caches) {
        cache->page_commit();
    }
    ctx->page_fence(false);
}
