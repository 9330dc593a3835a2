#include "lcg3_request.h"

#include "status.h"
#include "typed_store.h"

#include <algorithm>

namespace cachegen::lcg3 {

using ull = unsigned long long;

static void check_destination(const archive & source, uint32_t index, const cachegen_lcg3_destination & destination,
                              uint64_t n_tokens) {
    const plane_record & plane = source.planes[index];
    const auto &         rows  = destination.rows;
    validate_rows(rows, "a destination");
    if (rows.n_channels != plane.n_channels || rows.n_tokens < n_tokens) {
        fail(CACHEGEN_ERR_MISMATCH, "plane %u has %u channels, its destination %llu, with %llu tokens of %llu", index,
             plane.n_channels, (ull) rows.n_channels, (ull) rows.n_tokens, (ull) n_tokens);
    }
    const uint32_t n_rot = destination.n_rot;
    if (n_rot != 0 &&
        (n_rot < 2 || n_rot > max_rotation || (n_rot & (n_rot - 1)) != 0 || plane.n_channels % n_rot != 0)) {
        fail(CACHEGEN_ERR_ARGUMENT, "plane %u: a destination rotated by %u of %u channels", index, n_rot,
             plane.n_channels);
    }
}

std::pair<uint32_t, uint32_t> decode_request::blocks() const {
    const header & head = source->head;
    if (last_token() < head.n_exact_tokens) {
        return { 0, 0 };
    }
    const uint64_t begin = std::max<uint64_t>(first_token, head.n_exact_tokens) - head.n_exact_tokens;
    return { static_cast<uint32_t>(begin / head.block_tokens),
             static_cast<uint32_t>((last_token() - head.n_exact_tokens) / head.block_tokens) + 1 };
}

token_range decode_request::range(uint32_t plane) const {
    const uint64_t begin = std::max(
        { first_token, uint64_t{ source->planes[plane].first_token }, uint64_t{ destinations[plane].first_token } });
    const uint64_t end = first_token + n_tokens;
    return { begin, end - std::min(begin, end) };
}

decode_request make_request(const archive & source, uint64_t first_token, uint64_t n_tokens,
                            const cachegen_lcg3_destination * destinations) {
    const header & head = source.head;
    if (n_tokens == 0 || first_token > head.n_tokens || n_tokens > head.n_tokens - first_token) {
        fail(CACHEGEN_ERR_ARGUMENT, "tokens from %llu, %llu of them; the archive has %u", (ull) first_token,
             (ull) n_tokens, head.n_tokens);
    }
    decode_request request{ &source, first_token, n_tokens, destinations, {} };
    for (uint32_t p = 0; p < head.n_planes; p++) {
        if (destinations[p].rows.data != nullptr) {
            const uint64_t n = request.range(p).n;
            check_destination(source, p, destinations[p], n);
            if (n > 0) {
                request.wanted.push_back(p);
            }
        }
    }
    return request;
}

} // namespace cachegen::lcg3
