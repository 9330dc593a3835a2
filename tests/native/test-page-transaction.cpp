// An import is all or nothing: it appends exactly the page, or changes nothing that a later decode could see.
#include "page_fixture.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace {

constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();
constexpr int32_t int32_min = std::numeric_limits<int32_t>::min();

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

// a page of n tokens, from a context of its own
page make_page(const cache_layout & layout, int32_t n = 24, uint64_t seed = 11) {
    const llama_context_ptr ctx = make_context(model(), layout);
    CHECK(ctx != nullptr);
    decode(ctx.get(), 0, 0, random_tokens(n, seed));
    return export_page(ctx.get(), 0, 0, n);
}

// the page's values are still what they were, and so is what comes after
void check_same_continuation(const llama_context_ptr & a, const llama_context_ptr & b, llama_seq_id seq_id,
                             int32_t p0) {
    CHECK_EQ(pos_max(a.get(), seq_id), p0 - 1);
    CHECK_EQ(pos_max(b.get(), seq_id), p0 - 1);
    CHECK_SAME_BITS(greedy(a.get(), seq_id, p0, 5, 16), greedy(b.get(), seq_id, p0, 5, 16));
}

void check_contains(const std::string & message, const std::string & part, const char * file, int line) {
    harness::n_checks()++;
    if (message.find(part) == std::string::npos) {
        harness::fail(file, line, "the message " + harness::show(message) + " does not say " + harness::show(part));
    }
}

// numbers and names in a message are part of what a caller gets
#define CHECK_CONTAINS(message, part) check_contains((message), (part), __FILE__, __LINE__)

struct reservation {
    llama_kv_page_reservation * handle = nullptr;

    reservation(llama_context * ctx, llama_seq_id seq_id, const page & page) {
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_reserve(ctx, seq_id, page.p0, page.components.data(),
                                                             uint32_t(page.components.size()), &handle));
        CHECK(handle != nullptr);
    }

    ~reservation() { close(); }

    reservation(const reservation &)             = delete;
    reservation & operator=(const reservation &) = delete;

    int32_t write(const page & page, uint32_t i) const {
        const auto   options   = new_options();
        const auto & component = page.components[i];
        return llama_kv_page_write(handle, i, page.payload.data() + component.offset, component.n_bytes, &options);
    }

    void write_all(const page & page) const {
        for (uint32_t i = 0; i < page.components.size(); ++i) {
            CHECK_STATUS(LLAMA_KV_PAGE_OK, write(page, i));
        }
    }

    void close() {
        llama_kv_page_close(handle);
        handle = nullptr;
    }
};

} // namespace

//
// imports that succeed
//

// cells of seq 0 and seq 1 alternate; the page goes to the cells of seq 0 only
TEST(import_into_fragmented_cells) {
    constexpr int32_t n = 120;
    for_each_layout([](cache_layout layout) {
        layout.unified = true; // sequences can only alternate in one pool

        const auto alternate = [](llama_context * ctx, const std::vector<llama_token> & tokens0,
                                  const std::vector<llama_token> & tokens1) {
            for (int32_t i = 0; i < n; ++i) {
                decode(ctx, 0, i, { tokens0[i] });
                decode(ctx, 1, i, { tokens1[i] });
            }
        };
        const llama_context_ptr src = make_context(model(), layout);
        alternate(src.get(), random_tokens(n, 1), random_tokens(n, 2));
        const page exported = export_page(src.get(), 0, 0, n);
        CHECK_EQ(exported.stats.n_cell_runs, uint32_t(n));

        const llama_context_ptr dst = make_context(model(), layout);
        alternate(dst.get(), random_tokens(n, 3), random_tokens(n, 2));
        CHECK(llama_memory_seq_rm(memory(dst), 0, -1, -1));

        llama_kv_page_stats stats = new_stats();
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 2, exported, LLAMA_KV_PAGE_FLAG_DIGEST, &stats));
        CHECK_EQ(stats.n_cell_runs, uint32_t(n));
        check_same_page(exported, export_page(dst.get(), 2, 0, n));
        CHECK_SAME_BITS(greedy(src.get(), 0, n, 5, 4), greedy(dst.get(), 2, n, 5, 4));
        CHECK_SAME_BITS(greedy(src.get(), 1, n, 6, 4), greedy(dst.get(), 1, n, 6, 4));
    });
}

// holes of different lengths: runs of one cell, of a few, and long enough for whole-run copies
TEST(import_into_holes_of_different_lengths) {
    const std::vector<int32_t> hole_lengths = { 1, 3, 40, 2, 17, 1, 9 };
    for_each_layout([&](cache_layout layout) {
        layout.unified = true;

        const auto lay_out = [&](llama_context * ctx, uint64_t seed, bool fill_up) {
            const auto tokens = random_tokens(256, seed);
            int32_t    p0     = 0;
            int32_t    p1     = 0;
            for (int32_t length : hole_lengths) {
                decode(ctx, 0, p0, { tokens.begin() + p0, tokens.begin() + p0 + length });
                decode(ctx, 1, p1, random_tokens(5, 100 + p1));
                p0 += length;
                p1 += 5;
            }
            if (fill_up) { // leave 20 cells, so that the page finds no contiguous run
                decode(ctx, 1, p1, random_tokens(uint32_t(int32_t(n_cells) - p0 - p1 - 20), 99));
            }
            return p0;
        };
        const llama_context_ptr src      = make_context(model(), layout);
        const int32_t           n        = lay_out(src.get(), 1, true);
        const page              exported = export_page(src.get(), 0, 0, n);
        CHECK_EQ(exported.stats.n_cell_runs, uint32_t(hole_lengths.size()));

        const llama_context_ptr dst = make_context(model(), layout);
        lay_out(dst.get(), 2, true);
        CHECK(llama_memory_seq_rm(memory(dst), 0, -1, -1));
        llama_kv_page_stats stats = new_stats();
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 2, exported, LLAMA_KV_PAGE_FLAG_DIGEST, &stats));
        CHECK_EQ(stats.n_cell_runs, uint32_t(hole_lengths.size()));
        check_same_page(exported, export_page(dst.get(), 2, 0, n));
        CHECK_SAME_BITS(greedy(src.get(), 0, n, 5, 4), greedy(dst.get(), 2, n, 5, 4));
    });
}

