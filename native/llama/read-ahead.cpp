#include "read-ahead.h"

#include <system_error>

static constexpr uint64_t page_bytes = 4096; // the smallest there is

read_ahead::read_ahead(std::vector<range> ranges) : ranges_(std::move(ranges)) {
    try {
        thread_ = std::thread([this] { touch(); });
    } catch (const std::system_error &) {
        // the decoder reads for itself then
    }
}

read_ahead::~read_ahead() {
    is_stopped_ = true;
    if (thread_.joinable()) {
        thread_.join();
    }
}

void read_ahead::touch() const {
    for (const auto & [begin, n_bytes] : ranges_) {
        for (uint64_t i = 0; i < n_bytes && !is_stopped_; i += page_bytes) {
            (void) *static_cast<const volatile uint8_t *>(begin + i);
        }
    }
}
