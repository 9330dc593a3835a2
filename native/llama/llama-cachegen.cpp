// CacheGen archives of a context's memory. The interface is described in llama-cachegen.h.
#include "llama-cachegen.h"

#include "archive-writer.h"
#include "cachegen.h"
#include "codec_rows.h"
#include "host-staging.h"
#include "meter.h"
#include "page-cache.h"
#include "page-copy.h"
#include "page-status.h"

#include "ggml-backend.h"
#include "ggml-kv-codec.h"
#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <vector>
#if !defined(_WIN32)
#    include <unistd.h>
#endif

namespace {

double ms_since(int64_t t_start_us) {
    return double(ggml_time_us() - t_start_us) / 1000.0;
}

template <typename Struct> void check_struct(const Struct & s, const char * name) {
    if (s.struct_size != sizeof(Struct)) {
        page_fail(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, "%s->struct_size is %" PRIu32 ", this library (ABI %d) has %zu", name,
                  s.struct_size, LLAMA_KV_PAGE_ABI_VERSION, sizeof(Struct));
    }
}

llama_cachegen_options resolve_options(const llama_context * ctx, const llama_cachegen_options * options) {
    llama_cachegen_options result = {};
    if (options) {
        check_struct(*options, "options");
        if ((options->flags & ~uint32_t(LLAMA_CACHEGEN_HOST_STAGED)) != 0 || options->reserved != 0 ||
            (options->file && options->file->reserved != 0)) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "options: unknown flags 0x%" PRIx32 " or reserved field not 0",
                      options->flags);
        }
        result = *options;
    }
    if (result.n_threads == 0) {
        result.n_threads = ctx->n_threads();
    }
    return result;
}

// Part of an archive, from its file if there is one and the system has pread(), else from its memory; on any thread.
// 0, an errno, or -1 where the file ends.
int read_payload([[maybe_unused]] const llama_cachegen_file * file, const uint8_t * archive, uint64_t offset,
                 void * bytes, uint64_t n_bytes) {
#if !defined(_WIN32)
    if (file) {
        auto * to = static_cast<uint8_t *>(bytes);
        while (n_bytes > 0) {
            const ssize_t n = pread(file->fd, to, n_bytes, off_t(file->offset + offset));
            if (n == 0) {
                return -1;
            }
            if (n < 0 && errno != EINTR) {
                return errno;
            }
            if (n > 0) {
                to += n;
                offset += uint64_t(n);
                n_bytes -= uint64_t(n);
            }
        }
        return 0;
    }
#endif
    memcpy(bytes, archive + offset, n_bytes);
    return 0;
}

// a codec's status as one of ours
[[noreturn]] void fail_codec(int32_t status, const char * message) {
    const auto name = cachegen_status_name(status);
    switch (status) {
        case CACHEGEN_ERR_OUT_OF_MEMORY: page_fail(LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY, "%s", message);
        case CACHEGEN_ERR_CALLBACK: page_fail(LLAMA_KV_PAGE_ERR_CANCELLED, "%s", message);
        case CACHEGEN_ERR_NON_FINITE: page_fail(LLAMA_KV_PAGE_ERR_NON_FINITE, "%s", message);
        case CACHEGEN_ERR_VERSION:
        case CACHEGEN_ERR_UNSUPPORTED:
        case CACHEGEN_ERR_MISMATCH: page_fail(LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT, "%s [%s]", message, name);
        default: break;
    }
    if (status >= CACHEGEN_ERR_TRUNCATED && status <= CACHEGEN_ERR_LIMIT) {
        page_fail(LLAMA_KV_PAGE_ERR_ARCHIVE, "%s [%s]", message, name);
    }
    page_fail(status == CACHEGEN_ERR_INTERNAL ? LLAMA_KV_PAGE_ERR_INTERNAL : LLAMA_KV_PAGE_ERR_ARGUMENT, "%s [%s]",
              message, name);
}

void check_codec(int32_t status) {
    if (status != CACHEGEN_OK) {
        fail_codec(status, cachegen_last_message());
    }
}

//
// backends
//

struct component_backend {
    ggml_backend_t              backend;
    const ggml_kv_codec_procs * procs; // NULL if it has no codec
};

component_backend backend_of(llama_context * ctx, const ggml_tensor * tensor) {
    component_backend result = { ctx->get_backend(page_buffer(tensor)), nullptr };
    if (result.backend) {
        ggml_backend_reg_t reg   = ggml_backend_dev_backend_reg(ggml_backend_get_device(result.backend));
        const auto         proc  = (ggml_backend_kv_codec_t) ggml_backend_reg_get_proc_address(reg, GGML_KV_CODEC_PROC);
        const auto *       procs = proc ? proc() : nullptr;
        result.procs             = procs && procs->version == GGML_KV_CODEC_VERSION ? procs : nullptr;
    }
    return result;
}

bool can_code(const component_backend & backend, const ggml_tensor & tensor, bool transposed, bool is_encode) {
    return backend.procs && backend.procs->supports(GGML_KV_CODEC_FORMAT_LCG3, tensor.type, transposed, is_encode);
}

//
// layout
//

struct live_component {
    llama_kv_page_component description; // of one token
    ggml_tensor *           tensor;
    uint32_t                n_cells;
    component_backend       backend;
    size_t                  part; // whose cells it has
    bool                    is_staged = false;
};