TEST(import_next_to_other_sequences) {
    for_each_layout([](const cache_layout & layout) {
        twins      pair(model(), layout);
        const page page = make_page(layout);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(pair.touched.get(), 2, page));
        // the same cells taken, so that the same cells come next
        decode(pair.untouched.get(), 2, 0, random_tokens(page.n_tokens(), 12));
        pair.check_same_future();
    });
}

TEST(two_pages_make_one_range) {
    for_each_layout([](const cache_layout & layout) {
        constexpr int32_t       n   = 40;
        const llama_context_ptr src = make_context(model(), layout);
        decode(src.get(), 0, 0, random_tokens(n, 1));
        const page whole = export_page(src.get(), 0, 0, n);

        for (int32_t cut : { 1, 17, n - 1 }) {
            SCOPE("cut at " + std::to_string(cut));
            const page first  = export_page(src.get(), 0, 0, cut);
            const page second = export_page(src.get(), 0, cut, n);

            const llama_context_ptr dst = make_context(model(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_GAP, import_page(dst.get(), 1, second));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 1, first));
            CHECK_EQ(pos_max(dst.get(), 1), cut - 1);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_OCCUPIED, import_page(dst.get(), 1, first));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 1, second));
            CHECK_EQ(pos_max(dst.get(), 1), n - 1);
            check_same_page(whole, export_page(dst.get(), 1, 0, n));

            const llama_context_ptr again = make_context(model(), layout);
            decode(again.get(), 0, 0, random_tokens(n, 1));
            CHECK_SAME_BITS(greedy(again.get(), 0, n, 5, 4), greedy(dst.get(), 1, n, 5, 4));
        }
    });
}

// decode appends to an imported page, a page appends to decoded tokens
TEST(pages_and_decodes_alternate) {
    for_each_layout([](const cache_layout & layout) {
        const auto              tokens = random_tokens(30, 1);
        const llama_context_ptr src    = make_context(model(), layout);
        decode(src.get(), 0, 0, { tokens.begin(), tokens.begin() + 10 });
        decode(src.get(), 0, 10, { tokens.begin() + 10, tokens.begin() + 20 });
        decode(src.get(), 0, 20, { tokens.begin() + 20, tokens.end() });

        const llama_context_ptr dst = make_context(model(), layout);
        decode(dst.get(), 2, 0, { tokens.begin(), tokens.begin() + 10 });
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 2, export_page(src.get(), 0, 10, 20)));
        decode(dst.get(), 2, 20, { tokens.begin() + 20, tokens.end() });
        check_same_page(export_page(src.get(), 0, 0, 30), export_page(dst.get(), 2, 0, 30));
        CHECK_SAME_BITS(greedy(src.get(), 0, 30, 5, 4), greedy(dst.get(), 2, 30, 5, 4));
    });
}

TEST(smallest_and_largest_page) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr src = make_context(model(), layout);
        decode(src.get(), 0, 0, random_tokens(n_cells, 1));
        for (int32_t n : { 1, int32_t(n_cells) }) {
            SCOPE(std::to_string(n) + " tokens");
            const page              page = export_page(src.get(), 0, 0, n);
            const llama_context_ptr dst  = make_context(model(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(dst.get(), 1, page));
            CHECK_EQ(pos_max(dst.get(), 1), n - 1);
            check_same_page(page, export_page(dst.get(), 1, 0, n));
        }
        uint64_t payload_bytes = 0;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS,
                     llama_kv_page_size(src.get(), 0, 0, int32_t(n_cells) + 1, &payload_bytes));
    });
}

// more than one thread copies only pages over 1 MiB
TEST(threads_give_the_same_bytes) {
    tiny_llama shape;
    shape.n_head               = 8;
    shape.n_head_kv            = 8;
    const llama_model_ptr wide = make_tiny_llama(shape);
    for (bool flash_attn : { false, true }) {
        const cache_layout      layout = { GGML_TYPE_F32, GGML_TYPE_F32, flash_attn, true };
        const llama_context_ptr src    = make_context(wide.get(), layout);
        const llama_context_ptr dst    = make_context(wide.get(), layout);
        decode(src.get(), 0, 0, random_tokens(n_cells, 1));
        page one = export_page(src.get(), 0, 0, n_cells);
        CHECK_EQ(one.stats.n_threads, 1u);
        CHECK(one.payload.size() >= 2 * 1024 * 1024);

        page       three   = one;
        const auto options = new_options(LLAMA_KV_PAGE_FLAG_DIGEST, 3);
        three.payload.assign(one.payload.size(), 0xA5);
        three.stats = new_stats();
        CHECK_STATUS(LLAMA_KV_PAGE_OK,
                     llama_kv_page_export(src.get(), 0, 0, n_cells, three.payload.data(), three.payload.size(),
                                          three.components.data(), three.info.n_components, &options, &three.stats));
        CHECK_EQ(three.stats.n_threads, 3u);
        check_same_page(one, three);

        llama_kv_page_stats stats = new_stats();
        CHECK_STATUS(LLAMA_KV_PAGE_OK,
                     llama_kv_page_import(dst.get(), 1, 0, three.components.data(), three.info.n_components,
                                          three.payload.data(), three.payload.size(), &options, &stats));
        CHECK_EQ(stats.n_threads, 3u);
        check_same_page(one, export_page(dst.get(), 1, 0, n_cells));
    }
}

