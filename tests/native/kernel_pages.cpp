#include "kernel_pages.h"

#include "codec_types.h"
#include "harness.h"

#include <cmath>

namespace kernel_parity {

void check_ok(int32_t status) {
    if (status != CACHEGEN_OK) {
        printf("%s: %s\n", cachegen_status_name(status), cachegen_last_message());
    }
    CHECK_EQ(status, int32_t(CACHEGEN_OK));
}

std::vector<float> make_values(std::mt19937 & random, uint32_t n_tokens, uint32_t n_channels, bool is_odd) {
    std::normal_distribution<float> normal;
    std::vector<float>              values(size_t{ n_tokens } * n_channels);
    std::vector<float>              spread(n_channels);
    for (auto & s : spread) {
        s = std::exp(normal(random));
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        for (uint32_t c = 0; c < n_channels; c++) {
            const float before                   = t > 0 ? values[size_t{ t - 1 } * n_channels + c] : 0;
            values[size_t{ t } * n_channels + c] = 0.6f * before + spread[c] * normal(random);
        }
    }
    if (is_odd) {
        for (uint32_t t = 0; t < n_tokens; t += 7) { // rows of zeros, of equal extremes, of tiny numbers
            for (uint32_t c = 0; c < n_channels; c++) {
                float & v = values[size_t{ t } * n_channels + c];
                v         = t % 3 == 0 ? 0.0f : t % 3 == 1 ? (c % 2 ? 2.5f : -2.5f) : v * 1e-40f;
            }
        }
    }
    return values;
}

cachegen_rows rows_for(bytes & data, uint32_t type, uint32_t is_transposed, uint64_t n_tokens, uint64_t n_rows,
                       uint32_t n_channels, const uint32_t * cells) {
    cachegen_rows rows{};
    rows.type          = type;
    rows.is_transposed = is_transposed;
    rows.n_tokens      = n_tokens;
    rows.n_rows        = n_rows;
    rows.n_channels    = n_channels;
    rows.stride_bytes  = is_transposed ? n_rows * row_bytes(type, 1) : row_bytes(type, n_channels);
    rows.n_bytes       = n_rows * row_bytes(type, n_channels);
    data.resize(rows.n_bytes);
    rows.cells = cells;
    rows.data  = data.data();
    return rows;
}

int32_t encode_on_host(const std::vector<cachegen_lcg3_plane> & planes, const std::vector<cachegen_rows> & sources,
                       const cachegen_lcg3_options & options, bytes & archive) {
    void *        made    = nullptr;
    uint64_t      n_bytes = 0;
    const int32_t status =
        cachegen_lcg3_encode(planes.data(), sources.data(), planes.size(), &options, nullptr, &made, &n_bytes);
    archive.assign(static_cast<uint8_t *>(made), static_cast<uint8_t *>(made) + n_bytes);
    cachegen_free(made);
    return status;
}

} // namespace kernel_parity