std::vector<live_component> live_components(llama_context * ctx, const std::vector<page_part> & parts, int32_t seq_id) {
    std::vector<live_component> result;
    for (const auto & t : page_tensors(parts, seq_id)) {
        result.push_back({ t.description, t.tensor, t.n_cells, backend_of(ctx, t.tensor), t.part });
    }
    return result;
}

bool is_state(int32_t kind) {
    return kind == LLAMA_KV_PAGE_KIND_STATE_R || kind == LLAMA_KV_PAGE_KIND_STATE_S ||
           kind == LLAMA_KV_PAGE_KIND_STATE_P;
}

uint32_t plane_kind(int32_t kind) {
    return kind == LLAMA_KV_PAGE_KIND_K   ? CACHEGEN_KIND_K
           : kind == LLAMA_KV_PAGE_KIND_V ? CACHEGEN_KIND_V
                                          : CACHEGEN_KIND_AUX;
}

const char * backend_name(const live_component & c) {
    return c.backend.backend ? ggml_backend_name(c.backend.backend) : "no backend";
}

// Decide who codes each component; throws REFUSED_CODEC. True: this library encodes all of them.
bool assign_codecs(std::vector<live_component> & components, bool is_encode, const llama_cachegen_options & options) {
    const bool may_stage = options.flags & LLAMA_CACHEGEN_HOST_STAGED;
    for (auto & c : components) {
        if (can_code(c.backend, *c.tensor, c.description.transposed, is_encode)) {
            continue;
        }
        const bool can_stage = codec_takes(c.tensor->type, c.description.transposed);
        if (!may_stage || !can_stage) {
            page_fail(LLAMA_KV_PAGE_REFUSED_CODEC, "layer %" PRId32 " %s: %s cannot %s %s%s%s", c.description.layer,
                      page_kind_name(c.description.kind), backend_name(c), is_encode ? "encode from" : "decode into",
                      page_type_name(c.description.type), c.description.transposed ? ", transposed" : "",
                      can_stage ? "; LLAMA_CACHEGEN_HOST_STAGED would take it through host memory" : "");
        }
        c.is_staged = true;
    }
    if (!is_encode) {
        return false;
    }
    // an archive is encoded in one place
    const auto is_elsewhere = [&](const live_component & c) {
        return c.is_staged || c.backend.backend != components[0].backend.backend;
    };
    const auto other = std::find_if(components.begin(), components.end(), is_elsewhere);
    if (other == components.end()) {
        return false;
    }
    for (auto & c : components) {
        c.is_staged = !ggml_backend_buffer_is_host(page_buffer(c.tensor));
        if (!may_stage || !codec_takes(c.tensor->type, c.description.transposed)) {
            page_fail(LLAMA_KV_PAGE_REFUSED_CODEC,
                      "layers lie on %s and %s; one archive is encoded on one backend, or with "
                      "LLAMA_CACHEGEN_HOST_STAGED on the CPU",
                      backend_name(components[0]), backend_name(*other));
        }
    }
    return true;
}

uint32_t n_staged(const std::vector<live_component> & components) {
    return uint32_t(std::count_if(components.begin(), components.end(), [](const auto & c) { return c.is_staged; }));
}

// The cells of one part for the tokens of a call; token first_token of the archive is cells[0].
struct part_cells {
    uint32_t              first_token;
    std::vector<uint32_t> cells;
};

ggml_kv_codec_rows rows_of(const live_component & c, const std::vector<part_cells> & cells) {
    ggml_kv_codec_rows rows = {};
    rows.tensor             = c.tensor;
    rows.n_cells            = c.n_cells;
    rows.n_channels         = c.description.n_channels;
    rows.is_transposed      = c.description.transposed;
    rows.n_rot              = c.description.n_rot;
    rows.first_token        = cells[c.part].first_token;
    rows.n_tokens           = cells[c.part].cells.size();
    rows.cells              = cells[c.part].cells.data();
    return rows;
}

uint64_t native_bytes(const std::vector<live_component> & components, const std::vector<part_cells> & cells) {
    uint64_t result = 0;
    for (const auto & c : components) {
        result += cells[c.part].cells.size() * c.description.row_bytes;
    }
    return result;
}

uint32_t n_cell_runs(const std::vector<part_cells> & cells) {
    size_t result = 0;
    for (const auto & part : cells) {
        result += page_cell_runs(part.cells).size();
    }
    return uint32_t(result);
}

// of lists that grow with the tokens or the layers
uint64_t list_bytes(const std::vector<live_component> & components, const std::vector<part_cells> & cells) {
    uint64_t result = components.size() * (sizeof(live_component) + sizeof(cachegen_lcg3_plane));
    for (const auto & part : cells) {
        result += part.cells.size() * sizeof(part.cells[0]);
    }
    return result;
}

void check_range(const std::vector<page_part> & parts, int32_t p0, int64_t n_tokens) {
    if (p0 < 0 || n_tokens <= 0 || n_tokens > INT32_MAX - p0) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "%" PRId64 " positions from %" PRId32 " on are not a range", n_tokens,
                  p0);
    }
    // a recurrent memory alone has no limit
    if (parts[0].cache && n_tokens > int64_t(parts[0].cache->get_size())) {
        page_fail(LLAMA_KV_PAGE_ERR_NO_CELLS,
                  "%" PRId64 " tokens do not fit: the cache has %" PRIu32 " cells for a sequence; raise n_ctx",
                  n_tokens, parts[0].cache->get_size());
    }
}

