// Archives into and out of resident caches: what an import leaves in the cells is what the codec decodes, and an import
// or export that fails, wherever it does, leaves the context as it was.
#include "cachegen.h"
#include "llama-cachegen.h"
#include "page_fixture.h"

// white-box: which cells are free, and what they hold
#include "llama-context.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <malloc.h>
#include <map>
#include <memory>
#include <new>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

//
// allocations that fail
//

namespace faults {

std::atomic<bool>     is_armed{ false };
std::atomic<bool>     is_lasting{ false }; // every allocation after the first that fails does too
std::atomic<int64_t>  n_left{ 0 };         // allocations that still succeed
std::atomic<uint64_t> n_failed{ 0 };

bool fails_now() {
    if (!is_armed.load(std::memory_order_relaxed)) {
        return false;
    }
    const int64_t left = n_left.fetch_sub(1);
    if (left > 0 || (left < 0 && !is_lasting)) {
        return false;
    }
    n_failed++;
    return true;
}

struct armed {
    armed(int64_t n_good, bool lasting) {
        n_failed   = 0;
        n_left     = n_good;
        is_lasting = lasting;
        is_armed   = true;
    }

    ~armed() { is_armed = false; }

    armed(const armed &)             = delete;
    armed & operator=(const armed &) = delete;
};

// what is allocated while one of these lives, in bytes, and how much it was at most
struct heap_watch {
    heap_watch();
    ~heap_watch();

    static std::atomic<heap_watch *> active;

    std::atomic<int64_t> now{ 0 };
    std::atomic<int64_t> peak{ 0 };

    void add(int64_t n) {
        const int64_t after  = now.fetch_add(n) + n;
        int64_t       before = peak.load();
        while (after > before && !peak.compare_exchange_weak(before, after)) {
        }
    }
};

std::atomic<heap_watch *> heap_watch::active{ nullptr };

heap_watch::heap_watch() {
    active = this;
}

heap_watch::~heap_watch() {
    active = nullptr;
}

void * allocate(std::size_t n_bytes, std::size_t alignment) {
    if (fails_now()) {
        return nullptr;
    }
    void * const result = alignment <= alignof(std::max_align_t)
                              ? malloc(std::max<std::size_t>(n_bytes, 1))
                              : aligned_alloc(alignment, (n_bytes + alignment - 1) / alignment * alignment);
    if (heap_watch * const watch = heap_watch::active) {
        watch->add(int64_t(malloc_usable_size(result)));
    }
    return result;
}

void release(void * p) {
    if (heap_watch * const watch = heap_watch::active) {
        watch->add(-int64_t(malloc_usable_size(p)));
    }
    free(p);
}

void * allocate_or_throw(std::size_t n_bytes, std::size_t alignment) {
    void * const result = allocate(n_bytes, alignment);
    if (!result) {
        throw std::bad_alloc();
    }
    return result;
}

} // namespace faults

// for this process, shared libraries included
void * operator new(std::size_t n) {
    return faults::allocate_or_throw(n, 0);
}

void * operator new[](std::size_t n) {
    return faults::allocate_or_throw(n, 0);
}

void * operator new(std::size_t n, const std::nothrow_t &) noexcept {
    return faults::allocate(n, 0);
}

void * operator new[](std::size_t n, const std::nothrow_t &) noexcept {
    return faults::allocate(n, 0);
}

void * operator new(std::size_t n, std::align_val_t a) {
    return faults::allocate_or_throw(n, std::size_t(a));
}

void * operator new[](std::size_t n, std::align_val_t a) {
    return faults::allocate_or_throw(n, std::size_t(a));
}

void * operator new(std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return faults::allocate(n, std::size_t(a));
}

void * operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return faults::allocate(n, std::size_t(a));
}

void operator delete(void * p) noexcept {
    faults::release(p);
}

void operator delete[](void * p) noexcept {
    faults::release(p);
}

void operator delete(void * p, std::size_t) noexcept {
    faults::release(p);
}

void operator delete[](void * p, std::size_t) noexcept {
    faults::release(p);
}

void operator delete(void * p, const std::nothrow_t &) noexcept {
    faults::release(p);
}

void operator delete[](void * p, const std::nothrow_t &) noexcept {
    faults::release(p);
}

void operator delete(void * p, std::align_val_t) noexcept {
    faults::release(p);
}

void operator delete[](void * p, std::align_val_t) noexcept {
    faults::release(p);
}

void operator delete(void * p, std::size_t, std::align_val_t) noexcept {
    faults::release(p);
}

void operator delete[](void * p, std::size_t, std::align_val_t) noexcept {
    faults::release(p);
}

void operator delete(void * p, std::align_val_t, const std::nothrow_t &) noexcept {
    faults::release(p);
}

void operator delete[](void * p, std::align_val_t, const std::nothrow_t &) noexcept {
    faults::release(p);
}

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();

constexpr uint32_t n_exact = 4;
constexpr uint32_t n_block = 32;
constexpr int32_t  n_page  = 100; // exact tokens and three whole blocks: 4, 36, 68, 100

llama_model * model() {
    static const llama_model_ptr res = make_tiny_llama();
    return res.get();
}

void for_each_layout(const std::function<void(const cache_layout &)> & body) {
    for (const auto & layout : typical_layouts()) {
        SCOPE(to_string(layout));
        body(layout);
    }
}

llama_memory_t memory(const llama_context_ptr & ctx) {
    return llama_get_memory(ctx.get());
}

llama_kv_cache & cache_of(llama_context * ctx) {
    auto * cache = dynamic_cast<llama_kv_cache *>(ctx->get_memory());
    CHECK(cache != nullptr);
    return *cache;
}

//
// archives
//

struct archive {
    byte_vector          bytes;
    uint64_t             metadata_bytes = 0;
    llama_cachegen_stats stats{};
};

// how a context's components are coded; n_levels 0: lossless
struct coding_choice {
    uint32_t n_levels_k   = 0;
    uint32_t n_levels_v   = 0;
    int32_t  scale_type   = GGML_TYPE_F16;
    uint32_t is_unrotated = 0;
    uint32_t n_classes    = 1;
};

constexpr coding_choice exact = {};
constexpr coding_choice lossy = { 33, 15, GGML_TYPE_F16, 1, 4 };

// the lossy ones of a matrix are not all alike
coding_choice nth_lossy(uint32_t i) {
    constexpr std::array<coding_choice, 4> choices = { {
        { 33, 15, GGML_TYPE_F16, 1, 4 },
        { 63, 3, GGML_TYPE_F32, 0, 1 },
        { 11, 31, GGML_TYPE_BF16, 1, 16 },
        { 21, 0, GGML_TYPE_F16, 0, 2 }, // V lossless
    } };
    return choices[i % choices.size()];
}

llama_cachegen_profile new_profile(const coding_choice & choice = exact) {
    llama_cachegen_profile profile = {};
    profile.struct_size            = sizeof(profile);
    profile.block_tokens           = n_block;
    profile.n_exact_tokens         = n_exact;
    profile.n_models               = 4;
    profile.n_classes              = choice.n_classes;
    memcpy(profile.name, "test", 4);
    return profile;
}

llama_cachegen_stats new_archive_stats() {
    llama_cachegen_stats stats = {};
    stats.struct_size          = sizeof(stats);
    return stats;
}

llama_cachegen_options new_archive_options(uint32_t n_threads = 0) {
    llama_cachegen_options options = {};
    options.struct_size            = sizeof(options);
    options.n_threads              = n_threads;
    return options;
}

std::vector<llama_cachegen_component_caps> caps_of(llama_context * ctx) {
    uint32_t n = 0;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, nullptr, 0, &n));
    std::vector<llama_cachegen_component_caps> caps(n);
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, caps.data(), n, &n));
    CHECK_EQ(caps.size(), n);
    return caps;
}

std::vector<llama_cachegen_coding> codings_of(llama_context * ctx, const coding_choice & choice) {
    std::vector<llama_cachegen_coding> codings;
    for (const auto & c : caps_of(ctx)) {
        const uint32_t n_levels = c.kind == LLAMA_KV_PAGE_KIND_K ? choice.n_levels_k : choice.n_levels_v;
        codings.push_back({ c.layer, c.kind, n_levels, choice.scale_type, choice.is_unrotated });
    }
    return codings;
}

// collects an archive, and checks the order of its pieces; takes no memory once it has its capacity
struct collector {
    byte_vector bytes;
    uint64_t    end         = 0; // of the piece before
    uint64_t    begin       = 0; // of the first piece
    uint32_t    n_calls     = 0;
    bool        is_ordered  = true;
    bool        is_complete = false;
    int64_t     refuse_at   = -1; // call that is refused

    explicit collector(int64_t refuse_at = -1) : bytes(1 << 20), refuse_at(refuse_at) {}

    static int32_t write(void * user_data, uint64_t offset, const void * piece, uint64_t n_bytes) {
        auto & self = *static_cast<collector *>(user_data);
        if (self.n_calls++ == self.refuse_at) {
            return 7;
        }
        if (self.is_complete || offset + n_bytes > self.bytes.size()) {
            self.is_ordered = false;
            return 0;
        }
        if (offset == 0) {
            self.is_complete = true;
            self.is_ordered &= n_bytes == self.begin;
        } else {
            self.begin = self.end ? self.begin : offset;
            self.is_ordered &= self.end == 0 || offset == self.end;
            self.end = offset + n_bytes;
        }
        memcpy(self.bytes.data() + offset, piece, n_bytes);
        return 0;
    }
};

uint64_t metadata_bytes_of(const byte_vector & bytes) {
    uint64_t n = 0;
    CHECK_EQ(cachegen_lcg3_metadata_bytes(bytes.data(), bytes.size(), bytes.size(), &n), int32_t(CACHEGEN_OK));
    return n;
}

archive export_archive(llama_context * ctx, llama_seq_id seq_id, int32_t p0, int32_t p1, const coding_choice & choice,
                       uint32_t n_threads = 0) {
    archive    result;
    collector  sink;
    uint64_t   archive_bytes = 0;
    const auto profile       = new_profile(choice);
    const auto codings       = codings_of(ctx, choice);
    const auto options       = new_archive_options(n_threads);
    result.stats             = new_archive_stats();
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_cachegen_export(ctx, seq_id, p0, p1, &profile, codings.data(), uint32_t(codings.size()),
                                       collector::write, &sink, &options, &archive_bytes, &result.stats));
    CHECK(sink.is_ordered);
    CHECK(sink.is_complete);
    CHECK_EQ(sink.end, archive_bytes);
    CHECK_EQ(result.stats.archive_bytes, archive_bytes);
    CHECK_EQ(result.stats.n_tokens, uint32_t(p1 - p0));
    CHECK_EQ(result.stats.n_components, uint32_t(codings.size()));
    CHECK_EQ(result.stats.n_backends, 1u);
    sink.bytes.resize(archive_bytes);
    result.bytes          = std::move(sink.bytes);
    result.metadata_bytes = metadata_bytes_of(result.bytes);
    return result;
}

// an archive of a context of its own
archive make_archive(const cache_layout & layout, const coding_choice & choice, int32_t n = n_page,
                     llama_model * of = model(), uint64_t seed = 11) {
    const llama_context_ptr ctx = make_context(of, layout);
    CHECK(ctx != nullptr);
    decode(ctx.get(), 0, 0, random_tokens(uint32_t(n), seed));
    return export_archive(ctx.get(), 0, 0, n, choice);
}

// Status.
int32_t import_archive(llama_context * ctx, llama_seq_id seq_id, int32_t p0, const byte_vector & bytes,
                       uint32_t first_token, uint32_t n_tokens, llama_cachegen_stats * stats = nullptr,
                       const llama_cachegen_options * options = nullptr) {
    return llama_cachegen_import_archive(ctx, seq_id, p0, bytes.data(), bytes.size(), first_token, n_tokens, options,
                                         stats);
}

