// Archives of every memory class: dummy models of every architecture, flash attention on and off, one pool of cells and
// one a sequence, pairs of cache types. What a restored context does next is what the context did that was saved, and
// an import that fails leaves no trace. Prints the table of what works and what is refused by which status.
#include "every_architecture.h"
#include "llama-cachegen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr int32_t n_page = 150;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool     is_thorough = false; // some ten times slower: fewer combinations of the same code
constexpr uint32_t n_thorough  = 1;
#else
constexpr bool     is_thorough = true;
constexpr uint32_t n_thorough  = 3;
#endif

struct context_case {
    ggml_type type_k     = GGML_TYPE_F16;
    ggml_type type_v     = GGML_TYPE_F16;
    bool      flash_attn = true;
    bool      unified    = true;
    bool      swa_full   = false;
    uint32_t  n_ctx      = n_cells;
};

llama_context_ptr make_class_context(llama_model * model, const context_case & c) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = c.unified ? c.n_ctx : 2 * c.n_ctx;
    params.n_batch              = 64;
    params.n_ubatch             = 64;
    params.n_seq_max            = 2;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.type_k               = c.type_k;
    params.type_v               = c.type_v;
    params.kv_unified           = c.unified;
    params.swa_full             = c.swa_full;
    params.flash_attn_type      = c.flash_attn ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_context_ptr(llama_init_from_model(model, params));
}

void decode_all(llama_context * ctx, llama_seq_id seq_id, const std::vector<llama_token> & tokens, int32_t p0 = 0) {
    for (size_t i = 0; i < tokens.size(); i += 64) {
        const auto end = std::min(tokens.size(), i + 64);
        decode(ctx, seq_id, p0 + int32_t(i),
               { tokens.begin() + std::ptrdiff_t(i), tokens.begin() + std::ptrdiff_t(end) });
    }
}

std::vector<llama_cachegen_component_caps> components_of(llama_context * ctx, int32_t & status) {
    uint32_t n = 0;
    status     = llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, nullptr, 0, &n);
    std::vector<llama_cachegen_component_caps> caps(status == LLAMA_KV_PAGE_OK ? n : 0);
    if (!caps.empty()) {
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_get_caps(ctx, LLAMA_CACHEGEN_FORMAT_LCG3, caps.data(), n, &n));
    }
    return caps;
}

int32_t append(void * user_data, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    auto & archive = *static_cast<byte_vector *>(user_data);
    if (archive.size() < offset + n_bytes) {
        archive.resize(offset + n_bytes);
    }
    memcpy(archive.data() + offset, bytes, n_bytes);
    return 0;
}

// n_levels 0: lossless
int32_t try_export(llama_context * ctx, llama_seq_id seq_id, int32_t p1, uint32_t n_levels, byte_vector & archive) {
    int32_t                            status = LLAMA_KV_PAGE_OK;
    std::vector<llama_cachegen_coding> codings;
    for (const auto & c : components_of(ctx, status)) {
        const bool is_kv = c.kind == LLAMA_KV_PAGE_KIND_K || c.kind == LLAMA_KV_PAGE_KIND_V;
        codings.push_back({ c.layer, c.kind, is_kv ? n_levels : 0, GGML_TYPE_F16, 1 });
    }
    if (status != LLAMA_KV_PAGE_OK) {
        return status;
    }
    llama_cachegen_profile profile = {};
    profile.struct_size            = sizeof(profile);
    profile.block_tokens           = 64;
    profile.n_exact_tokens         = n_levels ? 2 : 0;
    profile.n_models               = 4;
    profile.n_classes              = 1;
    memcpy(profile.name, "test", 4);
    uint64_t archive_bytes = 0;
    archive.clear();
    const int32_t result = llama_cachegen_export(ctx, seq_id, 0, p1, &profile, codings.data(), uint32_t(codings.size()),
                                                 append, &archive, nullptr, &archive_bytes, nullptr);
    if (result == LLAMA_KV_PAGE_OK) {
        CHECK_EQ(archive.size(), archive_bytes);
    }
    return result;
}

