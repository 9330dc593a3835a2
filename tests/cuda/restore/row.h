// One row of the tables: a cache of two types, the ways to save and restore it, and what was measured.
#pragma once

#include "bench_results.h"
#include "files.h"
#include "llama-cachegen.h"
#include "model.h"
#include "page.h"

#include <memory>

// llama.cpp's own state file, the native control, an archive
enum class method { state, native, archive };
constexpr method       methods[]      = { method::state, method::native, method::archive };
constexpr const char * method_names[] = { "state", "native", "archive" };

inline const char * name_of(method m) {
    return method_names[static_cast<int>(m)];
}

// a file of each method, in one folder; they go with it
struct row_files {
    explicit row_files(const std::string & folder)
        : state(folder + "/state.bin"), native(folder + "/native.lcg3"), archive(folder + "/page.lcg3") {}

    const temporary_file & of(method m) const {
        return m == method::state ? state : m == method::native ? native : archive;
    }

    temporary_file state;
    temporary_file native;
    temporary_file archive;
};

// What everything that is measured works on.
struct row_setup {
    const bench_model &       model;
    const cachegen_executor * executor;
    int                       n_repeats;
    llama_context_ptr         ctx;
    cache_page                page;   // before anything was saved
    std::vector<float>        logits; // of the token after the page, before anything was saved
    double                    prefill_ms = 0;

    int32_t     n_tokens() const { return model.n_tokens(); }
    llama_token next_token() const { return model.tokens.back(); }

    // forget positions from this one on
    void forget(int32_t from) const { llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, from, -1); }

    std::vector<float> step() const { return decode(ctx.get(), &model.tokens.back(), 1, n_tokens()); }
};

// Evaluate the tokens in a new context.
row_setup new_row(const bench_model & model, const cachegen_executor * executor, const cache_types & types,
                  int n_repeats);

//
// saving
//

struct save_results {
    samples  state;
    samples  archive;
    samples  encode; // of it, encoding; the file's writing is in it
    samples  write;
    uint64_t peak_bytes = 0;
    bool     is_same    = false; // the archive is libcachegen's
};

// Leaves the files of all methods in their places, and what libcachegen decodes the archive to in `expected`.
save_results measure_saves(const row_setup & row, const row_files & files, cell_bytes & expected);

//
// restoring
//

struct restored {
    double               load_ms  = 0;
    double               total_ms = 0; // first token included
    llama_cachegen_stats stats{};      // zeros for llama.cpp's
    std::vector<float>   logits;
};

// Into an empty sequence, without a decode step.
restored restore(const row_setup & row, method m, const std::string & path);

// With one.
restored restore_to_first_token(const row_setup & row, method m, const std::string & path);

struct method_results {
    samples  load;
    samples  first_token;
    samples  reserve;
    samples  code;
    samples  commit;
    uint64_t n_bytes         = 0; // of its file
    uint64_t peak_bytes      = 0;
    bool     has_same_cells  = false; // as saved; of the archive: as libcachegen decodes it
    bool     has_same_logits = false; // as before saving
    bool     has_same_top    = false;
};

struct restore_results {
    method_results of[3];
    samples        step;        // one decode step, the cache being there
    samples        read_upload; // the archive's file to the device's memory, undecoded

    double floor_ms() const { return read_upload.median() + step.median(); }
};

restore_results measure_restores(const row_setup & row, const row_files & files, const cell_bytes & expected);

// Files that are not in memory.
struct cold_results {
    bool    is_dropped = false; // else nothing was measured
    samples first_token[3];
    samples read[3]; // a plain read
};

cold_results measure_cold(const row_setup & row, const row_files & files, const std::string & folder, int n_repeats);

//
// what comes after
//

// Greedy tokens after the page: of the cache as it was, and of the restored one.
struct agreement {
    int    n_tokens   = 0;
    int    n_equal    = 0; // positions with the same token, both running freely
    int    n_before   = 0; // tokens before the first that differs
    double mean_kl    = 0; // nats, KL(as it was || restored), both fed the tokens of the cache as it was
    double largest_kl = 0;
    int    n_same_top = 0; // of those
};

struct greedy_run {
    std::vector<llama_token>        tokens;
    std::vector<std::vector<float>> logits;
};

// fed  IN  what is fed instead of the run's own tokens, or NULL
greedy_run run_greedily(const row_setup & row, const std::vector<llama_token> * fed);

agreement measure_agreement(const row_setup & row, const row_files & files, const greedy_run & original);

//
// reports
//

struct row_results {
    cache_types                   types;
    save_results                  save;
    restore_results               restore;
    std::unique_ptr<cold_results> cold;
    std::unique_ptr<agreement>    after;
};

// were all comparisons as they have to be?
bool is_good(const row_results & results);

void print_row(const row_setup & row, const row_results & results);
json row_json(const row_setup & row, const row_results & results);
