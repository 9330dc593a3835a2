// llama.cpp's own states, cut short, in every architecture: a restore that fails half-way leaves the sequence as it was
// or gone from every part of the memory, other sequences as they were, and the next restore goes on as if nothing had
// been.
#include "every_architecture.h"
#include "llama-cachegen.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>

namespace {

using byte_vector = std::vector<uint8_t>;

constexpr int32_t n_prompt    = 150;
constexpr int32_t n_neighbour = 9;

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t n_spread = 4; // some ten times slower
#else
constexpr size_t n_spread = 12;
#endif

llama_context_ptr make_state_context(llama_model * model, bool unified) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = unified ? 2 * n_cells : 4 * n_cells;
    params.n_batch              = 64;
    params.n_ubatch             = 64;
    params.n_seq_max            = 2;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.kv_unified           = unified;
    return llama_context_ptr(llama_init_from_model(model, params));
}

void decode_all(llama_context * ctx, llama_seq_id seq_id, const std::vector<llama_token> & tokens) {
    for (size_t i = 0; i < tokens.size(); i += 64) {
        const auto end = std::min(tokens.size(), i + 64);
        decode(ctx, seq_id, int32_t(i), { tokens.begin() + std::ptrdiff_t(i), tokens.begin() + std::ptrdiff_t(end) });
    }
}

byte_vector state_of(llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags = 0) {
    byte_vector state(llama_state_seq_get_size_ext(ctx, seq_id, flags));
    CHECK(!state.empty());
    CHECK_EQ(llama_state_seq_get_data_ext(ctx, state.data(), state.size(), seq_id, flags), state.size());
    return state;
}

byte_vector whole_state(llama_context * ctx) {
    byte_vector state(llama_state_get_size(ctx));
    CHECK_EQ(llama_state_get_data(ctx, state.data(), state.size()), state.size());
    return state;
}

bool restore(llama_context * ctx, llama_seq_id seq_id, const byte_vector & state, size_t n_bytes,
             llama_state_seq_flags flags = 0) {
    // a copy of that size: reading on is seen by the sanitizers
    const byte_vector cut(state.begin(), state.begin() + std::ptrdiff_t(n_bytes));
    const size_t      n_read = llama_state_seq_set_data_ext(ctx, cut.data(), cut.size(), seq_id, flags);
    CHECK(n_read == 0 || n_read == n_bytes);
    return n_read != 0;
}

// spread over the state, in the list of cells at its beginning, and at its end
std::vector<size_t> lengths_of(size_t n_bytes) {
    std::set<size_t> lengths = { 8, 12, 16, 24, 30, 40, 100 };
    for (size_t i = 0; i < n_spread; ++i) {
        lengths.insert(n_bytes * i / n_spread);
    }
    for (const size_t n_missing : { 1, 4, 5, 8, 64, 1000 }) {
        if (n_missing < n_bytes) {
            lengths.insert(n_bytes - n_missing);
        }
    }
    lengths.erase(lengths.lower_bound(n_bytes), lengths.end());
    return { lengths.begin(), lengths.end() };
}

struct subject {
    llama_model *      model;
    bool               unified;
    byte_vector        neighbour; // state of sequence 0
    byte_vector        good;      // state to restore into sequence 1
    byte_vector        partial;
    byte_vector        gone;     // state of a sequence without tokens
    byte_vector        whole;    // of a context with both sequences
    byte_vector        empty;    // of a context with none
    byte_vector        restored; // sequence 1 after a restore that followed no failed one, and how the two go on
    std::vector<float> future;
    std::vector<float> neighbours_future;

    llama_context_ptr with_neighbour() const {
        llama_context_ptr ctx = make_state_context(model, unified);
        decode_all(ctx.get(), 0, random_tokens(n_neighbour, 6));
        return ctx;
    }
};

subject make_subject(llama_model * model, bool unified, llama_context * src) {
    subject s;
    s.model   = model;
    s.unified = unified;
    s.empty   = whole_state(src);
    s.gone    = state_of(src, 1);
    decode_all(src, 0, random_tokens(n_prompt, 5));
    s.good    = state_of(src, 0);
    s.partial = state_of(src, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);

    const llama_context_ptr clean = s.with_neighbour();
    s.neighbour                   = state_of(clean.get(), 0);
    CHECK(restore(clean.get(), 1, s.good, s.good.size()));
    s.whole             = whole_state(clean.get());
    s.restored          = state_of(clean.get(), 1);
    s.future            = greedy(clean.get(), 1, n_prompt, 7, 4);
    s.neighbours_future = greedy(clean.get(), 0, n_neighbour, 7, 2);
    return s;
}

