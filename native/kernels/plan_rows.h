// What plans say of rows of a cache: how they keep their values, and where the cells of their tokens are listed.
#pragma once

#include "cachegen.h"

#include <cstdint>
#include <vector>

namespace kernels {

// enum store_kind
uint32_t store_of(const cachegen_rows & rows);

// Cells of several planes for a device, one list after another. Planes mostly share theirs.
class cell_lists {
  public:
    // index in all() of the cell of the first of n tokens. cells  IN  not kept; NULL: token after token from 0
    uint32_t add(const uint32_t * cells, uint64_t n);

    const std::vector<uint32_t> & all() const { return all_; }

  private:
    struct known_list {
        const uint32_t * cells;
        uint64_t         n;
        uint32_t         at;
    };

    std::vector<uint32_t>   all_;
    std::vector<known_list> known_;
};

} // namespace kernels
