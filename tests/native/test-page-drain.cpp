// Context shifts and copies between pools are done lazily, by the next decode. A page or a state that is taken before
// holds the same bytes as one that is taken after.
#include "page_fixture.h"

#include <functional>

namespace {

constexpr int32_t n_tokens = 40;

llama_model * model() {
    static const llama_model_ptr res = make_tiny_llama();
    return res.get();
}

// a decode of another sequence applies what is pending
void apply_pending(llama_context * ctx) {
    decode(ctx, 2, 0, random_tokens(1, 9));
    CHECK(llama_memory_seq_rm(llama_get_memory(ctx), 2, -1, -1));
}

std::vector<uint8_t> state_of(llama_context * ctx, llama_seq_id seq_id) {
    std::vector<uint8_t> state(llama_state_seq_get_size(ctx, seq_id));
    CHECK(!state.empty());
    CHECK_EQ(llama_state_seq_get_data(ctx, state.data(), state.size(), seq_id), state.size());
    return state;
}

void shift(llama_context * ctx) {
    llama_memory_t memory = llama_get_memory(ctx);
    CHECK(llama_memory_seq_rm(memory, 0, 0, 8));
    llama_memory_seq_add(memory, 0, 8, -1, -8);
}

void for_each_layout(const std::function<void(const cache_layout &)> & body) {
    for (const auto & layout : typical_layouts()) {
        SCOPE(to_string(layout));
        body(layout);
    }
}

void for_each_layout_with_pools(const std::function<void(const cache_layout &)> & body) {
    for_each_layout([&](cache_layout layout) {
        layout.unified = false;
        body(layout);
    });
}

llama_context_ptr prefilled(const cache_layout & layout) {
    llama_context_ptr ctx = make_context(model(), layout);
    CHECK(ctx != nullptr);
    decode(ctx.get(), 0, 0, random_tokens(n_tokens, 1));
    return ctx;
}

} // namespace

TEST(page_after_a_context_shift) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr lazy   = prefilled(layout);
        const llama_context_ptr eager  = prefilled(layout);
        const page              before = export_page(lazy.get(), 0, 8, n_tokens);
        shift(lazy.get());
        shift(eager.get());
        apply_pending(eager.get());

        const page now   = export_page(lazy.get(), 0, 0, n_tokens - 8);
        const page later = export_page(eager.get(), 0, 0, n_tokens - 8);
        check_same_page(now, later);

        // K was moved, V was not
        for (uint32_t i = 0; i < now.components.size(); ++i) {
            const bool same = now.components[i].xxh3 == before.components[i].xxh3;
            CHECK_EQ(same, now.components[i].kind == LLAMA_KV_PAGE_KIND_V);
        }

        // and moved once
        apply_pending(lazy.get());
        check_same_page(now, export_page(lazy.get(), 0, 0, n_tokens - 8));
        CHECK_SAME_BITS(greedy(lazy.get(), 0, n_tokens - 8, 5, 8), greedy(eager.get(), 0, n_tokens - 8, 5, 8));
    });
}

TEST(page_after_a_copy_between_pools) {
    for_each_layout_with_pools([](const cache_layout & layout) {
        const llama_context_ptr lazy  = prefilled(layout);
        const llama_context_ptr eager = prefilled(layout);
        llama_memory_seq_cp(llama_get_memory(lazy.get()), 0, 1, -1, -1);
        llama_memory_seq_cp(llama_get_memory(eager.get()), 0, 1, -1, -1);
        apply_pending(eager.get());

        const page copied = export_page(lazy.get(), 1, 0, n_tokens);
        check_same_page(copied, export_page(lazy.get(), 0, 0, n_tokens));
        check_same_page(copied, export_page(eager.get(), 1, 0, n_tokens));
        CHECK_SAME_BITS(greedy(lazy.get(), 1, n_tokens, 5, 8), greedy(eager.get(), 1, n_tokens, 5, 8));
    });
}