//
// archives
//

struct archive_reader {
    cachegen::memory_meter           meter; // of the reader
    cachegen_lcg3 *                  reader = nullptr;
    cachegen_lcg3_info               info   = {};
    std::vector<cachegen_lcg3_plane> planes;

    archive_reader(const void * metadata, uint64_t n_bytes, uint64_t archive_bytes) {
        const cachegen::metering of_reader(&meter);
        check_codec(cachegen_lcg3_open_metadata(metadata, n_bytes, archive_bytes, &reader));
        info.struct_size = sizeof(info);
        try {
            check_codec(cachegen_lcg3_describe(reader, &info, nullptr, 0));
            planes.resize(info.n_planes);
            check_codec(cachegen_lcg3_describe(reader, &info, planes.data(), planes.size()));
        } catch (...) {
            cachegen_lcg3_close(reader);
            throw;
        }
    }

    ~archive_reader() { cachegen_lcg3_close(reader); }

    archive_reader(const archive_reader &)             = delete;
    archive_reader & operator=(const archive_reader &) = delete;
};

// which plane each live component comes from
std::vector<uint32_t> match_planes(const archive_reader & archive, const std::vector<live_component> & components) {
    if (archive.planes.size() != components.size()) {
        page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS, "the archive has %zu planes, the cache %zu components",
                  archive.planes.size(), components.size());
    }
    std::vector<uint32_t> result;
    std::vector<bool>     is_taken(archive.planes.size());
    for (const auto & c : components) {
        const uint32_t kind = plane_kind(c.description.kind);
        size_t         p    = 0;
        // auxiliary planes of a layer come in the order of its components
        while (p < archive.planes.size() &&
               (is_taken[p] || archive.planes[p].layer != c.description.layer || archive.planes[p].kind != kind)) {
            p++;
        }
        if (p == archive.planes.size()) {
            page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS, "the archive has no plane for layer %" PRId32 " %s",
                      c.description.layer, page_kind_name(c.description.kind));
        }
        const auto & plane = archive.planes[p];
        if (plane.n_channels != c.description.n_channels) {
            page_fail(LLAMA_KV_PAGE_ERR_WIDTH,
                      "layer %" PRId32 " %s: the archive has %" PRIu32 " channels, the cache %" PRIu32,
                      c.description.layer, page_kind_name(c.description.kind), plane.n_channels,
                      c.description.n_channels);
        }
        if (is_state(c.description.kind) && plane.type != uint32_t(c.description.type)) {
            page_fail(LLAMA_KV_PAGE_ERR_TYPE, "layer %" PRId32 " %s: the archive is %s, the memory is %s",
                      c.description.layer, page_kind_name(c.description.kind), page_type_name(int32_t(plane.type)),
                      page_type_name(c.description.type));
        }
        if (kind == CACHEGEN_KIND_AUX && plane.mode == CACHEGEN_LCG3_LOSSY) {
            page_fail(LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT, "layer %" PRId32 " %s was not coded losslessly",
                      c.description.layer, page_kind_name(c.description.kind));
        }
        is_taken[p] = true;
        result.push_back(uint32_t(p));
    }
    return result;
}

// Everything about an import that can be known before cells are reserved.
struct import_plan {
    llama_context *             ctx;
    std::vector<page_part>      parts;
    llama_cachegen_options      options;
    int32_t                     seq_id;
    int32_t                     p0;
    uint32_t                    first_token;
    uint32_t                    n_tokens;
    const void *                metadata;
    uint64_t                    n_metadata_bytes;
    uint64_t                    archive_bytes;
    archive_reader              archive;
    std::vector<live_component> components;
    std::vector<uint32_t>       plane_of;
    std::vector<uint32_t>       wanted_from; // by part: the first token of the archive that it needs

