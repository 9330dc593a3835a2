#include "arithmetic_coder.h"
#include "bit_pack.h"
#include "bytes.h"
#include "caller_bytes.h"
#include "lcg3_quantize.h"
#include "tile.h"
#include "typed_store.h"

#include <cmath>

namespace cachegen::legacy {

namespace {

using ull = unsigned long long;

// Symbols of a row. Where c / maximum is not finite, so in a row of zeros, the sign alone counts.
void quantize(const float * values, uint64_t n, float maximum, uint32_t n_levels, uint8_t * symbols) {
    const uint32_t centre = n_levels / 2;
    if (std::isfinite(static_cast<float>(centre) / maximum)) {
        lcg3::quantizer().quantize_row(values, n, maximum, n_levels, symbols, 32);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        symbols[i] = static_cast<uint8_t>(values[i] > 0 ? 2 * centre : values[i] < 0 ? 0 : centre);
    }
}

} // namespace

std::vector<uint8_t> encode_tile(const cachegen_rows & source, uint64_t first_token, uint32_t n_tokens, uint32_t n_bins,
                                 uint32_t version) {
    if ((n_bins != 16 && n_bins != 32) || version < 1 || version > 2) {
        fail(CACHEGEN_ERR_ARGUMENT, "%u bins in version %u; 16 or 32 in version 1 or 2 are possible", n_bins, version);
    }
    if (n_tokens < 1 || n_tokens > max_tile_tokens || first_token > source.n_tokens ||
        n_tokens > source.n_tokens - first_token) {
        fail(CACHEGEN_ERR_ARGUMENT, "%u tokens from %llu on, of %llu; a tile has 1 to %u", n_tokens, (ull) first_token,
             (ull) source.n_tokens, max_tile_tokens);
    }
    const uint64_t n_channels = source.n_channels;
    if (n_channels > max_tile_values / n_tokens) {
        fail(CACHEGEN_ERR_LIMIT, "%u tokens of %llu channels; a tile holds %llu values at most", n_tokens,
             (ull) n_channels, (ull) max_tile_values);
    }
    const uint64_t       n_values = n_tokens * n_channels;
    const uint32_t       n_levels = n_bins - 1;
    std::vector<uint8_t> symbols(n_values);
    std::vector<float>   values(n_channels);
    std::vector<uint8_t> out(tile_header_bytes + 4 * size_t{ n_tokens });
    for (uint32_t t = 0; t < n_tokens; t++) {
        load_tile(source, first_token + t, 1, 0, n_channels, values.data(), n_channels);
        const float maximum = lcg3::quantizer().max_magnitude(values.data(), n_channels);
        if (fp32_to_fp16(maximum) >= 0x7c00) {
            fail(CACHEGEN_ERR_NON_FINITE, "token %llu holds a value that is not finite as F16",
                 (ull) (first_token + t));
        }
        quantize(values.data(), n_channels, maximum, n_levels, &symbols[t * n_channels]);
        put_le(&out[tile_header_bytes + 4 * size_t{ t }], maximum);
    }

    std::vector<uint8_t> stream;
    if (version == 1) {
        const size_t tables  = out.size();
        const size_t lengths = tables + 2 * n_channels * n_cdf_entries;
        out.resize(lengths + 2 * n_channels);
        for (uint64_t c = 0; c < n_channels; c++) {
            uint16_t cdf[n_cdf_entries];
            build_cdf(&symbols[c], n_channels, n_tokens, cdf);
            memcpy(&out[tables + 2 * c * n_cdf_entries], cdf, sizeof(cdf));
            const size_t before = stream.size();
            encode_arithmetic(&symbols[c], n_channels, n_tokens, cdf, stream);
            put_le<uint16_t>(&out[lengths + 2 * c], static_cast<uint16_t>(stream.size() - before));
        }
    } else {
        const uint32_t bits = n_bins == 16 ? 4 : 5;
        stream.resize(packed_bytes(n_values, bits));
        for (uint64_t i = 0; i < n_values; i++) {
            pack_bits(stream.data(), i, bits, symbols[i]);
        }
        stream.resize((n_values * bits + 7) / 8);
    }
    memcpy(out.data(), version == 1 ? "LCG1" : "LCG2", 4);
    out[4] = static_cast<uint8_t>(n_bins);
    out[5] = static_cast<uint8_t>(version == 1 ? 0 : n_bins == 16 ? 4 : 5);
    put_le<uint16_t>(&out[6], static_cast<uint16_t>(n_tokens));
    put_le<uint32_t>(&out[8], static_cast<uint32_t>(n_channels));
    put_le<uint32_t>(&out[12], static_cast<uint32_t>(stream.size()));
    out.insert(out.end(), stream.begin(), stream.end());
    return out;
}

} // namespace cachegen::legacy

using namespace cachegen;

int32_t cachegen_tile_encode(const struct cachegen_rows * source, uint64_t first_token, uint32_t n_tokens,
                             uint32_t n_bins, uint32_t version, void ** tile, uint64_t * n_bytes) {
    return guard([&] {
        if (source == nullptr || tile == nullptr || n_bytes == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "source, tile or n_bytes is NULL");
        }
        *tile    = nullptr;
        *n_bytes = 0;
        validate_rows(*source, "a source");
        const auto bytes = legacy::encode_tile(*source, first_token, n_tokens, n_bins, version);
        *tile            = copy_for_caller(bytes);
        *n_bytes         = bytes.size();
    });
}