TEST(import_after_a_copy_between_pools) {
    for_each_layout_with_pools([](const cache_layout & layout) {
        const llama_context_ptr other = make_context(model(), layout);
        decode(other.get(), 0, 0, random_tokens(n_tokens, 2));
        const page page = export_page(other.get(), 0, 0, n_tokens);

        const llama_context_ptr ctx = prefilled(layout);
        llama_memory_seq_cp(llama_get_memory(ctx.get()), 0, 1, -1, -1);
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx.get()), 1, -1, -1));
        CHECK_EQ(import_page(ctx.get(), 1, page), LLAMA_KV_PAGE_OK);
        apply_pending(ctx.get());
        check_same_page(page, export_page(ctx.get(), 1, 0, n_tokens));
    });
}

TEST(import_after_a_context_shift) {
    for_each_layout([](const cache_layout & layout) {
        // the page of the last 8 positions, from a context that was shifted and drained
        const llama_context_ptr src = prefilled(layout);
        shift(src.get());
        decode(src.get(), 0, n_tokens - 8, random_tokens(8, 3));
        const page page = export_page(src.get(), 0, n_tokens - 8, n_tokens);

        const llama_context_ptr lazy  = prefilled(layout);
        const llama_context_ptr eager = prefilled(layout);
        shift(lazy.get());
        shift(eager.get());
        apply_pending(eager.get());
        for (llama_context * ctx : { lazy.get(), eager.get() }) {
            CHECK_EQ(import_page(ctx, 0, page), LLAMA_KV_PAGE_OK);
        }
        CHECK_SAME_BITS(greedy(lazy.get(), 0, n_tokens, 5, 8), greedy(eager.get(), 0, n_tokens, 5, 8));
    });
}

TEST(state_after_a_context_shift) {
    for_each_layout([](const cache_layout & layout) {
        const llama_context_ptr lazy  = prefilled(layout);
        const llama_context_ptr eager = prefilled(layout);
        shift(lazy.get());
        shift(eager.get());
        apply_pending(eager.get());
        CHECK_SAME_BITS(state_of(lazy.get(), 0), state_of(eager.get(), 0));
    });
}

TEST(state_after_a_copy_between_pools) {
    for_each_layout_with_pools([](const cache_layout & layout) {
        const llama_context_ptr lazy  = prefilled(layout);
        const llama_context_ptr eager = prefilled(layout);
        llama_memory_seq_cp(llama_get_memory(lazy.get()), 0, 1, -1, -1);
        llama_memory_seq_cp(llama_get_memory(eager.get()), 0, 1, -1, -1);
        apply_pending(eager.get());
        CHECK_SAME_BITS(state_of(lazy.get(), 1), state_of(eager.get(), 1));

        // not all zeros, which is what an undrained copy gives
        const page page = export_page(lazy.get(), 1, 0, n_tokens);
        CHECK(page.payload != std::vector<uint8_t>(page.payload.size(), 0));
    });
}

// the whole context's state, where the drain of one sequence would not be enough
TEST(whole_state_after_a_copy_between_pools) {
    for_each_layout_with_pools([](const cache_layout & layout) {
        const llama_context_ptr src = prefilled(layout);
        llama_memory_seq_cp(llama_get_memory(src.get()), 0, 1, -1, -1);
        std::vector<uint8_t> state(llama_state_get_size(src.get()));
        CHECK_EQ(llama_state_get_data(src.get(), state.data(), state.size()), state.size());

        const llama_context_ptr dst = make_context(model(), layout);
        CHECK_EQ(llama_state_set_data(dst.get(), state.data(), state.size()), state.size());
        check_same_page(export_page(src.get(), 0, 0, n_tokens), export_page(dst.get(), 1, 0, n_tokens));
    });
}

TEST(state_restored_after_a_copy_between_pools) {
    for_each_layout_with_pools([](const cache_layout & layout) {
        const llama_context_ptr other = make_context(model(), layout);
        decode(other.get(), 0, 0, random_tokens(n_tokens, 2));
        const std::vector<uint8_t> state = state_of(other.get(), 0);

        const llama_context_ptr ctx = prefilled(layout);
        llama_memory_seq_cp(llama_get_memory(ctx.get()), 0, 1, -1, -1);
        CHECK_EQ(llama_state_seq_set_data(ctx.get(), state.data(), state.size(), 1), state.size());
        apply_pending(ctx.get());
        check_same_page(export_page(other.get(), 0, 0, n_tokens), export_page(ctx.get(), 1, 0, n_tokens));
    });
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