uint32_t g_n_cut = 0;

// a cut state fails, and sequence 1 is what it was or gone from every part
void check_cut(const subject & s, llama_context * ctx, const byte_vector & before, const byte_vector & state,
               size_t n_bytes, llama_state_seq_flags flags) {
    g_n_cut++;
    CHECK(!restore(ctx, 1, state, n_bytes, flags));
    if (pos_max(ctx, 1) == -1) {
        CHECK_SAME_BITS(s.gone, state_of(ctx, 1));
    } else {
        CHECK_SAME_BITS(before, state_of(ctx, 1));
    }
    CHECK_SAME_BITS(s.neighbour, state_of(ctx, 0));
}

// the good state restores afterwards, into the same cells: the same sums, bit by bit
void check_good(const subject & s, llama_context * ctx) {
    SCOPE("restored afterwards");
    CHECK(llama_memory_seq_rm(llama_get_memory(ctx), 1, -1, -1));
    CHECK(restore(ctx, 1, s.good, s.good.size()));
    CHECK_EQ(pos_max(ctx, 1), n_prompt - 1);
    CHECK_SAME_BITS(s.restored, state_of(ctx, 1));
    CHECK_SAME_BITS(s.future, greedy(ctx, 1, n_prompt, 7, 4));
    CHECK_SAME_BITS(s.neighbours_future, greedy(ctx, 0, n_neighbour, 7, 2));
}

std::string part_of(size_t n_bytes, const byte_vector & state) {
    return std::to_string(n_bytes) + " of " + std::to_string(state.size()) + " bytes";
}

void into_nothing(const subject & s) {
    const llama_context_ptr ctx = s.with_neighbour();
    for (const size_t n_bytes : lengths_of(s.good.size())) {
        SCOPE(part_of(n_bytes, s.good));
        check_cut(s, ctx.get(), s.gone, s.good, n_bytes, 0);
        CHECK_EQ(pos_max(ctx.get(), 1), -1);
    }
    check_good(s, ctx.get());
}

void over_tokens(const subject & s) {
    const llama_context_ptr ctx = s.with_neighbour();
    for (const size_t n_bytes : lengths_of(s.good.size())) {
        SCOPE(part_of(n_bytes, s.good));
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx.get()), 1, -1, -1));
        CHECK(restore(ctx.get(), 1, s.neighbour, s.neighbour.size()));
        check_cut(s, ctx.get(), state_of(ctx.get(), 1), s.good, n_bytes, 0);
    }
    check_good(s, ctx.get());
}

// a partial state has the parts that cannot be cut back; without them the others are of no use
void partial(const subject & s) {
    const llama_context_ptr ctx = s.with_neighbour();
    for (const size_t n_bytes : lengths_of(s.partial.size())) {
        SCOPE(part_of(n_bytes, s.partial));
        CHECK(restore(ctx.get(), 1, s.good, s.good.size()));
        check_cut(s, ctx.get(), s.restored, s.partial, n_bytes, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    }
    check_good(s, ctx.get());
}

// the same of a whole context
void whole(const subject & s) {
    const llama_context_ptr ctx = make_state_context(s.model, s.unified);
    for (const size_t n_bytes : lengths_of(s.whole.size())) {
        SCOPE(part_of(n_bytes, s.whole));
        g_n_cut++;
        llama_memory_clear(llama_get_memory(ctx.get()), true);
        CHECK(restore(ctx.get(), 0, s.neighbour, s.neighbour.size()));
        const byte_vector before = whole_state(ctx.get());
        const byte_vector cut(s.whole.begin(), s.whole.begin() + std::ptrdiff_t(n_bytes));
        CHECK_EQ(llama_state_set_data(ctx.get(), cut.data(), cut.size()), 0u);
        if (pos_max(ctx.get(), 0) == -1) {
            CHECK_EQ(pos_max(ctx.get(), 1), -1);
            CHECK_SAME_BITS(s.empty, whole_state(ctx.get()));
        } else {
            CHECK_SAME_BITS(before, whole_state(ctx.get()));
        }
    }
    CHECK_EQ(llama_state_set_data(ctx.get(), s.whole.data(), s.whole.size()), s.whole.size());
    CHECK_SAME_BITS(s.whole, whole_state(ctx.get()));
}

struct check {
    const char * name;
    void (*body)(const subject &);
};

constexpr std::array<check, 4> checks = { {
    { "into nothing", into_nothing },
    { "over tokens", over_tokens },
    { "partial", partial },
    { "whole", whole },
} };

} // namespace