// What the context's page [p0, p0 + n_tokens) is to hold: each plane decoded into plain rows of its type and rotation.
byte_vector decoded_page(llama_context * ctx, llama_seq_id seq_id, int32_t p0, const byte_vector & bytes,
                         uint32_t first_token, uint32_t n_tokens) {
    const int32_t p1   = p0 + int32_t(n_tokens);
    auto          info = new_info();
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_describe(ctx, seq_id, p0, p1, &info, nullptr, 0));
    std::vector<llama_kv_page_component> components(info.n_components);
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_kv_page_describe(ctx, seq_id, p0, p1, &info, components.data(), info.n_components));

    cachegen_lcg3 * opened = nullptr;
    CHECK_EQ(cachegen_lcg3_open(bytes.data(), bytes.size(), &opened), int32_t(CACHEGEN_OK));
    const std::unique_ptr<cachegen_lcg3, void (*)(cachegen_lcg3 *)> reader(opened, cachegen_lcg3_close);

    cachegen_lcg3_info about = {};
    about.struct_size        = sizeof(about);
    CHECK_EQ(cachegen_lcg3_describe(opened, &about, nullptr, 0), int32_t(CACHEGEN_OK));
    std::vector<cachegen_lcg3_plane> planes(about.n_planes);
    CHECK_EQ(cachegen_lcg3_describe(opened, &about, planes.data(), planes.size()), int32_t(CACHEGEN_OK));
    CHECK_EQ(planes.size(), components.size());

    byte_vector                            payload(info.payload_bytes);
    std::vector<cachegen_lcg3_destination> destinations(planes.size());
    for (const auto & c : components) {
        const uint32_t kind  = c.kind == LLAMA_KV_PAGE_KIND_K ? CACHEGEN_KIND_K : CACHEGEN_KIND_V;
        const auto     plane = std::find_if(planes.begin(), planes.end(),
                                            [&](const auto & p) { return p.layer == c.layer && p.kind == kind; });
        CHECK(plane != planes.end());
        auto & destination             = destinations[size_t(plane - planes.begin())];
        destination.n_rot              = c.n_rot;
        destination.rows.type          = uint32_t(c.type);
        destination.rows.is_transposed = c.transposed;
        destination.rows.n_tokens      = n_tokens;
        destination.rows.n_rows        = n_tokens;
        destination.rows.n_channels    = c.n_channels;
        destination.rows.stride_bytes  = c.transposed ? n_tokens * ggml_type_size(ggml_type(c.type)) : c.row_bytes;
        destination.rows.n_bytes       = c.n_bytes;
        destination.rows.data          = payload.data() + c.offset;
    }
    CHECK_EQ(cachegen_lcg3_decode(opened, first_token, n_tokens, destinations.data(), destinations.size(), nullptr),
             int32_t(CACHEGEN_OK));
    return payload;
}

// import, and compare the cells with the codec's own decode
void check_import(llama_context * ctx, llama_seq_id seq_id, int32_t p0, const byte_vector & bytes, uint32_t first_token,
                  uint32_t n_tokens, llama_cachegen_stats * stats = nullptr) {
    SCOPE("import of tokens " + std::to_string(first_token) + " + " + std::to_string(n_tokens) + " at position " +
          std::to_string(p0));
    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_validate(ctx, seq_id, p0, bytes.data(), metadata_bytes_of(bytes),
                                                           bytes.size(), first_token, n_tokens, nullptr));
    CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx, seq_id, p0, bytes, first_token, n_tokens, stats));
    CHECK_EQ(pos_max(ctx, seq_id), p0 + int32_t(n_tokens) - 1);
    const page got = export_page(ctx, seq_id, p0, p0 + int32_t(n_tokens));
    CHECK_SAME_BITS(got.payload, decoded_page(ctx, seq_id, p0, bytes, first_token, n_tokens));
}

// an import in steps
struct import_steps {
    llama_cachegen_import * handle = nullptr;
    byte_vector             metadata; // kept until the import is closed

    int32_t begin(llama_context * ctx, llama_seq_id seq_id, int32_t p0, const byte_vector & bytes, uint32_t first_token,
                  uint32_t n_tokens, const llama_cachegen_options * options = nullptr) {
        metadata.assign(bytes.begin(), bytes.begin() + std::ptrdiff_t(metadata_bytes_of(bytes)));
        return llama_cachegen_import_begin(ctx, seq_id, p0, metadata.data(), metadata.size(), bytes.size(), first_token,
                                           n_tokens, options, &handle);
    }

    std::pair<uint64_t, uint64_t> next() const {
        uint64_t offset  = 0;
        uint64_t n_bytes = 0;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_next(handle, &offset, &n_bytes));
        return { offset, n_bytes };
    }

    // the next part, from memory that is gone afterwards
    int32_t feed(const byte_vector & bytes) const {
        const auto [offset, n_bytes] = next();
        CHECK(offset + n_bytes <= bytes.size());
        const auto        begin = bytes.begin() + std::ptrdiff_t(offset);
        const byte_vector part(begin, begin + std::ptrdiff_t(n_bytes));
        return llama_cachegen_import_feed(handle, part.data(), part.size());
    }

    void close() {
        llama_cachegen_import_close(handle);
        handle = nullptr;
    }

    import_steps() = default;

    ~import_steps() { close(); }

    import_steps(const import_steps &)             = delete;
    import_steps & operator=(const import_steps &) = delete;
};

//
// what can be seen of a context
//

uint64_t n_not_finite(const ggml_tensor & tensor, uint32_t cell, uint32_t n_embd, bool is_transposed, uint32_t n_rows) {
    std::vector<float> values(n_embd);
    const auto *       data    = static_cast<const uint8_t *>(tensor.data);
    const auto         to_f32  = ggml_get_type_traits(tensor.type)->to_float;
    const size_t       n_bytes = ggml_type_size(tensor.type);
    if (is_transposed) {
        for (uint32_t j = 0; j < n_embd; ++j) {
            const uint8_t * element = data + (size_t(j) * n_rows + cell) * n_bytes;
            if (to_f32) {
                to_f32(element, &values[j], 1);
            } else {
                memcpy(&values[j], element, sizeof(float));
            }
        }
    } else {
        const uint8_t * row = data + cell * ggml_row_size(tensor.type, n_embd);
        if (to_f32) {
            to_f32(row, values.data(), n_embd);
        } else {
            memcpy(values.data(), row, n_embd * sizeof(float));
        }
    }
    return uint64_t(std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); }));
}

bool is_cell_zero(const ggml_tensor & tensor, uint32_t cell, uint32_t n_embd, bool is_transposed, uint32_t n_rows) {
    const auto * data    = static_cast<const uint8_t *>(tensor.data);
    const auto   is_zero = [&](const uint8_t * begin, size_t n) {
        return std::all_of(begin, begin + n, [](uint8_t x) { return x == 0; });
    };
    if (!is_transposed) {
        const size_t row_bytes = ggml_row_size(tensor.type, n_embd);
        return is_zero(data + cell * row_bytes, row_bytes);
    }
    const size_t n_bytes = ggml_type_size(tensor.type);
    for (uint32_t j = 0; j < n_embd; ++j) {
        if (!is_zero(data + (size_t(j) * n_rows + cell) * n_bytes, n_bytes)) {
            return false;
        }
    }
    return true;
}

// a sequence that the tests only look at
constexpr llama_seq_id witness   = 1;
constexpr uint32_t     n_witness = 8;

// What a failed call must not change: every sequence's cells and bytes, the free cells, and what comes next.
struct footprint {
    std::vector<uint32_t>                                    n_used;    // of each pool
    std::vector<std::vector<std::pair<llama_pos, uint32_t>>> positions; // and cells of each sequence
    std::vector<byte_vector>                                 pages;     // of each sequence
    uint64_t                                                 n_free_not_finite = 0;
    bool                                                     is_reserved       = false;
    std::vector<float>                                       logits; // of the witness; none if decode is refused

    static footprint of(llama_context * ctx) {
        const auto & cache = cache_of(ctx);
        footprint    result;
        result.is_reserved = cache.page_reserved() != nullptr;
        for (llama_seq_id seq_id = 0; seq_id < 3; ++seq_id) {
            const auto & at = cache.get_cells(seq_id).seq_pos_get(seq_id);
            result.positions.emplace_back(at.begin(), at.end());
            byte_vector  bytes;
            const auto & positions = result.positions.back();
            for (size_t begin = 0, end = 0; begin < positions.size(); begin = end) {
                for (end = begin + 1; end < positions.size(); ++end) {
                    if (positions[end].first != positions[end - 1].first + 1) {
                        break;
                    }
                }
                add_page(ctx, seq_id, positions[begin].first, positions[end - 1].first + 1, bytes);
            }
            result.pages.push_back(std::move(bytes));
        }
        for (uint32_t stream = 0; stream < cache.get_n_stream(); ++stream) {
            const auto & cells = cache.get_cells(llama_seq_id(stream));
            result.n_used.push_back(cells.get_used());
            for (const auto & c : cache.page_components(stream)) {
                for (uint32_t cell = 0; cell < cells.size(); ++cell) {
                    if (cells.is_empty(cell)) {
                        result.n_free_not_finite += n_not_finite(*c.tensor, cell, c.n_embd, c.transposed, cells.size());
                    }
                }
            }
        }
        result.logits = future_of(ctx);
        return result;
    }

    std::vector<std::string> differences(const footprint & other) const {
        std::vector<std::string> result;
        const auto               note = [&](bool is_different, const char * what) {
            harness::n_checks()++;
            if (is_different) {
                result.emplace_back(what);
            }
        };
        note(n_used != other.n_used, "the number of used cells");
        note(positions != other.positions, "positions and cells");
        note(pages != other.pages, "bytes of a sequence");
        note(n_free_not_finite != 0 || other.n_free_not_finite != 0, "free cells that are not finite");
        note(is_reserved != other.is_reserved, "an open reservation");
        note(logits.size() != other.logits.size(), "decode is refused");
        note(logits.size() == other.logits.size() &&
                 memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) != 0,
             "the next tokens");
        return result;
    }

  private:
    // export_page() checks more than is needed here, again and again
    static void add_page(llama_context * ctx, llama_seq_id seq_id, int32_t p0, int32_t p1, byte_vector & bytes) {
        uint64_t n_bytes = 0;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_size(ctx, seq_id, p0, p1, &n_bytes));
        const size_t before = bytes.size();
        bytes.resize(before + n_bytes);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_export(ctx, seq_id, p0, p1, bytes.data() + before, n_bytes,
                                                            nullptr, 0, nullptr, nullptr));
    }

    static std::vector<float> future_of(llama_context * ctx) {
        const int32_t      p0 = pos_max(ctx, witness) + 1;
        std::vector<float> all;
        llama_token        token = 6;
        for (uint32_t i = 0; i < n_witness; ++i) {
            std::vector<float> step;
            if (try_decode(ctx, witness, p0 + int32_t(i), { token }, &step) != 0) {
                all.clear();
                break;
            }
            token = llama_token(std::max_element(step.begin(), step.end()) - step.begin());
            all.insert(all.end(), step.begin(), step.end());
        }
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx), witness, p0, -1));
        return all;
    }
};

void check_same_footprint(const footprint & expected, llama_context * ctx, const char * file, int line) {
    const auto  differences = footprint::of(ctx).differences(expected);
    std::string all;
    for (const auto & difference : differences) {
        all += (all.empty() ? "" : ", ") + difference;
    }
    if (!all.empty()) {
        harness::fail(file, line, "the context was changed: " + all);
    }
}

#define CHECK_UNTOUCHED(expected, ctx) check_same_footprint((expected), (ctx), __FILE__, __LINE__)

