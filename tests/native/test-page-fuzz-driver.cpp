// A fixed sequence of mutated component tables, payloads and arguments: every call ends with a status, none crashes,
// and the context that got them all goes on exactly like one that got none. Run it with sanitizers to see accesses
// beside the buffers: every buffer is as large as the call says, to the byte.
#include "page_fixture.h"

#include <algorithm>
#include <functional>
#include <map>

namespace {

class random_source {
  public:
    explicit random_source(uint64_t seed) : state(seed) {}

    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    uint64_t below(uint64_t n) { return next() % n; }

    bool one_in(uint64_t n) { return below(n) == 0; }

    // numbers that break arithmetic, near the right one, or anything
    uint64_t number(uint64_t right) {
        static constexpr uint64_t edges[] = { 0,          1,           2,         63,         64,
                                              255,        256,         257,       0x7FFFFFFF, 0x80000000,
                                              0xFFFFFFFF, 0x100000000, INT64_MAX, UINT64_MAX, UINT64_MAX - 63 };
        switch (below(4)) {
            case 0: return edges[below(std::size(edges))];
            case 1: return right + below(5) - 2;
            case 2: return right ^ (uint64_t(1) << below(64));
            default: return next();
        }
    }

  private:
    uint64_t state;
};

std::map<std::string, uint32_t> g_statuses;

int32_t count_status(int32_t status) {
    const std::string name = llama_kv_page_status_name(status);
    g_statuses[name]++;
    CHECK(name != "UNKNOWN_STATUS");
    CHECK(status != LLAMA_KV_PAGE_ERR_INTERNAL);
    CHECK(status != LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY);
    CHECK(status == LLAMA_KV_PAGE_OK || strlen(llama_kv_page_last_message()) > 0);
    return status;
}

llama_model * model() {
    static const llama_model_ptr res = make_tiny_llama();
    return res.get();
}

void mutate_component(random_source & random, llama_kv_page_component & c) {
    switch (random.below(11)) {
        case 0: c.layer = int32_t(random.number(c.layer)); break;
        case 1: c.kind = int32_t(random.number(c.kind)); break;
        case 2: c.type = int32_t(random.number(c.type)); break;
        case 3: c.transposed = uint32_t(random.number(c.transposed)); break;
        case 4: c.n_rot = uint32_t(random.number(c.n_rot)); break;
        case 5: c.n_tokens = uint32_t(random.number(c.n_tokens)); break;
        case 6: c.n_channels = uint32_t(random.number(c.n_channels)); break;
        case 7: c.row_bytes = uint32_t(random.number(c.row_bytes)); break;
        case 8: c.offset = random.number(c.offset); break;
        case 9: c.n_bytes = random.number(c.n_bytes); break;
        default: c.xxh3 = random.number(c.xxh3); break;
    }
}

struct call {
    int32_t                              seq_id;
    int32_t                              p0;
    std::vector<llama_kv_page_component> components;
    std::vector<uint8_t>                 payload;
    llama_kv_page_options                options;
    llama_kv_page_stats                  stats;
};

call unchanged(const page & good) {
    return { 2, good.p0, good.components, good.payload, new_options(), new_stats() };
}

call mutate(random_source & random, const page & good) {
    call res = unchanged(good);
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
        auto & c = res.components;
        switch (random.below(12)) {
            case 0:
            case 1:
            case 2:
            case 3:
                if (!c.empty()) {
                    mutate_component(random, c[random.below(c.size())]);
                }
                break;
            case 4: // the same number for all
            {
                const auto n_tokens = uint32_t(random.number(good.n_tokens()));
                for (auto & component : c) {
                    component.n_tokens = n_tokens;
                    component.n_bytes = random.one_in(2) ? uint64_t(n_tokens) * component.row_bytes : component.n_bytes;
                }
                break;
            }
            case 5:
                if (!res.payload.empty()) {
                    res.payload[random.below(res.payload.size())] ^= uint8_t(1 + random.below(255));
                }
                break;
            case 6: res.payload.resize(random.below(2 * good.payload.size())); break;
            case 7: res.seq_id = int32_t(random.number(2)); break;
            case 8: res.p0 = int32_t(random.number(good.p0)); break;
            case 9: c.resize(random.below(c.size() + 3)); break;
            case 10:
                if (!c.empty()) {
                    std::swap(c[random.below(c.size())], c[random.below(c.size())]);
                }
                break;
            default:
                switch (random.below(4)) {
                    case 0: res.options.struct_size = uint32_t(random.number(sizeof(res.options))); break;
                    case 1: res.options.flags = uint32_t(random.number(1)) | LLAMA_KV_PAGE_FLAG_DIGEST; break;
                    case 2: res.options.n_threads = uint32_t(random.number(1)); break;
                    default: res.stats.struct_size = uint32_t(random.number(sizeof(res.stats))); break;
                }
                break;
        }
    }
    // the sanitizer sees the last byte
    res.components.shrink_to_fit();
    res.payload.shrink_to_fit();
    return res;
}