TEST(every_memory) {
    std::set<std::string>           names;
    std::map<std::string, uint32_t> failures; // by memory class and check
    uint32_t                        n_contexts = 0;
    uint32_t                        n_failed   = 0;
    for (const auto & arch : all_cases()) {
        SCOPE(arch.name());
        const llama_model_ptr model = make_case(arch);
        if (llama_model_has_encoder(model.get())) {
            continue;
        }
        for (const bool unified : { true, false }) {
            const llama_context_ptr src = make_state_context(model.get(), unified);
            if (!src || !llama_get_memory(src.get())) {
                take_log();
                continue;
            }
            const std::string memory = llama_cachegen_memory_class(src.get());
            SCOPE(memory + (unified ? ", one pool" : ", pools"));
            names.insert(arch.name());
            n_contexts++;
            const subject s = make_subject(model.get(), unified, src.get());
            for (const auto & check : checks) {
                SCOPE(check.name);
                try {
                    check.body(s);
                } catch (const harness::failure &) {
                    n_failed++;
                    failures[memory + ", " + check.name]++;
                }
            }
            take_log();
        }
    }
    for (const auto & [what, n] : failures) {
        printf("state undo: %s: %u contexts failed\n", what.c_str(), n);
    }
    printf("state undo: %zu architectures, %u contexts, %u states cut short, %u failures\n", names.size(), n_contexts,
           g_n_cut, n_failed);
    CHECK_EQ(n_failed, 0u);
    CHECK(names.size() >= 100);
}

namespace {

// A quantised cache, whose values llama.cpp rotates unless the environment says otherwise when it is made.
llama_context_ptr make_rotated_context(llama_model * model, bool has_rotation, bool flash_attn, ggml_type type_v) {
    setenv("LLAMA_ATTN_ROT_DISABLE", has_rotation ? "0" : "1", 1);
    cache_layout layout;
    layout.type_k         = GGML_TYPE_Q8_0;
    layout.type_v         = type_v;
    layout.flash_attn     = flash_attn;
    llama_context_ptr ctx = make_context(model, layout);
    unsetenv("LLAMA_ATTN_ROT_DISABLE");
    CHECK(ctx != nullptr);
    take_log();
    return ctx;
}

} // namespace

TEST(states_know_their_rotation) {
    const llama_model_ptr model  = make_tiny_llama();
    const auto            tokens = random_tokens(40, 3);
    for (const auto & [flash_attn, type_v] :
         { std::pair(true, GGML_TYPE_Q8_0), std::pair(true, GGML_TYPE_F16), std::pair(false, GGML_TYPE_F16) }) {
        for (const bool has_rotation : { true, false }) {
            SCOPE(std::string(flash_attn ? "V in rows, " : "V transposed, ") + ggml_type_name(type_v) +
                  (has_rotation ? ", saved with rotation" : ", saved without"));
            const auto source = make_rotated_context(model.get(), has_rotation, flash_attn, type_v);
            decode(source.get(), 0, 0, tokens);
            const byte_vector one      = state_of(source.get(), 0);
            const byte_vector all      = whole_state(source.get());
            const auto        expected = greedy(source.get(), 0, 40, 7, 4);

            // the same rotation: as before
            const auto same = make_rotated_context(model.get(), has_rotation, flash_attn, type_v);
            CHECK(restore(same.get(), 1, one, one.size()));
            CHECK_SAME_BITS(greedy(same.get(), 1, 40, 7, 4), expected);
            CHECK_EQ(llama_state_set_data(same.get(), all.data(), all.size()), all.size());
            CHECK_SAME_BITS(greedy(same.get(), 0, 40, 7, 4), expected);

            // another one: refused, and said why
            const auto other = make_rotated_context(model.get(), !has_rotation, flash_attn, type_v);
            decode(other.get(), 0, 0, tokens);
            const byte_vector neighbour = state_of(other.get(), 0);
            take_log();
            CHECK(!restore(other.get(), 1, one, one.size()));
            CHECK(take_log().find("rotation") != std::string::npos);
            CHECK_EQ(pos_max(other.get(), 1), -1);
            CHECK_SAME_BITS(state_of(other.get(), 0), neighbour);
            CHECK(llama_state_set_data(other.get(), all.data(), all.size()) != all.size());
        }
    }
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