//
// calls that are refused
//

TEST(wrong_calls_change_nothing) {
    for_each_layout([](const cache_layout & layout) {
        twins           pair(model(), layout);
        llama_context * ctx   = pair.touched.get();
        const page      page  = make_page(layout);
        const auto      n     = uint32_t(page.components.size());
        const int32_t   p_end = int32_t(page.n_tokens());

        const int32_t seq_id_end = int32_t(layout.unified ? llama_max_parallel_sequences() : layout.n_seq_max);

        std::vector<llama_kv_page_component> components(n);
        std::vector<uint8_t>                 buffer(page.payload.size());
        uint64_t                             payload_bytes = 0;

        llama_kv_page_caps caps = {};
        caps.struct_size        = sizeof(caps);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_get_caps(ctx, &caps));
        CHECK_EQ(caps.status, LLAMA_KV_PAGE_OK);
        CHECK_EQ(caps.abi_version, llama_kv_page_abi_version());
        CHECK_EQ(caps.n_seq_max, uint32_t(seq_id_end));
        CHECK_EQ(caps.n_streams, layout.unified ? 1u : layout.n_seq_max);
        CHECK_EQ(caps.n_cells, n_cells);
        CHECK_EQ(caps.n_components, n);
        CHECK_EQ(caps.v_transposed, !layout.flash_attn);
        uint64_t row_bytes = 0;
        for (const auto & component : page.components) {
            row_bytes += component.row_bytes;
        }
        CHECK_EQ(caps.bytes_per_token, row_bytes);

        const auto import_with = [&](llama_context * ctx, int32_t seq_id, int32_t p0,
                                     const llama_kv_page_component * table, uint32_t n_components, const void * src,
                                     uint64_t src_bytes, const llama_kv_page_options * options,
                                     llama_kv_page_stats * stats) {
            // reserve has the same arguments, but for the payload
            if (src && src_bytes == page.payload.size() && !options && !stats) {
                const int32_t import_status =
                    llama_kv_page_import(ctx, seq_id, p0, table, n_components, src, src_bytes, nullptr, nullptr);
                const std::string           message = llama_kv_page_last_message();
                llama_kv_page_reservation * handle  = nullptr;
                CHECK_STATUS(import_status, llama_kv_page_reserve(ctx, seq_id, p0, table, n_components, &handle));
                CHECK(handle == nullptr);
                CHECK_EQ(message, std::string(llama_kv_page_last_message()));
                return import_status;
            }
            return llama_kv_page_import(ctx, seq_id, p0, table, n_components, src, src_bytes, options, stats);
        };
        const auto * table = page.components.data();
        const auto * src   = page.payload.data();
        const auto   bytes = page.payload.size();

        // NULL
        for (int32_t status : {
                 llama_kv_page_get_caps(nullptr, &caps),
                 llama_kv_page_get_caps(ctx, nullptr),
                 llama_kv_page_describe(ctx, 0, 0, 1, nullptr, nullptr, 0),
                 llama_kv_page_size(nullptr, 0, 0, 1, &payload_bytes),
                 llama_kv_page_size(ctx, 0, 0, 1, nullptr),
                 llama_kv_page_export(ctx, 0, 0, 1, nullptr, 0, nullptr, 0, nullptr, nullptr),
                 llama_kv_page_export(nullptr, 0, 0, 1, buffer.data(), 1, nullptr, 0, nullptr, nullptr),
                 import_with(nullptr, 2, 0, table, n, src, bytes, nullptr, nullptr),
                 import_with(ctx, 2, 0, nullptr, n, src, bytes, nullptr, nullptr),
                 import_with(ctx, 2, 0, table, 0, src, bytes, nullptr, nullptr),
                 import_with(ctx, 2, 0, table, n, nullptr, bytes, nullptr, nullptr),
                 llama_kv_page_reserve(ctx, 2, 0, table, n, nullptr),
                 llama_kv_page_write(nullptr, 0, src, bytes, nullptr),
                 llama_kv_page_commit(nullptr),
             }) {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, status);
        }
        llama_kv_page_close(nullptr);
        {
            const auto digest = new_options();
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_kv_page_export(ctx, 0, 0, p_end, buffer.data(),
                                                                          buffer.size(), nullptr, 0, &digest, nullptr));
        }
        pair.check_same_future();

        // sizes of structs
        for (uint32_t wrong : { 0u, 1u, 7u, UINT32_MAX }) {
            caps.struct_size = wrong;
            CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, llama_kv_page_get_caps(ctx, &caps)),
                           std::to_string(wrong));
            auto info        = new_info();
            info.struct_size = wrong;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, llama_kv_page_describe(ctx, 0, 0, 1, &info, nullptr, 0));
            info                       = new_info();
            info.component_struct_size = wrong;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, llama_kv_page_describe(ctx, 0, 0, 1, &info, nullptr, 0));
            auto options        = new_options();
            options.struct_size = wrong;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE,
                         import_with(ctx, 2, 0, table, n, src, bytes, &options, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, llama_kv_page_export(ctx, 0, 0, twins::n_seq0, buffer.data(), 1,
                                                                             nullptr, 0, &options, nullptr));
            auto stats        = new_stats();
            stats.struct_size = wrong;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE, import_with(ctx, 2, 0, table, n, src, bytes, nullptr, &stats));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STRUCT_SIZE,
                         llama_kv_page_export(ctx, 0, 0, twins::n_seq0, buffer.data(), 1, nullptr, 0, nullptr, &stats));
        }

        // options
        for (uint32_t flags : { 2u, 3u, 0x80000000u, UINT32_MAX }) {
            const auto options = new_options(flags);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, import_with(ctx, 2, 0, table, n, src, bytes, &options, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                         llama_kv_page_export(ctx, 0, 0, p_end, buffer.data(), buffer.size(), components.data(), n,
                                              &options, nullptr));
        }
        auto reserved     = new_options();
        reserved.reserved = 1;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, import_with(ctx, 2, 0, table, n, src, bytes, &reserved, nullptr));
        pair.check_same_future();

        // sequence ids
        for (int32_t seq_id : { -1, seq_id_end, int32_max, int32_min }) {
            const auto check = [&](int32_t status) {
                CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_SEQ_ID, status), std::to_string(seq_id));
            };
            auto info = new_info();
            check(llama_kv_page_describe(ctx, seq_id, 0, 1, &info, nullptr, 0));
            check(llama_kv_page_size(ctx, seq_id, 0, 1, &payload_bytes));
            check(llama_kv_page_export(ctx, seq_id, 0, 1, buffer.data(), 1, nullptr, 0, nullptr, nullptr));
            check(import_with(ctx, seq_id, 0, table, n, src, bytes, nullptr, nullptr));
        }
        pair.check_same_future();

        // positions
        const std::vector<std::pair<int32_t, int32_t>> bad_ranges = {
            { 0, 0 },
            { 5, 5 },
            { 6, 5 },
            { -1, 1 },
            { int32_min, int32_max },
            { int32_min, 0 },
            { -5, -2 },
            { int32_max, 0 },
            { int32_max, int32_min },
        };
        for (const auto & [p0, p1] : bad_ranges) {
            SCOPE("positions [" + std::to_string(p0) + ", " + std::to_string(p1) + ")");
            auto info = new_info();
            for (int32_t status : {
                     llama_kv_page_describe(ctx, 0, p0, p1, &info, nullptr, 0),
                     llama_kv_page_size(ctx, 0, p0, p1, &payload_bytes),
                     llama_kv_page_export(ctx, 0, p0, p1, buffer.data(), buffer.size(), nullptr, 0, nullptr, nullptr),
                 }) {
                CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, status), std::to_string(p0));
            }
        }
        CHECK_CONTAINS(
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS, llama_kv_page_size(ctx, 0, 0, int32_max, &payload_bytes)),
            std::to_string(n_cells));
        for (int32_t p0 : { -1, int32_min, int32_max, int32_max - p_end + 1 }) {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, import_with(ctx, 2, p0, table, n, src, bytes, nullptr, nullptr));
        }
        pair.check_same_future();

        // the state of the sequence
        CHECK_CONTAINS(
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_OCCUPIED, import_with(ctx, 0, 0, table, n, src, bytes, nullptr, nullptr)),
            std::to_string(twins::n_seq0 - 1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_OCCUPIED,
                     import_with(ctx, 0, twins::n_seq0 - 1, table, n, src, bytes, nullptr, nullptr));
        CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_GAP,
                                    import_with(ctx, 0, twins::n_seq0 + 1, table, n, src, bytes, nullptr, nullptr)),
                       std::to_string(twins::n_seq0 + 1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_GAP, import_with(ctx, 2, 1, table, n, src, bytes, nullptr, nullptr));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_GAP,
                     import_with(ctx, 2, int32_max - p_end, table, n, src, bytes, nullptr, nullptr));
        CHECK_CONTAINS(
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_MISSING, llama_kv_page_export(ctx, 1, 0, p_end, buffer.data(), buffer.size(),
                                                                         components.data(), n, nullptr, nullptr)),
            "position " + std::to_string(twins::n_seq1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_MISSING, llama_kv_page_export(ctx, 2, 0, p_end, buffer.data(), buffer.size(),
                                                                     components.data(), n, nullptr, nullptr));
        pair.check_same_future();

        // sizes of buffers
        for (uint64_t wrong : { uint64_t(0), uint64_t(1), uint64_t(bytes - 1), uint64_t(bytes + 1), UINT64_MAX }) {
            CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE,
                                        import_with(ctx, 2, 0, table, n, src, wrong, nullptr, nullptr)),
                           std::to_string(bytes));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE, llama_kv_page_export(ctx, 0, 0, p_end, buffer.data(), wrong,
                                                                             components.data(), n, nullptr, nullptr));
        }
        auto info = new_info();
        for (uint32_t too_few : { 0u, n - 1 }) {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE,
                         llama_kv_page_describe(ctx, 0, 0, 1, &info, components.data(), too_few));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE,
                         llama_kv_page_export(ctx, 0, 0, p_end, buffer.data(), buffer.size(), components.data(),
                                              too_few, nullptr, nullptr));
        }
        pair.check_same_future();

        // and after all of it, the right call works
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(ctx, 2, page));
        check_same_page(page, export_page(ctx, 2, 0, p_end));
    });
}

