// Work over an optional executor of the caller; an exception in a task reaches the caller of run_tasks.
#pragma once

#include "cachegen.h"

#include <cstdint>
#include <functional>

namespace cachegen {

// call body(i) for every i in [0, n_tasks); after a failure tasks not begun yet are left out and one failure is
// rethrown
void run_tasks(const cachegen_executor * executor, uint64_t n_tasks, const std::function<void(uint64_t)> & body);

} // namespace cachegen
