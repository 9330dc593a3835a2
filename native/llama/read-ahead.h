// Memory that may be a mapped file which is not in the page cache: asked for by another thread, ahead of its use.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

class read_ahead {
  public:
    using range = std::pair<const uint8_t *, uint64_t>; // begin, bytes

    // The ranges in order. Without a thread to be had nothing is read ahead.
    explicit read_ahead(std::vector<range> ranges);
    ~read_ahead();
    read_ahead(const read_ahead &)             = delete;
    read_ahead & operator=(const read_ahead &) = delete;

  private:
    void touch() const;

    std::vector<range> ranges_;
    std::atomic<bool>  is_stopped_{ false };
    std::thread        thread_;
};