llama_cachegen_options options_with(const std::vector<llama_token> & tokens) {
    llama_cachegen_options options = {};
    options.struct_size            = sizeof(options);
    options.tokens                 = tokens.data();
    return options;
}

int32_t import_all(llama_context * ctx, llama_seq_id seq_id, const byte_vector & archive, uint32_t n_tokens,
                   const llama_cachegen_options * options) {
    return llama_cachegen_import_archive(ctx, seq_id, 0, archive.data(), archive.size(), 0, n_tokens, options, nullptr);
}

// everything llama.cpp saves of a context: cells, positions, states
byte_vector whole_state(llama_context * ctx) {
    byte_vector state(llama_state_get_size(ctx));
    CHECK_EQ(llama_state_get_data(ctx, state.data(), state.size()), state.size());
    return state;
}

struct stop_at {
    uint32_t n_calls = 0;
    uint32_t n_good;

    static int32_t go_on(void * user_data, uint64_t, uint64_t) {
        auto & self = *static_cast<stop_at *>(user_data);
        return self.n_calls++ < self.n_good;
    }
};

// a call that stops after some blocks
llama_cachegen_options options_stopping(const std::vector<llama_token> & tokens, stop_at & stop) {
    auto options      = options_with(tokens);
    options.go_on     = stop_at::go_on;
    options.user_data = &stop;
    return options;
}

// an import that decodes everything and is closed without a commit
void write_all_and_close(llama_context * ctx, llama_seq_id seq_id, const byte_vector & archive, uint32_t n_tokens,
                         const llama_cachegen_options & options, uint32_t first_token = 0) {
    llama_cachegen_import * import = nullptr;
    CHECK_STATUS(LLAMA_KV_PAGE_OK,
                 llama_cachegen_import_begin(ctx, seq_id, int32_t(first_token), archive.data(), archive.size(),
                                             archive.size(), first_token, n_tokens, &options, &import));
    for (;;) {
        uint64_t offset  = 0;
        uint64_t n_bytes = 0;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_next(import, &offset, &n_bytes));
        if (n_bytes == 0) {
            break;
        }
        CHECK_STATUS(LLAMA_KV_PAGE_OK, llama_cachegen_import_feed(import, archive.data() + offset, n_bytes));
    }
    llama_cachegen_import_close(import);
}

float largest_difference(const std::vector<float> & a, const std::vector<float> & b) {
    CHECK_EQ(a.size(), b.size());
    float result = 0.0f;
    for (size_t i = 0; i < a.size(); ++i) {
        result = std::max(result, std::fabs(a[i] - b[i]));
    }
    return result;
}

// layers with a window among others; NULL if llama.cpp offers no such context
llama_context_ptr make_windowed_context(llama_model * model, const context_case & c) {
    llama_context_ptr ctx;
    if (!llama_model_has_encoder(model)) {
        ctx = make_class_context(model, c);
    }
    if (!ctx || std::string(llama_cachegen_memory_class(ctx.get())).find("iswa") == std::string::npos) {
        take_log();
        ctx.reset();
    }
    return ctx;
}

uint32_t g_n_rollbacks = 0;

// what fails in an import leaves the context as it was: stopped at every block, damaged, and asked for a part of a
// state
void check_rollbacks(llama_context * ctx, const byte_vector & archive, const std::vector<llama_token> & tokens,
                     bool has_state) {
    const byte_vector before    = whole_state(ctx);
    uint32_t          n_good    = 0;
    bool              completed = false;
    const auto        check     = [&](const char * what) {
        SCOPE(what);
        g_n_rollbacks++;
        CHECK_EQ(pos_max(ctx, 1), -1);
        CHECK_SAME_BITS(before, whole_state(ctx));
    };
    while (!completed) {
        stop_at       stop    = { 0, n_good++ };
        const auto    options = options_stopping(tokens, stop);
        const int32_t status  = import_all(ctx, 1, archive, n_page, &options);
        completed             = status == LLAMA_KV_PAGE_OK;
        if (completed) {
            CHECK(llama_memory_seq_rm(llama_get_memory(ctx), 1, -1, -1));
        } else {
            CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, status);
            check("stopped");
        }
    }
    CHECK(n_good > 1);
    const auto options = options_with(tokens);
    write_all_and_close(ctx, 1, archive, n_page, options);
    check("not committed");
    byte_vector damaged = archive;
    damaged[damaged.size() - 24] ^= 0x10; // in the last block
    const int32_t status = import_all(ctx, 1, damaged, n_page, &options);
    CHECK(status != LLAMA_KV_PAGE_OK);
    check("damaged");
    if (has_state) {
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_WINDOW, import_all(ctx, 1, archive, n_page - 10, &options));
        check("part of a state");
    }
}

