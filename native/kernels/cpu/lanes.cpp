#include "../port.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>

namespace lanes {

namespace {

constexpr size_t stack_bytes = 64 << 10;

struct fiber {
    ucontext_t context;
    collective waits_at = collective::none;
    uint32_t   value    = 0;
    uint32_t   argument = 0;
    uint64_t   result   = 0;
    kc_thread  thread;
};

struct workgroup_run {
    std::vector<fiber>                             fibers;
    ucontext_t                                     scheduler;
    uint32_t                                       current   = 0;
    uint32_t                                       wave_size = 32;
    const std::function<void(const kc_thread &)> * kernel    = nullptr;
};

thread_local workgroup_run * running = nullptr;

[[noreturn]] void die(const char * what, uint32_t thread) {
    fprintf(stderr, "lanes: %s, thread %u\n", what, thread);
    abort();
}

void fiber_main() {
    fiber & self = running->fibers[running->current];
    (*running->kernel)(self.thread);
    self.waits_at = collective::done;
    swapcontext(&self.context, &running->scheduler);
    abort();
}

// lanes of a wave, by their fibers
struct lane_range {
    uint32_t first;
    uint32_t n;
};

// give the lanes that are there what the collective makes of their values
void resolve(workgroup_run & run, uint32_t wave, const lane_range & there) {
    const collective which  = run.fibers[there.first].waits_at;
    uint64_t         ballot = 0;
    for (uint32_t i = there.first; i < there.first + there.n; i++) {
        ballot |= uint64_t{ run.fibers[i].value != 0 } << (i - wave);
    }
    const auto value_of = [&](uint32_t i) {
        return i >= there.first && i < there.first + there.n ? run.fibers[i].value : 0;
    };
    for (uint32_t i = there.first; i < there.first + there.n; i++) {
        fiber & f = run.fibers[i];
        switch (which) {
            case collective::ballot: f.result = ballot; break;
            case collective::permute: f.result = value_of(wave + f.argument % run.wave_size); break;
            case collective::swizzle_xor: f.result = value_of(i ^ f.argument); break;
            default: break;
        }
    }
    for (uint32_t i = there.first; i < there.first + there.n; i++) {
        run.fibers[i].waits_at = collective::none;
    }
}

bool is_at_end(collective which) {
    return which == collective::sync || which == collective::done;
}

// a wave until its groups wait for others or are done
void run_wave(workgroup_run & run, const lane_range & wave, uint32_t order, std::mt19937 & random) {
    std::vector<uint32_t> lane_order(wave.n);
    std::iota(lane_order.begin(), lane_order.end(), wave.first);
    if (order == 1) {
        std::reverse(lane_order.begin(), lane_order.end());
    }
    while (true) {
        if (order > 1) {
            std::shuffle(lane_order.begin(), lane_order.end(), random);
        }
        for (const uint32_t i : lane_order) {
            if (run.fibers[i].waits_at == collective::none) {
                run.current = i;
                swapcontext(&run.scheduler, &run.fibers[i].context);
            }
        }
        for (uint32_t i = wave.first; i < wave.first + wave.n; i++) {
            if (run.fibers[i].waits_at != run.fibers[i / 32 * 32].waits_at) {
                die("lanes of one group wait at different collectives", i);
            }
        }
        const collective lower = run.fibers[wave.first].waits_at;
        const collective upper = run.fibers[wave.first + wave.n - 32].waits_at; // the same in a wave of 32
        if (is_at_end(lower) && is_at_end(upper)) {
            return;
        }
        const bool meet_all = order == 0 || (order > 1 && random() % 2 != 0);
        if (lower == upper && (wave.n == 32 || meet_all)) {
            resolve(run, wave.first, wave);
        } else if (!is_at_end(lower) && (is_at_end(upper) || order <= 1 || random() % 2 != 0)) {
            resolve(run, wave.first, { wave.first, 32 });
        } else {
            resolve(run, wave.first, { wave.first + 32, 32 });
        }
    }
}

} // namespace

uint64_t meet(collective which, uint32_t value, uint32_t argument) {
    fiber & self  = running->fibers[running->current];
    self.waits_at = which;
    self.value    = value;
    self.argument = argument;
    swapcontext(&self.context, &running->scheduler);
    return self.result;
}

uint32_t wave_size() {
    return running->wave_size;
}

uint32_t wave_lane() {
    return running->current % running->wave_size;
}

void run_workgroup(uint32_t n_threads, uint32_t workgroup, uint32_t n_workgroups, const run_options & options,
                   const std::function<void(const kc_thread &)> & kernel) {
    if (n_threads == 0 || n_threads % 32 != 0) {
        die("a workgroup is whole groups of 32", n_threads);
    }
    workgroup_run run;
    run.kernel    = &kernel;
    run.wave_size = options.wave_size;
    run.fibers.resize(n_threads);
    running = &run;
    static thread_local std::vector<uint8_t> stacks;
    stacks.resize(std::max(stacks.size(), n_threads * stack_bytes));
    for (uint32_t i = 0; i < n_threads; i++) {
        fiber & f = run.fibers[i];
        f.thread  = { i, i % 32, i / 32, n_threads / 32, workgroup, n_workgroups };
        getcontext(&f.context);
        f.context.uc_stack.ss_sp   = &stacks[i * stack_bytes];
        f.context.uc_stack.ss_size = stack_bytes;
        f.context.uc_link          = nullptr;
        makecontext(&f.context, fiber_main, 0);
    }
    std::mt19937 random(options.order);
    while (true) {
        for (uint32_t first = 0; first < n_threads; first += options.wave_size) {
            run_wave(run, { first, std::min(options.wave_size, n_threads - first) }, options.order, random);
        }
        const auto n_done = std::count_if(run.fibers.begin(), run.fibers.end(),
                                          [](const fiber & f) { return f.waits_at == collective::done; });
        if (n_done == n_threads) {
            break;
        }
        if (n_done != 0) {
            die("a group left while others wait for it", static_cast<uint32_t>(n_done));
        }
        for (fiber & f : run.fibers) {
            f.waits_at = collective::none;
        }
    }
    running = nullptr;
}

} // namespace lanes
