// Every instruction set gives the same: statuses and bytes of a decode, archives of an encode. What was encoded is
// decoded again, and exact planes come back bit by bit.
#include "fuzz-lcg3.h"

#include <algorithm>
#include <iterator>

namespace {

using namespace fuzz;

// of an archive or a page: all that more would add is time
constexpr uint64_t max_values = 1u << 13;

void decode_everywhere(uint8_t choices, const buffer & archive) {
    use_isa(isas()[0]);
    const auto expected = lcg3::read(choices, archive, max_values, false);
    for (size_t i = 1; i < isas().size(); i++) {
        use_isa(isas()[i]);
        const auto ours = lcg3::read(choices, archive, max_values, false);
        FUZZ_CHECK(ours.statuses == expected.statuses);
        FUZZ_CHECK(ours.decoded == expected.decoded);
    }
}

constexpr uint32_t coded_types[] = { CACHEGEN_TYPE_F16, CACHEGEN_TYPE_Q8_0, CACHEGEN_TYPE_F32, CACHEGEN_TYPE_BF16,
                                     CACHEGEN_TYPE_Q4_0 };
constexpr uint32_t scale_types[] = { CACHEGEN_TYPE_F16, CACHEGEN_TYPE_F32, CACHEGEN_TYPE_BF16 };

struct page {
    uint8_t                                  choices = 0; // of a decode as other types
    std::vector<cachegen_lcg3_plane>         planes;
    std::vector<std::unique_ptr<typed_rows>> sources;
    cachegen_lcg3_options                    options{};
    uint32_t                                 n_tokens;
};

// values that look like something: steps from token to token, with what the input says now and then
void fill_with_steps(typed_rows & source, input & in) {
    const uint64_t     n_channels = source.rows.n_channels;
    std::vector<float> values(source.rows.n_tokens * n_channels);
    uint32_t           state = in.number() | in.number() << 16;
    const float        size  = static_cast<float>(1u << in.below(16)) / 256;
    for (size_t i = 0; i < values.size(); i++) {
        state              = state * 1664525 + 1013904223;
        const float step   = (static_cast<float>(state >> 8) / 0x1p23f - 1) * size;
        const float before = i < n_channels ? 0 : values[i - n_channels];
        values[i]          = before * 0.75f + step;
        if (in.size() > 0 && i % 13 == 0) {
            values[i] *= static_cast<float>(in.byte()) / 64;
        }
    }
    FUZZ_CHECK(cachegen_store_rows(&source.rows, 0, source.rows.n_tokens, values.data()) == CACHEGEN_OK);
}

void fill_with_bytes(typed_rows & source, const input & in) {
    for (size_t i = 0; i < source.bytes.n_bytes; i++) {
        source.bytes.data[i] = in.size() == 0 ? 0 : in.rest()[i % in.size()];
    }
}

page make_page(input & in) {
    page           res;
    const uint32_t n_planes     = 1 + in.below(3);
    res.n_tokens                = 1 + in.below(80);
    res.choices                 = in.byte();
    res.options.struct_size     = sizeof(res.options);
    res.options.block_tokens    = 32 + in.below(50);
    res.options.n_exact_tokens  = in.below(8);
    res.options.n_models        = 1 + in.byte();
    res.options.n_classes       = 1 + in.below(16);
    res.options.n_sample_tokens = in.below(4) * 32;
    memcpy(res.options.profile, "fuzz", 4);
    for (uint32_t p = 0; p < n_planes; p++) {
        cachegen_lcg3_plane plane{};
        const uint32_t      form = in.byte();
        plane.struct_size        = sizeof(plane);
        plane.layer              = static_cast<int32_t>(p);
        plane.kind               = 1 + (form & 63) % 3;
        plane.mode               = (form & 63) / 3 % 3;
        plane.type               = coded_types[in.below(std::size(coded_types))];
        plane.n_channels         = is_block_type(plane.type) ? 32 * (1 + in.below(3)) : 1 + in.below(70);
        const uint32_t rotation  = in.byte();
        plane.n_rot              = rotation < 128 ? 0 : 1u << (1 + rotation % 7);
        while (plane.n_rot != 0 && plane.n_channels % plane.n_rot != 0) {
            plane.n_rot = plane.n_rot == 2 ? 0 : plane.n_rot / 2;
        }
        plane.is_unrotated = rotation & 1;
        plane.n_symbols    = 3 + 2 * in.below(31);
        plane.scale_type   = scale_types[in.below(std::size(scale_types))];
        plane.first_token  = in.below(4) == 3 ? in.byte() % res.n_tokens : 0;
        res.planes.push_back(plane);
        const bool is_transposed = (form & 0x40) != 0 && !is_block_type(plane.type);
        res.sources.push_back(std::make_unique<typed_rows>(plane.type, is_transposed, res.n_tokens - plane.first_token,
                                                           plane.n_channels));
        if (form & 0x80) {
            fill_with_bytes(*res.sources.back(), in);
        } else {
            fill_with_steps(*res.sources.back(), in);
        }
    }
    return res;
}

struct encoded {
    int32_t status;
    buffer  archive;
};

encoded encode(const page & from) {
    std::vector<cachegen_rows> sources;
    for (const auto & source : from.sources) {
        sources.push_back(source->rows);
    }
    void *        archive = nullptr;
    uint64_t      n_bytes = 0;
    const int32_t status  = check_status(cachegen_lcg3_encode(from.planes.data(), sources.data(), sources.size(),
                                                              &from.options, nullptr, &archive, &n_bytes));
    encoded       res{ status, buffer(static_cast<const uint8_t *>(archive), status == CACHEGEN_OK ? n_bytes : 0) };
    if (status == CACHEGEN_OK) {
        cachegen_free(archive);
    }
    return res;
}

// the same, written piece by piece
int32_t put_piece(void * state, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    auto & archive = *static_cast<std::vector<uint8_t> *>(state);
    if (offset + n_bytes > archive.size()) {
        archive.resize(offset + n_bytes);
    }
    if (n_bytes > 0) {
        memcpy(archive.data() + offset, bytes, n_bytes);
    }
    return 0;
}

encoded encode_to_sink(const page & from) {
    std::vector<cachegen_rows> sources;
    for (const auto & source : from.sources) {
        sources.push_back(source->rows);
    }
    std::vector<uint8_t> archive;
    uint64_t             n_bytes = 0;
    const cachegen_sink  sink    = { &archive, put_piece };
    const int32_t status = check_status(cachegen_lcg3_encode_to(from.planes.data(), sources.data(), sources.size(),
                                                                &from.options, nullptr, &sink, &n_bytes));
    FUZZ_CHECK(status != CACHEGEN_OK || n_bytes == archive.size());
    return { status, buffer(archive.data(), status == CACHEGEN_OK ? n_bytes : 0) };
}

void check_round_trip(const page & from, const buffer & archive) {
    cachegen_lcg3 * opened = nullptr;
    FUZZ_CHECK(cachegen_lcg3_open(archive.data.get(), archive.n_bytes, &opened) == CACHEGEN_OK);
    const lcg3::reader_ptr reader(opened);
    FUZZ_CHECK(cachegen_lcg3_verify(opened, nullptr) == CACHEGEN_OK);
    const size_t                             n = from.planes.size();
    std::vector<std::unique_ptr<typed_rows>> decoded;
    std::vector<cachegen_lcg3_destination>   destinations(n);
    for (size_t p = 0; p < n; p++) {
        const auto & source = from.sources[p]->rows;
        decoded.push_back(
            std::make_unique<typed_rows>(source.type, source.is_transposed != 0, source.n_tokens, source.n_channels));
        destinations[p].rows  = decoded[p]->rows;
        destinations[p].n_rot = from.planes[p].n_rot;
    }
    FUZZ_CHECK(cachegen_lcg3_decode(opened, 0, from.n_tokens, destinations.data(), n, nullptr) == CACHEGEN_OK);
    for (size_t p = 0; p < n; p++) {
        if (from.planes[p].mode != CACHEGEN_LCG3_LOSSY) {
            FUZZ_CHECK(decoded[p]->bytes == from.sources[p]->bytes);
            continue;
        }
        const uint64_t row = from.sources[p]->rows.stride_bytes;
        if (!from.sources[p]->rows.is_transposed) {
            const auto n_before = std::min(from.options.n_exact_tokens, from.n_tokens);
            const auto n_exact  = n_before - std::min(n_before, from.planes[p].first_token);
            FUZZ_CHECK(memcmp(decoded[p]->bytes.data.get(), from.sources[p]->bytes.data.get(), n_exact * row) == 0);
        }
    }
}

void encode_everywhere(const uint8_t * data, size_t size) {
    use_isa(isas()[0]);
    input         in(data, size);
    const page    from     = make_page(in);
    const encoded expected = encode(from);
    for (size_t i = 1; i < isas().size(); i++) {
        use_isa(isas()[i]);
        const encoded ours = encode(from);
        FUZZ_CHECK(ours.status == expected.status);
        FUZZ_CHECK(ours.archive == expected.archive);
    }
    const encoded in_pieces = encode_to_sink(from);
    FUZZ_CHECK(in_pieces.status == expected.status);
    FUZZ_CHECK(in_pieces.archive == expected.archive);
    if (expected.status != CACHEGEN_OK) {
        FUZZ_CHECK(expected.status == CACHEGEN_ERR_NON_FINITE || expected.status == CACHEGEN_ERR_UNSUPPORTED);
        return;
    }
    for (const uint32_t isa : isas()) {
        use_isa(isa);
        check_round_trip(from, expected.archive);
    }
    // and as other types, the same everywhere
    decode_everywhere(from.choices, expected.archive);
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] & fuzz::lcg3::SECOND_USE) {
        encode_everywhere(data + 1, size - 1);
    } else {
        decode_everywhere(data[0], fuzz::lcg3::archive_of(data[0], data + 1, size - 1));
    }
    return 0;
}