// a page that was accepted is taken out again, and the twin gets and loses the same one: so the same cells come next
void undo(twins & pair, const page & good, llama_seq_id seq_id) {
    CHECK_EQ(import_page(pair.untouched.get(), seq_id, good), LLAMA_KV_PAGE_OK);
    const int32_t n = int32_t(good.n_tokens());
    check_same_page(export_page(pair.touched.get(), seq_id, good.p0, good.p0 + n),
                    export_page(pair.untouched.get(), seq_id, good.p0, good.p0 + n));
    for (llama_context * ctx : { pair.touched.get(), pair.untouched.get() }) {
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx), seq_id, good.p0, -1));
    }
}

page make_page(const cache_layout & layout) {
    const llama_context_ptr ctx = make_context(model(), layout);
    decode(ctx.get(), 0, 0, random_tokens(24, 11));
    return export_page(ctx.get(), 0, 0, 24);
}

constexpr uint32_t n_iterations = 1000; // of each test, for each layout
constexpr uint32_t check_every  = 100;

} // namespace

TEST(mutated_imports) {
    for (const auto & layout : typical_layouts()) {
        SCOPE(to_string(layout));
        random_source random(1);
        twins         pair(model(), layout);
        const page    good = make_page(layout);
        for (uint32_t i = 0; i < n_iterations; ++i) {
            SCOPE("iteration " + std::to_string(i));
            const call    bad    = mutate(random, good);
            auto          stats  = bad.stats;
            const int32_t status = count_status(llama_kv_page_import(
                pair.touched.get(), bad.seq_id, bad.p0, bad.components.data(), uint32_t(bad.components.size()),
                bad.payload.data(), bad.payload.size(), &bad.options, &stats));
            if (status == LLAMA_KV_PAGE_OK) {
                undo(pair, good, bad.seq_id);
            }
            if (i % check_every == check_every - 1) {
                pair.check_same_future();
            }
        }
    }
}

