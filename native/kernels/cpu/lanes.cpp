#include "lanes.h"

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
    uint32_t   result   = 0;
    kc_thread  thread;
};

struct workgroup_run {
    std::vector<fiber>                             fibers;
    ucontext_t                                     scheduler;
    uint32_t                                       current = 0;
    const std::function<void(const kc_thread &)> * kernel  = nullptr;
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

// give every lane of a group what the collective makes of their values
void resolve(workgroup_run & run, uint32_t first) {
    const collective which   = run.fibers[first].waits_at;
    uint32_t         ballot  = 0;
    uint32_t         largest = 0;
    uint32_t         least   = UINT32_MAX;
    for (uint32_t i = 0; i < 32; i++) {
        const fiber & f = run.fibers[first + i];
        ballot |= uint32_t{ f.value != 0 } << i;
        largest = std::max(largest, f.value);
    }
    for (uint32_t i = 0; i < 32; i++) {
        fiber & f = run.fibers[first + i];
        switch (which) {
            case collective::ballot: f.result = ballot; break;
            case collective::shuffle: f.result = run.fibers[first + (f.argument & 31)].value; break;
            case collective::shuffle_xor: f.result = run.fibers[first + (i ^ (f.argument & 31))].value; break;
            case collective::max: f.result = largest; break;
            default: break;
        }
    }
    for (uint32_t i = 0; i < 32; i++) {
        run.fibers[first + i].waits_at = collective::none;
    }
}

} // namespace

uint32_t meet(collective which, uint32_t value, uint32_t argument) {
    fiber & self  = running->fibers[running->current];
    self.waits_at = which;
    self.value    = value;
    self.argument = argument;
    swapcontext(&self.context, &running->scheduler);
    return self.result;
}

void run_workgroup(uint32_t n_threads, uint32_t workgroup, uint32_t n_workgroups, uint32_t order,
                   const std::function<void(const kc_thread &)> & kernel) {
    if (n_threads == 0 || n_threads % 32 != 0) {
        die("a workgroup is whole groups of 32", n_threads);
    }
    workgroup_run run;
    run.kernel = &kernel;
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
    std::vector<uint32_t> lane_order(32);
    std::iota(lane_order.begin(), lane_order.end(), 0);
    std::mt19937 random(order);
    if (order == 1) {
        std::reverse(lane_order.begin(), lane_order.end());
    }
    while (true) {
        uint32_t n_done = 0;
        uint32_t n_sync = 0;
        for (uint32_t first = 0; first < n_threads; first += 32) {
            // this group until it waits for the others or is done
            while (true) {
                if (order > 1) {
                    std::shuffle(lane_order.begin(), lane_order.end(), random);
                }
                for (const uint32_t i : lane_order) {
                    if (run.fibers[first + i].waits_at == collective::none) {
                        run.current = first + i;
                        swapcontext(&run.scheduler, &run.fibers[first + i].context);
                    }
                }
                const collective which = run.fibers[first].waits_at;
                for (uint32_t i = 1; i < 32; i++) {
                    if (run.fibers[first + i].waits_at != which) {
                        die("lanes of one group wait at different collectives", first + i);
                    }
                }
                if (which == collective::sync || which == collective::done) {
                    (which == collective::sync ? n_sync : n_done) += 32;
                    break;
                }
                resolve(run, first);
            }
        }
        if (n_done == n_threads) {
            break;
        }
        if (n_sync != n_threads) {
            die("a group left while others wait for it", n_done);
        }
        for (fiber & f : run.fibers) {
            f.waits_at = collective::none;
        }
    }
    running = nullptr;
}

} // namespace lanes
