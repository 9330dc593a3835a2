#include "arithmetic_coder.h"
#include "bytes.h"

namespace cachegen {

bool is_cdf(const uint8_t * cdf) {
    bool rises = get_le<uint16_t>(cdf) == 0 && get_le<uint16_t>(cdf + 2 * (n_cdf_entries - 1)) == 65535;
    for (uint32_t i = 1; i < n_cdf_entries; i++) {
        rises &= get_le<uint16_t>(cdf + 2 * size_t{ i }) > get_le<uint16_t>(cdf + 2 * size_t{ i - 1 });
    }
    return rises;
}

namespace {

// bits from the highest to the lowest of each byte, zeros after the end
class bit_source {
  public:
    bit_source(const uint8_t * bytes, uint32_t n_bytes) : next_(bytes), end_(bytes + n_bytes) {}

    // 0 to 32 of them
    uint32_t take(uint32_t n) {
        if (n == 0) {
            return 0;
        }
        while (n_left_ < n) {
            window_ = window_ << 8 | (next_ < end_ ? *next_++ : 0);
            n_left_ += 8;
        }
        n_left_ -= n;
        return static_cast<uint32_t>(window_ >> n_left_ & ((uint64_t{ 1 } << n) - 1));
    }

  private:
    const uint8_t * next_;
    const uint8_t * end_;
    uint64_t        window_ = 0;
    uint32_t        n_left_ = 0;
};

uint32_t leading_zeros(uint32_t x) {
    return x == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(x));
}

} // namespace

void decode_arithmetic(const uint8_t * stream, uint32_t n_bytes, const uint8_t * cdf, uint32_t n, uint8_t * symbols,
                       uint64_t stride) {
    uint32_t bounds[n_cdf_entries];
    for (uint32_t i = 0; i < n_cdf_entries; i++) {
        bounds[i] = get_le<uint16_t>(cdf + 2 * size_t{ i });
    }
    bounds[n_cdf_entries - 1] = 1u << 16;

    bit_source bits(stream, n_bytes);
    uint32_t   low      = 0;
    uint32_t   high     = UINT32_MAX;
    uint64_t   distance = bits.take(32); // of the code from low; smaller than the span, whatever the stream says
    for (uint32_t t = 0; t < n; t++) {
        const uint64_t span   = uint64_t{ high } - low + 1;
        const uint64_t target = ((distance + 1) * 65536 - 1) / span;
        uint32_t       symbol = 0; // the last one whose lower bound is not above the target
        for (uint32_t step = 16; step > 0; step /= 2) {
            symbol += bounds[symbol + step] <= target ? step : 0;
        }
        symbols[t * stride] = static_cast<uint8_t>(symbol);

        const uint64_t below = span * bounds[symbol] >> 16;
        const uint64_t up_to = span * bounds[symbol + 1] >> 16;
        low += static_cast<uint32_t>(below);
        high                    = low + static_cast<uint32_t>(up_to - below - 1);
        // The span is above 2^30 before a symbol, so at least 2^14 after it: few bits go, and the shifts are sound.
        // First the leading bits on which both ends agree, then the places after the next in which low has a 1 and high
        // a 0.
        const uint32_t n_agreed = leading_zeros(low ^ high);
        low <<= n_agreed;
        high                        = high << n_agreed | ((1u << n_agreed) - 1);
        const uint32_t n_straddling = leading_zeros(~((low & ~high) << 1));
        low                         = low << n_straddling & 0x7fffffff;
        high                        = high << n_straddling | 0x80000000 | ((1u << n_straddling) - 1);
        const uint32_t n_dropped    = n_agreed + n_straddling;
        distance                    = (distance - below) << n_dropped | bits.take(n_dropped);
    }
}

} // namespace cachegen