    import_plan(llama_context * ctx, int32_t seq_id, int32_t p0, const void * metadata, uint64_t n_bytes,
                uint64_t archive_bytes, uint32_t first_token, uint32_t n_tokens, const llama_cachegen_options * options)
        : ctx(ctx), parts(page_parts(ctx)), options(resolve_options(ctx, options)), seq_id(seq_id), p0(p0),
          first_token(first_token), n_tokens(n_tokens), metadata(metadata), n_metadata_bytes(n_bytes),
          archive_bytes(archive_bytes), archive(metadata, n_bytes, archive_bytes) {
        page_check_seq_id(ctx, parts, seq_id);
        if (n_tokens == 0 || first_token >= archive.info.n_tokens || n_tokens > archive.info.n_tokens - first_token) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "%" PRIu32 " tokens from %" PRIu32 " on; the archive has %" PRIu32,
                      n_tokens, first_token, archive.info.n_tokens);
        }
        check_range(parts, p0, n_tokens);
        components = live_components(ctx, parts, seq_id);
        plane_of   = match_planes(archive, components);
        assign_codecs(components, false, this->options);
        for (const auto & part : parts) {
            wanted_from.push_back(first_token + uint32_t(part.begin(p0, p0 + int32_t(n_tokens)) - p0));
            if (part.is_windowed() && part.cache->get_size() >= parts[0].cache->get_size() &&
                plane_begin(wanted_from.size() - 1) <= first_token) {
                wanted_from.back() = first_token; // a window of full size can go back to any position
            }
        }
        check_windows();
    }

    // the first token that all planes of a part have
    uint32_t plane_begin(size_t part) const {
        uint32_t result = 0;
        for (size_t i = 0; i < components.size(); ++i) {
            if (components[i].part == part) {
                result = std::max(result, archive.planes[plane_of[i]].first_token);
            }
        }
        return result;
    }

    // every plane has to begin early enough for its cache
    void check_windows() const {
        for (size_t i = 0; i < components.size(); ++i) {
            const auto & plane = archive.planes[plane_of[i]];
            const auto & live  = components[i].description;
            if (is_state(live.kind) && plane.first_token != wanted_from[components[i].part]) {
                page_fail(LLAMA_KV_PAGE_ERR_WINDOW,
                          "layer %" PRId32 " %s: the archive has the state after its token %" PRIu32 ", tokens %" PRIu32
                          " to %" PRIu32 " were asked for; restore all of it",
                          live.layer, page_kind_name(live.kind), plane.first_token, first_token,
                          first_token + n_tokens - 1);
            }
            if (plane.first_token > wanted_from[components[i].part]) {
                page_fail(LLAMA_KV_PAGE_ERR_WINDOW,
                          "layer %" PRId32 " %s: the archive has tokens from %" PRIu32 " on, tokens %" PRIu32
                          " to %" PRIu32 " need them from %" PRIu32 " on; %s",
                          live.layer, page_kind_name(live.kind), plane.first_token, first_token,
                          first_token + n_tokens - 1, wanted_from[components[i].part],
                          parts[components[i].part].is_windowed() ? "restore all of it, or save with a full-size window"
                                                                  : "it was made from a window");
            }
        }
    }
};

struct backend_decoder {
    ggml_backend_t              backend;
    const ggml_kv_codec_procs * procs;
    ggml_kv_codec_decoder *     decoder;
};

} // namespace

struct llama_cachegen_import {
    import_plan                     plan;
    std::vector<part_cells>         cells;    // of the parts that have any reserved
    std::vector<backend_decoder>    decoders; // one a backend
    std::unique_ptr<staged_decoder> staged;   // of components whose backend has no codec, or NULL
    std::vector<uint32_t>           parts;    // that hold wanted tokens
    size_t                          next_part    = 0;
    uint64_t                        done_bytes   = 0;
    uint64_t                        wanted_bytes = 0;
    bool                            is_open      = false; // cells are reserved
    bool                            has_failed   = false;
    double                          reserve_ms   = 0;
    double                          drain_ms     = 0;
    double                          code_ms      = 0;
    std::future<void>               preparation; // of the commit, if it has begun

    explicit llama_cachegen_import(import_plan && moved) = delete;

    template <typename... Arguments> explicit llama_cachegen_import(Arguments &&... arguments)
        : plan(std::forward<Arguments>(arguments)...) {}

    ~llama_cachegen_import() { close(); }

    llama_cachegen_import(const llama_cachegen_import &)             = delete;
    llama_cachegen_import & operator=(const llama_cachegen_import &) = delete;

    void              open();
    // when nothing but this import can touch the memory until the commit
    void              prepare_meanwhile();
    void              feed(const void * bytes, uint64_t n_bytes);
    // all that is left, out of the whole archive
    void              feed_all(const void * archive);
    // the caller's chance to stop, and what comes of it
    bool              may_go_on() const;
    [[noreturn]] void fail_stopped() const;
    void              commit();
    void              close();

    // the wanted tokens of a part: [first, second); none: second <= first
    std::pair<uint32_t, uint32_t> wanted_tokens(uint32_t part) const {
        const auto &   info  = plan.archive.info;
        const uint64_t begin = part == 0 ? 0 : info.n_exact_tokens + uint64_t(part - 1) * info.block_tokens;
        const uint64_t end =
            part == 0 ? info.n_exact_tokens : std::min<uint64_t>(begin + info.block_tokens, info.n_tokens);
        return { uint32_t(std::max<uint64_t>(begin, plan.first_token)),
                 uint32_t(std::min<uint64_t>(end, uint64_t(plan.first_token) + plan.n_tokens)) };
    }

    void part_bytes(uint32_t part, uint64_t & offset, uint64_t & n_bytes) const {
        check_codec(cachegen_lcg3_part(plan.archive.reader, part, &offset, &n_bytes));
    }
};

