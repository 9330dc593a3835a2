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

#include <algorithm>
#include <cinttypes>
#include <typeinfo>

const char * page_kind_name(int32_t kind) {
    switch (kind) {
        case LLAMA_KV_PAGE_KIND_K: return "K";
        case LLAMA_KV_PAGE_KIND_V: return "V";
        case LLAMA_KV_PAGE_KIND_INDEXER_K: return "indexer K";
        case LLAMA_KV_PAGE_KIND_STATE_R: return "state R";
        case LLAMA_KV_PAGE_KIND_STATE_S: return "state S";
        case LLAMA_KV_PAGE_KIND_STATE_P: return "state P";
        default: return "unknown kind";
    }
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

template <typename Memory> Memory * exactly(llama_memory_t memory) {
    return is_exactly<Memory>(*memory) ? static_cast<Memory *>(memory) : nullptr;
}

// A class of memory, and what native pages say of it.
struct memory_class {
    const char *         name;
    llama_kv_page_status native_status;
    const char *         description;
};

memory_class class_of(const llama_memory_i & memory) {
    if (is_exactly<llama_kv_cache>(memory)) {
        return { "dense", LLAMA_KV_PAGE_OK, "dense cache" };
    }
    if (is_exactly<llama_kv_cache_iswa>(memory)) {
        return { "iswa", LLAMA_KV_PAGE_REFUSED_ISWA, "interleaved sliding-window cache" };
    }
    if (is_exactly<llama_memory_recurrent>(memory)) {
        return { "recurrent", LLAMA_KV_PAGE_REFUSED_RECURRENT, "recurrent memory" };
    }
    if (is_exactly<llama_memory_hybrid>(memory)) {
        return { "hybrid", LLAMA_KV_PAGE_REFUSED_HYBRID, "hybrid attention and recurrent memory" };
    }
    if (is_exactly<llama_memory_hybrid_iswa>(memory)) {
        return { "hybrid-iswa", LLAMA_KV_PAGE_REFUSED_HYBRID_ISWA, "hybrid sliding-window and recurrent memory" };
    }
    if (is_exactly<llama_memory_hybrid_idx>(memory)) {
        return { "hybrid-idx", LLAMA_KV_PAGE_REFUSED_HYBRID_IDX, "hybrid memory with an indexer cache" };
    }
    if (is_exactly<llama_kv_cache_dsa>(memory)) {
        return { "dsa", LLAMA_KV_PAGE_REFUSED_DSA, "sparse-attention cache with an indexer" };
    }
    if (is_exactly<llama_kv_cache_dsa_iswa>(memory)) {
        return { "dsa-iswa", LLAMA_KV_PAGE_REFUSED_DSA_ISWA, "sliding-window sparse-attention cache with an indexer" };
    }
    if (is_exactly<llama_kv_cache_msa>(memory)) {
        return { "msa", LLAMA_KV_PAGE_REFUSED_MSA, "multi-scale attention cache" };
    }
    if (is_exactly<llama_kv_cache_dsv4>(memory)) {
        return { "dsv4", LLAMA_KV_PAGE_REFUSED_DSV4, "DeepSeek V4 cache" };
    }
    return { "unknown", LLAMA_KV_PAGE_REFUSED_UNKNOWN, "unknown memory" };
}

// throws for what neither pages nor archives can hold
void check_class(const memory_class & memory) {
    if (memory.native_status == LLAMA_KV_PAGE_REFUSED_DSV4) {
        page_fail(memory.native_status,
                  "%s: its compressed rows do not belong to single positions, so no page of it is sound",
                  memory.description);
    }
    if (memory.native_status == LLAMA_KV_PAGE_REFUSED_UNKNOWN) {
        page_fail(memory.native_status, "%s: this memory class cannot be paged by this version", memory.description);
    }
}

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

void check_model(llama_context * ctx) {
    if (llama_model_has_encoder(&ctx->get_model())) {
        page_fail(LLAMA_KV_PAGE_REFUSED_ENCODER,
                  "encoder-decoder model: a page would not hold the encoder's output its decoder attends to");
    }
}

void check_not_shared(const llama_kv_cache & cache) {
    if (cache.page_is_shared()) {
        page_fail(LLAMA_KV_PAGE_REFUSED_SHARED,
                  "the cache shares its cells with the cache of another context; use that one");
    }
}

page_part attention(llama_kv_cache * cache) {
    page_part part;
    part.cache = cache;
    return part;
}

// An indexer chooses cells of the cache beside it by their numbers.
page_part indexer(llama_kv_cache * cache, const llama_kv_cache * beside) {
    page_part part = attention(cache);
    part.like      = beside;
    return part;
}

page_part state(llama_memory_recurrent * recurrent) {
    page_part part;
    part.recurrent = recurrent;
    return part;
}

} // namespace

