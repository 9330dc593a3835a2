// KV pages of a dense, host-resident llama_kv_cache. The interface is described in llama-kv-page.h.
#include "llama-kv-page.h"

#include "page-cache.h"
#include "page-copy.h"
#include "page-status.h"

#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <vector>

namespace {

constexpr uint64_t component_alignment  = 64;
constexpr uint64_t min_bytes_per_thread = 1024 * 1024;

template <typename Struct> void check_struct(const Struct * s, const char * name) {
    if (!s) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "%s is NULL", name);
    }
    if (s->struct_size != sizeof(Struct)) {
        page_fail(LLAMA_KV_PAGE_ERR_STRUCT_SIZE,
                  "%s->struct_size is %" PRIu32 ", this library (ABI %d) has %zu; build against its header", name,
                  s->struct_size, LLAMA_KV_PAGE_ABI_VERSION, sizeof(Struct));
    }
}

llama_kv_cache & dense_cache(llama_context * ctx) {
    auto & cache = page_cache(ctx);
    page_require_host(ctx, cache);
    return cache;
}

page_part dense_part(llama_kv_cache & cache) {
    page_part part;
    part.cache = &cache;
    return part;
}

//
// layout
//

struct page_layout {
    uint32_t                             stream;
    uint32_t                             n_tokens;
    uint64_t                             payload_bytes;
    std::vector<llama_kv_page_component> components;
    std::vector<page_host_tensor>        tensors;
};

// n_tokens is bounded by the cells of the cache, so no size below can be larger than an allocated tensor
page_layout make_layout(llama_context * ctx, llama_kv_cache & cache, int32_t seq_id, int32_t p0, int64_t n_tokens) {
    page_check_seq_id(ctx, seq_id);
    if (p0 < 0 || n_tokens <= 0 || n_tokens > INT32_MAX - p0) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "positions [%" PRId32 ", %" PRId64 ") are not a range", p0,
                  p0 + n_tokens);
    }
    if (n_tokens > int64_t(cache.get_size())) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "%" PRId64 " tokens do not fit: the cache has %" PRIu32 " cells for a sequence; raise n_ctx",
                  n_tokens, cache.get_size());
    }

    page_layout layout   = {};
    layout.stream        = cache.get_stream(seq_id);
    layout.n_tokens      = uint32_t(n_tokens);
    layout.payload_bytes = 0;

    for (const auto & t : page_tensors({ dense_part(cache) }, seq_id)) {
        llama_kv_page_component component = t.description;
        component.n_tokens                = layout.n_tokens;
        component.offset                  = layout.payload_bytes;
        component.n_bytes                 = uint64_t(layout.n_tokens) * component.row_bytes;

        layout.payload_bytes +=
            (component.n_bytes + component_alignment - 1) / component_alignment * component_alignment;
        layout.components.push_back(component);
        layout.tensors.push_back({ static_cast<uint8_t *>(t.tensor->data), component.transposed != 0, t.n_cells,
                                   component.n_channels, component.row_bytes });
    }
    return layout;
}

void compare_component(const llama_kv_page_component & page, const llama_kv_page_component & live) {
    const int32_t layer = live.layer;
    const char *  kind  = page_kind_name(live.kind);

    if (page.layer != live.layer || page.kind != live.kind) {
        page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS,
                  "the page has layer %" PRId32 " %s where the cache has layer %" PRId32 " %s", page.layer,
                  page_kind_name(page.kind), layer, kind);
    }
    if (page.type != live.type) {
        page_fail(LLAMA_KV_PAGE_ERR_TYPE, "layer %" PRId32 " %s: the page is %s, the cache is %s", layer, kind,
                  page_type_name(page.type), page_type_name(live.type));
    }
    if (page.transposed != live.transposed) {
        page_fail(LLAMA_KV_PAGE_ERR_LAYOUT,
                  "layer %" PRId32 " %s: the page is %s, the cache is %s; flash attention differs", layer, kind,
                  page.transposed ? "transposed" : "in rows", live.transposed ? "transposed" : "in rows");
    }
    if (page.n_rot != live.n_rot) {
        page_fail(LLAMA_KV_PAGE_ERR_ROTATION,
                  "layer %" PRId32 " %s: the page is rotated by %" PRIu32 ", the cache by %" PRIu32
                  " (0 is not at all); LLAMA_ATTN_ROT_DISABLE or the head size differs",
                  layer, kind, page.n_rot, live.n_rot);
    }
    if (page.n_channels != live.n_channels || page.row_bytes != live.row_bytes) {
        page_fail(LLAMA_KV_PAGE_ERR_WIDTH,
                  "layer %" PRId32 " %s: the page has %" PRIu32 " channels in %" PRIu32
                  " bytes a token, the cache %" PRIu32 " in %" PRIu32,
                  layer, kind, page.n_channels, page.row_bytes, live.n_channels, live.row_bytes);
    }
    if (page.n_tokens != live.n_tokens || page.offset != live.offset || page.n_bytes != live.n_bytes) {
        page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS,
                  "layer %" PRId32 " %s: the page's token count, offset or size does not follow "
                  "from its other components",
                  layer, kind);
    }
}