void llama_cachegen_import::open() {
    const int64_t t_drain_us = ggml_time_us();
    plan.ctx->memory_drain();
    drain_ms = ms_since(t_drain_us);

    const int64_t t_reserve_us = ggml_time_us();
    is_open                    = true;
    cells.reserve(plan.parts.size());
    for (size_t i = 0; i < plan.parts.size(); ++i) {
        const uint32_t from = plan.wanted_from[i];
        const uint32_t n    = plan.first_token + plan.n_tokens - from;
        // allocated before anything is reserved: memory that runs out must not lose a reservation
        part_cells     own{ from, std::vector<uint32_t>(n) };
        const int32_t  pos_from = plan.p0 + int32_t(from - plan.first_token);
        page_reserve_part(plan.ctx, plan.parts[i], plan.seq_id, plan.p0, pos_from, plan.p0 + int32_t(plan.n_tokens),
                          plan.options.tokens, own.cells);
        cells.push_back(std::move(own));
    }

    std::vector<ggml_backend_t> backends;
    for (const auto & c : plan.components) {
        if (!c.is_staged && std::find(backends.begin(), backends.end(), c.backend.backend) == backends.end()) {
            backends.push_back(c.backend.backend);
        }
    }
    decoders.reserve(backends.size()); // so that no decoder is lost when memory runs out
    for (ggml_backend_t backend : backends) {
        std::vector<ggml_kv_codec_rows> rows(plan.archive.planes.size());
        const ggml_kv_codec_procs *     procs = nullptr;
        for (size_t i = 0; i < plan.components.size(); ++i) {
            if (!plan.components[i].is_staged && plan.components[i].backend.backend == backend) {
                rows[plan.plane_of[i]] = rows_of(plan.components[i], cells);
                procs                  = plan.components[i].backend.procs;
            }
        }
        int32_t status  = CACHEGEN_ERR_INTERNAL;
        auto *  decoder = procs->decoder_new(backend, GGML_KV_CODEC_FORMAT_LCG3, plan.metadata, plan.n_metadata_bytes,
                                             plan.archive_bytes, plan.first_token, plan.n_tokens, rows.data(),
                                             rows.size(), plan.options.n_threads, &status);
        if (!decoder) {
            fail_codec(status, procs->last_message());
        }
        decoders.push_back({ backend, procs, decoder });
    }
    if (n_staged(plan.components) > 0) {
        std::vector<ggml_kv_codec_rows> rows(plan.archive.planes.size());
        for (size_t i = 0; i < plan.components.size(); ++i) {
            if (plan.components[i].is_staged) {
                rows[plan.plane_of[i]] = rows_of(plan.components[i], cells);
            }
        }
        staged = std::make_unique<staged_decoder>(plan.archive.reader, std::move(rows), plan.options.n_threads);
    }

    for (uint32_t part = 0; part <= plan.archive.info.n_blocks; ++part) {
        const auto [begin, end] = wanted_tokens(part);
        if (begin < end) {
            uint64_t offset  = 0;
            uint64_t n_bytes = 0;
            part_bytes(part, offset, n_bytes);
            parts.push_back(part);
            wanted_bytes += n_bytes;
        }
    }
    reserve_ms = ms_since(t_reserve_us);
}

// A caller's function may cut the sequence meanwhile: with one, the cells are looked at in the end.
void llama_cachegen_import::prepare_meanwhile() {
    if (plan.options.go_on) {
        return;
    }
    try {
        preparation = std::async(std::launch::async, [this] { page_prepare_parts(plan.parts); });
    } catch (const std::system_error &) {
        // no thread: the commit does it
    }
}

void llama_cachegen_import::feed(const void * bytes, uint64_t n_bytes) {
    if (!is_open || has_failed || next_part == parts.size()) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "no more bytes are wanted");
    }
    uint64_t offset = 0;
    uint64_t wanted = 0;
    part_bytes(parts[next_part], offset, wanted);
    if (!bytes || n_bytes != wanted) {
        page_fail(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, "%" PRIu64 " bytes were given, %" PRIu64 " are wanted", n_bytes,
                  wanted);
    }
    has_failed = true;
    if (!may_go_on()) {
        fail_stopped();
    }
    const int64_t t_start_us = ggml_time_us();
    for (const auto & d : decoders) {
        const int32_t status = d.procs->decoder_part(d.decoder, parts[next_part], bytes, n_bytes);
        if (status != CACHEGEN_OK) {
            fail_codec(status, d.procs->last_message());
        }
    }
    if (staged) {
        const auto [begin, end] = wanted_tokens(parts[next_part]);
        check_codec(staged->decode_part(parts[next_part], bytes, n_bytes, begin, end));
    }
    code_ms += ms_since(t_start_us);
    done_bytes += n_bytes;
    next_part++;
    has_failed = false;
}

bool llama_cachegen_import::may_go_on() const {
    return !plan.options.go_on || plan.options.go_on(plan.options.user_data, done_bytes, wanted_bytes);
}

void llama_cachegen_import::fail_stopped() const {
    page_fail(LLAMA_KV_PAGE_ERR_CANCELLED, "the caller stopped after %" PRIu64 " of %" PRIu64 " bytes", done_bytes,
              wanted_bytes);
}