TEST(not_enough_cells) {
    for_each_layout([](const cache_layout & layout) {
        const page              page   = make_page(layout, 24);
        const llama_context_ptr ctx    = make_context(model(), layout);
        const llama_context_ptr twin   = make_context(model(), layout);
        // in one pool another sequence takes the cells, else the sequence itself does
        const llama_seq_id      holder = layout.unified ? 0 : 1;
        const int32_t           n      = int32_t(n_cells) - 23;
        for (llama_context * each : { ctx.get(), twin.get() }) {
            decode(each, holder, 0, random_tokens(n, 1));
        }
        auto moved = page;
        moved.p0   = layout.unified ? 0 : n;
        CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_NO_CELLS, import_page(ctx.get(), 1, moved)), std::to_string(n));
        check_same_continuation(ctx, twin, holder, n);

        for (llama_context * each : { ctx.get(), twin.get() }) {
            CHECK(llama_memory_seq_rm(llama_get_memory(each), holder, n - 1, -1));
        }
        if (!layout.unified) {
            moved.p0--;
        }
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(ctx.get(), 1, moved));
    });
}

TEST(damaged_payload_is_rolled_back) {
    for_each_layout([](const cache_layout & layout) {
        twins      pair(model(), layout);
        const page good = make_page(layout);
        for (const auto & component : good.components) {
            for (uint64_t at : { component.offset, component.offset + component.n_bytes - 1 }) {
                SCOPE("byte " + std::to_string(at) + " of the payload");
                page bad = good;
                bad.payload[at] ^= 0x10;
                const auto message = CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, import_page(pair.touched.get(), 2, bad));
                CHECK_CONTAINS(message, "layer " + std::to_string(component.layer));
                CHECK_EQ(pos_max(pair.touched.get(), 2), -1);
                pair.check_same_future();
            }
        }
        for (uint32_t i = 0; i < good.components.size(); ++i) {
            page bad = good;
            bad.components[i].xxh3 ^= 1;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, import_page(pair.touched.get(), 2, bad));
        }
        pair.check_same_future();

        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(pair.touched.get(), 2, good));
        check_same_page(good, export_page(pair.touched.get(), 2, 0, int32_t(good.n_tokens())));
    });
}