struct result {
    int32_t     status = LLAMA_KV_PAGE_OK;
    std::string memory;
    bool        is_offered = true;
};

bool is_state_kind(int32_t kind) {
    return kind >= LLAMA_KV_PAGE_KIND_STATE_R;
}

// the whole path; fails the test if what was restored is not what was saved
result run_case(llama_model * model, const context_case & c, bool with_rollbacks) {
    result res;
    if (llama_model_has_encoder(model) && !c.unified) {
        res.is_offered = false; // llama.cpp ends the process: its decoder's graph wants one pool
        return res;
    }
    const llama_context_ptr src = make_class_context(model, c);
    if (!src) {
        take_log();
        res.is_offered = false;
        return res;
    }
    res.memory       = llama_cachegen_memory_class(src.get());
    const auto  caps = components_of(src.get(), res.status);
    byte_vector archive;
    if (res.status != LLAMA_KV_PAGE_OK) {
        CHECK_STATUS(res.status, try_export(src.get(), 0, 1, 0, archive));
        CHECK_STATUS(res.status, llama_cachegen_validate(src.get(), 0, 0, "LCG3", 4, 1000, 0, 1, nullptr));
        return res;
    }
    const bool has_state =
        std::any_of(caps.begin(), caps.end(), [](const auto & one) { return is_state_kind(one.kind); });

    const std::vector<llama_token> tokens = random_tokens(n_page, 5);
    decode_all(src.get(), 0, random_tokens(9, 6)); // a neighbour
    decode_all(src.get(), 1, tokens);
    res.status = try_export(src.get(), 1, n_page, 0, archive);
    if (res.status != LLAMA_KV_PAGE_OK) {
        return res;
    }
    if (has_state) {
        byte_vector none;
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_MISSING, try_export(src.get(), 1, n_page - 1, 0, none));
    }

    const auto options = options_with(tokens);
    if (with_rollbacks) {
        const llama_context_ptr ctx = make_class_context(model, c);
        decode_all(ctx.get(), 0, random_tokens(9, 6));
        check_rollbacks(ctx.get(), archive, tokens, has_state);
    }
    const llama_context_ptr dst = make_class_context(model, c);
    decode_all(dst.get(), 0, random_tokens(9, 6));
    CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(dst.get(), 1, archive, n_page, &options));
    CHECK_EQ(pos_max(dst.get(), 1), n_page - 1);
    byte_vector again;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(dst.get(), 1, n_page, 0, again));
    CHECK_SAME_BITS(archive, again);

    byte_vector coarse;
    CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(src.get(), 1, n_page, 31, coarse));

    // the same neighbour and the same cells: then the same sums, bit by bit
    CHECK_SAME_BITS(greedy(src.get(), 1, n_page, 7, 4), greedy(dst.get(), 1, n_page, 7, 4));
    CHECK_SAME_BITS(greedy(src.get(), 0, 9, 7, 2), greedy(dst.get(), 0, 9, 7, 2));

    // a lossy one is restored too, and what comes of it is finite
    const llama_context_ptr other = make_class_context(model, c);
    CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(other.get(), 1, coarse, n_page, &options));
    for (const float logit : greedy(other.get(), 1, n_page, 7, 2)) {
        CHECK(std::isfinite(logit));
    }
    return res;
}