int32_t page_part::begin(int32_t p0, int32_t p1) const {
    if (recurrent) {
        return p1 - 1;
    }
    return is_windowed() ? std::max(p0, cache->page_window_begin(p1 - 1)) : p0;
}

std::vector<page_part> page_parts(llama_context * ctx) {
    llama_memory_t memory = memory_of(ctx);
    check_class(class_of(*memory));
    check_model(ctx);
    std::vector<page_part> parts;
    if (auto * cache = exactly<llama_kv_cache>(memory)) {
        parts = { attention(cache) };
    } else if (auto * iswa = exactly<llama_kv_cache_iswa>(memory)) {
        parts = { attention(iswa->get_base()), attention(iswa->get_swa()) };
    } else if (auto * recurrent = exactly<llama_memory_recurrent>(memory)) {
        parts = { state(recurrent) };
    } else if (auto * hybrid = exactly<llama_memory_hybrid>(memory)) {
        parts = { attention(hybrid->get_mem_attn()), state(hybrid->get_mem_recr()) };
    } else if (auto * hybrid_iswa = exactly<llama_memory_hybrid_iswa>(memory)) {
        parts = { attention(hybrid_iswa->get_mem_attn()->get_base()), attention(hybrid_iswa->get_mem_attn()->get_swa()),
                  state(hybrid_iswa->get_mem_recr()) };
    } else if (auto * hybrid_idx = exactly<llama_memory_hybrid_idx>(memory)) {
        parts = { attention(hybrid_idx->get_mem_attn()) };
        if (auto * idx = hybrid_idx->get_mem_idx()) {
            parts.push_back(indexer(idx, hybrid_idx->get_mem_attn()));
        }
        parts.push_back(state(hybrid_idx->get_mem_recr()));
    } else if (auto * dsa = exactly<llama_kv_cache_dsa>(memory)) {
        parts = { attention(dsa->get_mla()), indexer(dsa->get_lid(), dsa->get_mla()) };
    } else if (auto * dsa_iswa = exactly<llama_kv_cache_dsa_iswa>(memory)) {
        auto * beside = dsa_iswa->get_dsa();
        parts         = { attention(beside->get_mla()), indexer(beside->get_lid(), beside->get_mla()),
                          attention(dsa_iswa->get_swa()) };
    } else if (auto * msa = exactly<llama_kv_cache_msa>(memory)) {
        parts = { attention(msa->get_base()), indexer(msa->get_idx(), msa->get_base()) };
    }
    for (const auto & part : parts) {
        if (part.cache) {
            check_not_shared(*part.cache);
        }
    }
    return parts;
}

