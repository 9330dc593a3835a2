// Work over an optional executor of the caller; an exception in a task reaches the caller of run_tasks.
#pragma once

#include "cachegen.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace cachegen {

// call body(i) for every i in [0, n_tasks); after a failure tasks not begun yet are left out and one failure is
// rethrown
void run_tasks(const cachegen_executor * executor, uint64_t n_tasks, const std::function<void(uint64_t)> & body);

struct executor_deleter {
    void operator()(cachegen_executor * executor) const { cachegen_executor_free(executor); }
};

using executor_ptr = std::unique_ptr<cachegen_executor, executor_deleter>;

// a pool of its own; NULL, the calling thread alone, for one thread or if there are none to be had
inline executor_ptr make_executor(uint32_t n_threads) {
    cachegen_executor * executor = nullptr;
    if (n_threads > 1) {
        cachegen_executor_new(n_threads, &executor);
    }
    return executor_ptr(executor);
}

} // namespace cachegen