// a context with a history, and what a twin that is never touched looks like
struct subject {
    explicit subject(const cache_layout & layout)
        : pair(model(), layout), expected(footprint::of(pair.untouched.get())) {
        CHECK_UNTOUCHED(expected, ctx());
    }

    llama_context * ctx() const { return pair.touched.get(); }

    twins     pair;
    footprint expected;
};

//
// layouts
//

constexpr std::array<ggml_type, 5> codec_types  = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                                    GGML_TYPE_Q4_0 };
constexpr std::array<ggml_type, 6> matrix_types = { GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,
                                                    GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1 };

constexpr int32_t n_matrix = 72; // 4 exact tokens, blocks of 32, 32 and 4

bool has_codec(ggml_type type) {
    return std::find(codec_types.begin(), codec_types.end(), type) != codec_types.end();
}

// Position at which the sequence goes on. With fragments: its free cells lie in holes, each too short for the page.
int32_t lay_out(llama_context * ctx, llama_seq_id seq_id, bool is_fragmented) {
    decode(ctx, 2, 0, random_tokens(8, 21));
    if (!is_fragmented) {
        return 0;
    }
    constexpr int32_t n_fill = int32_t(n_cells) - 8;
    decode(ctx, seq_id, 0, random_tokens(uint32_t(n_fill), 22));
    for (const auto & [begin, end] : std::vector<std::pair<int32_t, int32_t>>{
             { 10, 11 }, { 20, 45 }, { 60, 62 }, { 80, 97 }, { 120, 121 }, { 150, 190 } }) {
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx), seq_id, begin, end));
    }
    return n_fill;
}

std::map<uint32_t, llama_model_ptr> g_models;

llama_model * model_of(uint32_t head_dim) {
    auto & result = g_models[head_dim];
    if (!result) {
        tiny_llama shape;
        shape.head_dim  = head_dim;
        shape.n_head_kv = 1;
        result          = make_tiny_llama(shape);
    }
    return result.get();
}

struct foreign_archive {
    ggml_type     type;
    coding_choice choice;
    byte_vector   bytes;
};

// archives of caches of every type, lossless and lossy
const std::vector<foreign_archive> & foreign_archives(uint32_t head_dim) {
    static std::map<uint32_t, std::vector<foreign_archive>> all;
    auto &                                                  result = all[head_dim];
    if (result.empty()) {
        for (const ggml_type type : codec_types) {
            const cache_layout layout = { type, type, true, true };
            for (const auto & choice : { exact, nth_lossy(uint32_t(result.size() / 2)) }) {
                result.push_back(
                    { type, choice, make_archive(layout, choice, n_matrix, model_of(head_dim), 31).bytes });
            }
        }
    }
    return result;
}

struct totals {
    uint32_t n_ok          = 0;
    uint32_t n_refused     = 0;
    uint32_t n_failed      = 0;
    uint32_t n_not_offered = 0;
    uint32_t n_imports     = 0;
};

totals g_totals;

void check_refused(llama_context * ctx, uint32_t head_dim) {
    uint32_t n_without = 0;
    for (const auto & c : caps_of(ctx)) {
        CHECK_EQ(c.can_import, uint32_t(has_codec(ggml_type(c.type))));
        CHECK_EQ(c.can_export, c.can_import);
        n_without += !c.can_import;
    }
    CHECK(n_without > 0);

    decode(ctx, 0, 0, random_tokens(n_matrix, 23));
    decode(ctx, witness, 0, random_tokens(8, 24));
    const footprint before        = footprint::of(ctx);
    const auto &    bytes         = foreign_archives(head_dim)[2].bytes;
    const auto      profile       = new_profile();
    const auto      codings       = codings_of(ctx, exact);
    uint64_t        archive_bytes = 0;
    collector       sink;
    import_steps    steps;
    CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC,
                 llama_cachegen_validate(ctx, 2, 0, bytes.data(), bytes.size(), bytes.size(), 0, n_matrix, nullptr));
    CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, import_archive(ctx, 2, 0, bytes, 0, n_matrix));
    CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC, steps.begin(ctx, 2, 0, bytes, 0, n_matrix));
    CHECK(steps.handle == nullptr);
    CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CODEC,
                 llama_cachegen_export(ctx, 0, 0, n_matrix, &profile, codings.data(), uint32_t(codings.size()),
                                       collector::write, &sink, nullptr, &archive_bytes, nullptr));
    CHECK_EQ(sink.n_calls, 0u);
    CHECK_UNTOUCHED(before, ctx);
}

void check_layout(llama_context * ctx, uint32_t head_dim, const cache_layout & layout, bool is_fragmented, uint32_t i) {
    SCOPE(is_fragmented ? "in fragments" : "in one run");
    for (const auto & c : caps_of(ctx)) {
        const bool is_v = c.kind == LLAMA_KV_PAGE_KIND_V;
        CHECK_EQ(c.type, int32_t(is_v ? layout.type_v : layout.type_k));
        CHECK_EQ(c.transposed, uint32_t(is_v && !layout.flash_attn));
        CHECK_EQ(c.can_import, 1u);
        CHECK_EQ(c.can_export, 1u);
        CHECK_EQ(std::string(c.backend), std::string("CPU"));
    }
    const llama_seq_id seq_id = llama_seq_id(i % 2);
    const int32_t      p0     = lay_out(ctx, seq_id, is_fragmented);
    const int32_t      p1     = p0 + n_matrix;
    const auto         remove = [&] { CHECK(llama_memory_seq_rm(llama_get_memory(ctx), seq_id, p0, -1)); };

    decode(ctx, seq_id, p0, random_tokens(n_matrix, 32));
    const page    source  = export_page(ctx, seq_id, p0, p1);
    const archive of_same = export_archive(ctx, seq_id, p0, p1, exact, 1 + i % 2);
    CHECK_EQ(of_same.stats.n_cell_runs > 3, is_fragmented);
    const archive of_same_lossy = export_archive(ctx, seq_id, p0, p1, nth_lossy(i), 1 + i % 2);

    // other values in the same cells, so that an import that writes nothing shows
    remove();
    decode(ctx, seq_id, p0, random_tokens(n_matrix, 33));
    CHECK(export_page(ctx, seq_id, p0, p1).payload != source.payload);
    remove();

    llama_cachegen_stats stats = new_archive_stats();
    check_import(ctx, seq_id, p0, of_same.bytes, 0, n_matrix, &stats);
    CHECK_EQ(stats.n_cell_runs > 3, is_fragmented);
    CHECK_EQ(stats.n_tokens, uint32_t(n_matrix));
    CHECK_EQ(stats.archive_bytes, of_same.bytes.size());
    CHECK_EQ(stats.native_bytes, of_same.stats.native_bytes);
    check_same_page(source, export_page(ctx, seq_id, p0, p1));
    remove();

    check_import(ctx, seq_id, p0, of_same_lossy.bytes, 0, n_matrix);
    // more levels than Q4_0 has can give every value back
    CHECK(ggml_is_quantized(layout.type_k) || export_page(ctx, seq_id, p0, p1).payload != source.payload);
    remove();
    g_totals.n_imports += 2;

    for (const auto & foreign : foreign_archives(head_dim)) {
        SCOPE(std::string("archive of ") + ggml_type_name(foreign.type) +
              (foreign.choice.n_levels_k ? ", lossy" : ", lossless"));
        check_import(ctx, seq_id, p0, foreign.bytes, 0, n_matrix);
        remove();
        g_totals.n_imports++;
    }
    CHECK_EQ(pos_max(ctx, 2), 7);
}

std::string run_combination(uint32_t head_dim, const cache_layout & layout) {
    static uint32_t n = 0;
    SCOPE("head size " + std::to_string(head_dim) + ", " + to_string(layout));
    try {
        for (const bool is_fragmented : { false, true }) {
            const llama_context_ptr ctx = make_context(model_of(head_dim), layout);
            if (!ctx) {
                take_log();
                g_totals.n_not_offered++;
                return "-";
            }
            if (!has_codec(layout.type_k) || !has_codec(layout.type_v)) {
                check_refused(ctx.get(), head_dim);
                g_totals.n_refused++;
                return "refused (" + std::to_string(LLAMA_KV_PAGE_REFUSED_CODEC) + ")";
            }
            check_layout(ctx.get(), head_dim, layout, is_fragmented, n++);
        }
    } catch (const harness::failure &) {
        g_totals.n_failed++;
        return "FAILED";
    }
    g_totals.n_ok++;
    return "ok";
}

} // namespace

//
// what an import leaves in the cells
//

TEST(types_layouts_pools_and_fragments) {
    // 64: quantised caches hold rotated values; 32: they do not
    constexpr std::array<uint32_t, 2> head_dims = { 64, 32 };

    printf(
        "\narchives of every type into a cache, in one run of cells and in fragments; each cell: head size 64 / head "
        "size 32, or both; '-': llama.cpp offers no such cache; refused (%d): %s\n\n",
        LLAMA_KV_PAGE_REFUSED_CODEC, llama_kv_page_status_name(LLAMA_KV_PAGE_REFUSED_CODEC));
    printf("archive: %-8s %-20s", "K", "V is stored");
    for (const ggml_type type_v : matrix_types) {
        printf(" V %-10s", ggml_type_name(type_v));
    }
    printf("\n");
    for (const bool flash_attn : { false, true }) {
        for (const bool unified : { true, false }) {
            for (const ggml_type type_k : matrix_types) {
                printf("archive: %-8s %-20s", ggml_type_name(type_k),
                       flash_attn ? unified ? "rows, one pool" : "rows, pool each"
                       : unified  ? "transp., one pool"
                                  : "transp., pool each");
                for (const ggml_type type_v : matrix_types) {
                    std::vector<std::string> cells;
                    for (const uint32_t head_dim : head_dims) {
                        cells.push_back(run_combination(head_dim, { type_k, type_v, flash_attn, unified }));
                    }
                    printf(" %-12s", (cells[0] == cells[1] ? cells[0] : cells[0] + "/" + cells[1]).c_str());
                }
                printf("\n");
                fflush(stdout);
            }
        }
    }
    printf("\n");
    CHECK_EQ(g_totals.n_failed, 0u);
}

// what a sequence goes on with is what it would go on with from its own cells
TEST(decode_goes_on_after_an_exact_import) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr src = make_context(model(), layout);
        const llama_context_ptr dst = make_context(model(), layout);
        decode(src.get(), 0, 0, random_tokens(n_page, 11));
        const archive saved = export_archive(src.get(), 0, 0, n_page, exact);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(dst.get(), 2, 0, saved.bytes, 0, n_page));
        CHECK_SAME_BITS(greedy(src.get(), 0, n_page, 5, 8), greedy(dst.get(), 2, n_page, 5, 8));
    });
}

TEST(threads_give_the_same_archive_and_cells) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr ctx = make_context(model(), layout);
        decode(ctx.get(), 0, 0, random_tokens(n_page, 11));
        const archive one  = export_archive(ctx.get(), 0, 0, n_page, lossy, 1);
        const archive four = export_archive(ctx.get(), 0, 0, n_page, lossy, 4);
        CHECK_EQ(one.stats.n_threads, 1u);
        CHECK_EQ(four.stats.n_threads, 4u);
        CHECK_SAME_BITS(one.bytes, four.bytes);
        for (const uint32_t n_threads : { 1u, 4u }) {
            const auto           options = new_archive_options(n_threads);
            llama_cachegen_stats stats   = new_archive_stats();
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx.get(), 2, 0, one.bytes, 0, n_page, &stats, &options));
            CHECK_EQ(stats.n_threads, n_threads);
            CHECK_SAME_BITS(export_page(ctx.get(), 2, 0, n_page).payload,
                            decoded_page(ctx.get(), 2, 0, one.bytes, 0, n_page));
            CHECK(llama_memory_seq_rm(memory(ctx), 2, -1, -1));
        }
    });
}