void compare_layout(const llama_kv_page_component * components, uint32_t n_components, const page_layout & live) {
    if (n_components != live.components.size()) {
        page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS, "the page has %" PRIu32 " components, the cache has %zu", n_components,
                  live.components.size());
    }
    for (uint32_t i = 0; i < n_components; ++i) {
        compare_component(components[i], live.components[i]);
    }
}

//
// copying
//

llama_kv_page_options resolve_options(const llama_kv_page_options * options) {
    llama_kv_page_options res = {};
    if (options) {
        check_struct(options, "options");
        if ((options->flags & ~uint32_t(LLAMA_KV_PAGE_FLAG_DIGEST)) != 0 || options->reserved != 0) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "options: unknown flags 0x%" PRIx32 " or reserved field not 0",
                      options->flags);
        }
        res = *options;
    }
    return res;
}

uint32_t resolve_threads(const llama_context * ctx, uint32_t n_threads, uint64_t payload_bytes, size_t n_items) {
    const uint64_t wanted = n_threads ? n_threads : ctx->n_threads();
    const uint64_t useful = std::min<uint64_t>(n_items, payload_bytes / min_bytes_per_thread + 1);
    return uint32_t(std::max<uint64_t>(1, std::min(wanted, useful)));
}

// work(i) for i in 0 .. n_items - 1, each once; work() must not throw
template <typename Work> void parallel_for(uint32_t n_threads, size_t n_items, Work && work) {
    std::atomic<size_t> next{ 0 };
    const auto          loop = [&] {
        for (size_t i = next++; i < n_items; i = next++) {
            work(i);
        }
    };

    std::vector<std::thread> threads;
    threads.reserve(n_threads - 1);
    for (uint32_t t = 1; t < n_threads; ++t) {
        try {
            threads.emplace_back(loop);
        } catch (const std::system_error &) {
            break; // the system has no more threads to give; the others take the work
        }
    }
    loop();
    for (auto & thread : threads) {
        thread.join();
    }
}

double ms_since(int64_t t_start_us) {
    return double(ggml_time_us() - t_start_us) / 1000.0;
}

void check_stats(const llama_kv_page_stats * stats) {
    if (stats) {
        check_struct(stats, "stats");
    }
}

// the values in effect, defaults resolved
void fill_rope(const llama_context * ctx, llama_kv_page_info & info) {
    const auto & cparams  = ctx->get_cparams();
    info.rope_type        = llama_model_rope_type(&ctx->get_model());
    info.n_ctx_orig_yarn  = cparams.n_ctx_orig_yarn;
    info.rope_freq_base   = cparams.rope_freq_base;
    info.rope_freq_scale  = cparams.rope_freq_scale;
    info.yarn_ext_factor  = cparams.yarn_ext_factor;
    info.yarn_attn_factor = cparams.yarn_attn_factor;
    info.yarn_beta_fast   = cparams.yarn_beta_fast;
    info.yarn_beta_slow   = cparams.yarn_beta_slow;
}

void check_payload(const void * data, uint64_t n_bytes, uint64_t payload_bytes) {
    if (!data) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the payload is NULL");
    }
    if (n_bytes != payload_bytes) {
        page_fail(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, "the buffer has %" PRIu64 " bytes, the page has %" PRIu64, n_bytes,
                  payload_bytes);
    }
}

uint64_t layout_heap_bytes(const page_layout & layout, size_t n_cells, size_t n_runs) {
    return layout.components.size() * (sizeof(llama_kv_page_component) + sizeof(page_host_tensor)) +
           n_cells * sizeof(uint32_t) + n_runs * sizeof(page_cell_run);
}

} // namespace