struct pair_case {
    ggml_type type_k;
    ggml_type type_v;
};

constexpr std::array<pair_case, 8> pairs = { {
    { GGML_TYPE_F16, GGML_TYPE_F16 },
    { GGML_TYPE_F32, GGML_TYPE_F32 },
    { GGML_TYPE_BF16, GGML_TYPE_BF16 },
    { GGML_TYPE_Q8_0, GGML_TYPE_F16 },
    { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0 },
    { GGML_TYPE_Q4_0, GGML_TYPE_F16 },
    { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0 },
    { GGML_TYPE_Q5_1, GGML_TYPE_F16 }, // no codec for it
} };

std::string name_of(const pair_case & pair) {
    return std::string(ggml_type_name(pair.type_k)) + "/" + ggml_type_name(pair.type_v);
}

// what a class, a pair of types, FA and pools gave, over its architectures
using cell_key = std::tuple<std::string, size_t, bool, bool>;

std::map<cell_key, std::map<std::string, uint32_t>> g_cells;
std::map<std::string, std::set<std::string>>        g_architectures;

void print_table() {
    printf("\narchives by memory class: architectures ok, or refused by a status; '-': llama.cpp offers no such "
           "context\n");
    printf("%-12s %-10s %-24s %-24s %-24s %s\n", "memory", "K/V", "FA, one pool", "FA, pool each", "no FA, one pool",
           "no FA, pool each");
    for (const auto & [memory, names] : g_architectures) {
        for (size_t i = 0; i < pairs.size(); ++i) {
            std::string line;
            bool        any = false;
            for (bool flash_attn : { true, false }) {
                for (bool unified : { true, false }) {
                    std::string cell;
                    const auto  found = g_cells.find({ memory, i, flash_attn, unified });
                    if (found != g_cells.end()) {
                        for (const auto & [status, n] : found->second) {
                            cell += (cell.empty() ? "" : " ") + status + " " + std::to_string(n);
                            any = true;
                        }
                    }
                    cell.resize(std::max<size_t>(cell.size(), 24), ' ');
                    line += (cell[0] == ' ' ? "-" + cell.substr(1) : cell) + " ";
                }
            }
            if (any) {
                printf("%-12s %-10s %s\n", memory.c_str(), name_of(pairs[i]).c_str(), line.c_str());
            }
        }
    }
    for (const auto & [memory, names] : g_architectures) {
        printf("%s (%zu):", memory.c_str(), names.size());
        for (const auto & name : names) {
            printf(" %s", name.c_str());
        }
        printf("\n");
    }
}

} // namespace

TEST(every_memory_class) {
    uint32_t                        n_ok      = 0;
    uint32_t                        n_refused = 0;
    uint32_t                        n_absent  = 0;
    uint32_t                        n_failed  = 0;
    std::map<std::string, uint32_t> n_full; // architectures of a class that have gone through all pairs
    for (const auto & arch : all_cases()) {
        SCOPE(arch.name());
        const llama_model_ptr model = make_case(arch);
        std::string           memory;
        for (size_t i = 0; i < pairs.size(); ++i) {
            // all pairs for some architectures of a class, one for the others
            if (i == 1 && n_full[memory]++ >= n_thorough) {
                break;
            }
            for (bool flash_attn : { true, false }) {
                for (bool unified : { true, false }) {
                    if (!is_thorough && flash_attn != unified) {
                        continue;
                    }
                    const context_case c = { pairs[i].type_k, pairs[i].type_v, flash_attn, unified, false };
                    SCOPE(name_of(pairs[i]) + (flash_attn ? ", FA" : ", no FA") + (unified ? ", one pool" : ", pools"));
                    try {
                        const result res = run_case(model.get(), c, i == 0);
                        if (!res.is_offered) {
                            n_absent++;
                            continue;
                        }
                        memory = res.memory;
                        g_architectures[memory].insert(arch.name());
                        const bool is_ok = res.status == LLAMA_KV_PAGE_OK;
                        (is_ok ? n_ok : n_refused)++;
                        g_cells[{ memory, i, flash_attn, unified }]
                               [is_ok ? "ok" : llama_kv_page_status_name(res.status)]++;
                    } catch (const harness::failure &) {
                        n_failed++;
                    }
                }
            }
        }
    }
    print_table();
    printf("memory classes: %u contexts ok, %u refused, %u not offered, %u failed; %u rollbacks left no trace\n", n_ok,
           n_refused, n_absent, n_failed, g_n_rollbacks);
    CHECK_EQ(n_failed, 0u);
    for (const char * memory : { "dense", "iswa", "recurrent", "hybrid", "hybrid-iswa", "hybrid-idx", "dsa", "dsa-iswa",
                                 "msa", "dsv4", "none" }) {
        SCOPE(memory);
        CHECK(g_architectures.count(memory) == 1);
    }
}