//
// ranges
//

TEST(ranges_at_block_borders_and_inside) {
    const std::vector<std::pair<uint32_t, uint32_t>> ranges = {
        { 0, 1 },  { 0, 4 },   { 0, 5 },   { 1, 2 },  { 3, 1 },   { 3, 2 },   { 4, 32 }, { 4, 1 },
        { 4, 33 }, { 5, 31 },  { 35, 1 },  { 35, 2 }, { 36, 32 }, { 36, 64 }, { 2, 60 }, { 10, 50 },
        { 50, 1 }, { 67, 33 }, { 68, 32 }, { 99, 1 }, { 0, 36 },  { 0, 99 },  { 1, 99 }, { 0, 100 },
    };
    for_each_layout([&](const cache_layout & layout) {
        for (const auto & choice : { exact, lossy }) {
            const archive saved = make_archive(layout, choice);
            const subject to(layout);
            for (const auto & [first, n] : ranges) {
                check_import(to.ctx(), 2, 0, saved.bytes, first, n);
                CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
                // and behind what is there
                check_import(to.ctx(), 0, twins::n_seq0, saved.bytes, first, n);
                CHECK(llama_memory_seq_rm(memory(to.pair.touched), 0, twins::n_seq0, -1));
            }
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }
    });
}

TEST(imports_one_after_another) {
    const std::vector<std::vector<uint32_t>> ends = {
        { 4, 36, 68, 100 }, { 3, 36, 50, 100 }, { 1, 2, 3, 4, 5, 6, 99, 100 }, { 40, 100 }
    };
    for_each_layout([&](const cache_layout & layout) {
        for (const auto & choice : { exact, lossy }) {
            const archive           saved = make_archive(layout, choice);
            const llama_context_ptr whole = make_context(model(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(whole.get(), 2, 0, saved.bytes, 0, n_page));
            const page               expected = export_page(whole.get(), 2, 0, n_page);
            const std::vector<float> logits   = greedy(whole.get(), 2, n_page, 5, 8);
            for (const auto & pieces : ends) {
                const llama_context_ptr ctx   = make_context(model(), layout);
                uint32_t                first = 0;
                for (const uint32_t end : pieces) {
                    check_import(ctx.get(), 2, int32_t(first), saved.bytes, first, end - first);
                    first = end;
                }
                check_same_page(expected, export_page(ctx.get(), 2, 0, n_page));
                CHECK_SAME_BITS(logits, greedy(ctx.get(), 2, n_page, 5, 8));
            }
        }
    });
}

//
// in steps
//

TEST(steps_equal_one_call) {
    const std::vector<std::pair<uint32_t, uint32_t>> ranges = { { 0, 100 }, { 0, 4 },  { 4, 32 },
                                                                { 10, 50 }, { 99, 1 }, { 3, 34 } };
    for_each_layout([&](const cache_layout & layout) {
        const archive           saved = make_archive(layout, lossy);
        const llama_context_ptr one   = make_context(model(), layout);
        const llama_context_ptr two   = make_context(model(), layout);
        for (const auto & [first, n] : ranges) {
            SCOPE("tokens " + std::to_string(first) + " + " + std::to_string(n));
            check_import(one.get(), 2, 0, saved.bytes, first, n);

            import_steps steps;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(two.get(), 2, 0, saved.bytes, first, n));
            CHECK(steps.handle != nullptr);
            uint64_t end     = saved.metadata_bytes;
            uint32_t n_parts = 0;
            for (auto [offset, n_bytes] = steps.next(); n_bytes != 0; std::tie(offset, n_bytes) = steps.next()) {
                CHECK(offset >= end);
                CHECK(offset == end || n_parts == 0); // what is left out lies before or behind
                CHECK_EQ(steps.next().first, offset); // asking changes nothing
                end = offset + n_bytes;
                n_parts++;
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
            }
            const uint32_t last    = first + n - 1;
            const auto     part_of = [](uint32_t t) { return t < n_exact ? 0 : 1 + (t - n_exact) / n_block; };
            CHECK_EQ(n_parts, part_of(last) - part_of(first) + 1);
            CHECK_EQ(pos_max(two.get(), 2), -1);
            llama_cachegen_stats stats = new_archive_stats();
            CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_commit(steps.handle, &stats));
            CHECK_EQ(stats.n_tokens, n);
            check_same_page(export_page(one.get(), 2, 0, int32_t(n)), export_page(two.get(), 2, 0, int32_t(n)));

            // open no more: decode goes on before the close
            CHECK_SAME_BITS(greedy(one.get(), 2, int32_t(n), 5, 4), greedy(two.get(), 2, int32_t(n), 5, 4));
            steps.close();
            CHECK_SAME_BITS(greedy(one.get(), 2, int32_t(n) + 4, 5, 4), greedy(two.get(), 2, int32_t(n) + 4, 5, 4));
            CHECK(llama_memory_seq_rm(memory(one), 2, -1, -1));
            CHECK(llama_memory_seq_rm(memory(two), 2, -1, -1));
        }
    });
}

TEST(wrong_steps) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        import_steps  steps;
        uint64_t      number = 0;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        while (steps.next().second != 0) {
            const auto [offset, n_bytes] = steps.next();
            const uint8_t * src          = saved.bytes.data() + offset;
            for (const uint64_t wrong : { uint64_t(0), n_bytes - 1, n_bytes + 1, UINT64_MAX }) {
                CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, llama_cachegen_import_feed(steps.handle, src, wrong));
            }
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, llama_cachegen_import_feed(steps.handle, nullptr, n_bytes));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_INCOMPLETE, llama_cachegen_import_commit(steps.handle, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_next(steps.handle, nullptr, &number));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_next(steps.handle, &number, nullptr));
            llama_cachegen_stats stats = new_archive_stats();
            stats.struct_size--;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, llama_cachegen_import_commit(steps.handle, &stats));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
        }
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_feed(steps.handle, saved.bytes.data(), 1));
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_commit(steps.handle, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_commit(steps.handle, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_feed(steps.handle, saved.bytes.data(), 1));
        CHECK_SAME_BITS(export_page(to.ctx(), 2, 0, n_page).payload,
                        decoded_page(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        steps.close();
        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        CHECK_UNTOUCHED(to.expected, to.ctx());

        llama_cachegen_import_close(nullptr);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_next(nullptr, &number, &number));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_feed(nullptr, saved.bytes.data(), 1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_commit(nullptr, nullptr));
    });
}

// with NaN and infinity among the values that were decoded already
TEST(close_without_commit_rolls_back) {
    for_each_layout([](const cache_layout & layout) {
        archive saved = make_archive(layout, exact);
        {
            const llama_context_ptr ctx = make_context(model(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx.get(), 0, 0, saved.bytes, 0, n_page));
            page with_nan = export_page(ctx.get(), 0, 0, n_page);
            // all bits set: NaN as F32 or F16, and as the scale of a block
            std::fill(with_nan.payload.begin(), with_nan.payload.end(), uint8_t(0xFF));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(ctx.get(), 2, with_nan, 0));
            saved = export_archive(ctx.get(), 2, 0, n_page, exact);
        }
        const subject to(layout);
        for (uint32_t n_fed = 0; n_fed <= 4; ++n_fed) {
            SCOPE(std::to_string(n_fed) + " parts");
            import_steps steps;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
            const auto &                reserved = *cache_of(to.ctx()).page_reserved();
            const std::vector<uint32_t> cells    = reserved.idxs[0];
            const uint32_t              stream   = uint32_t(reserved.strm[0]);
            CHECK_EQ(cells.size(), size_t(n_page));
            for (uint32_t i = 0; i < n_fed; ++i) {
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
            }
            const auto n_zero = [&] {
                size_t n = 0;
                for (const auto & c : cache_of(to.ctx()).page_components(stream)) {
                    for (const uint32_t cell : cells) {
                        n += is_cell_zero(*c.tensor, cell, c.n_embd, c.transposed, cache_of(to.ctx()).get_size());
                    }
                }
                return n;
            };
            const size_t n_all = cells.size() * cache_of(to.ctx()).page_components(stream).size();
            CHECK(n_fed == 0 || n_zero() < n_all);
            steps.close();
            CHECK_EQ(n_zero(), n_all);
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to.ctx(), 2, 0, saved.bytes, 0, n_page));
    });
}

TEST(while_an_import_is_open) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        const page    other = export_page(to.ctx(), 0, 0, twins::n_seq0);
        import_steps  steps;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));

        // what could take the cells is refused
        CHECK(try_decode(to.ctx(), 0, twins::n_seq0, { 1 }) != 0);
        byte_vector state(llama_state_seq_get_size(to.ctx(), 0));
        CHECK_EQ(llama_state_seq_get_data(to.ctx(), state.data(), state.size(), 0), state.size());
        CHECK_EQ(llama_state_seq_set_data(to.ctx(), state.data(), state.size(), 1), 0u);
        import_steps second;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, second.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        CHECK(second.handle == nullptr);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, import_archive(to.ctx(), 0, twins::n_seq0, saved.bytes, 0, n_page));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, import_page(to.ctx(), 2, other));
        CHECK_EQ(pos_max(to.ctx(), 2), -1);

        // exports are not
        check_same_page(other, export_page(to.ctx(), 0, 0, twins::n_seq0));
        export_archive(to.ctx(), 0, 0, twins::n_seq0, lossy);

        while (steps.next().second != 0) {
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
        }
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_commit(steps.handle, nullptr));
        CHECK_SAME_BITS(export_page(to.ctx(), 2, 0, n_page).payload,
                        decoded_page(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

TEST(a_page_reservation_is_open) {
    for_each_layout([](const cache_layout & layout) {
        const archive               saved = make_archive(layout, lossy);
        const subject               to(layout);
        const page                  other       = export_page(to.ctx(), 0, 0, twins::n_seq0);
        llama_kv_page_reservation * reservation = nullptr;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_reserve(to.ctx(), 2, 0, other.components.data(),
                                                             uint32_t(other.components.size()), &reservation));
        import_steps steps;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, import_archive(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
        CHECK(steps.handle == nullptr);
        CHECK(cache_of(to.ctx()).page_reserved() != nullptr); // the refused import has not taken it down
        CHECK(try_decode(to.ctx(), 0, twins::n_seq0, { 1 }) != 0);
        llama_kv_page_close(reservation);
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

TEST(overtaken_imports_are_stale) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const std::vector<std::pair<const char *, std::function<void(llama_memory_t)>>> changes = {
            { "cleared", [](llama_memory_t memory) { llama_memory_clear(memory, false); } },
            { "cut", [](llama_memory_t memory) { llama_memory_seq_rm(memory, 0, 10, -1); } },
            { "shifted", [](llama_memory_t memory) { llama_memory_seq_add(memory, 0, 10, -1, 3); } },
        };
        for (const auto & [what, change] : changes) {
            SCOPE(what);
            const subject to(layout);
            import_steps  steps;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 0, twins::n_seq0, saved.bytes, 0, n_page));
            while (steps.next().second != 0) {
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
            }
            change(memory(to.pair.touched));
            change(memory(to.pair.untouched));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STALE, llama_cachegen_import_commit(steps.handle, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_commit(steps.handle, nullptr));
            steps.close();
            CHECK_UNTOUCHED(footprint::of(to.pair.untouched.get()), to.ctx());
        }
    });
}

//
// refusals
//