// attention reads masked and free cells too: a single NaN left behind would make every later logit NaN
TEST(rolled_back_cells_are_finite) {
    for_each_layout([](const cache_layout & layout) {
        twins pair(model(), layout);
        page  bad = make_page(layout);
        for (const auto & component : bad.components) {
            memset(bad.payload.data() + component.offset, 0xFF, component.n_bytes); // NaN in every float type
        }
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, import_page(pair.touched.get(), 2, bad));
        pair.check_same_future();

        // the same cells, taken by a decode
        const auto run = [](llama_context * ctx) { return decode(ctx, 2, 0, random_tokens(30, 4)); };
        CHECK_SAME_BITS(run(pair.touched.get()), run(pair.untouched.get()));
        pair.check_same_future();

        // in steps
        CHECK(llama_memory_seq_rm(memory(pair.touched), 2, -1, -1));
        CHECK(llama_memory_seq_rm(memory(pair.untouched), 2, -1, -1));
        reservation steps(pair.touched.get(), 2, bad);
        for (uint32_t i = 0; i < bad.components.size(); ++i) {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, steps.write(bad, i));
        }
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_INCOMPLETE, llama_kv_page_commit(steps.handle));
        steps.close();
        pair.check_same_future();
    });
}

// the same with the reserved cells in many pieces, between those of another sequence
TEST(rolled_back_fragments_are_finite) {
    constexpr int32_t n = 120;
    for_each_layout([](cache_layout layout) {
        layout.unified = true;
        page bad       = make_page(layout, n);
        for (const auto & component : bad.components) {
            memset(bad.payload.data() + component.offset, 0xFF, component.n_bytes);
        }
        const llama_context_ptr touched   = make_context(model(), layout);
        const llama_context_ptr untouched = make_context(model(), layout);
        for (const auto & ctx : { touched.get(), untouched.get() }) {
            for (int32_t i = 0; i < n; ++i) {
                decode(ctx, 0, i, { i % 64 });
                decode(ctx, 1, i, { 63 - i % 64 });
            }
            CHECK(llama_memory_seq_rm(llama_get_memory(ctx), 0, -1, -1));
        }
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, import_page(touched.get(), 2, bad));
        check_same_continuation(touched, untouched, 1, n);
        reservation again(touched.get(), 2, make_page(layout, n));
        again.write_all(make_page(layout, n));
        again.close();
        check_same_continuation(touched, untouched, 1, n + 16);
    });
}