// A window smaller than the sequence: an archive has what the last token attends to. Restored, it goes on as before; a
// part of it lacks positions and is refused, unless the window was saved in full size.
TEST(windows) {
    constexpr int32_t n_long    = 700;
    uint32_t          n_small   = 0;
    uint32_t          n_refused = 0;
    uint32_t          n_wide    = 0;
    for (const auto & arch : all_cases()) {
        SCOPE(arch.name());
        const llama_model_ptr model = make_case(arch);
        const context_case    small = { GGML_TYPE_F32, GGML_TYPE_F32, true, true, false, 1024 };
        context_case          full  = small;
        full.swa_full               = true;
        const llama_context_ptr src = make_windowed_context(model.get(), small);
        if (!src) {
            continue;
        }
        const auto tokens  = random_tokens(n_long, 5);
        const auto options = options_with(tokens);
        decode_all(src.get(), 0, tokens);
        byte_vector windowed;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(src.get(), 0, n_long, 0, windowed));

        const llama_context_ptr whole = make_class_context(model.get(), full);
        decode_all(whole.get(), 0, tokens);
        byte_vector complete;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(whole.get(), 0, n_long, 0, complete));
        if (complete.size() == windowed.size()) {
            n_wide++; // than this sequence
            continue;
        }
        CHECK(complete.size() > windowed.size());

        // into a small window from either, and into a full one: as the context goes on that was saved
        const auto after_windowed = greedy(src.get(), 0, n_long, 7, 4);
        const auto after_complete = greedy(whole.get(), 0, n_long, 7, 4);
        for (const auto & layout : { small, full }) {
            SCOPE(layout.swa_full ? "into a window of full size" : "into a small window");
            const llama_context_ptr one = make_class_context(model.get(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(one.get(), 1, windowed, n_long, &options));
            CHECK_SAME_BITS(after_windowed, greedy(one.get(), 1, n_long, 7, 4));
            const llama_context_ptr other = make_class_context(model.get(), layout);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(other.get(), 1, complete, n_long, &options));
            CHECK_SAME_BITS(after_complete, greedy(other.get(), 1, n_long, 7, 4));
        }

        // a prefix: its window is not in the small archive
        const int32_t           n_prefix = 320; // whole batches: the same sums
        const llama_context_ptr dst      = make_class_context(model.get(), full);
        const byte_vector       before   = whole_state(dst.get());
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_WINDOW, import_all(dst.get(), 1, windowed, n_prefix, &options));
        CHECK_SAME_BITS(before, whole_state(dst.get()));
        n_refused++;
        if (std::string(llama_cachegen_memory_class(src.get())) != "hybrid-iswa") {
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(dst.get(), 1, complete, n_prefix, &options));
            const llama_context_ptr shorter = make_class_context(model.get(), full);
            decode_all(shorter.get(), 1, { tokens.begin(), tokens.begin() + n_prefix });
            CHECK_SAME_BITS(greedy(shorter.get(), 1, n_prefix, 7, 4), greedy(dst.get(), 1, n_prefix, 7, 4));
            // a window of full size can also be cut back
            CHECK(llama_memory_seq_rm(llama_get_memory(dst.get()), 1, 40, -1));
            CHECK(llama_memory_seq_rm(llama_get_memory(shorter.get()), 1, 40, -1));
            CHECK_SAME_BITS(greedy(shorter.get(), 1, 40, 9, 2), greedy(dst.get(), 1, 40, 9, 2));
        }
        n_small++;
    }
    printf("windows: %u architectures ok, %u have wider ones; %u prefixes below the window refused\n", n_small, n_wide,
           n_refused);
    CHECK(n_small >= 15);
}

