#include "plan_rows.h"

#include "jobs.h"

#include <algorithm>
#include <numeric>

namespace kernels {

uint32_t store_of(const cachegen_rows & rows) {
    switch (rows.type) {
        case CACHEGEN_TYPE_F32: return rows.is_transposed ? store_f32_transposed : store_f32;
        case CACHEGEN_TYPE_F16: return rows.is_transposed ? store_f16_transposed : store_f16;
        case CACHEGEN_TYPE_BF16: return rows.is_transposed ? store_bf16_transposed : store_bf16;
        case CACHEGEN_TYPE_Q8_0: return store_q8_0;
        default: return store_q4_0;
    }
}

uint32_t cell_lists::add(const uint32_t * cells, uint64_t n) {
    for (const auto & known : known_) {
        if (known.cells == cells && known.n >= n) {
            return known.at;
        }
    }
    const auto at = static_cast<uint32_t>(all_.size());
    known_.push_back({ cells, n, at });
    all_.resize(at + n);
    if (cells != nullptr) {
        std::copy(cells, cells + n, all_.begin() + at);
    } else {
        std::iota(all_.begin() + at, all_.end(), 0);
    }
    return at;
}

} // namespace kernels