struct llama_kv_page_reservation {
    llama_context *                      ctx;
    page_part                            part;
    int32_t                              seq_id;
    page_layout                          layout;     // of the live cache
    std::vector<llama_kv_page_component> components; // of the page, the same but for its digests
    std::vector<page_cell_run>           runs;
    std::vector<uint8_t>                 written;
    bool                                 open;
};

namespace {

std::unique_ptr<llama_kv_page_reservation> reserve(llama_context * ctx, int32_t seq_id, int32_t p0,
                                                   const llama_kv_page_component * components, uint32_t n_components) {
    auto & cache = dense_cache(ctx);
    if (!components || n_components == 0) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the page has no components");
    }

    auto reservation        = std::make_unique<llama_kv_page_reservation>();
    reservation->ctx        = ctx;
    reservation->part       = dense_part(cache);
    reservation->seq_id     = seq_id;
    reservation->layout     = make_layout(ctx, cache, seq_id, p0, components[0].n_tokens);
    reservation->open       = false;
    const uint32_t n_tokens = reservation->layout.n_tokens;
    compare_layout(components, n_components, reservation->layout);

    reservation->components.assign(components, components + n_components);
    reservation->written.assign(n_components, 0);

    const auto & cells = page_reserve_cells(ctx, cache, seq_id, p0, n_tokens);
    reservation->open  = true;
    try {
        reservation->runs = page_cell_runs(cells);
    } catch (...) {
        page_release_part(ctx, reservation->part);
        throw;
    }
    return reservation;
}

void close(llama_kv_page_reservation & reservation) {
    if (reservation.open) {
        page_release_part(reservation.ctx, reservation.part);
        reservation.open = false;
    }
}

void commit(llama_kv_page_reservation & reservation) {
    if (!reservation.open) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the reservation is already committed");
    }
    for (size_t i = 0; i < reservation.written.size(); ++i) {
        if (!reservation.written[i]) {
            page_fail(LLAMA_KV_PAGE_ERR_INCOMPLETE, "layer %" PRId32 " %s was not written",
                      reservation.components[i].layer, page_kind_name(reservation.components[i].kind));
        }
    }
    page_prepare_parts({ reservation.part });
    page_commit_parts(reservation.ctx, { reservation.part }, reservation.seq_id);
    reservation.open = false;
}

[[noreturn]] void fail_digest(const llama_kv_page_component & component, uint64_t actual) {
    page_fail(LLAMA_KV_PAGE_ERR_DIGEST,
              "layer %" PRId32 " %s: XXH3-64 of the payload is %016" PRIx64 ", expected %016" PRIx64
              "; the bytes are damaged",
              component.layer, page_kind_name(component.kind), actual, component.xxh3);
}

// closes the reservation on every way out
struct reservation_guard {
    std::unique_ptr<llama_kv_page_reservation> reservation;

    ~reservation_guard() {
        if (reservation) {
            close(*reservation);
        }
    }
};

} // namespace

extern "C" {

int32_t llama_kv_page_get_caps(llama_context * ctx, llama_kv_page_caps * caps) {
    return page_guard([&] {
        check_struct(caps, "caps");
        if (!ctx) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "ctx is NULL");
        }

        *caps             = {};
        caps->struct_size = sizeof(*caps);
        caps->abi_version = LLAMA_KV_PAGE_ABI_VERSION;
        caps->n_seq_max   = page_seq_id_limit(ctx);

        try {
            auto & cache       = dense_cache(ctx);
            caps->status       = LLAMA_KV_PAGE_OK;
            caps->n_streams    = cache.get_n_stream();
            caps->n_cells      = cache.get_size();
            caps->v_transposed = cache.get_v_trans();
            for (const auto & c : cache.page_components(0)) {
                caps->n_components++;
                caps->bytes_per_token += ggml_row_size(c.tensor->type, c.n_embd);
            }
        } catch (const page_error & err) {
            caps->status = page_set_error(err.status, err.what());
        }
    });
}