TEST(every_field_of_the_component_table) {
    for_each_layout([](const cache_layout & layout) {
        twins      pair(model(), layout);
        const page good = make_page(layout);
        const auto n    = uint32_t(good.components.size());

        using component = llama_kv_page_component;
        struct change {
            const char *                       what;
            int32_t                            expected;
            std::function<void(component & c)> apply;
        };
        const auto other_type = [](int32_t type) {
            // as many bytes a row where there is such a type: a row size is not a type
            switch (type) {
                case GGML_TYPE_F16: return GGML_TYPE_BF16;
                case GGML_TYPE_F32: return GGML_TYPE_I32;
                case GGML_TYPE_Q4_0: return GGML_TYPE_IQ4_NL;
                default: return GGML_TYPE_Q8_1;
            }
        };
        const std::vector<change> changes = {
            { "layer + 1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.layer++; } },
            { "layer = -1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.layer      = -1; } },
            { "K for V", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.kind          = 3 - c.kind; } },
            { "kind = 0", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.kind         = 0; } },
            { "kind = -1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.kind        = -1; } },
            { "type of the same size", LLAMA_KV_PAGE_ERR_TYPE, [&](component & c) { c.type = other_type(c.type); } },
            { "type = -1", LLAMA_KV_PAGE_ERR_TYPE, [](component & c) { c.type              = -1; } },
            { "type = GGML_TYPE_COUNT", LLAMA_KV_PAGE_ERR_TYPE, [](component & c) { c.type = GGML_TYPE_COUNT; } },
            { "type = INT32_MAX", LLAMA_KV_PAGE_ERR_TYPE, [](component & c) { c.type       = INT32_MAX; } },
            { "transposed, or not", LLAMA_KV_PAGE_ERR_LAYOUT, [](component & c) { c.transposed ^= 1; } },
            { "transposed = 2", LLAMA_KV_PAGE_ERR_LAYOUT, [](component & c) { c.transposed = 2; } },
            { "rotated, or not", LLAMA_KV_PAGE_ERR_ROTATION, [](component & c) { c.n_rot   = c.n_rot ? 0 : 64; } },
            { "rotated by 128", LLAMA_KV_PAGE_ERR_ROTATION, [](component & c) { c.n_rot    = 128; } },
            { "n_channels + 1", LLAMA_KV_PAGE_ERR_WIDTH, [](component & c) { c.n_channels++; } },
            { "n_channels = 0", LLAMA_KV_PAGE_ERR_WIDTH, [](component & c) { c.n_channels = 0; } },
            { "row_bytes - 1", LLAMA_KV_PAGE_ERR_WIDTH, [](component & c) { c.row_bytes--; } },
            { "row_bytes = 0", LLAMA_KV_PAGE_ERR_WIDTH, [](component & c) { c.row_bytes = 0; } },
            { "offset + 1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.offset++; } },
            { "offset + 64", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.offset += 64; } },
            { "offset = UINT64_MAX", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.offset = UINT64_MAX; } },
            { "n_bytes + 1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.n_bytes++; } },
            { "n_bytes = 0", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.n_bytes          = 0; } },
            { "n_bytes = UINT64_MAX", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.n_bytes = UINT64_MAX; } },
            { "n_tokens + 1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.n_tokens++; } },
            { "n_tokens - 1", LLAMA_KV_PAGE_ERR_COMPONENTS, [](component & c) { c.n_tokens--; } },
            { "xxh3", LLAMA_KV_PAGE_ERR_DIGEST, [](component & c) { c.xxh3 = ~c.xxh3; } },
        };
        for (uint32_t i = 0; i < n; ++i) {
            for (const auto & change : changes) {
                SCOPE(std::string(change.what) + " in component " + std::to_string(i));
                page bad = good;
                change.apply(bad.components[i]);
                const auto message = CHECK_STATUS(change.expected, import_page(pair.touched.get(), 2, bad));
                CHECK_CONTAINS(message, "layer " + std::to_string(good.components[i].layer));
            }
            pair.check_same_future();
        }

        // the first component's token count sizes the page
        const std::vector<std::pair<uint32_t, int32_t>> counts = {
            { 0, LLAMA_KV_PAGE_ERR_ARGUMENT },          { n_cells + 1, LLAMA_KV_PAGE_ERR_NO_CELLS },
            { INT32_MAX, LLAMA_KV_PAGE_ERR_NO_CELLS },  { uint32_t(INT32_MAX) + 1, LLAMA_KV_PAGE_ERR_ARGUMENT },
            { UINT32_MAX, LLAMA_KV_PAGE_ERR_ARGUMENT },
        };
        for (const auto & [count, expected] : counts) {
            SCOPE("n_tokens = " + std::to_string(count));
            page bad = good;
            for (auto & c : bad.components) {
                c.n_tokens = count;
            }
            CHECK_STATUS(expected, import_page(pair.touched.get(), 2, bad));
        }

        // components that are missing, twice there, or in another order
        page bad = good;
        bad.components.pop_back();
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_COMPONENTS, import_page(pair.touched.get(), 2, bad));
        bad = good;
        bad.components.push_back(good.components.back());
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_COMPONENTS, import_page(pair.touched.get(), 2, bad));
        bad = good;
        std::swap(bad.components[0], bad.components[1]);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_COMPONENTS, import_page(pair.touched.get(), 2, bad));
        pair.check_same_future();
    });
}

// pages of other caches of the same model
TEST(page_of_another_layout) {
    const std::vector<std::tuple<cache_layout, cache_layout, int32_t>> cases = {
        { { GGML_TYPE_F32, GGML_TYPE_F32 }, { GGML_TYPE_F16, GGML_TYPE_F16 }, LLAMA_KV_PAGE_ERR_TYPE },
        { { GGML_TYPE_BF16, GGML_TYPE_F16 }, { GGML_TYPE_F16, GGML_TYPE_F16 }, LLAMA_KV_PAGE_ERR_TYPE },
        { { GGML_TYPE_F16, GGML_TYPE_F16, true }, { GGML_TYPE_F16, GGML_TYPE_F16, false }, LLAMA_KV_PAGE_ERR_LAYOUT },
        { { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, true },
          { GGML_TYPE_IQ4_NL, GGML_TYPE_Q4_0, true },
          LLAMA_KV_PAGE_ERR_TYPE },
    };
    for (const auto & [from, to, expected] : cases) {
        for (bool swapped : { false, true }) {
            const auto & src = swapped ? to : from;
            const auto & dst = swapped ? from : to;
            SCOPE(to_string(src) + " into " + to_string(dst));
            twins pair(model(), dst);
            CHECK_STATUS(expected, import_page(pair.touched.get(), 2, make_page(src)));
            pair.check_same_future();
        }
    }
    // pools do not matter
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 import_page(make_context(model(), { GGML_TYPE_F16, GGML_TYPE_F16, false, false }).get(), 2,
                             make_page({ GGML_TYPE_F16, GGML_TYPE_F16, false, true })));
}