namespace {

bool is_archive_error(int32_t status) {
    return status == LLAMA_KV_PAGE_ERR_ARCHIVE || status == LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT;
}

// one call and in steps: the same status, nothing changed; `first` tokens to skip
int32_t status_of_import(const subject & to, const byte_vector & bytes, uint32_t n_tokens = n_page) {
    const int32_t status = import_archive(to.ctx(), 2, 0, bytes, 0, n_tokens);
    CHECK(status == LLAMA_KV_PAGE_OK || strlen(llama_kv_page_last_message()) > 0);
    CHECK_EQ(pos_max(to.ctx(), 2), status == LLAMA_KV_PAGE_OK ? int32_t(n_tokens) - 1 : -1);
    CHECK(cache_of(to.ctx()).page_reserved() == nullptr);
    return status;
}

} // namespace

TEST(damaged_metadata) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        CHECK(saved.metadata_bytes > 200);
        for (uint64_t i = 0; i < saved.metadata_bytes; i += 7) {
            SCOPE("byte " + std::to_string(i));
            byte_vector damaged = saved.bytes;
            damaged[i] ^= uint8_t(1u << (i / 7 % 8));
            CHECK(is_archive_error(status_of_import(to, damaged)));
            CHECK(is_archive_error(llama_cachegen_validate(to.ctx(), 2, 0, damaged.data(), damaged.size(),
                                                           damaged.size(), 0, n_page, nullptr)));
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }
        // the version
        byte_vector newer = saved.bytes;
        newer[4]++;
        CHECK_EQ(status_of_import(to, newer), int32_t(LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

// found when the cells are reserved and some blocks are decoded already
TEST(damaged_blocks) {
    for_each_layout([](const cache_layout & layout) {
        for (const auto & choice : { exact, lossy }) {
            const archive saved = make_archive(layout, choice);
            const subject to(layout);
            import_steps  asked;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, asked.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page));
            std::vector<std::pair<uint64_t, uint64_t>> parts;
            while (asked.next().second != 0) {
                parts.push_back(asked.next());
                CHECK_STATUS(LLAMA_KV_PAGE_OK, asked.feed(saved.bytes));
            }
            asked.close();
            CHECK_EQ(parts.size(), 4u);
            for (size_t part = 0; part < parts.size(); ++part) {
                const auto [offset, n_bytes] = parts[part];
                for (const uint64_t at : { offset, offset + n_bytes / 3, offset + n_bytes / 2, offset + n_bytes - 1 }) {
                    SCOPE("part " + std::to_string(part) + ", byte " + std::to_string(at));
                    byte_vector damaged = saved.bytes;
                    damaged[at] ^= 0x10;
                    // the metadata alone is sound
                    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                                 llama_cachegen_validate(to.ctx(), 2, 0, damaged.data(), saved.metadata_bytes,
                                                         damaged.size(), 0, n_page, nullptr));
                    CHECK_EQ(status_of_import(to, damaged), int32_t(LLAMA_KV_PAGE_ERR_ARCHIVE));
                    CHECK_UNTOUCHED(to.expected, to.ctx());

                    import_steps steps;
                    CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, damaged, 0, n_page));
                    for (size_t i = 0; i < part; ++i) {
                        CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(damaged));
                    }
                    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARCHIVE, steps.feed(damaged));
                    // after that it can only be closed, sound bytes or not
                    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, steps.feed(saved.bytes));
                    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_commit(steps.handle, nullptr));
                    steps.close();
                    CHECK_UNTOUCHED(to.expected, to.ctx());
                }
            }
            // a damaged block outside of the range is not looked at
            byte_vector damaged = saved.bytes;
            damaged[parts[3].first + 1] ^= 1;
            CHECK_EQ(status_of_import(to, damaged, 68), int32_t(LLAMA_KV_PAGE_OK));
        }
    });
}

TEST(truncated_archives) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        const auto    size = uint64_t(saved.bytes.size());
        for (const uint64_t n : { uint64_t(1), uint64_t(63), uint64_t(64), uint64_t(72), saved.metadata_bytes / 2,
                                  saved.metadata_bytes - 1, saved.metadata_bytes, size / 2, size - 16, size - 1 }) {
            SCOPE(std::to_string(n) + " bytes of " + std::to_string(size));
            const byte_vector cut(saved.bytes.begin(), saved.bytes.begin() + std::ptrdiff_t(n));
            CHECK_EQ(status_of_import(to, cut), int32_t(LLAMA_KV_PAGE_ERR_ARCHIVE));
            // an archive of the right size, of which not all of the metadata is given
            const int32_t status = llama_cachegen_validate(to.ctx(), 2, 0, cut.data(), n, size, 0, n_page, nullptr);
            CHECK_EQ(status, int32_t(n < saved.metadata_bytes ? LLAMA_KV_PAGE_ERR_ARCHIVE : LLAMA_KV_PAGE_OK));
            llama_cachegen_import * import = nullptr;
            CHECK_EQ(llama_cachegen_import_begin(to.ctx(), 2, 0, cut.data(), n, size, 0, n_page, nullptr, &import),
                     status);
            CHECK((import == nullptr) == (status != LLAMA_KV_PAGE_OK));
            llama_cachegen_import_close(import);
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }
        byte_vector longer = saved.bytes;
        longer.push_back(0);
        CHECK_EQ(status_of_import(to, longer), int32_t(LLAMA_KV_PAGE_ERR_ARCHIVE));
        CHECK_EQ(status_of_import(to, byte_vector(1000)), int32_t(LLAMA_KV_PAGE_ERR_ARCHIVE));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

namespace {

struct plane_choice {
    int32_t  layer;
    uint32_t kind;
    uint32_t n_channels  = 128;
    uint32_t first_token = 0;
};

// an archive with any planes, from the codec alone
byte_vector encode_planes(const std::vector<plane_choice> & choices, uint32_t n_tokens) {
    std::vector<std::vector<float>>  values;
    std::vector<cachegen_lcg3_plane> planes;
    std::vector<cachegen_rows>       rows;
    for (const auto & choice : choices) {
        const uint32_t n = n_tokens - choice.first_token;
        values.emplace_back(size_t(n) * choice.n_channels);
        for (size_t i = 0; i < values.back().size(); ++i) {
            values.back()[i] = float(i % 17) - 8.0f;
        }
        cachegen_lcg3_plane plane = {};
        plane.struct_size         = sizeof(plane);
        plane.layer               = choice.layer;
        plane.kind                = choice.kind;
        plane.mode                = CACHEGEN_LCG3_LOSSY;
        plane.type                = CACHEGEN_TYPE_F32;
        plane.n_channels          = choice.n_channels;
        plane.n_symbols           = 15;
        plane.first_token         = choice.first_token;
        planes.push_back(plane);
        cachegen_rows row = {};
        row.type          = CACHEGEN_TYPE_F32;
        row.n_tokens      = n;
        row.n_rows        = n;
        row.n_channels    = choice.n_channels;
        row.stride_bytes  = choice.n_channels * sizeof(float);
        row.n_bytes       = row.stride_bytes * n;
        row.data          = values.back().data();
        rows.push_back(row);
    }
    cachegen_lcg3_options options = {};
    options.struct_size           = sizeof(options);
    options.block_tokens          = n_block;
    options.n_exact_tokens        = n_exact;
    options.n_models              = 1;
    options.n_classes             = 1;
    void *   bytes                = nullptr;
    uint64_t n_bytes              = 0;
    CHECK_EQ(cachegen_lcg3_encode(planes.data(), rows.data(), planes.size(), &options, nullptr, &bytes, &n_bytes),
             int32_t(CACHEGEN_OK));
    const byte_vector result(static_cast<uint8_t *>(bytes), static_cast<uint8_t *>(bytes) + n_bytes);
    cachegen_free(bytes);
    return result;
}

} // namespace