// A window that other tokens have filled: an import takes the cells that the window has left behind, as a decode does,
// and gives them back when it fails.
TEST(full_windows) {
    constexpr int32_t n_long  = 700;
    uint32_t          n_ok    = 0;
    uint32_t          n_taken = 0; // where cells of the other sequence were taken
    for (const auto & arch : all_cases()) {
        SCOPE(arch.name());
        const llama_model_ptr model = make_case(arch);
        for (const bool flash_attn : { true, false }) {
            SCOPE(flash_attn ? "FA" : "no FA");
            if (!is_thorough && n_taken >= 4) {
                break;
            }
            const context_case      c   = { GGML_TYPE_F32, GGML_TYPE_F32, flash_attn, true, false, 2048 };
            const llama_context_ptr ctx = make_windowed_context(model.get(), c);
            if (!ctx) {
                continue;
            }
            const auto tokens  = random_tokens(n_long, 5);
            const auto options = options_with(tokens);
            const auto other   = random_tokens(n_long, 6);

            const llama_context_ptr src = make_class_context(model.get(), c);
            decode_all(src.get(), 1, tokens);
            byte_vector archive;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(src.get(), 1, n_long, 0, archive));

            const auto pos_min = [&] { return llama_memory_seq_pos_min(llama_get_memory(ctx.get()), 0); };
            // pages of the one sequence fill the window, then the other is restored beside it
            decode_all(ctx.get(), 0, other);
            const byte_vector before    = whole_state(ctx.get());
            const llama_pos   pos_begin = pos_min();
            for (uint32_t n_good : { 0u, 1u, 4u }) {
                stop_at    stop     = { 0, n_good };
                const auto stopping = options_stopping(tokens, stop);
                CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, import_all(ctx.get(), 1, archive, n_long, &stopping));
                CHECK_SAME_BITS(before, whole_state(ctx.get()));
                CHECK_EQ(pos_min(), pos_begin);
            }
            // the window's cells are written last
            write_all_and_close(ctx.get(), 1, archive, n_long, options);
            CHECK_SAME_BITS(before, whole_state(ctx.get()));
            CHECK_EQ(pos_min(), pos_begin);
            CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(ctx.get(), 1, archive, n_long, &options));
            n_taken += pos_min() > pos_begin;
            byte_vector again;
            CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(ctx.get(), 1, n_long, 0, again));
            CHECK_SAME_BITS(archive, again);

            // the first sequence goes on as if it were alone
            const llama_context_ptr alone = make_class_context(model.get(), c);
            decode_all(alone.get(), 0, other);
            // other cells: the same sums in another order
            CHECK(largest_difference(greedy(alone.get(), 0, n_long, 7, 4), greedy(ctx.get(), 0, n_long, 7, 4)) < 1e-2f);
            n_ok++;
        }
    }
    printf("windows: %u filled ones took an archive, %u of them over cells left behind\n", n_ok, n_taken);
    CHECK(n_taken >= (is_thorough ? 30u : 3u));
}