// LLAMA_ATTN_ROT_DISABLE changes what the bytes of a quantised cache mean
TEST(page_of_another_rotation) {
    const cache_layout layout = { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true };
    const page         plain  = [&] {
        setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
        const page res = make_page(layout);
        unsetenv("LLAMA_ATTN_ROT_DISABLE");
        return res;
    }();
    CHECK_EQ(plain.components[0].n_rot, 0u);
    twins pair(model(), layout);
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_ROTATION, import_page(pair.touched.get(), 2, plain));
    pair.check_same_future();
}

TEST(page_of_another_model) {
    const auto make_other = [](const std::function<void(tiny_llama &)> & change) {
        tiny_llama shape;
        change(shape);
        const llama_model_ptr   other = make_tiny_llama(shape);
        const llama_context_ptr ctx   = make_context(other.get(), {});
        decode(ctx.get(), 0, 0, random_tokens(24, 1));
        return export_page(ctx.get(), 0, 0, 24);
    };
    twins pair(model(), {});
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_COMPONENTS,
                 import_page(pair.touched.get(), 2, make_other([](tiny_llama & shape) { shape.n_layer = 3; })));
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_WIDTH,
                 import_page(pair.touched.get(), 2, make_other([](tiny_llama & shape) { shape.n_head_kv = 1; })));
    CHECK_STATUS(LLAMA_KV_PAGE_ERR_WIDTH,
                 import_page(pair.touched.get(), 2, make_other([](tiny_llama & shape) { shape.head_dim = 32; })));
    pair.check_same_future();
}

//
// reservations
//

TEST(reservation_in_steps) {
    for_each_layout([](const cache_layout & layout) {
        twins           pair(model(), layout);
        llama_context * ctx   = pair.touched.get();
        const page      good  = make_page(layout);
        const page      wrong = make_page(layout, 24, 77);
        const auto      n     = uint32_t(good.components.size());

        reservation steps(ctx, 2, good);

        // one at a time, and it does not answer for the sequence yet
        llama_kv_page_reservation * second = nullptr;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, llama_kv_page_reserve(ctx, 2, 0, good.components.data(), n, &second));
        CHECK(second == nullptr);
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUSY, import_page(ctx, 2, good));
        CHECK_EQ(pos_max(ctx, 2), -1);

        // what could take the cells is refused
        CHECK(try_decode(ctx, 0, twins::n_seq0, { 1 }) != 0);
        std::vector<uint8_t> state(llama_state_seq_get_size(ctx, 0));
        CHECK_EQ(llama_state_seq_get_data(ctx, state.data(), state.size(), 0), state.size());
        CHECK_EQ(llama_state_seq_set_data(ctx, state.data(), state.size(), 1), 0u);
        std::vector<uint8_t> whole(llama_state_get_size(ctx));
        CHECK_EQ(llama_state_get_data(ctx, whole.data(), whole.size()), whole.size());
        CHECK_EQ(llama_state_set_data(ctx, whole.data(), whole.size()), 0u);
        CHECK_EQ(pos_max(ctx, 0), twins::n_seq0 - 1);
        CHECK_EQ(pos_max(ctx, 1), twins::n_seq1 - 1);

        // exports are not
        export_page(ctx, 0, 0, twins::n_seq0);

        // backwards, twice, with wrong calls between
        CHECK_CONTAINS(CHECK_STATUS(LLAMA_KV_PAGE_ERR_INCOMPLETE, llama_kv_page_commit(steps.handle)), "layer 0 K");
        for (uint32_t i = n; i-- > 0;) {
            const auto &    component = good.components[i];
            const uint8_t * src       = good.payload.data() + component.offset;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_BUFFER_SIZE,
                         llama_kv_page_write(steps.handle, i, src, component.n_bytes - 1, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                         llama_kv_page_write(steps.handle, i, nullptr, component.n_bytes, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT,
                         llama_kv_page_write(steps.handle, n, src, component.n_bytes, nullptr));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, steps.write(wrong, i));
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_INCOMPLETE, llama_kv_page_commit(steps.handle));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.write(good, i));
            CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.write(good, i));
        }
        // a failed write takes back an earlier one
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_DIGEST, steps.write(wrong, 1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_INCOMPLETE, llama_kv_page_commit(steps.handle));
        CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.write(good, 1));

        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_commit(steps.handle));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, llama_kv_page_commit(steps.handle));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_ARGUMENT, steps.write(good, 0));
        check_same_page(good, export_page(ctx, 2, 0, int32_t(good.n_tokens())));

        // open no more: decode and the next import go on before the close
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(pair.untouched.get(), 2, good));
        pair.check_same_future();
        steps.close();
        pair.check_same_future();
        check_same_continuation(pair.touched, pair.untouched, 2, int32_t(good.n_tokens()));
    });
}

TEST(close_without_commit_rolls_back) {
    for_each_layout([](const cache_layout & layout) {
        twins      pair(model(), layout);
        const page good = make_page(layout);
        for (uint32_t n_written : { 0u, 1u, uint32_t(good.components.size()) }) {
            reservation steps(pair.touched.get(), 2, good);
            for (uint32_t i = 0; i < n_written; ++i) {
                CHECK_STATUS(LLAMA_KV_PAGE_OK, steps.write(good, i));
            }
            steps.close();
            CHECK_EQ(pos_max(pair.touched.get(), 2), -1);
            pair.check_same_future();
        }
        CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(pair.touched.get(), 2, good));
    });
}