TEST(planes_that_are_not_the_cache_s) {
    constexpr uint32_t K = CACHEGEN_KIND_K;
    constexpr uint32_t V = CACHEGEN_KIND_V;
    for_each_layout([](const cache_layout & layout) {
        const subject to(layout);

        // the order of planes does not matter
        for (const auto & planes : std::vector<std::vector<plane_choice>>{
                 { { 0, K }, { 0, V }, { 1, K }, { 1, V } }, { { 1, V }, { 0, V }, { 1, K }, { 0, K } } }) {
            check_import(to.ctx(), 2, 0, encode_planes(planes, n_page), 0, n_page);
            CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        }

        const std::vector<std::pair<std::vector<plane_choice>, llama_kv_page_status>> refused = {
            { { { 0, K }, { 0, V } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { 1, V }, { 2, K } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { 2, V } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { 1, K } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { 1, CACHEGEN_KIND_AUX } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { -1, V } }, LLAMA_KV_PAGE_ERR_COMPONENTS },
            { { { 0, K }, { 0, V }, { 1, K }, { 1, V, 128, 8 } }, LLAMA_KV_PAGE_ERR_WINDOW },
            { { { 0, K }, { 0, V }, { 1, K, 64 }, { 1, V } }, LLAMA_KV_PAGE_ERR_WIDTH },
            { { { 0, K }, { 0, V }, { 1, K }, { 1, V, 256 } }, LLAMA_KV_PAGE_ERR_WIDTH },
            { { { 0, K, 127 }, { 0, V }, { 1, K }, { 1, V } }, LLAMA_KV_PAGE_ERR_WIDTH },
        };
        for (size_t i = 0; i < refused.size(); ++i) {
            SCOPE("planes " + std::to_string(i));
            CHECK_EQ(status_of_import(to, encode_planes(refused[i].first, n_page)), int32_t(refused[i].second));
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }

        // archives of other models
        tiny_llama more_layers;
        more_layers.n_layer = 3;
        tiny_llama narrower;
        narrower.n_head_kv          = 1;
        const llama_model_ptr other = make_tiny_llama(more_layers);
        const llama_model_ptr thin  = make_tiny_llama(narrower);
        CHECK_EQ(status_of_import(to, make_archive(layout, lossy, n_page, other.get()).bytes),
                 int32_t(LLAMA_KV_PAGE_ERR_COMPONENTS));
        CHECK_EQ(status_of_import(to, make_archive(layout, lossy, n_page, thin.get()).bytes),
                 int32_t(LLAMA_KV_PAGE_ERR_WIDTH));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

TEST(positions_ranges_and_cells) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        struct attempt {
            int32_t              seq_id;
            int32_t              p0;
            uint32_t             first;
            uint32_t             n;
            llama_kv_page_status status;
        };
        const int32_t              seq_id_end = layout.unified ? int32_t(llama_max_parallel_sequences()) : 3;
        const std::vector<attempt> attempts   = {
            { 0, 0, 0, n_page, LLAMA_KV_PAGE_ERR_OCCUPIED },
            { 0, twins::n_seq0 - 1, 0, n_page, LLAMA_KV_PAGE_ERR_OCCUPIED },
            { 0, twins::n_seq0 + 1, 0, n_page, LLAMA_KV_PAGE_ERR_GAP },
            { 2, 1, 0, n_page, LLAMA_KV_PAGE_ERR_GAP },
            { 2, int32_max - n_page, 0, n_page, LLAMA_KV_PAGE_ERR_GAP },
            { 2, int32_max - n_page + 1, 0, n_page, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, -1, 0, n_page, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, 0, 0, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, 0, n_page + 1, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, 1, n_page, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, n_page, 1, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, UINT32_MAX, 1, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, 50, UINT32_MAX, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { 2, 0, UINT32_MAX, UINT32_MAX, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { -1, 0, 0, n_page, LLAMA_KV_PAGE_ERR_SEQ_ID },
            { seq_id_end, 0, 0, n_page, LLAMA_KV_PAGE_ERR_SEQ_ID },
            { int32_max, 0, 0, n_page, LLAMA_KV_PAGE_ERR_SEQ_ID },
        };
        for (const auto & a : attempts) {
            SCOPE("sequence " + std::to_string(a.seq_id) + ", position " + std::to_string(a.p0) + ", tokens " +
                  std::to_string(a.first) + " + " + std::to_string(a.n));
            import_steps steps;
            CHECK_STATUS(a.status, import_archive(to.ctx(), a.seq_id, a.p0, saved.bytes, a.first, a.n));
            CHECK_STATUS(a.status, steps.begin(to.ctx(), a.seq_id, a.p0, saved.bytes, a.first, a.n));
            CHECK(steps.handle == nullptr);
            CHECK_UNTOUCHED(to.expected, to.ctx());
        }

        // more tokens than a sequence has cells, and more than are free
        const byte_vector long_page = encode_planes({ { 0, 1 }, { 0, 2 }, { 1, 1 }, { 1, 2 } }, 300);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS, import_archive(to.ctx(), 2, 0, long_page, 0, 300));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS, import_archive(to.ctx(), 2, 0, long_page, 0, n_cells + 1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS,
                     import_archive(to.ctx(), 0, twins::n_seq0, long_page, 0, n_cells - twins::n_seq0 + 1));
        CHECK_UNTOUCHED(to.expected, to.ctx());
        // exactly those that are free
        const uint32_t n_others = layout.unified ? twins::n_seq0 + twins::n_seq1 : 0;
        check_import(to.ctx(), 2, 0, long_page, 0, n_cells - n_others);
    });
}

TEST(wrong_arguments) {
    for_each_layout([](const cache_layout & layout) {
        const archive   saved = make_archive(layout, lossy);
        const subject   to(layout);
        llama_context * ctx  = to.ctx();
        const uint8_t * src  = saved.bytes.data();
        const uint64_t  size = saved.bytes.size();

        // caps
        uint32_t                                   n = 0;
        std::vector<llama_cachegen_component_caps> caps(4);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_get_caps(nullptr, 3, caps.data(), 4, &n));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_get_caps(ctx, 3, caps.data(), 4, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, llama_cachegen_get_caps(ctx, 3, caps.data(), 3, &n));
        CHECK_EQ(n, 4u);
        for (const int32_t format : { 0, 1, 2, 4, -1, int32_max }) {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARCHIVE_FORMAT, llama_cachegen_get_caps(ctx, format, caps.data(), 4, &n));
        }

        // imports: each call with the same arguments
        const auto check_imports = [&](llama_kv_page_status status, llama_context * to_ctx, const uint8_t * bytes,
                                       uint64_t n_bytes, uint64_t archive_bytes,
                                       const llama_cachegen_options * options) {
            llama_cachegen_import * import = nullptr;
            CHECK_STATUS(status,
                         llama_cachegen_validate(to_ctx, 2, 0, bytes, n_bytes, archive_bytes, 0, n_page, options));
            CHECK_STATUS(status, llama_cachegen_import_begin(to_ctx, 2, 0, bytes, n_bytes, archive_bytes, 0, n_page,
                                                             options, &import));
            CHECK(import == nullptr);
            if (n_bytes == archive_bytes) {
                CHECK_STATUS(status, llama_cachegen_import_archive(to_ctx, 2, 0, bytes, archive_bytes, 0, n_page,
                                                                   options, nullptr));
            }
            CHECK_UNTOUCHED(to.expected, ctx);
        };
        check_imports(LLAMA_KV_PAGE_ERR_ARGUMENT, nullptr, src, size, size, nullptr);
        check_imports(LLAMA_KV_PAGE_ERR_ARGUMENT, ctx, nullptr, size, size, nullptr);
        check_imports(LLAMA_KV_PAGE_ERR_ARGUMENT, ctx, src, size, size - 1, nullptr);
        check_imports(LLAMA_KV_PAGE_ERR_ARCHIVE, ctx, src, 0, size, nullptr);
        check_imports(LLAMA_KV_PAGE_ERR_ARCHIVE, ctx, src, 0, 0, nullptr);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                     llama_cachegen_import_begin(ctx, 2, 0, src, size, size, 0, n_page, nullptr, nullptr));
        for (const uint32_t wrong : { 0u, uint32_t(sizeof(llama_cachegen_options) - 1),
                                      uint32_t(sizeof(llama_cachegen_options) + 8), UINT32_MAX }) {
            auto options        = new_archive_options();
            options.struct_size = wrong;
            check_imports(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, ctx, src, size, size, &options);
            llama_cachegen_stats stats = new_archive_stats();
            stats.struct_size          = wrong + 1;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, import_archive(ctx, 2, 0, saved.bytes, 0, n_page, &stats));
        }
        {
            auto options  = new_archive_options();
            options.flags = 2;
            check_imports(LLAMA_KV_PAGE_ERR_ARGUMENT, ctx, src, size, size, &options);
            options          = new_archive_options();
            options.reserved = 1;
            check_imports(LLAMA_KV_PAGE_ERR_ARGUMENT, ctx, src, size, size, &options);
        }

        // exports
        uint64_t   archive_bytes = 0;
        const auto good_profile  = new_profile(lossy);
        const auto good_codings  = codings_of(ctx, lossy);
        const auto good_options  = new_archive_options();
        const auto n_codings     = uint32_t(good_codings.size());
        const auto check_export  = [&](llama_kv_page_status status, const llama_cachegen_profile * profile,
                                       const llama_cachegen_coding * codings, uint32_t n_given,
                                       const llama_cachegen_options * options, int32_t seq_id = 0, int32_t p0 = 0,
                                       int32_t p1 = twins::n_seq0) {
            collector sink;
            CHECK_STATUS(status, llama_cachegen_export(ctx, seq_id, p0, p1, profile, codings, n_given, collector::write,
                                                       &sink, options, &archive_bytes, nullptr));
            CHECK_EQ(sink.n_calls == 0, status != LLAMA_KV_PAGE_OK);
            CHECK_UNTOUCHED(to.expected, ctx);
        };
        check_export(LLAMA_KV_PAGE_OK, &good_profile, good_codings.data(), n_codings, &good_options);
        check_export(LLAMA_KV_PAGE_ERR_ARGUMENT, nullptr, good_codings.data(), n_codings, nullptr);
        check_export(LLAMA_KV_PAGE_ERR_ARGUMENT, &good_profile, nullptr, n_codings, nullptr);
        collector sink;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                     llama_cachegen_export(nullptr, 0, 0, 8, &good_profile, good_codings.data(), n_codings,
                                           collector::write, &sink, nullptr, &archive_bytes, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                     llama_cachegen_export(ctx, 0, 0, 8, &good_profile, good_codings.data(), n_codings, nullptr, &sink,
                                           nullptr, &archive_bytes, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                     llama_cachegen_export(ctx, 0, 0, 8, &good_profile, good_codings.data(), n_codings,
                                           collector::write, &sink, nullptr, nullptr, nullptr));
        llama_cachegen_stats stats = new_archive_stats();
        stats.struct_size += 8;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE,
                     llama_cachegen_export(ctx, 0, 0, 8, &good_profile, good_codings.data(), n_codings,
                                           collector::write, &sink, nullptr, &archive_bytes, &stats));
        CHECK_EQ(sink.n_calls, 0u);

        // where from
        const auto check_range = [&](llama_kv_page_status status, int32_t seq_id, int32_t p0, int32_t p1) {
            SCOPE("sequence " + std::to_string(seq_id) + ", positions " + std::to_string(p0) + " to " +
                  std::to_string(p1));
            check_export(status, &good_profile, good_codings.data(), n_codings, nullptr, seq_id, p0, p1);
        };
        check_range(LLAMA_KV_PAGE_ERR_SEQ_ID, -1, 0, 8);
        check_range(LLAMA_KV_PAGE_ERR_SEQ_ID, int32_max, 0, 8);
        check_range(LLAMA_KV_PAGE_ERR_MISSING, 2, 0, 8);
        check_range(LLAMA_KV_PAGE_ERR_MISSING, 0, 0, twins::n_seq0 + 1);
        check_range(LLAMA_KV_PAGE_ERR_NO_CELLS, 0, 0, n_cells + 1);
        check_range(LLAMA_KV_PAGE_ERR_ARGUMENT, 0, 5, 5);
        check_range(LLAMA_KV_PAGE_ERR_ARGUMENT, 0, 5, 4);
        check_range(LLAMA_KV_PAGE_ERR_ARGUMENT, 0, -1, 4);
        check_range(LLAMA_KV_PAGE_ERR_ARGUMENT, 0, std::numeric_limits<int32_t>::min(), int32_max);

        // the profile
        const std::vector<std::pair<llama_kv_page_status, std::function<void(llama_cachegen_profile &)>>> profiles = {
            { LLAMA_KV_PAGE_ERR_STRUCT_SIZE, [](auto & p) { p.struct_size = 0; } },
            { LLAMA_KV_PAGE_ERR_STRUCT_SIZE, [](auto & p) { p.struct_size += 4; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.block_tokens   = 0; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.block_tokens   = 31; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.block_tokens   = 65537; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.n_exact_tokens = 4097; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.n_models       = 0; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.n_models       = 257; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.n_classes      = 0; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.n_classes      = 17; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.name[0]        = ' '; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.name[15]       = 'x'; } },
            { LLAMA_KV_PAGE_ERR_ARGUMENT, [](auto & p) { p.name[1]        = char(0xC3); } },
        };
        for (size_t i = 0; i < profiles.size(); ++i) {
            SCOPE("profile " + std::to_string(i));
            auto profile = good_profile;
            profiles[i].second(profile);
            check_export(profiles[i].first, &profile, good_codings.data(), n_codings, nullptr);
        }

        // the codings
        const auto check_codings = [&](llama_kv_page_status                                              status,
                                       const std::function<void(std::vector<llama_cachegen_coding> &)> & change) {
            auto codings = good_codings;
            change(codings);
            check_export(status, &good_profile, codings.data(), uint32_t(codings.size()), nullptr);
        };
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { std::swap(c[0], c[1]); });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { std::swap(c[0], c[2]); });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { std::reverse(c.begin(), c.end()); });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { c.pop_back(); });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { c.push_back(c.back()); });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { c[3].layer = 7; });
        check_codings(LLAMA_KV_PAGE_ERR_COMPONENTS, [](auto & c) { c[3].kind = 3; });
        for (const uint32_t n_levels : { 1u, 2u, 4u, 32u, 64u, 65u, 255u, UINT32_MAX }) {
            SCOPE(std::to_string(n_levels) + " levels");
            check_codings(LLAMA_KV_PAGE_ERR_ARGUMENT, [&](auto & c) { c[2].n_levels = n_levels; });
        }
        for (const int32_t type : { int32_t(GGML_TYPE_Q8_0), int32_t(GGML_TYPE_Q4_0), -1, 99, int32_max }) {
            SCOPE("scales of type " + std::to_string(type));
            check_codings(LLAMA_KV_PAGE_ERR_ARGUMENT, [&](auto & c) { c[1].scale_type = type; });
        }
    });
}