// An image is refused by what is in the range, not by what the model could do: text beside it is saved.
TEST(images) {
    const llama_model_ptr   model  = make_case({ LLM_ARCH_QWEN2VL, false });
    const llama_context_ptr ctx    = make_class_context(model.get(), {});
    const int32_t           n_embd = llama_model_n_embd(model.get());
    decode_all(ctx.get(), 0, random_tokens(10, 1));

    // seq 1: 10 tokens of text, then one image token with a position of its own; seq 0: four that share one
    decode_all(ctx.get(), 1, random_tokens(10, 1));
    for (const int32_t n : { 1, 4 }) {
        std::vector<float>     embd(size_t(n * n_embd), 0.25f);
        std::vector<llama_pos> pos(size_t(4 * n));
        for (int32_t i = 0; i < n; ++i) {
            pos[size_t(i)]         = 10;
            pos[size_t(n + i)]     = 12 + i / 2;
            pos[size_t(2 * n + i)] = 10 + i % 2;
        }
        llama_batch batch = llama_batch_init(n, n_embd, 1);
        free(batch.pos);
        batch.pos      = pos.data();
        batch.n_tokens = n;
        memcpy(batch.embd, embd.data(), embd.size() * sizeof(float));
        for (int32_t i = 0; i < n; ++i) {
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = n == 1 ? 1 : 0;
            batch.logits[i]    = 0;
        }
        CHECK_EQ(llama_decode(ctx.get(), batch), 0);
        batch.pos = nullptr;
        llama_batch_free(batch);
    }
    for (llama_seq_id seq_id : { 0, 1 }) {
        byte_vector archive;
        CHECK_EQ(pos_max(ctx.get(), seq_id), 10);
        const std::string message =
            CHECK_STATUS(LLAMA_KV_PAGE_REFUSED_CELL_EXT, try_export(ctx.get(), seq_id, 11, 0, archive));
        CHECK(message.find("position 10") != std::string::npos);
        CHECK(archive.empty());
        CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(ctx.get(), seq_id, 10, 0, archive));
    }
}

// An import stopped while a context shift, or a copy between pools, is pending: both are applied as without it.
TEST(pending_work) {
    for (const llm_arch arch : { LLM_ARCH_LLAMA, LLM_ARCH_QWEN3 }) {
        SCOPE(llm_arch_name(arch));
        const llama_model_ptr model = make_case({ arch, false });
        context_case          c;
        c.unified = false;

        const auto              tokens  = random_tokens(n_page, 5);
        const auto              options = options_with(tokens);
        const llama_context_ptr src     = make_class_context(model.get(), c);
        decode_all(src.get(), 0, tokens);
        byte_vector archive;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(src.get(), 0, n_page, 0, archive));

        for (const bool is_copy : { false, true }) {
            for (uint32_t n_good = 0; n_good < 3; ++n_good) {
                SCOPE((is_copy ? "copy, stopped at " : "shift, stopped at ") + std::to_string(n_good));
                const auto prepare = [&] {
                    llama_context_ptr ctx = make_class_context(model.get(), c);
                    decode_all(ctx.get(), 0, random_tokens(40, 6));
                    llama_memory_t memory = llama_get_memory(ctx.get());
                    if (is_copy) {
                        decode_all(ctx.get(), 1, random_tokens(20, 7));
                        CHECK(llama_memory_seq_rm(memory, 1, -1, -1));
                        llama_memory_seq_cp(memory, 0, 1, -1, -1); // pending: the data of pool 0 into pool 1
                        CHECK(llama_memory_seq_rm(memory, 1, -1, -1));
                    } else {
                        CHECK(llama_memory_seq_rm(memory, 0, 5, 15));
                        llama_memory_seq_add(memory, 0, 15, -1, -10); // pending: the rotation of K
                    }
                    return ctx;
                };
                const llama_context_ptr untouched = prepare();
                const llama_context_ptr touched   = prepare();
                stop_at                 stop      = { 0, n_good };
                const auto              stopping  = options_stopping(tokens, stop);
                CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, import_all(touched.get(), 1, archive, n_page, &stopping));
                CHECK_SAME_BITS(whole_state(untouched.get()), whole_state(touched.get()));
                write_all_and_close(touched.get(), 1, archive, n_page, options);
                CHECK_SAME_BITS(whole_state(untouched.get()), whole_state(touched.get()));
                const int32_t n_left = is_copy ? 40 : 30;
                CHECK_SAME_BITS(greedy(untouched.get(), 0, n_left, 7, 4), greedy(touched.get(), 0, n_left, 7, 4));
                // and one that goes through is not overtaken by what was pending
                const llama_context_ptr whole = prepare();
                CHECK_STATUS(LLAMA_KV_PAGE_OK, import_all(whole.get(), 1, archive, n_page, &options));
                CHECK_SAME_BITS(greedy(untouched.get(), 0, n_left + 4, 7, 2), [&] {
                    greedy(whole.get(), 0, n_left, 7, 4);
                    return greedy(whole.get(), 0, n_left + 4, 7, 2);
                }());
                byte_vector again;
                CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(whole.get(), 1, n_page, 0, again));
                CHECK_SAME_BITS(archive, again);
            }
        }
    }
}