TEST(stale_after_clear) {
    for_each_layout([](const cache_layout & layout) {
        for (bool data : { true, false }) {
            SCOPE(data ? "llama_memory_clear with data" : "llama_memory_clear without data");
            twins       pair(model(), layout);
            const page  good = make_page(layout);
            reservation steps(pair.touched.get(), 2, good);
            steps.write_all(good);
            llama_memory_clear(memory(pair.touched), data);
            llama_memory_clear(memory(pair.untouched), data);
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STALE, llama_kv_page_commit(steps.handle));
            CHECK_EQ(pos_max(pair.touched.get(), 2), -1);
            steps.close();

            for (llama_context * ctx : { pair.touched.get(), pair.untouched.get() }) {
                decode(ctx, 0, 0, random_tokens(twins::n_seq0, 1));
                decode(ctx, 1, 0, random_tokens(twins::n_seq1, 2));
            }
            pair.check_same_future();
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_page(pair.touched.get(), 2, good));
        }
    });
}

// the copy of a whole pool is done later, over the page's bytes
TEST(stale_after_copy_over_the_pool) {
    for_each_layout([](cache_layout layout) {
        layout.unified = false;
        twins       pair(model(), layout);
        const page  good = make_page(layout);
        reservation steps(pair.touched.get(), 2, good);
        steps.write_all(good);
        for (const auto & ctx : { &pair.touched, &pair.untouched }) {
            llama_memory_seq_cp(memory(*ctx), 0, 2, -1, -1);
        }
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_STALE, llama_kv_page_commit(steps.handle));
        steps.close();
        check_same_continuation(pair.touched, pair.untouched, 2, twins::n_seq0);

        // even if the copied cells are gone again when the page is committed
        CHECK(llama_memory_seq_rm(memory(pair.touched), 2, -1, -1));
        reservation again(pair.touched.get(), 2, good);
        again.write_all(good);
        llama_memory_seq_cp(memory(pair.touched), 0, 2, -1, -1);
        CHECK(llama_memory_seq_rm(memory(pair.touched), 2, -1, -1));
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_STALE, llama_kv_page_commit(again.handle));
        again.close();

        // a copy over another pool does not matter
        reservation third(pair.touched.get(), 2, good);
        third.write_all(good);
        llama_memory_seq_cp(memory(pair.touched), 0, 1, -1, -1);
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_kv_page_commit(third.handle));
        check_same_page(good, export_page(pair.touched.get(), 2, 0, int32_t(good.n_tokens())));
    });
}

// the page would no longer begin where the sequence ends
TEST(stale_after_the_sequence_changed) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr src = make_context(model(), layout);
        decode(src.get(), 0, 0, random_tokens(twins::n_seq0 + 8, 1));
        const page good = export_page(src.get(), 0, twins::n_seq0, twins::n_seq0 + 8);

        const std::vector<std::pair<const char *, std::function<void(llama_memory_t)>>> changes = {
            { "shorter", [](llama_memory_t memory) { llama_memory_seq_rm(memory, 0, 10, -1); } },
            { "empty", [](llama_memory_t memory) { llama_memory_seq_rm(memory, 0, -1, -1); } },
            { "shifted up", [](llama_memory_t memory) { llama_memory_seq_add(memory, 0, 10, -1, 3); } },
            { "shifted down",
              [](llama_memory_t memory) {
                  llama_memory_seq_rm(memory, 0, 0, 4);
                  llama_memory_seq_add(memory, 0, 4, -1, -4);
              } },
        };
        for (const auto & [what, change] : changes) {
            SCOPE(std::string("the sequence became ") + what);
            twins       pair(model(), layout);
            reservation steps(pair.touched.get(), 0, good);
            steps.write_all(good);
            change(memory(pair.touched));
            change(memory(pair.untouched));
            const llama_pos end = pos_max(pair.untouched.get(), 0) + 1;
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_STALE, llama_kv_page_commit(steps.handle));
            steps.close();
            check_same_continuation(pair.touched, pair.untouched, 0, end);
        }
    });
}

TEST(statuses_have_names) {
    CHECK_EQ(std::string(llama_kv_page_status_name(LLAMA_KV_PAGE_OK)), std::string("OK"));
    CHECK_EQ(std::string(llama_kv_page_status_name(LLAMA_KV_PAGE_REFUSED_DSV4)), std::string("REFUSED_DSV4"));
    std::vector<std::string> names;
    for (int32_t status = -2; status < 100; ++status) {
        const std::string name = llama_kv_page_status_name(status);
        if (name != "UNKNOWN_STATUS") {
            CHECK(std::find(names.begin(), names.end(), name) == names.end());
            names.push_back(name);
        }
    }
    CHECK_EQ(names.size(), 43u);
    CHECK_EQ(std::string(llama_kv_page_status_name(-1)), std::string("UNKNOWN_STATUS"));
    CHECK_EQ(llama_kv_page_abi_version(), uint32_t(LLAMA_KV_PAGE_ABI_VERSION));
    CHECK_EQ(strlen(llama_kv_page_patch_digest()), 64u);
    CHECK_EQ(strlen(llama_kv_page_llama_commit()), 40u);
    CHECK(strstr(llama_print_system_info(), "CACHEGEN : abi 1") != nullptr);
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