TEST(values_that_are_not_finite) {
    for_each_layout([](const cache_layout & layout) {
        const subject         to(layout);
        llama_context * const ctx    = to.ctx();
        const auto            type_k = ggml_type(layout.type_k);
        page                  bad;
        {
            const llama_context_ptr other = make_context(model(), layout);
            decode(other.get(), 0, 0, random_tokens(n_page, 11));
            bad = export_page(other.get(), 0, 0, n_page);
        }
        // one value, or the scale of one block, of K of the last layer in the last block of tokens
        const auto & c = bad.components[2];
        CHECK_EQ(c.kind, int32_t(LLAMA_KV_PAGE_KIND_K));
        uint8_t * at = bad.payload.data() + c.offset + uint64_t(n_page - 2) * c.row_bytes;
        for (const bool is_infinity : { false, true }) {
            SCOPE(is_infinity ? "infinity" : "NaN");
            const uint32_t f32 = is_infinity ? 0x7F800000u : 0x7FC00000u;
            const uint16_t f16 = is_infinity ? 0x7C00u : 0x7E00u; // a block's scale too
            type_k == GGML_TYPE_F32 ? memcpy(at, &f32, 4) : memcpy(at, &f16, 2);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(ctx, 2, bad, 0));
            const page before = export_page(ctx, 2, 0, n_page);

            collector  sink;
            uint64_t   archive_bytes = 0;
            const auto profile       = new_profile(lossy);
            const auto codings       = codings_of(ctx, lossy);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_NON_FINITE,
                         llama_cachegen_export(ctx, 2, 0, n_page, &profile, codings.data(), uint32_t(codings.size()),
                                               collector::write, &sink, nullptr, &archive_bytes, nullptr));
            CHECK(!sink.is_complete);
            check_same_page(before, export_page(ctx, 2, 0, n_page));

            // lossless keeps it
            const archive saved = export_archive(ctx, 2, 0, n_page, exact);
            CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx, 2, 0, saved.bytes, 0, n_page));
            check_same_page(before, export_page(ctx, 2, 0, n_page));
            CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        }
        // finite bytes over what llama.cpp's removal leaves
        const archive good = make_archive(layout, lossy);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx, 2, 0, good.bytes, 0, n_page));
        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        CHECK_UNTOUCHED(to.expected, ctx);
    });
}

namespace {

struct cancel_at {
    uint32_t n_calls = 0;
    uint32_t at      = UINT32_MAX;
    uint64_t done    = 0;
    uint64_t total   = 0;
    bool     ok      = true; // done never goes back

    static int32_t go_on(void * user_data, uint64_t done, uint64_t total) {
        auto & self = *static_cast<cancel_at *>(user_data);
        self.ok &= done >= self.done && (self.n_calls == 0 || total == self.total) && (total == 0 || done < total);
        self.done  = done;
        self.total = total;
        return self.n_calls++ != self.at;
    }
};

} // namespace

TEST(exports_to_a_file) {
    for_each_layout([](const cache_layout & layout) {
        const subject  to(layout);
        const archive  expected = make_archive(layout, lossy);
        constexpr auto begin    = 4096;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to.ctx(), 2, 0, expected.bytes, 0, n_page));
        const archive again   = export_archive(to.ctx(), 2, 0, n_page, lossy);
        const auto    profile = new_profile(lossy);
        const auto    codings = codings_of(to.ctx(), lossy);
        FILE * const  stream  = tmpfile();
        CHECK(stream != nullptr);
        const llama_cachegen_file file    = { fileno(stream), 0, begin };
        const auto                save_to = [&](const llama_cachegen_file & where, cancel_at & stop, uint32_t n_threads,
                                                llama_cachegen_stats & stats) {
            auto options      = new_archive_options(n_threads);
            options.file      = &where;
            options.go_on     = cancel_at::go_on;
            options.user_data = &stop;
            stats             = new_archive_stats();
            collector     unused;
            uint64_t      n_bytes = 0;
            const int32_t status =
                llama_cachegen_export(to.ctx(), 2, 0, n_page, &profile, codings.data(), uint32_t(codings.size()),
                                      collector::write, &unused, &options, &n_bytes, &stats);
            CHECK_EQ(unused.end, 0u); // nothing went to the function
            return status;
        };
        llama_cachegen_stats stats;
        uint32_t             n_calls = 0;
        for (const uint32_t n_threads : { 1u, 3u }) {
            SCOPE(std::to_string(n_threads) + " threads");
            CHECK_EQ(ftruncate(file.fd, 0), 0);
            cancel_at never;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, save_to(file, never, n_threads, stats));
            CHECK(never.ok);
            n_calls = n_threads == 1 ? never.n_calls : n_calls; // on one thread all pieces ask
            CHECK(stats.write_ms > 0 && stats.write_ms <= stats.code_ms + 0.01);
            CHECK_EQ(stats.system_error, 0);
            byte_vector written(again.bytes.size() + 1);
            CHECK_EQ(pread(file.fd, written.data(), written.size(), begin), ssize_t(again.bytes.size()));
            written.pop_back();
            CHECK(written == again.bytes);
            struct stat info;
            CHECK_EQ(fstat(file.fd, &info), 0);
            CHECK_EQ(uint64_t(info.st_size), begin + again.bytes.size());
            // what was reserved behind its end has been given back; a file system may keep a little by itself
            CHECK(uint64_t(info.st_blocks) * 512 <= uint64_t(info.st_size) + (32 << 20));
        }
        CHECK(n_calls > 4);
        for (uint32_t at = 0; at < n_calls; ++at) {
            SCOPE("cancelled at call " + std::to_string(at));
            cancel_at stop;
            stop.at = at;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, save_to(file, stop, 1, stats));
            CHECK_EQ(stop.n_calls, at + 1);
        }
        // the system refuses: all, or what lies behind a limit
        const auto    handler = signal(SIGXFSZ, SIG_IGN);
        struct rlimit before;
        CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
        for (const uint32_t n_threads : { 1u, 3u }) {
            SCOPE(std::to_string(n_threads) + " threads");
            cancel_at                 never;
            const llama_cachegen_file none = { -1, 0, 0 };
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_WRITE, save_to(none, never, n_threads, stats));
            CHECK_EQ(stats.system_error, EBADF);
            struct rlimit limit = before;
            limit.rlim_cur      = begin + again.bytes.size() - 100;
            CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_WRITE, save_to(file, never, n_threads, stats));
            CHECK_EQ(stats.system_error, EFBIG);
            CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
        }
        signal(SIGXFSZ, handler);
        fclose(stream);
        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

TEST(cancelled_imports) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy);
        const subject to(layout);
        uint32_t      n_cancelled = 0;
        for (uint32_t at = 0;; ++at) {
            SCOPE("cancelled at call " + std::to_string(at));
            cancel_at stop;
            stop.at              = at;
            auto options         = new_archive_options();
            options.go_on        = cancel_at::go_on;
            options.user_data    = &stop;
            const int32_t status = import_archive(to.ctx(), 2, 0, saved.bytes, 0, n_page, nullptr, &options);
            CHECK(stop.ok);
            if (status == LLAMA_KV_PAGE_OK) {
                CHECK_EQ(stop.n_calls, at);
                break;
            }
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, status);
            CHECK_EQ(stop.n_calls, at + 1);
            CHECK_UNTOUCHED(to.expected, to.ctx());

            import_steps steps;
            stop    = {};
            stop.at = at;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, n_page, &options));
            for (uint32_t i = 0; i < at; ++i) {
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
            }
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, steps.feed(saved.bytes));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, steps.feed(saved.bytes));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_cachegen_import_commit(steps.handle, nullptr));
            steps.close();
            CHECK_UNTOUCHED(to.expected, to.ctx());
            n_cancelled++;
        }
        CHECK_EQ(n_cancelled, 4u); // exact tokens and three blocks
        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
        CHECK_UNTOUCHED(to.expected, to.ctx());
    });
}

TEST(cancelled_exports) {
    for_each_layout([](const cache_layout & layout) {
        const subject to(layout);
        const archive page_of_2 = make_archive(layout, lossy);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to.ctx(), 2, 0, page_of_2.bytes, 0, n_page));
        const footprint before  = footprint::of(to.ctx());
        const auto      profile = new_profile(lossy);
        const auto      codings = codings_of(to.ctx(), lossy);
        for (const bool by_sink : { true, false }) {
            uint32_t at = 0;
            for (;; ++at) {
                SCOPE((by_sink ? "sink, call " : "go_on, call ") + std::to_string(at));
                collector sink(by_sink ? int64_t(at) : -1);
                cancel_at stop;
                stop.at                = at;
                auto     options       = new_archive_options(1 + at % 2);
                uint64_t archive_bytes = 0;
                options.go_on          = by_sink ? nullptr : cancel_at::go_on;
                options.user_data      = &stop;
                const int32_t status =
                    llama_cachegen_export(to.ctx(), 2, 0, n_page, &profile, codings.data(), uint32_t(codings.size()),
                                          collector::write, &sink, &options, &archive_bytes, nullptr);
                CHECK(stop.ok);
                CHECK_UNTOUCHED(before, to.ctx());
                if (status == LLAMA_KV_PAGE_OK) {
                    CHECK_EQ(by_sink ? sink.n_calls : stop.n_calls, at);
                    break;
                }
                CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, status);
                CHECK_EQ(sink.n_calls, by_sink ? at + 1 : at);
                CHECK(!sink.is_complete);
            }
            CHECK(at >= 4); // a piece a block, and the metadata
        }
    });
}

//
// memory that runs out
//

namespace {

struct fault_count {
    uint64_t n_injected = 0; // attempts in which an allocation failed
    uint64_t n_absorbed = 0; // of them, those that succeeded all the same
};

fault_count g_faults;

// a failed call's message is its own: leave another one everywhere
void leave_a_message() {
    static const llama_context_ptr ctx     = make_context(model(), typical_layouts()[0]);
    static const byte_vector       damaged = [] {
        archive saved = make_archive(typical_layouts()[0], exact, 8);
        saved.bytes[(saved.metadata_bytes + 63) / 64 * 64] ^= 1;
        return saved.bytes;
    }();
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARCHIVE, import_archive(ctx.get(), 0, 0, damaged, 0, 8));
}

// Fail the n-th allocation of `attempt`, for every n until there is no n-th. After each `check` is told if it
// succeeded.
fault_count inject(const char * what, bool is_lasting, const std::function<int32_t()> & attempt,
                   const std::function<void(bool)> & check) {
    fault_count count;
    for (int64_t n = 0;; ++n) {
        SCOPE(std::string(what) + (is_lasting ? ", from allocation " : ", allocation ") + std::to_string(n) +
              (is_lasting ? " on" : ""));
        int32_t status   = 0;
        bool    is_fault = false;
        leave_a_message();
        {
            const faults::armed armed(n, is_lasting);
            status   = attempt();
            is_fault = faults::n_failed > 0;
        }
        if (status != LLAMA_KV_PAGE_OK) {
            CHECK_EQ(CHECK_STATUS(LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY, status), std::string("out of memory"));
            CHECK(is_fault);
        }
        check(status == LLAMA_KV_PAGE_OK);
        if (!is_fault) {
            break;
        }
        count.n_injected++;
        count.n_absorbed += status == LLAMA_KV_PAGE_OK;
        CHECK(n < 100000);
    }
    CHECK(count.n_injected > 20);
    printf("faults: %-32s %-10s %5" PRIu64 " allocations failed, %" PRIu64 " of them without harm\n", what,
           is_lasting ? "lasting" : "single", count.n_injected, count.n_absorbed);
    fflush(stdout);
    g_faults.n_injected += count.n_injected;
    g_faults.n_absorbed += count.n_absorbed;
    return count;
}

// all rows and transposed layouts, short pages: a fault for every allocation takes a while
constexpr int32_t n_short = 40;

const std::vector<cache_layout> & fault_layouts() {
    static const std::vector<cache_layout> layouts = {
        { GGML_TYPE_F16, GGML_TYPE_F16, false, true },
        { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, true, false },
    };
    return layouts;
}

} // namespace

