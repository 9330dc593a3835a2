#include "arithmetic_coder.h"

namespace cachegen {

void build_cdf(const uint8_t * symbols, uint64_t stride, uint32_t n, uint16_t * cdf) {
    uint32_t counts[n_cdf_entries - 1] = {};
    for (uint32_t t = 0; t < n; t++) {
        counts[symbols[t * stride] & 31]++;
    }
    constexpr uint64_t scale = 65535 - (n_cdf_entries - 1);
    uint64_t           below = 0;
    for (uint32_t i = 0; i < n_cdf_entries; i++) {
        cdf[i] = static_cast<uint16_t>(scale * below / n + i);
        below += i + 1 < n_cdf_entries ? counts[i] : 0;
    }
}

namespace {

// bits from the highest to the lowest of each byte; bits owed follow the next one as its complements
class bit_sink {
  public:
    explicit bit_sink(std::vector<uint8_t> & bytes) : bytes_(bytes) {}

    void owe() { n_owed_++; }

    void put(uint32_t bit) {
        put_one(bit);
        for (; n_owed_ > 0; n_owed_--) {
            put_one(bit ^ 1);
        }
    }

    void finish() {
        if (n_bits_ > 0) {
            bytes_.push_back(static_cast<uint8_t>(byte_ << (8 - n_bits_)));
        }
    }

  private:
    void put_one(uint32_t bit) {
        byte_ = byte_ << 1 | bit;
        if (++n_bits_ == 8) {
            bytes_.push_back(static_cast<uint8_t>(byte_));
            byte_   = 0;
            n_bits_ = 0;
        }
    }

    std::vector<uint8_t> & bytes_;
    uint32_t               byte_   = 0;
    uint32_t               n_bits_ = 0;
    uint32_t               n_owed_ = 0;
};

} // namespace

void encode_arithmetic(const uint8_t * symbols, uint64_t stride, uint32_t n, const uint16_t * cdf,
                       std::vector<uint8_t> & stream) {
    bit_sink bits(stream);
    uint32_t low  = 0;
    uint32_t high = UINT32_MAX;
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t symbol = symbols[t * stride];
        const uint64_t span   = uint64_t{ high } - low + 1;
        const uint64_t end    = symbol + 2 == n_cdf_entries ? 65536 : cdf[symbol + 1];
        high                  = low + static_cast<uint32_t>((span * end >> 16) - 1);
        low += static_cast<uint32_t>(span * cdf[symbol] >> 16);
        for (;;) {
            if ((low ^ high) >> 31 == 0) {
                bits.put(low >> 31);
                low <<= 1;
                high = high << 1 | 1;
            } else if (low >> 30 == 1 && high >> 30 == 2) {
                bits.owe();
                low  = low << 1 & 0x7fffffff;
                high = high << 1 | 0x80000001;
            } else {
                break;
            }
        }
    }
    bits.owe();
    bits.put(low >> 30);
    bits.finish();
}

} // namespace cachegen