void llama_cachegen_import::feed_all(const void * archive) {
    if (decoders.size() != 1 || staged || !decoders.front().procs->decoder_run) {
        while (next_part < parts.size()) {
            uint64_t offset  = 0;
            uint64_t n_bytes = 0;
            part_bytes(parts[next_part], offset, n_bytes);
            feed(static_cast<const uint8_t *>(archive) + offset, n_bytes);
        }
        return;
    }
    const auto & first = decoders.front();
    struct running {
        llama_cachegen_import & import;
        const uint8_t *         archive;
        bool                    was_stopped;
        std::atomic<int>        read_error; // an errno; -1: the file is too short
    } state                     = { *this, static_cast<const uint8_t *>(archive), false, { 0 } };
    ggml_kv_codec_source source = {};
    source.user_data            = &state;
    source.read                 = [](void * user_data, uint64_t offset, void * bytes, uint64_t n_bytes) {
        auto &    running = *static_cast<struct running *>(user_data);
        const int error   = read_payload(running.import.plan.options.file, running.archive, offset, bytes, n_bytes);
        if (error != 0) {
            running.read_error = error;
        }
        return error;
    };
    source.next = [](void * user_data, uint32_t part) {
        auto & running = *static_cast<struct running *>(user_data);
        auto & import  = running.import;
        if (!import.may_go_on()) {
            running.was_stopped = true;
            return 1;
        }
        uint64_t offset  = 0;
        uint64_t n_bytes = 0;
        cachegen_lcg3_part(import.plan.archive.reader, part, &offset, &n_bytes);
        import.done_bytes += n_bytes;
        return 0;
    };
    has_failed               = true;
    const int64_t t_start_us = ggml_time_us();
    const int32_t status =
        first.procs->decoder_run(first.decoder, &parts[next_part], parts.size() - next_part, &source);
    if (state.was_stopped) {
        fail_stopped();
    }
    if (state.read_error != 0) {
        page_fail(LLAMA_KV_PAGE_ERR_ARCHIVE, "the archive's file could not be read: %s",
                  state.read_error > 0 ? strerror(state.read_error) : "it ends too early");
    }
    if (status != CACHEGEN_OK) {
        fail_codec(status, first.procs->last_message());
    }
    code_ms += ms_since(t_start_us);
    next_part  = parts.size();
    has_failed = false;
}

void llama_cachegen_import::commit() {
    if (!is_open || has_failed) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the import has failed or was committed already");
    }
    if (next_part != parts.size()) {
        page_fail(LLAMA_KV_PAGE_ERR_INCOMPLETE, "%zu of %zu parts of the archive were decoded", next_part,
                  parts.size());
    }
    has_failed = true;
    if (preparation.valid()) {
        preparation.get();
    } else {
        page_prepare_parts(plan.parts); // while devices decode the last parts
    }
    const int64_t t_start_us = ggml_time_us();
    for (const auto & d : decoders) {
        const int32_t status = d.procs->decoder_finish(d.decoder);
        if (status != CACHEGEN_OK) {
            fail_codec(status, d.procs->last_message());
        }
    }
    code_ms += ms_since(t_start_us);
    page_commit_parts(plan.ctx, plan.parts, plan.seq_id);
    is_open    = false;
    has_failed = false;
}

void llama_cachegen_import::close() {
    if (preparation.valid()) {
        preparation.wait();
    }
    for (const auto & d : decoders) {
        d.procs->decoder_free(d.decoder);
    }
    decoders.clear();
    staged.reset();
    if (is_open) {
        for (size_t i = 0; i < cells.size(); ++i) {
            page_release_part(plan.ctx, plan.parts[i]);
        }
        is_open = false;
    }
}

namespace {

void fill_stats(llama_cachegen_import & import, double commit_ms, llama_cachegen_stats * stats) {
    if (!stats) {
        return;
    }
    const auto & plan    = import.plan;
    *stats               = {};
    stats->struct_size   = sizeof(*stats);
    stats->n_components  = uint32_t(plan.components.size());
    stats->n_backends    = uint32_t(import.decoders.size());
    stats->n_host_staged = n_staged(plan.components);
    if (stats->n_host_staged > 0 && std::none_of(import.decoders.begin(), import.decoders.end(), [](const auto & d) {
            return ggml_backend_dev_type(ggml_backend_get_device(d.backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;
        })) {
        stats->n_backends++;
    }
    stats->n_cell_runs   = n_cell_runs(import.cells);
    stats->n_threads     = plan.options.n_threads;
    stats->n_tokens      = plan.n_tokens;
    stats->archive_bytes = plan.archive_bytes;
    stats->native_bytes  = native_bytes(plan.components, import.cells);
    stats->drain_ms      = import.drain_ms;
    stats->reserve_ms    = import.reserve_ms;
    stats->code_ms       = import.code_ms;
    stats->commit_ms     = commit_ms;

    stats->peak_transient_bytes = plan.archive.meter.peak() + list_bytes(plan.components, import.cells);
    for (const auto & d : import.decoders) {
        stats->peak_transient_bytes += d.procs->decoder_peak_bytes(d.decoder);
    }
    if (import.staged) {
        stats->peak_transient_bytes += import.staged->peak_bytes();
    }
}

void check_archive_arguments(const void * bytes, uint64_t n_bytes, uint64_t archive_bytes) {
    if (!bytes || n_bytes > archive_bytes) {
        page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "the archive is NULL, or more bytes of it are given than it has");
    }
}

void check_stats(const llama_cachegen_stats * stats) {
    if (stats) {
        check_struct(*stats, "stats");
    }
}

void commit_with_stats(llama_cachegen_import & import, llama_cachegen_stats * stats) {
    const int64_t t_start_us = ggml_time_us();
    import.commit();
    fill_stats(import, ms_since(t_start_us), stats);
}

} // namespace

extern "C" {

const char * llama_cachegen_memory_class(llama_context * ctx) {
    return ctx ? page_memory_name(ctx) : "unknown";
}

int32_t llama_cachegen_get_caps(llama_context * ctx, int32_t format, llama_cachegen_component_caps * components,
                                uint32_t n_components_max, uint32_t * n_components) {
    return page_guard([&] {
        if (!n_components) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "n_components is NULL");
        }
        if (format != LLAMA_CACHEGEN_FORMAT_LCG3) {
            page_fail(LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT, "format %" PRId32 " is not known", format);
        }
        const auto live = live_components(ctx, page_parts(ctx), 0);
        *n_components   = uint32_t(live.size());
        if (!components) {
            return;
        }
        if (n_components_max < live.size()) {
            page_fail(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, "room for %" PRIu32 " components of %zu", n_components_max,
                      live.size());
        }
        for (size_t i = 0; i < live.size(); ++i) {
            const auto & c           = live[i];
            components[i]            = {};
            components[i].layer      = c.description.layer;
            components[i].kind       = c.description.kind;
            components[i].type       = c.description.type;
            components[i].transposed = c.description.transposed;
            components[i].can_import = can_code(c.backend, *c.tensor, c.description.transposed, false);
            components[i].can_export = can_code(c.backend, *c.tensor, c.description.transposed, true);
            components[i].can_stage  = codec_takes(c.tensor->type, c.description.transposed);
            snprintf(components[i].backend, sizeof(components[i].backend), "%s",
                     c.backend.backend ? ggml_backend_name(c.backend.backend) : "");
        }
    });
}

