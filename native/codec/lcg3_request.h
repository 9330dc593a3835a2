// What a caller wants of an archive, checked against it: a range of tokens, and where each plane goes. The
// destinations' bytes are not looked at, so they can lie in another memory.
#pragma once

#include "cachegen.h"
#include "lcg3_archive.h"

#include <cstdint>
#include <utility>

namespace cachegen::lcg3 {

struct token_range {
    uint64_t first; // in the archive
    uint64_t n;
};

struct decode_request {
    const archive *                   source;
    uint64_t                          first_token;
    uint64_t                          n_tokens;
    const cachegen_lcg3_destination * destinations;
    metered_vector<uint32_t>          wanted; // planes that get something

    uint64_t                      last_token() const { return first_token + n_tokens - 1; }
    bool                          has_exact_rows() const { return first_token < source->head.n_exact_tokens; }
    // blocks that hold some of the tokens: [first, end)
    std::pair<uint32_t, uint32_t> blocks() const;
    // the tokens that a plane holds and its destination wants
    token_range                   range(uint32_t plane) const;
};

// destinations: one a plane, kept. Throws ERR_ARGUMENT, ERR_MISMATCH or ERR_UNSUPPORTED.
decode_request make_request(const archive & source, uint64_t first_token, uint64_t n_tokens,
                            const cachegen_lcg3_destination * destinations);

// the rotation of a plane's coded values, 0 for none
inline uint32_t coded_rotation(const plane_record & plane) {
    return plane.flags & plane_flag_unrotated ? 0 : plane.n_rot;
}

} // namespace cachegen::lcg3