int32_t llama_kv_page_describe(llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1, llama_kv_page_info * info,
                               llama_kv_page_component * components, uint32_t n_components_max) {
    return page_guard([&] {
        check_struct(info, "info");
        if (info->component_struct_size != sizeof(llama_kv_page_component)) {
            page_fail(LLAMA_KV_PAGE_ERR_STRUCT_SIZE,
                      "info->component_struct_size is %" PRIu32 ", this library (ABI %d) has %zu",
                      info->component_struct_size, LLAMA_KV_PAGE_ABI_VERSION, sizeof(llama_kv_page_component));
        }
        auto &     cache  = dense_cache(ctx);
        const auto layout = make_layout(ctx, cache, seq_id, p0, int64_t(p1) - p0);

        if (components) {
            if (n_components_max < layout.components.size()) {
                page_fail(LLAMA_KV_PAGE_ERR_BUFFER_SIZE,
                          "the array has room for %" PRIu32 " components, the page has %zu", n_components_max,
                          layout.components.size());
            }
            std::copy(layout.components.begin(), layout.components.end(), components);
        }

        info->n_components  = uint32_t(layout.components.size());
        info->n_tokens      = layout.n_tokens;
        info->pos_begin     = p0;
        info->stream        = layout.stream;
        info->payload_bytes = layout.payload_bytes;
        fill_rope(ctx, *info);
    });
}

int32_t llama_kv_page_get_rope(llama_context * ctx, llama_kv_page_info * info) {
    return page_guard([&] {
        check_struct(info, "info");
        if (!ctx) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "ctx is NULL");
        }
        const uint32_t component_struct_size = info->component_struct_size;
        *info                                = {};
        info->struct_size                    = sizeof(*info);
        info->component_struct_size          = component_struct_size;
        fill_rope(ctx, *info);
    });
}

int32_t llama_kv_page_size(llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1, uint64_t * payload_bytes) {
    return page_guard([&] {
        if (!payload_bytes) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "payload_bytes is NULL");
        }
        *payload_bytes = make_layout(ctx, dense_cache(ctx), seq_id, p0, int64_t(p1) - p0).payload_bytes;
    });
}

int32_t llama_kv_page_export(llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1, void * dst,
                             uint64_t dst_bytes, llama_kv_page_component * components, uint32_t n_components_max,
                             const llama_kv_page_options * options, llama_kv_page_stats * stats) {
    return page_guard([&] {
        check_stats(stats);
        const auto opts   = resolve_options(options);
        auto &     cache  = dense_cache(ctx);
        auto       layout = make_layout(ctx, cache, seq_id, p0, int64_t(p1) - p0);
        const bool digest = opts.flags & LLAMA_KV_PAGE_FLAG_DIGEST;
        check_payload(dst, dst_bytes, layout.payload_bytes);
        if (digest && !components) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "FLAG_DIGEST needs an array of components to write digests to");
        }
        if (components && n_components_max < layout.components.size()) {
            page_fail(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, "the array has room for %" PRIu32 " components, the page has %zu",
                      n_components_max, layout.components.size());
        }

        const int64_t t_drain_us = ggml_time_us();
        ctx->memory_drain();
        const double drain_ms = ms_since(t_drain_us);
        const auto   idxs     = page_find_cells(cache, seq_id, p0, p1);

        const auto     runs      = page_cell_runs(idxs);
        const uint32_t n_threads = resolve_threads(ctx, opts.n_threads, layout.payload_bytes, layout.components.size());
        uint8_t *      payload   = static_cast<uint8_t *>(dst);

        const int64_t t_copy_us = ggml_time_us();
        parallel_for(n_threads, layout.components.size(), [&](size_t i) {
            auto &    component = layout.components[i];
            uint8_t * packed    = payload + component.offset;
            component.xxh3      = page_copy_out(layout.tensors[i], runs, layout.n_tokens, packed, digest);

            const uint64_t end =
                i + 1 < layout.components.size() ? layout.components[i + 1].offset : layout.payload_bytes;
            memset(packed + component.n_bytes, 0, end - component.offset - component.n_bytes);
        });

        if (components) {
            std::copy(layout.components.begin(), layout.components.end(), components);
        }
        if (stats) {
            *stats                 = {};
            stats->struct_size     = sizeof(*stats);
            stats->n_cell_runs     = uint32_t(runs.size());
            stats->n_threads       = n_threads;
            stats->payload_bytes   = layout.payload_bytes;
            stats->transient_bytes = layout_heap_bytes(layout, idxs.size(), runs.size());
            stats->drain_ms        = drain_ms;
            stats->copy_ms         = ms_since(t_copy_us);
        }
    });
}