TEST(memory_runs_out_in_an_import) {
    for (const auto & layout : fault_layouts()) {
        SCOPE(to_string(layout));
        const archive saved = make_archive(layout, lossy, n_short);
        const subject to(layout);
        for (const uint32_t n_threads : { 1u, 2u }) {
            for (const bool is_lasting : { false, true }) {
                // behind a sequence that has tokens
                const auto options = new_archive_options(n_threads);
                const auto check   = [&](bool has_succeeded) {
                    if (has_succeeded) {
                        CHECK_EQ(pos_max(to.ctx(), 0), twins::n_seq0 + n_short - 1);
                        CHECK_SAME_BITS(export_page(to.ctx(), 0, twins::n_seq0, twins::n_seq0 + n_short).payload,
                                        decoded_page(to.ctx(), 0, twins::n_seq0, saved.bytes, 0, uint32_t(n_short)));
                        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 0, twins::n_seq0, -1));
                    }
                    CHECK_UNTOUCHED(to.expected, to.ctx());
                };
                inject(
                    n_threads == 1 ? "import" : "import with 2 threads", is_lasting,
                    [&] {
                        return import_archive(to.ctx(), 0, twins::n_seq0, saved.bytes, 0, uint32_t(n_short), nullptr,
                                              &options);
                    },
                    check);
            }
        }
    }
}

TEST(memory_runs_out_in_an_import_in_steps) {
    for (const auto & layout : fault_layouts()) {
        SCOPE(to_string(layout));
        const archive saved = make_archive(layout, exact, n_short);
        const subject to(layout);
        const auto    options = new_archive_options(1);
        for (const bool is_lasting : { false, true }) {
            inject(
                "import in steps", is_lasting,
                [&] {
                    llama_cachegen_import * import = nullptr;
                    const uint8_t *         src    = saved.bytes.data();
                    int32_t                 status =
                        llama_cachegen_import_begin(to.ctx(), 2, 0, src, saved.metadata_bytes, saved.bytes.size(), 0,
                                                    uint32_t(n_short), &options, &import);
                    uint64_t offset  = 0;
                    uint64_t n_bytes = 1;
                    while (status == LLAMA_KV_PAGE_OK) {
                        status = llama_cachegen_import_next(import, &offset, &n_bytes);
                        if (status != LLAMA_KV_PAGE_OK || n_bytes == 0) {
                            break;
                        }
                        status = llama_cachegen_import_feed(import, src + offset, n_bytes);
                    }
                    if (status == LLAMA_KV_PAGE_OK) {
                        status = llama_cachegen_import_commit(import, nullptr);
                    }
                    llama_cachegen_import_close(import);
                    return status;
                },
                [&](bool has_succeeded) {
                    if (has_succeeded) {
                        CHECK_SAME_BITS(export_page(to.ctx(), 2, 0, n_short).payload,
                                        decoded_page(to.ctx(), 2, 0, saved.bytes, 0, uint32_t(n_short)));
                        CHECK(llama_memory_seq_rm(memory(to.pair.touched), 2, -1, -1));
                    }
                    CHECK_UNTOUCHED(to.expected, to.ctx());
                });
        }
    }
}

TEST(memory_runs_out_in_an_export) {
    for (const auto & layout : fault_layouts()) {
        SCOPE(to_string(layout));
        const subject to(layout);
        const archive saved = make_archive(layout, exact, n_short);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to.ctx(), 2, 0, saved.bytes, 0, uint32_t(n_short)));
        const footprint before = footprint::of(to.ctx());
        for (const auto & choice : { lossy, exact }) {
            const archive expected = export_archive(to.ctx(), 2, 0, n_short, choice);
            const auto    profile  = new_profile(choice);
            const auto    codings  = codings_of(to.ctx(), choice);
            for (const uint32_t n_threads : { 1u, 2u }) {
                const auto  options       = new_archive_options(n_threads);
                uint64_t    archive_bytes = 0;
                collector   sink;
                std::string what = std::string(choice.n_levels_k ? "lossy" : "lossless") + " export";
                what += n_threads == 1 ? "" : " with 2 threads";
                for (const bool is_lasting : { false, true }) {
                    inject(
                        what.c_str(), is_lasting,
                        [&] {
                            sink.end = sink.begin = sink.n_calls = 0;
                            sink.is_complete                     = false;
                            return llama_cachegen_export(to.ctx(), 2, 0, n_short, &profile, codings.data(),
                                                         uint32_t(codings.size()), collector::write, &sink, &options,
                                                         &archive_bytes, nullptr);
                        },
                        [&](bool has_succeeded) {
                            if (has_succeeded) {
                                const byte_vector got(sink.bytes.begin(),
                                                      sink.bytes.begin() + std::ptrdiff_t(archive_bytes));
                                CHECK(sink.is_complete);
                                CHECK_SAME_BITS(got, expected.bytes);
                            }
                            CHECK_UNTOUCHED(before, to.ctx());
                        });
                }
            }
        }
    }
}

// every allocation of the process comes by, those of the libraries too
// The codec counts where it allocates; this counts all that the process allocates. `own`: what llama.cpp keeps for
// reserved cells besides, as for a native page.
void check_peak(const char * what, uint64_t reported, int64_t allocated, int64_t own) {
    SCOPE(std::string(what) + ": " + std::to_string(reported) + " bytes reported, " + std::to_string(allocated) +
          " allocated, llama.cpp's own " + std::to_string(own));
    CHECK(int64_t(reported) <= allocated);
    CHECK(int64_t(reported) >= allocated - own - 4096);
}

TEST(peak_transient_bytes_are_what_was_allocated) {
    for_each_layout([](const cache_layout & layout) {
        for (const auto & choice : { exact, lossy }) {
            const int32_t           n   = 2 * n_page;
            const llama_context_ptr ctx = make_context(model(), layout);
            decode(ctx.get(), 0, 0, random_tokens(uint32_t(n), 11));
            const archive saved = export_archive(ctx.get(), 0, 0, n, choice);
            const page    plain = export_page(ctx.get(), 0, 0, n);
            llama_memory_seq_rm(memory(ctx), 0, -1, -1);

            int64_t own = 0;
            {
                llama_kv_page_reservation * reservation = nullptr;
                faults::heap_watch          watch;
                CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_reserve(ctx.get(), 0, 0, plain.components.data(),
                                                                     uint32_t(plain.components.size()), &reservation));
                own = watch.now;
                llama_kv_page_close(reservation);
            }
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(ctx.get(), 0, 0, saved.bytes, 0, uint32_t(n)));
            const auto profile = new_profile(choice);
            const auto codings = codings_of(ctx.get(), choice);
            for (const uint32_t n_threads : { 1u, 2u, 4u }) {
                SCOPE("threads: " + std::to_string(n_threads));
                const auto options       = new_archive_options(n_threads);
                auto       stats         = new_archive_stats();
                uint64_t   archive_bytes = 0;
                collector  sink;
                {
                    faults::heap_watch watch;
                    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_export(ctx.get(), 0, 0, n, &profile, codings.data(),
                                                                         uint32_t(codings.size()), collector::write,
                                                                         &sink, &options, &archive_bytes, &stats));
                    check_peak("export", stats.peak_transient_bytes, watch.peak, 0);
                }
                llama_memory_seq_rm(memory(ctx), 0, -1, -1);
                {
                    import_steps steps;
                    steps.metadata.reserve(saved.bytes.size());
                    int64_t allocated = 0;
                    {
                        faults::heap_watch watch;
                        CHECK_STATUS(LLAMA_KV_PAGE_OK,
                                     steps.begin(ctx.get(), 0, 0, saved.bytes, 0, uint32_t(n), &options));
                        // from here on: llama.cpp takes more while it finds cells, and gives it back
                        watch.peak = watch.now.load();
                        for (auto [offset, n_bytes]    = steps.next(); n_bytes != 0;
                             std::tie(offset, n_bytes) = steps.next()) {
                            CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_feed(
                                                               steps.handle, saved.bytes.data() + offset, n_bytes));
                        }
                        allocated = watch.peak;
                    }
                    CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_commit(steps.handle, &stats));
                    check_peak("import", stats.peak_transient_bytes, allocated, own);
                }
            }
        }
    });
}

TEST(faults_reach_the_libraries) {
    const archive           saved = make_archive(typical_layouts()[0], lossy, n_short);
    const llama_context_ptr ctx   = make_context(model(), typical_layouts()[0]);
    int32_t                 status;
    uint64_t                n_failed;
    {
        const faults::armed armed(0, true);
        status   = import_archive(ctx.get(), 0, 0, saved.bytes, 0, uint32_t(n_short));
        n_failed = faults::n_failed;
    }
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY, status);
    CHECK(n_failed > 0);
}

//
// the check itself
//

TEST(leftovers_are_found) {
    for_each_layout([](const cache_layout & layout) {
        const archive saved = make_archive(layout, lossy, n_short);
        const auto    has   = [](const std::vector<std::string> & all, const char * what) {
            return std::find(all.begin(), all.end(), what) != all.end();
        };
        const auto feed_all = [&](import_steps & steps) {
            while (steps.next().second != 0) {
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.feed(saved.bytes));
            }
        };

        { // committed instead of rolled back
            const subject to(layout);
            import_steps  steps;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, uint32_t(n_short)));
            feed_all(steps);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_commit(steps.handle, nullptr));
            const auto found = footprint::of(to.ctx()).differences(to.expected);
            CHECK(has(found, "the number of used cells"));
            CHECK(has(found, "positions and cells"));
            CHECK(has(found, "bytes of a sequence"));
        }
        { // not closed
            const subject to(layout);
            import_steps  steps;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.begin(to.ctx(), 2, 0, saved.bytes, 0, uint32_t(n_short)));
            const auto found = footprint::of(to.ctx()).differences(to.expected);
            CHECK(has(found, "an open reservation"));
            CHECK(has(found, "decode is refused"));
        }
        { // one bit of another sequence, and a NaN in a free cell
            const subject to(layout);
            auto &        cache = cache_of(to.ctx());
            const auto    k     = cache.page_components(cache.get_stream(witness))[0];
            const auto    cell  = to.expected.positions[witness][3].second;
            auto *        row = static_cast<uint8_t *>(k.tensor->data) + cell * ggml_row_size(k.tensor->type, k.n_embd);
            row[3] ^= 0x40;
            auto found = footprint::of(to.ctx()).differences(to.expected);
            CHECK(has(found, "bytes of a sequence"));
            CHECK(has(found, "the next tokens"));
            row[3] ^= 0x40;
            CHECK(footprint::of(to.ctx()).differences(to.expected).empty());

            const auto v    = cache.page_components(cache.get_stream(2))[1];
            auto *     last = static_cast<uint8_t *>(v.tensor->data) + ggml_nbytes(v.tensor);
            if (v.transposed) { // the last channel of the last cell
                memset(last - ggml_type_size(v.tensor->type), 0xFF, ggml_type_size(v.tensor->type));
            } else { // the last cell's row: a value, or the scale of a block
                memset(last - ggml_row_size(v.tensor->type, v.n_embd), 0xFF, 4);
            }
            found = footprint::of(to.ctx()).differences(to.expected);
            CHECK(has(found, "free cells that are not finite"));
        }
    });
}

TEST(a_leftover_ends_a_test) {
    const archive saved = make_archive(typical_layouts()[0], lossy, n_short);
    const subject to(typical_layouts()[0]);
    CHECK_STATUS(LLAMA_KV_PAGE_OK, import_archive(to.ctx(), 2, 0, saved.bytes, 0, uint32_t(n_short)));
    bool has_failed = false;
    printf("a failure that is wanted: ");
    try {
        CHECK_UNTOUCHED(to.expected, to.ctx());
    } catch (const harness::failure &) {
        has_failed = true;
    }
    CHECK(has_failed);
}

int main(int argc, char ** argv) {
    capture_log();
    const int status = harness::run(argc, argv);
    printf("archive: %u caches ok, %u refused, %u not offered by llama.cpp, %u failed; %u imports\n", g_totals.n_ok,
           g_totals.n_refused, g_totals.n_not_offered, g_totals.n_failed, g_totals.n_imports);
    printf("faults: %" PRIu64 " allocations failed, %" PRIu64 " of them without harm\n", g_faults.n_injected,
           g_faults.n_absorbed);
    g_models.clear();
    return status;
}