int32_t llama_cachegen_validate(llama_context * ctx, int32_t seq_id, int32_t p0, const void * metadata,
                                uint64_t n_bytes, uint64_t archive_bytes, uint32_t first_token, uint32_t n_tokens,
                                const llama_cachegen_options * options) {
    return page_guard([&] {
        check_archive_arguments(metadata, n_bytes, archive_bytes);
        import_plan(ctx, seq_id, p0, metadata, n_bytes, archive_bytes, first_token, n_tokens, options);
    });
}

int32_t llama_cachegen_import_archive(llama_context * ctx, int32_t seq_id, int32_t p0, const void * archive,
                                      uint64_t archive_bytes, uint32_t first_token, uint32_t n_tokens,
                                      const llama_cachegen_options * options, llama_cachegen_stats * stats) {
    return page_guard([&] {
        check_stats(stats);
        check_archive_arguments(archive, archive_bytes, archive_bytes);
        llama_cachegen_import import(ctx, seq_id, p0, archive, archive_bytes, archive_bytes, first_token, n_tokens,
                                     options);
        import.open();
        import.prepare_meanwhile();
        import.feed_all(archive);
        commit_with_stats(import, stats);
    });
}

int32_t llama_cachegen_import_begin(llama_context * ctx, int32_t seq_id, int32_t p0, const void * metadata,
                                    uint64_t n_bytes, uint64_t archive_bytes, uint32_t first_token, uint32_t n_tokens,
                                    const llama_cachegen_options * options, llama_cachegen_import ** import) {
    return page_guard([&] {
        if (!import) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "import is NULL");
        }
        *import = nullptr;
        check_archive_arguments(metadata, n_bytes, archive_bytes);
        auto opened = std::make_unique<llama_cachegen_import>(ctx, seq_id, p0, metadata, n_bytes, archive_bytes,
                                                              first_token, n_tokens, options);
        opened->open();
        *import = opened.release();
    });
}

int32_t llama_cachegen_import_next(const llama_cachegen_import * import, uint64_t * offset, uint64_t * n_bytes) {
    return page_guard([&] {
        if (!import || !offset || !n_bytes) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "import, offset or n_bytes is NULL");
        }
        *offset  = 0;
        *n_bytes = 0;
        if (import->next_part < import->parts.size()) {
            import->part_bytes(import->parts[import->next_part], *offset, *n_bytes);
        }
    });
}

int32_t llama_cachegen_import_feed(llama_cachegen_import * import, const void * bytes, uint64_t n_bytes) {
    return page_guard([&] {
        if (!import) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "import is NULL");
        }
        import->feed(bytes, n_bytes);
    });
}

int32_t llama_cachegen_import_commit(llama_cachegen_import * import, llama_cachegen_stats * stats) {
    return page_guard([&] {
        check_stats(stats);
        if (!import) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "import is NULL");
        }
        commit_with_stats(*import, stats);
    });
}

void llama_cachegen_import_close(llama_cachegen_import * import) {
    delete import;
}