// reserve, write, commit and close in any order
TEST(mutated_steps) {
    for (const auto & layout : typical_layouts()) {
        SCOPE(to_string(layout));
        random_source               random(2);
        twins                       pair(model(), layout);
        llama_context *             ctx       = pair.touched.get();
        const page                  good      = make_page(layout);
        llama_kv_page_reservation * open      = nullptr;
        bool                        committed = false;
        call                        current;
        llama_seq_id                seq_id = 2;

        for (uint32_t i = 0; i < n_iterations; ++i) {
            SCOPE("iteration " + std::to_string(i));
            const auto n = uint32_t(good.components.size());
            switch (random.below(open ? 6 : 2)) {
                case 0:
                case 1: {
                    current = random.one_in(2) ? unchanged(good) : mutate(random, good);

                    llama_kv_page_reservation * handle = nullptr;
                    const int32_t               status =
                        count_status(llama_kv_page_reserve(ctx, current.seq_id, current.p0, current.components.data(),
                                                           uint32_t(current.components.size()), &handle));
                    CHECK_EQ(status == LLAMA_KV_PAGE_OK, handle != nullptr);
                    if (handle) {
                        CHECK(open == nullptr || committed);
                        llama_kv_page_close(open);
                        open      = handle;
                        committed = false;
                        seq_id    = current.seq_id;
                    }
                    break;
                }
                case 2:
                case 3:
                    for (uint32_t j = 0; j < n; ++j) {
                        const auto           at = random.one_in(8) ? uint32_t(random.number(j)) : j;
                        std::vector<uint8_t> bytes(good.payload.begin() + good.components[j].offset,
                                                   good.payload.begin() + good.components[j].offset +
                                                       good.components[j].n_bytes);
                        if (random.one_in(8)) {
                            bytes[random.below(bytes.size())] ^= uint8_t(1 + random.below(255));
                        }
                        if (random.one_in(8)) {
                            bytes.resize(random.below(2 * bytes.size()));
                            bytes.shrink_to_fit();
                        }
                        const auto options = new_options();
                        count_status(llama_kv_page_write(open, at, bytes.data(), bytes.size(), &options));
                    }
                    break;
                case 4:
                    if (count_status(llama_kv_page_commit(open)) == LLAMA_KV_PAGE_OK) {
                        committed = true;
                        undo(pair, good, seq_id);
                        CHECK(count_status(llama_kv_page_commit(open)) != LLAMA_KV_PAGE_OK);
                    }
                    break;
                default:
                    llama_kv_page_close(open);
                    open = nullptr;
                    break;
            }
            if ((!open || committed) && random.one_in(50)) {
                pair.check_same_future();
            }
        }
        llama_kv_page_close(open);
        pair.check_same_future();
    }
}

TEST(mutated_exports) {
    for (const auto & layout : typical_layouts()) {
        SCOPE(to_string(layout));
        random_source random(3);
        twins         pair(model(), layout);
        for (uint32_t i = 0; i < n_iterations; ++i) {
            SCOPE("iteration " + std::to_string(i));
            const auto seq_id = int32_t(random.one_in(4) ? random.number(0) : 0);
            const auto p0     = int32_t(random.one_in(2) ? random.number(0) : random.below(twins::n_seq0));
            const auto p1     = int32_t(random.one_in(2) ? random.number(twins::n_seq0) : uint32_t(p0) + 1);

            auto                                 info = new_info();
            std::vector<llama_kv_page_component> components(random.below(8));
            count_status(llama_kv_page_describe(pair.touched.get(), seq_id, p0, p1, &info, components.data(),
                                                uint32_t(components.size())));
            uint64_t payload_bytes = 0;
            if (count_status(llama_kv_page_size(pair.touched.get(), seq_id, p0, p1, &payload_bytes)) !=
                LLAMA_KV_PAGE_OK) {
                payload_bytes = random.below(4096);
            }
            std::vector<uint8_t> payload(random.one_in(4) ? random.below(2 * payload_bytes + 1) : payload_bytes);
            const auto           options = new_options(uint32_t(random.below(2)));
            count_status(llama_kv_page_export(pair.touched.get(), seq_id, p0, p1, payload.data(), payload.size(),
                                              components.data(), uint32_t(components.size()), &options, nullptr));
        }
        pair.check_same_future();
    }
}

// mutations that stop at the first check would prove little
TEST(every_check_was_reached) {
    for (const auto & [name, n] : g_statuses) {
        printf("    %8u  %s\n", n, name.c_str());
    }
    for (const char * name :
         { "OK", "ERR_ARGUMENT", "ERR_STRUCT_SIZE", "ERR_BUFFER_SIZE", "ERR_SEQ_ID", "ERR_MISSING", "ERR_OCCUPIED",
           "ERR_GAP", "ERR_NO_CELLS", "ERR_BUSY", "ERR_INCOMPLETE", "ERR_COMPONENTS", "ERR_TYPE", "ERR_ROTATION",
           "ERR_LAYOUT", "ERR_WIDTH", "ERR_DIGEST" }) {
        SCOPE(name);
        CHECK(g_statuses.count(name) == 1);
    }
}

int main(int argc, char ** argv) {
    capture_log();
    return harness::run(argc, argv);
}