std::vector<page_tensor> page_tensors(const std::vector<page_part> & parts, int32_t seq_id) {
    std::vector<page_tensor> result;
    const auto add = [&](size_t part, uint32_t layer, int32_t kind, ggml_tensor * tensor, uint32_t n_channels,
                         uint32_t n_cells) {
        page_tensor one            = {};
        one.part                   = part;
        one.tensor                 = tensor;
        one.n_cells                = n_cells;
        one.description.layer      = int32_t(layer);
        one.description.kind       = kind;
        one.description.type       = tensor->type;
        one.description.n_channels = n_channels;
        one.description.row_bytes  = uint32_t(ggml_row_size(tensor->type, n_channels));
        result.push_back(one);
    };
    for (size_t i = 0; i < parts.size(); ++i) {
        const auto & part = parts[i];
        if (part.recurrent) {
            for (const auto & s : part.recurrent->page_states()) {
                const int32_t kind = s.kind == llama_memory_recurrent::page_state::R   ? LLAMA_KV_PAGE_KIND_STATE_R
                                     : s.kind == llama_memory_recurrent::page_state::S ? LLAMA_KV_PAGE_KIND_STATE_S
                                                                                       : LLAMA_KV_PAGE_KIND_STATE_P;
                add(i, s.il, kind, s.tensor, s.n_embd, uint32_t(s.tensor->ne[1]));
            }
            continue;
        }
        for (const auto & c : part.cache->page_components(part.cache->get_stream(seq_id))) {
            if (c.is_v && part.like) {
                continue; // an indexer has no use for V: what is there is never read
            }
            const int32_t kind = c.is_v      ? LLAMA_KV_PAGE_KIND_V
                                 : part.like ? LLAMA_KV_PAGE_KIND_INDEXER_K
                                             : LLAMA_KV_PAGE_KIND_K;
            add(i, c.il, kind, c.tensor, c.n_embd, part.cache->get_size());
            result.back().description.transposed = c.transposed;
            result.back().description.n_rot      = c.n_rot;
        }
    }
    std::stable_sort(result.begin(), result.end(), [](const page_tensor & a, const page_tensor & b) {
        return a.description.layer < b.description.layer;
    });
    return result;
}

const char * page_memory_name(llama_context * ctx) {
    llama_memory_t memory = ctx->get_memory();
    if (!memory) {
        return "none";
    }
    return class_of(*memory).name;
}

llama_kv_cache & page_cache(llama_context * ctx) {
    llama_memory_t memory = memory_of(ctx);

    const memory_class own = class_of(*memory);
    check_class(own);
    if (own.native_status != LLAMA_KV_PAGE_OK) {
        page_fail(own.native_status, "%s: native pages do not hold it, archives do", own.description);
    }

    auto & cache = static_cast<llama_kv_cache &>(*memory);
    check_model(ctx);
    check_not_shared(cache);
    if (cache.has_cell_ext()) {
        page_fail(LLAMA_KV_PAGE_REFUSED_CELL_EXT,
                  "cells carry more than a position (M-RoPE or n-gram embeddings): native pages do not hold it, "
                  "archives do");
    }
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

void page_check_seq_id(const llama_context * ctx, const std::vector<page_part> & parts, int32_t seq_id) {
    page_check_seq_id(ctx, seq_id);
    for (const auto & part : parts) {
        if (part.recurrent && uint32_t(seq_id) >= part.recurrent->size) {
            page_fail(LLAMA_KV_PAGE_ERR_SEQ_ID,
                      "sequence id %" PRId32 " is not one of 0 .. %" PRIu32 ": the memory has no more states", seq_id,
                      part.recurrent->size - 1);
        }
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

std::vector<uint32_t> page_find_cells(const page_part & part, int32_t seq_id, int32_t p0, int32_t p1) {
    if (part.recurrent) {
        const int32_t pos = part.recurrent->seq_pos_max(seq_id);
        const int32_t row = part.recurrent->page_row(seq_id);
        if (pos != p1 - 1 || row < 0) {
            page_fail(LLAMA_KV_PAGE_ERR_MISSING,
                      "sequence %" PRId32 " has its recurrent state after position %" PRId32
                      " only, not after %" PRId32,
                      seq_id, pos, p1 - 1);
        }
        return { uint32_t(row) };
    }
    if (part.cache->has_cell_ext()) {
        // all tokens of an image have one position
        const auto & positions = part.cache->get_cells(seq_id).seq_pos_get(seq_id);
        auto         it        = positions.lower_bound({ p0, 0 });
        for (auto next = it; it != positions.end() && it->first < p1; it = next) {
            if (++next != positions.end() && next->first == it->first) {
                page_fail(LLAMA_KV_PAGE_REFUSED_CELL_EXT,
                          "position %" PRId32 " of sequence %" PRId32 " is shared by the tokens of an image or audio",
                          it->first, seq_id);
            }
        }
    }
    auto cells = page_find_cells(*part.cache, seq_id, p0, p1);
    for (size_t i = 0; i < cells.size(); ++i) {
        if (!part.cache->page_is_text(cells[i], seq_id)) {
            page_fail(LLAMA_KV_PAGE_REFUSED_CELL_EXT,
                      "position %" PRId32 " of sequence %" PRId32 " belongs to an image or audio, not to text",
                      p0 + int32_t(i), seq_id);
        }
    }
    return cells;
}

const std::vector<uint32_t> & page_reserve_cells(llama_context * ctx, llama_kv_cache & cache, int32_t seq_id,
                                                 int32_t p0, uint32_t n_tokens, const int32_t * tokens,
                                                 const llama_kv_cache * like) {
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

    if (cache.page_needs_tokens() && !tokens) {
        page_fail(LLAMA_KV_PAGE_REFUSED_CELL_EXT,
                  "this model's cells keep the ids of their tokens (n-gram embeddings), and the call gave none");
    }
    const auto * slot = cache.page_reserve(seq_id, p0, n_tokens, tokens, like ? like->page_reserved() : nullptr);
    if (!slot && like) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "the indexer's cache has other free cells than the cache beside it; remove the other sequences");
    }
    if (!slot) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "%" PRIu32 " tokens do not fit: %" PRIu32 " of %" PRIu32
                  " cells are in use; raise n_ctx or remove sequences",
                  n_tokens, cache.get_cells(seq_id).get_used(), cache.get_size());
    }
    ctx->page_fence(true);
    return slot->idxs[0];
}