int32_t llama_cachegen_export(llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1,
                              const llama_cachegen_profile * profile, const llama_cachegen_coding * codings,
                              uint32_t n_codings, llama_cachegen_write_t write, void * user_data,
                              const llama_cachegen_options * options, uint64_t * archive_bytes,
                              llama_cachegen_stats * stats) {
    return page_guard([&] {
        check_stats(stats);
        if (!profile || !codings || !write || !archive_bytes) {
            page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT, "profile, codings, write or archive_bytes is NULL");
        }
        check_struct(*profile, "profile");
        const auto parts = page_parts(ctx);
        const auto opts  = resolve_options(ctx, options);
        page_check_seq_id(ctx, parts, seq_id);
        check_range(parts, p0, int64_t(p1) - p0);
        auto       components = live_components(ctx, parts, seq_id);
        const bool is_ours    = assign_codecs(components, true, opts);
        if (n_codings != components.size()) {
            page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS, "%" PRIu32 " codings for %zu components", n_codings,
                      components.size());
        }
        const int64_t t_drain_us = ggml_time_us();
        ctx->memory_drain();
        const double            drain_ms = ms_since(t_drain_us);
        std::vector<part_cells> cells;
        for (const auto & part : parts) {
            int32_t from = part.begin(p0, p1);
            if (part.is_windowed()) {
                // all of it if all of it is there, else what the last token attends to
                llama_kv_cache::slot_info::idx_vec_t idxs;
                if (part.cache->page_lookup(seq_id, p0, p1, idxs) == p1) {
                    from = p0;
                }
            }
            cells.push_back({ uint32_t(from - p0), page_find_cells(part, seq_id, from, p1) });
        }

        std::vector<cachegen_lcg3_plane> planes(components.size());
        std::vector<ggml_kv_codec_rows>  rows;
        for (size_t i = 0; i < components.size(); ++i) {
            const auto & live   = components[i].description;
            const auto & coding = codings[i];
            if (coding.layer != live.layer || coding.kind != live.kind) {
                page_fail(LLAMA_KV_PAGE_ERR_COMPONENTS,
                          "coding %zu is of layer %" PRId32 " %s, the component of layer %" PRId32 " %s", i,
                          coding.layer, page_kind_name(coding.kind), live.layer, page_kind_name(live.kind));
            }
            planes[i]             = {};
            planes[i].struct_size = sizeof(planes[i]);
            planes[i].layer       = live.layer;
            if (coding.n_levels && plane_kind(live.kind) == CACHEGEN_KIND_AUX) {
                page_fail(LLAMA_KV_PAGE_ERR_ARGUMENT,
                          "layer %" PRId32 " %s travels exact; its coding has %" PRIu32 " levels", live.layer,
                          page_kind_name(live.kind), coding.n_levels);
            }
            planes[i].kind         = plane_kind(live.kind);
            planes[i].mode         = coding.n_levels       ? CACHEGEN_LCG3_LOSSY
                                     : is_state(live.kind) ? CACHEGEN_LCG3_RAW // one row: nothing to model
                                                           : CACHEGEN_LCG3_EXACT;
            planes[i].type         = uint32_t(live.type);
            planes[i].n_channels   = live.n_channels;
            planes[i].n_rot        = live.n_rot;
            planes[i].n_symbols    = coding.n_levels;
            planes[i].scale_type   = coding.n_levels ? uint32_t(coding.scale_type) : 0;
            planes[i].is_unrotated = coding.n_levels && live.n_rot ? coding.is_unrotated : 0;
            planes[i].first_token  = cells[components[i].part].first_token;
            rows.push_back(rows_of(components[i], cells));
        }
        cachegen_lcg3_options lcg3 = {};
        lcg3.struct_size           = sizeof(lcg3);
        lcg3.block_tokens          = profile->block_tokens;
        lcg3.n_exact_tokens        = profile->n_exact_tokens;
        lcg3.n_models              = profile->n_models;
        lcg3.n_classes             = profile->n_classes;
        lcg3.n_sample_tokens       = profile->n_sample_tokens;
        memcpy(lcg3.profile, profile->name, sizeof(lcg3.profile));

        archive_writer writer(write, user_data, opts);
        const int64_t  t_start_us = ggml_time_us();
        uint64_t       peak_bytes = 0;
        const auto *   procs      = components[0].backend.procs;
        int32_t        status     = CACHEGEN_OK;
        if (is_ours) {
            std::vector<bool> staged;
            for (const auto & c : components) {
                staged.push_back(c.is_staged);
            }
            status = staged_encode(planes.data(), &lcg3, rows, staged, opts.n_threads, archive_writer::write, &writer,
                                   archive_bytes, &peak_bytes);
        } else {
            status = procs->encode(components[0].backend.backend, GGML_KV_CODEC_FORMAT_LCG3, planes.data(), &lcg3,
                                   rows.data(), rows.size(), opts.n_threads, archive_writer::write, &writer,
                                   archive_bytes, &peak_bytes);
        }
        if (writer.system_error() != 0) {
            if (stats) {
                stats->system_error = writer.system_error();
            }
            page_fail(LLAMA_KV_PAGE_ERR_WRITE, "the archive's file could not be written: %s",
                      strerror(writer.system_error()));
        }
        if (status != CACHEGEN_OK) {
            fail_codec(status, is_ours ? cachegen_last_message() : procs->last_message());
        }
        if (stats) {
            *stats               = {};
            stats->struct_size   = sizeof(*stats);
            stats->n_components  = uint32_t(components.size());
            stats->n_backends    = 1;
            stats->n_cell_runs   = n_cell_runs(cells);
            stats->n_threads     = opts.n_threads;
            stats->n_tokens      = uint32_t(p1 - p0);
            stats->archive_bytes = *archive_bytes;
            stats->native_bytes  = native_bytes(components, cells);
            stats->drain_ms      = drain_ms;
            stats->code_ms       = ms_since(t_start_us);
            stats->write_ms      = writer.write_ms();

            stats->peak_transient_bytes = peak_bytes + list_bytes(components, cells);
            stats->n_host_staged        = n_staged(components);
        }
    });
}
}
