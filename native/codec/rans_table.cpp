#include "rans_table.h"

namespace cachegen::lcg3 {

static uint32_t make_half(uint32_t frequency, uint32_t addend, uint32_t symbol) {
    return ((frequency - 1) & 1023) | (addend & 1023) << 10 | symbol << 20;
}

void build_buckets(const uint16_t * frequencies, uint32_t n_symbols, bucket * buckets) {
    const uint32_t n_buckets = 1u << log2_buckets(n_symbols);
    const uint32_t width     = prob_scale / n_buckets;

    uint32_t slots_left[max_symbols] = {}; // of each symbol, not given away yet
    uint32_t divider[max_symbols];
    uint32_t donor[max_symbols];
    bool     is_full[max_symbols] = {};
    for (uint32_t s = 0; s < n_symbols; s++) {
        slots_left[s] = frequencies[s];
    }
    for (uint32_t b = 0; b < n_buckets; b++) {
        divider[b] = width;
        donor[b]   = b;
    }
    const auto next_donor = [&](uint32_t s) {
        while (s < n_buckets && slots_left[s] <= width) {
            s++;
        }
        return s;
    };

    // Every bucket in turn that its own symbol does not fill gets the rest from the current donor. A donor that falls
    // below one bucket's width is served at once, by the next donor.
    uint32_t from = next_donor(0);
    for (uint32_t b = 0; b < n_buckets; b++) {
        uint32_t to = b;
        while (!is_full[to] && slots_left[to] < width) {
            divider[to] = slots_left[to];
            donor[to]   = from;
            is_full[to] = true;
            slots_left[from] -= width - slots_left[to];
            if (slots_left[from] > width) {
                break;
            }
            to   = from;
            from = next_donor(from + 1);
        }
    }

    uint32_t next_rank[max_symbols];
    for (uint32_t s = 0; s < n_buckets; s++) {
        next_rank[s] = divider[s];
    }
    for (uint32_t b = 0; b < n_buckets; b++) {
        const uint32_t own_frequency = b < n_symbols ? frequencies[b] : 0;
        const uint32_t own           = make_half(own_frequency, 0, b);
        if (donor[b] == b) {
            buckets[b] = static_cast<uint64_t>(own) << 32 | own; // divider 0: both halves are the same symbol
            continue;
        }
        const uint32_t d     = donor[b];
        const uint32_t alias = make_half(frequencies[d], next_rank[d] - divider[b], d);
        next_rank[d] += width - divider[b];
        buckets[b] = static_cast<uint64_t>(alias) << 32 | divider[b] << 26 | own;
    }
}

} // namespace cachegen::lcg3
