// XXH3-64, seed 0, streaming. Kept apart so that xxhash's header is compiled once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

class page_digest {
  public:
    page_digest();
    ~page_digest();

    void     update(const void * data, size_t n_bytes);
    uint64_t value() const;

  private:
    struct state;
    std::unique_ptr<state> impl;
};