// A recurrent state is appended to the one that is there: in place when there is no other row, with rollback.
TEST(a_state_after_a_state) {
    for (const llm_arch arch : { LLM_ARCH_MAMBA, LLM_ARCH_QWEN35, LLM_ARCH_LFM2 }) {
        SCOPE(llm_arch_name(arch));
        const llama_model_ptr model = make_case({ arch, false });
        const context_case    c;
        const auto            tokens  = random_tokens(n_page, 5);
        const auto            options = options_with(tokens);

        // 60 tokens, then a page of the rest
        const llama_context_ptr src = make_class_context(model.get(), c);
        decode_all(src.get(), 0, tokens);
        byte_vector archive;
        CHECK_STATUS(LLAMA_KV_PAGE_OK, try_export(src.get(), 0, n_page, 0, archive));

        const llama_context_ptr dst = make_class_context(model.get(), c);
        decode_all(dst.get(), 0, { tokens.begin(), tokens.begin() + 60 });
        decode_all(dst.get(), 1, random_tokens(9, 6)); // both states are in use
        const byte_vector before = whole_state(dst.get());

        const auto rest = [&](const llama_cachegen_options * with) {
            return llama_cachegen_import_archive(dst.get(), 0, 60, archive.data(), archive.size(), 60, n_page - 60,
                                                 with, nullptr);
        };
        // an overlap; the caller stops at any block
        CHECK_STATUS(LLAMA_KV_PAGE_ERR_OCCUPIED, import_all(dst.get(), 0, archive, n_page, &options));
        CHECK_SAME_BITS(before, whole_state(dst.get()));
        auto from_60   = options;
        from_60.tokens = tokens.data() + 60;
        write_all_and_close(dst.get(), 0, archive, n_page - 60, from_60, 60);
        CHECK_SAME_BITS(before, whole_state(dst.get()));
        bool completed = false;
        for (uint32_t n_good = 0; !completed; ++n_good) {
            stop_at stop         = { 0, n_good };
            auto    stopping     = options_stopping(tokens, stop);
            stopping.tokens      = tokens.data() + 60;
            const int32_t status = rest(&stopping);
            completed            = status == LLAMA_KV_PAGE_OK;
            if (!completed) {
                CHECK_STATUS(LLAMA_KV_PAGE_ERR_CANCELLED, status);
                CHECK_SAME_BITS(before, whole_state(dst.get()));
            }
        }
        CHECK_EQ(pos_max(dst.get(), 0), n_page - 1);
        CHECK_EQ(pos_max(dst.get(), 1), 8);
        // other cells of the attention's cache
        CHECK(largest_difference(greedy(src.get(), 0, n_page, 7, 4), greedy(dst.get(), 0, n_page, 7, 4)) < 1e-3f);
    }
}

int main(int argc, char ** argv) {
    capture_log();
    // for the tests in Python: write the dummy model of an architecture to a file
    if (argc == 4 && strcmp(argv[1], "--save") == 0) {
        for (const auto & arch : all_cases()) {
            if (arch.name() == argv[2]) {
                const llama_model_ptr model = make_case(arch);
                llama_model_save_to_file(model.get(), argv[3]);
                return 0;
            }
        }
        printf("no architecture %s\n", argv[2]);
        return 1;
    }
    return harness::run(argc, argv);
}