void page_reserve_part(llama_context * ctx, const page_part & part, int32_t seq_id, int32_t p0, int32_t from,
                       int32_t p1, const int32_t * tokens, std::vector<uint32_t> & cells) {
    if (part.cache) {
        const auto & reserved = page_reserve_cells(ctx, *part.cache, seq_id, from, uint32_t(p1 - from),
                                                   tokens ? tokens + (from - p0) : nullptr, part.like);
        std::copy(reserved.begin(), reserved.end(), cells.begin());
        return;
    }
    auto & recurrent = *part.recurrent;
    if (recurrent.page_reserved() >= 0) {
        page_fail(LLAMA_KV_PAGE_ERR_BUSY,
                  "another page reservation is open in this context; commit it or close it first");
    }
    ctx->memory_drain();
    const int32_t pos_max = recurrent.seq_pos_max(seq_id);
    if (pos_max != p0 - 1) {
        page_fail(pos_max >= p0 ? LLAMA_KV_PAGE_ERR_OCCUPIED : LLAMA_KV_PAGE_ERR_GAP,
                  "sequence %" PRId32 " has its recurrent state after position %" PRId32 ", the page begins at %" PRId32
                  "; remove the sequence, or import what is missing first",
                  seq_id, pos_max, p0);
    }
    const int32_t row = recurrent.page_reserve(seq_id, p0, p1 - 1);
    if (row < 0) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "no free recurrent state: %" PRIu32 " of %" PRIu32 " are in use; raise n_seq_max or remove sequences",
                  recurrent.used, recurrent.size);
    }
    ctx->page_fence(true);
    cells[0] = uint32_t(row);
}

void page_release_part(llama_context * ctx, const page_part & part) {
    if (part.cache) {
        part.cache->page_rollback();
    } else {
        part.recurrent->page_rollback();
    }
    ctx->page_fence(false);
}

void page_prepare_parts(const std::vector<page_part> & parts) {
    for (const auto & part : parts) {
        if (part.cache ? !part.cache->page_prepare() : !part.recurrent->page_prepare()) {
            page_fail(LLAMA_KV_PAGE_ERR_STALE,
                      "the sequence was cut or shifted, the memory was cleared, or its cells were taken, while the "
                      "page was written");
        }
    }
}

void page_commit_parts(llama_context * ctx, const std::vector<page_part> & parts, int32_t seq_id) {
    for (const auto & part : parts) {
        if (part.cache) {
            part.cache->page_commit();
        } else {
            part.recurrent->page_commit();
        }
    }
    if (auto * hybrid_idx = exactly<llama_memory_hybrid_idx>(ctx->get_memory())) {
        hybrid_idx->page_committed(seq_id);
    }
    ctx->page_fence(false);
}