int32_t llama_kv_page_import(llama_context * ctx, int32_t seq_id, int32_t p0,
                             const llama_kv_page_component * components, uint32_t n_components, const void * src,
                             uint64_t src_bytes, const llama_kv_page_options * options, llama_kv_page_stats * stats) {
    return page_guard([&] {
        check_stats(stats);
        const auto opts   = resolve_options(options);
        const bool digest = opts.flags & LLAMA_KV_PAGE_FLAG_DIGEST;

        const int64_t     t_reserve_us = ggml_time_us();
        reservation_guard guard{ reserve(ctx, seq_id, p0, components, n_components) };
        auto &            reservation = *guard.reservation;
        const auto &      layout      = reservation.layout;
        check_payload(src, src_bytes, layout.payload_bytes);
        const double reserve_ms = ms_since(t_reserve_us);

        const uint32_t n_threads = resolve_threads(ctx, opts.n_threads, layout.payload_bytes, layout.components.size());
        const uint8_t * payload  = static_cast<const uint8_t *>(src);

        const int64_t         t_copy_us = ggml_time_us();
        std::vector<uint64_t> digests(n_components);
        parallel_for(n_threads, n_components, [&](size_t i) {
            digests[i]             = page_copy_in(layout.tensors[i], reservation.runs, layout.n_tokens,
                                                  payload + layout.components[i].offset, digest);
            reservation.written[i] = 1;
        });
        for (uint32_t i = 0; digest && i < n_components; ++i) {
            if (digests[i] != components[i].xxh3) {
                fail_digest(components[i], digests[i]);
            }
        }
        const double copy_ms = ms_since(t_copy_us);

        const int64_t t_commit_us = ggml_time_us();
        commit(reservation);

        if (stats) {
            *stats                 = {};
            stats->struct_size     = sizeof(*stats);
            stats->n_cell_runs     = uint32_t(reservation.runs.size());
            stats->n_threads       = n_threads;
            stats->payload_bytes   = layout.payload_bytes;
            stats->transient_bytes = layout_heap_bytes(layout, layout.n_tokens, reservation.runs.size()) +
                                     n_components * (sizeof(llama_kv_page_component) + sizeof(uint64_t) + 1);
            stats->reserve_ms      = reserve_ms;
            stats->copy_ms         = copy_ms;
            stats->commit_ms       = ms_since(t_commit_us);
        }
    });
}

int32_t llama_kv_page_reserve(llama_context * ctx, int32_t seq_id, int32_t p0,
                              const llama_kv_page_component * components, uint32_t n_components,
                              llama_kv_page_reservation ** reservation) {
    return page_guard([&] {
        if (!reservation) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "reservation is NULL");
        }
        *reservation = nullptr;
        *reservation = reserve(ctx, seq_id, p0, components, n_components).release();
    });
}

int32_t llama_kv_page_write(llama_kv_page_reservation * reservation, uint32_t i_component, const void * src,
                            uint64_t src_bytes, const llama_kv_page_options * options) {
    return page_guard([&] {
        const auto opts = resolve_options(options);
        if (!reservation || !reservation->open) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the reservation is NULL or already committed");
        }
        if (i_component >= reservation->components.size()) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "component %" PRIu32 " of a page of %zu", i_component,
                      reservation->components.size());
        }
        const auto & component = reservation->components[i_component];
        check_payload(src, src_bytes, component.n_bytes);

        const bool     digest = opts.flags & LLAMA_KV_PAGE_FLAG_DIGEST;
        const uint64_t actual = page_copy_in(reservation->layout.tensors[i_component], reservation->runs,
                                             reservation->layout.n_tokens, static_cast<const uint8_t *>(src), digest);
        if (digest && actual != component.xxh3) {
            reservation->written[i_component] = 0;
            fail_digest(component, actual);
        }
        reservation->written[i_component] = 1;
    });
}

int32_t llama_kv_page_commit(llama_kv_page_reservation * reservation) {
    return page_guard([&] {
        if (!reservation) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "reservation is NULL");
        }
        commit(*reservation);
    });
}

void llama_kv_page_close(llama_kv_page_reservation * reservation) {
    if (reservation) {
        page_guard([&] { close(*reservation); });
        delete reservation;
    }
}
}
