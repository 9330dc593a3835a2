// Every instruction set of this processor against the scalar code, bit by bit: typed stores both ways, archives of
// every format, and what they decode to. At the end it prints what it compared, and a digest of all that the scalar
// code made.
#include "cachegen.h"
#include "codec_types.h"
#include "harness.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

namespace {

using bytes = std::vector<uint8_t>;

struct instruction_set {
    uint32_t     isa;
    const char * name;
};

// those of this processor and build, the scalar one first
std::vector<instruction_set> available_sets() {
    const uint32_t               before = cachegen_isa_active();
    std::vector<instruction_set> sets;
    for (const instruction_set & set :
         { instruction_set{ CACHEGEN_ISA_SCALAR, "scalar" }, instruction_set{ CACHEGEN_ISA_AVX2, "AVX2" },
           instruction_set{ CACHEGEN_ISA_AVX512, "AVX-512" }, instruction_set{ CACHEGEN_ISA_NEON, "NEON" } }) {
        const int32_t status = cachegen_isa_select(set.isa);
        if (status == CACHEGEN_OK) {
            sets.push_back(set);
        } else {
            CHECK_EQ(status, int32_t(CACHEGEN_ERR_UNSUPPORTED));
        }
    }
    CHECK_EQ(cachegen_isa_select(before), int32_t(CACHEGEN_OK));
    CHECK_EQ(sets.at(0).isa, uint32_t(CACHEGEN_ISA_SCALAR));
    return sets;
}

// What a comparison says something about: a tile or plane of this format, made from or into this type and layout.
struct cell {
    const char * format;
    uint32_t     type;
    bool         is_transposed;
};

// "format,set,type,layout" -> how often that set gave the scalar code's bits
std::map<std::string, uint64_t> & n_equal() {
    static std::map<std::string, uint64_t> all;
    return all;
}

// of everything that the scalar code made: the same on every processor
uint64_t & digest() {
    static uint64_t value = 0;
    return value;
}

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// FNV-1a, of words, each mixed downwards as well
void add_to_digest(const bytes & made) {
    for (size_t at = 0; at < made.size(); at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, &made[at], std::min(sizeof(word), made.size() - at));
        digest() = (digest() ^ word) * 0x100000001b3u;
        digest() ^= digest() >> 29;
    }
}

void add_to_digest(std::vector<float> made) {
    for (float & x : made) {
        x = std::isnan(x) ? from_bits(0x7fc00000) : x; // infinity times 0 has another sign on another processor
    }
    bytes all(made.size() * sizeof(float));
    memcpy(all.data(), made.data(), all.size());
    add_to_digest(all);
}

// make() with every set gives what it gives without one; the cells are what it makes
template <typename Make> auto same_with_every_set(const Make & make, const std::vector<cell> & cells = {}) {
    static const std::vector<instruction_set> sets   = available_sets();
    const uint32_t                            before = cachegen_isa_active();
    CHECK_EQ(cachegen_isa_select(CACHEGEN_ISA_SCALAR), int32_t(CACHEGEN_OK));
    const auto expected = make();
    add_to_digest(expected);
    for (size_t i = 1; i < sets.size(); i++) {
        SCOPE(std::string("with ") + sets[i].name);
        CHECK_EQ(cachegen_isa_select(sets[i].isa), int32_t(CACHEGEN_OK));
        CHECK_EQ(cachegen_isa_active(), sets[i].isa);
        const auto actual = make();
        CHECK_SAME_BITS(actual, expected);
        for (const cell & one : cells) {
            n_equal()[std::string(one.format) + "," + sets[i].name + "," + type_name(one.type) + "," +
                      (one.is_transposed ? "transposed" : "rows")]++;
        }
    }
    CHECK_EQ(cachegen_isa_select(before), int32_t(CACHEGEN_OK));
    return expected;
}

void check_ok(int32_t status) {
    SCOPE(cachegen_last_message());
    CHECK_EQ(status, int32_t(CACHEGEN_OK));
}

// what an encoder returned
bytes taken(void * made, uint64_t n_bytes) {
    const auto * begin = static_cast<const uint8_t *>(made);
    bytes        res(begin, begin + n_bytes);
    cachegen_free(made);
    return res;
}

class random_source {
  public:
    explicit random_source(uint64_t seed) : state_(seed) { printf("seed %" PRIu64 "\n", seed); }

    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    uint32_t below(uint32_t n) { return uint32_t(next() % n); }
    uint32_t from_to(uint32_t first, uint32_t last) { return first + below(last - first + 1); }
    bool     one_in(uint32_t n) { return below(n) == 0; }

    template <typename T, size_t n> T one_of(const T (&all)[n]) { return all[below(n)]; }

    // between -1 and 1, more often near 0
    float near_zero() {
        float sum = 0;
        for (int i = 0; i < 4; i++) {
            sum += float(next() >> 40) * 0x1.0p-23f - 1;
        }
        return sum / 4;
    }

    bytes any_bytes(size_t n) {
        bytes res(n);
        for (size_t i = 0; i < n; i++) {
            res[i] = uint8_t(next());
        }
        return res;
    }

  private:
    uint64_t state_;
};

// 32 values, or a row's rest: of one kind, so that blocks get interesting scales
void fill_values(random_source & random, bool has_non_finite, float * values, size_t n) {
    const uint32_t kind  = random.below(9);
    const float    scale = std::ldexp(1.0f, int(random.from_to(0, 40)) - 20);
    for (size_t i = 0; i < n; i++) {
        const auto     any  = uint32_t(random.next());
        const uint32_t sign = any & 0x80000000;
        switch (kind) {
            case 0: values[i] = from_bits(any); break;                     // any number, or no number
            case 1: values[i] = from_bits(any & 0x807fffff); break;        // subnormal
            case 2: values[i] = from_bits(sign | any % 0x00ffffff); break; // around the smallest normal number
            case 3: values[i] = from_bits(sign | (0x7f7fffff - any % 0x00ffffff)); break; // huge
            case 4: values[i] = from_bits(sign | (0x33000000 + any % 0x06000000)); break; // F16's subnormal numbers
            case 5:
                values[i] = from_bits(sign | (0x477f0000 + any % 0x00020000));
                break; // F16's largest numbers
            // halfway between two numbers of F16 or BF16, or next to it
            case 6: {
                const uint32_t upper = any & (random.one_in(2) ? 0xffffe000 : 0xffff0000);
                const uint32_t tie   = random.one_in(2) ? 0x1000 : 0x8000;
                values[i]            = from_bits(upper | (tie + random.below(3) - 1));
                break;
            }
            // halfway between two codes of a block whose scale is a power of two
            case 7: values[i] = (i == 3 ? 127 : float(int(any % 253) - 126) * 0.5f) * scale; break;
            case 8: values[i] = from_bits(sign); break; // zeros
            default: values[i] = random.near_zero() * scale; break;
        }
        if (random.one_in(16)) {
            values[i] = from_bits(sign);
        }
        if (!has_non_finite && !std::isfinite(values[i])) {
            values[i] = from_bits(any & 0xbfffffff);
        }
    }
}

// Typed rows with memory of their own.
struct owned_rows {
    cachegen_rows         rows{};
    std::vector<uint32_t> cells;
    bytes                 data;

    owned_rows(random_source & random, uint32_t type, bool is_transposed, uint32_t n_tokens, uint32_t n_channels) {
        const bool     has_cells = random.one_in(2);
        const uint32_t n_rows    = n_tokens + (has_cells ? random.below(9) : 0);
        rows.type                = type;
        rows.is_transposed       = is_transposed;
        rows.n_tokens            = n_tokens;
        rows.n_rows              = n_rows;
        rows.n_channels          = n_channels;
        rows.stride_bytes        = is_transposed ? row_bytes(type, 1) * n_rows : row_bytes(type, n_channels);
        rows.stride_bytes += random.one_in(2) ? random.below(8) : 0; // any alignment
        data         = random.any_bytes(rows.stride_bytes * (is_transposed ? n_channels : n_rows));
        rows.n_bytes = data.size();
        if (has_cells) {
            cells.resize(n_rows);
            std::iota(cells.begin(), cells.end(), 0);
            // some runs stay whole
            for (uint32_t i = random.below(n_rows); i > 0; i -= std::min(i, random.from_to(1, 12))) {
                std::swap(cells[i], cells[random.below(n_rows)]);
            }
            cells.resize(n_tokens);
        }
    }

    cachegen_rows in(void * memory) const {
        cachegen_rows res = rows;
        res.data          = memory;
        res.cells         = cells.empty() ? nullptr : cells.data();
        return res;
    }

    std::string describe() const {
        return std::string(type_name(rows.type)) + (rows.is_transposed ? " transposed, " : " rows, ") +
               std::to_string(rows.n_tokens) + " tokens x " + std::to_string(rows.n_channels) + " channels, stride " +
               std::to_string(rows.stride_bytes) + (cells.empty() ? "" : ", cells");
    }
};

// more often than not whole groups of 32
uint32_t any_n_channels(random_source & random, uint32_t type) {
    return is_block_type(type) || random.one_in(3) ? 32 * random.from_to(1, 6) : random.from_to(1, 200);
}

TEST(typed_rows) {
    random_source random(20240501);
    for (uint32_t round = 0; round < 1200; round++) {
        const uint32_t   type          = types[round % 5];
        const bool       is_transposed = !is_block_type(type) && random.one_in(2);
        const uint32_t   n_channels    = any_n_channels(random, type);
        const uint32_t   n_tokens      = random.from_to(1, 40);
        const owned_rows place(random, type, is_transposed, n_tokens, n_channels);
        const uint32_t   first_token = random.below(n_tokens);
        const uint32_t   n           = n_tokens - first_token;
        SCOPE("round " + std::to_string(round) + ": " + place.describe());

        std::vector<float> values(size_t{ n } * n_channels);
        for (size_t i = 0; i < values.size(); i += 32) {
            fill_values(random, !is_block_type(type), &values[i], std::min<size_t>(32, values.size() - i));
        }
        bytes stored = same_with_every_set([&] {
            bytes               out  = place.data;
            const cachegen_rows rows = place.in(out.data());
            check_ok(cachegen_store_rows(&rows, first_token, n, values.data()));
            return out;
        });

        const auto load = [&](bytes & from) {
            same_with_every_set([&] {
                std::vector<float>  out(values.size());
                const cachegen_rows rows = place.in(from.data());
                check_ok(cachegen_load_rows(&rows, first_token, n, out.data()));
                return out;
            });
        };
        load(stored);
        bytes anything = place.data;
        if (is_block_type(type)) {
            // finite scales
            for (uint64_t row = 0; row < place.rows.n_rows; row++) {
                for (uint64_t at = 0; at < row_bytes(type, n_channels); at += row_bytes(type, 32)) {
                    uint8_t & upper = anything[row * place.rows.stride_bytes + at + 1];
                    upper           = uint8_t((upper & 0x7c) == 0x7c ? upper & 0xbf : upper);
                }
            }
        }
        load(anything);
    }
}

// Blocks with a NaN or an infinity, among them some whose scale is so small that its inverse is infinite: no conversion
// of a float may leave the integers (the sanitizer looks), and all sets pack the same.
TEST(odd_blocks) {
    random_source random(20240502);
    for (uint32_t round = 0; round < 4000; round++) {
        const uint32_t     type = round % 2 ? CACHEGEN_TYPE_Q8_0 : CACHEGEN_TYPE_Q4_0;
        std::vector<float> values(32);
        fill_values(random, true, values.data(), values.size());
        for (uint32_t n = random.from_to(0, 3); n > 0; n--) {
            values[random.below(32)] = from_bits((random.one_in(2) ? 0x80000000 : 0) + random.below(40)); // tiny
        }
        const uint32_t odd[] = { 0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000 };
        for (uint32_t n = random.from_to(1, 3); n > 0; n--) {
            values[random.below(32)] = from_bits(odd[random.below(round % 3 ? 4 : 2)]);
        }
        SCOPE("round " + std::to_string(round));
        same_with_every_set([&] {
            bytes         out(row_bytes(type, 32));
            cachegen_rows rows{};
            rows.type     = type;
            rows.n_tokens = rows.n_rows = 1;
            rows.n_channels             = 32;
            rows.stride_bytes = rows.n_bytes = out.size();
            rows.data                        = out.data();
            check_ok(cachegen_store_rows(&rows, 0, 1, values.data()));
            return out;
        });
    }
}

// every F16 and BF16 number to F32, every upper half of an F32 number with the lower ones that matter the other way
TEST(all_halves) {
    bytes halves(2 * 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        const auto half = uint16_t(i);
        memcpy(&halves[2 * size_t{ i }], &half, sizeof(half));
    }
    std::vector<float> values;
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (const uint32_t lower :
             { 0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xf000 }) {
            values.push_back(from_bits(upper << 16 | lower));
        }
    }
    for (const uint32_t type : { CACHEGEN_TYPE_F16, CACHEGEN_TYPE_BF16 }) {
        SCOPE(type_name(type));
        cachegen_rows rows{};
        rows.type     = type;
        rows.n_tokens = rows.n_rows = 1;
        same_with_every_set([&] {
            std::vector<float> out(65536);
            rows.n_channels   = out.size();
            rows.stride_bytes = rows.n_bytes = halves.size();
            rows.data                        = halves.data();
            check_ok(cachegen_load_rows(&rows, 0, 1, out.data()));
            return out;
        });
        same_with_every_set([&] {
            bytes out(2 * values.size());
            rows.n_channels   = values.size();
            rows.stride_bytes = rows.n_bytes = out.size();
            rows.data                        = out.data();
            check_ok(cachegen_store_rows(&rows, 0, 1, values.data()));
            return out;
        });
    }
}

// what a cache may hold: channels of different size, a few large and a few that never change
std::vector<float> cache_values(random_source & random, uint32_t type, uint32_t n_tokens, uint32_t n_channels) {
    std::vector<float> centre(n_channels);
    std::vector<float> width(n_channels);
    for (uint32_t c = 0; c < n_channels; c++) {
        centre[c] = random.one_in(4) ? random.near_zero() * 8 : 0;
        width[c]  = random.one_in(16) ? 0 : random.one_in(8) ? 20 : 1;
    }
    std::vector<float> values(size_t{ n_tokens } * n_channels);
    for (uint32_t t = 0; t < n_tokens; t++) {
        float scale = 1;
        switch (random.below(24)) {
            case 0: scale = 0; break;
            case 1: scale = 0x1.0p-20f; break; // F16's subnormal numbers
            case 2: scale = type == CACHEGEN_TYPE_F32 ? 0x1.0p-130f : 0x1.0p-12f; break;
            case 3: scale = 1000; break;
            default: break;
        }
        for (uint32_t c = 0; c < n_channels; c++) {
            values[size_t{ t } * n_channels + c] = (centre[c] + width[c] * random.near_zero()) * scale;
        }
    }
    return values;
}

// 0, or a power of two that divides the channels
uint32_t any_rotation(random_source & random, uint32_t n_channels) {
    uint32_t n_rot = 1;
    while (n_channels % (2 * n_rot) == 0 && n_rot < 256) {
        n_rot *= 2;
    }
    return n_rot < 2 || random.one_in(2) ? 0 : std::max(2u, n_rot >> random.below(3));
}

const char * format_of(const cachegen_lcg3_plane & plane) {
    return plane.mode == CACHEGEN_LCG3_LOSSY ? "LCG3" : "LCG3 exact";
}

struct page {
    std::vector<cachegen_lcg3_plane> planes;
    std::vector<owned_rows>          sources;
    cachegen_lcg3_options            options{};
    uint32_t                         n_tokens;

    explicit page(random_source & random) : n_tokens(random.one_in(8) ? random.from_to(1, 8) : random.from_to(1, 300)) {
        static constexpr cachegen_type scale_types[] = { CACHEGEN_TYPE_F32, CACHEGEN_TYPE_F16, CACHEGEN_TYPE_BF16 };
        static constexpr cachegen_lcg3_mode modes[] = { CACHEGEN_LCG3_RAW,   CACHEGEN_LCG3_EXACT, CACHEGEN_LCG3_EXACT,
                                                        CACHEGEN_LCG3_LOSSY, CACHEGEN_LCG3_LOSSY, CACHEGEN_LCG3_LOSSY };

        options.struct_size     = sizeof(options);
        options.block_tokens    = random.from_to(32, 320);
        options.n_exact_tokens  = random.one_in(2) ? 0 : random.below(40);
        options.n_models        = random.from_to(1, 16);
        options.n_classes       = random.one_in(3) ? 1 : random.from_to(2, 16);
        options.n_sample_tokens = random.one_in(2) ? 0 : random.from_to(1, 64);
        const uint32_t n_planes = random.from_to(1, 4);
        for (uint32_t p = 0; p < n_planes; p++) {
            cachegen_lcg3_plane plane{};
            plane.struct_size  = sizeof(plane);
            plane.layer        = int32_t(p);
            plane.kind         = CACHEGEN_KIND_K;
            plane.mode         = random.one_of(modes);
            plane.type         = random.one_of(types);
            plane.n_channels   = any_n_channels(random, plane.type);
            plane.n_rot        = any_rotation(random, plane.n_channels);
            plane.is_unrotated = random.one_in(2);
            plane.n_symbols    = 3 + 2 * random.below(31);
            plane.scale_type   = random.one_of(scale_types);
            planes.push_back(plane);

            const bool is_transposed = !is_block_type(plane.type) && random.one_in(3);
            sources.emplace_back(random, plane.type, is_transposed, n_tokens, plane.n_channels);
            const auto          values = cache_values(random, plane.type, n_tokens, plane.n_channels);
            const cachegen_rows rows   = sources[p].in(sources[p].data.data());
            check_ok(cachegen_store_rows(&rows, 0, n_tokens, values.data()));
        }
    }

    // every plane under its own type and layout
    std::vector<cell> cells() const {
        std::vector<cell> res;
        for (size_t p = 0; p < planes.size(); p++) {
            res.push_back({ format_of(planes[p]), planes[p].type, sources[p].rows.is_transposed != 0 });
        }
        return res;
    }

    bytes encode() {
        std::vector<cachegen_rows> rows;
        for (owned_rows & source : sources) {
            rows.push_back(source.in(source.data.data()));
        }
        void *   archive = nullptr;
        uint64_t n_bytes = 0;
        check_ok(
            cachegen_lcg3_encode(planes.data(), rows.data(), planes.size(), &options, nullptr, &archive, &n_bytes));
        return taken(archive, n_bytes);
    }

    std::string describe() const {
        std::string res = std::to_string(n_tokens) + " tokens, " + std::to_string(options.n_exact_tokens) +
                          " of them exact, blocks of " + std::to_string(options.block_tokens) + ", " +
                          std::to_string(options.n_classes) + " classes";
        for (const auto & plane : planes) {
            res += "; " + std::string(type_name(plane.type)) + " x " + std::to_string(plane.n_channels) + " mode " +
                   std::to_string(plane.mode) + ", " + std::to_string(plane.n_symbols) + " symbols, rotation " +
                   std::to_string(plane.n_rot);
        }
        return res;
    }
};

// every plane of an archive as one type, where that is possible; all destinations' memory in a row
void decode_as(random_source & random, const page & source, const cachegen_lcg3 * reader, uint32_t type,
               bool is_transposed) {
    const bool              is_part     = random.one_in(2);
    const uint32_t          first_token = is_part ? random.below(source.n_tokens) : 0;
    const uint32_t          n_tokens    = is_part ? random.from_to(1, source.n_tokens - first_token) : source.n_tokens;
    std::vector<owned_rows> places;
    std::vector<uint32_t>   rotations;
    std::vector<cell>       cells;
    const auto              is_possible = [&](const cachegen_lcg3_plane & plane) {
        return !is_block_type(type) || plane.n_channels % 32 == 0;
    };
    for (const auto & plane : source.planes) {
        places.emplace_back(random, type, is_transposed, n_tokens, plane.n_channels);
        rotations.push_back(random.one_in(4) ? any_rotation(random, plane.n_channels) : plane.n_rot);
        if (is_possible(plane)) {
            cells.push_back({ format_of(plane), type, is_transposed });
        }
    }
    SCOPE(std::string("as ") + type_name(type) + (is_transposed ? " transposed" : " rows") + ", tokens " +
          std::to_string(first_token) + " + " + std::to_string(n_tokens));
    same_with_every_set(
        [&] {
            std::vector<bytes>                     memory;
            std::vector<cachegen_lcg3_destination> destinations;
            for (size_t p = 0; p < places.size(); p++) {
                memory.push_back(places[p].data);
                cachegen_lcg3_destination destination{};
                if (is_possible(source.planes[p])) {
                    destination.rows  = places[p].in(memory[p].data());
                    destination.n_rot = rotations[p];
                }
                destinations.push_back(destination);
            }
            check_ok(
                cachegen_lcg3_decode(reader, first_token, n_tokens, destinations.data(), destinations.size(), nullptr));
            bytes joined;
            for (const bytes & one : memory) {
                joined.insert(joined.end(), one.begin(), one.end());
            }
            return joined;
        },
        cells);
}

TEST(lcg3_pages) {
    random_source random(20240502);
    for (uint32_t round = 0; round < 100; round++) {
        page source(random);
        SCOPE("round " + std::to_string(round) + ": " + source.describe());
        const bytes     archive = same_with_every_set([&] { return source.encode(); }, source.cells());
        cachegen_lcg3 * reader  = nullptr;
        check_ok(cachegen_lcg3_open(archive.data(), archive.size(), &reader));
        for (const uint32_t type : types) {
            decode_as(random, source, reader, type, false);
            if (!is_block_type(type)) {
                decode_as(random, source, reader, type, true);
            }
        }
        cachegen_lcg3_close(reader);
    }
}

// ---- LCG1, LCG2 and CKG1 ----

owned_rows any_source(random_source & random, uint32_t type, bool is_transposed, uint32_t n_tokens,
                      uint32_t n_channels) {
    owned_rows          res(random, type, is_transposed, n_tokens, n_channels);
    const auto          values = cache_values(random, type, n_tokens, n_channels);
    const cachegen_rows rows   = res.in(res.data.data());
    check_ok(cachegen_store_rows(&rows, 0, n_tokens, values.data()));
    return res;
}

uint32_t any_n_bins(random_source & random) {
    return random.one_in(2) ? 16 : 32;
}

void for_each_type_and_layout(const std::function<void(uint32_t, bool)> & body) {
    for (const uint32_t type : types) {
        body(type, false);
        if (!is_block_type(type)) {
            body(type, true);
        }
    }
}

// tiles from every type and layout into every other one
TEST(tiles) {
    random_source random(20240503);
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t version = 1; version <= 2; version++) {
            const char * format = version == 1 ? "LCG1" : "LCG2";
            for_each_type_and_layout([&](uint32_t source_type, bool is_source_transposed) {
                const uint32_t n_tokens   = random.one_in(3) ? 256 : random.from_to(1, 255);
                const uint32_t n_channels = any_n_channels(random, source_type);
                const uint32_t n_bins     = any_n_bins(random);
                owned_rows     source     = any_source(random, source_type, is_source_transposed, n_tokens, n_channels);
                SCOPE("round " + std::to_string(round) + ": " + format + " from " + source.describe());
                const bytes tile = same_with_every_set(
                    [&] {
                        const cachegen_rows rows    = source.in(source.data.data());
                        void *              made    = nullptr;
                        uint64_t            n_bytes = 0;
                        check_ok(cachegen_tile_encode(&rows, 0, n_tokens, n_bins, version, &made, &n_bytes));
                        return taken(made, n_bytes);
                    },
                    { { format, source_type, is_source_transposed } });
                for_each_type_and_layout([&](uint32_t type, bool is_transposed) {
                    if (is_block_type(type) && n_channels % 32 != 0) {
                        return;
                    }
                    const uint32_t   first_token = random.below(20);
                    const owned_rows place(random, type, is_transposed, first_token + n_tokens, n_channels);
                    SCOPE("into " + place.describe());
                    same_with_every_set(
                        [&] {
                            bytes               out  = place.data;
                            const cachegen_rows rows = place.in(out.data());
                            check_ok(cachegen_tile_decode(tile.data(), tile.size(), &rows, first_token));
                            return out;
                        },
                        { { format, type, is_transposed } });
                });
            });
        }
    }
}

// pages with a record of every kind, of more than one tile each
TEST(ckg1_pages) {
    static constexpr struct {
        uint32_t kind, type;
        bool     is_transposed;
    } kinds[] = {
        { CACHEGEN_CKG1_F16_ROWS, CACHEGEN_TYPE_F16, false },
        { CACHEGEN_CKG1_F16_TRANSPOSED, CACHEGEN_TYPE_F16, true },
        { CACHEGEN_CKG1_F32_ROWS, CACHEGEN_TYPE_F32, false },
        { CACHEGEN_CKG1_F32_TRANSPOSED, CACHEGEN_TYPE_F32, true },
        { CACHEGEN_CKG1_Q8_0_ROWS, CACHEGEN_TYPE_Q8_0, false },
        { CACHEGEN_CKG1_Q4_0_ROWS, CACHEGEN_TYPE_Q4_0, false },
    };
    random_source random(20240504);
    for (uint32_t round = 0; round < 12; round++) {
        const uint32_t                  version  = 1 + round % 2;
        const uint32_t                  n_tokens = random.from_to(1, 600);
        std::vector<owned_rows>         sources;
        std::vector<cachegen_ckg1_part> parts;
        std::vector<cell>               cells;
        for (const auto & one : kinds) {
            sources.push_back(
                any_source(random, one.type, one.is_transposed, n_tokens, any_n_channels(random, one.type)));
            cells.push_back({ "CKG1", one.type, one.is_transposed });
        }
        for (size_t p = 0; p < sources.size(); p++) {
            cachegen_ckg1_part part{};
            part.kind   = kinds[p].kind;
            part.n_bins = any_n_bins(random);
            part.rows   = sources[p].in(sources[p].data.data());
            parts.push_back(part);
        }
        bytes              exact = random.any_bytes(random.from_to(1, 99));
        cachegen_ckg1_part part{};
        part.kind         = CACHEGEN_CKG1_EXACT;
        part.rows.data    = exact.data();
        part.rows.n_bytes = exact.size();
        parts.push_back(part);
        SCOPE("round " + std::to_string(round) + ": " + std::to_string(n_tokens) + " tokens");
        const bytes archive = same_with_every_set(
            [&] {
                void *   made    = nullptr;
                uint64_t n_bytes = 0;
                check_ok(cachegen_ckg1_encode(parts.data(), parts.size(), version, nullptr, &made, &n_bytes));
                return taken(made, n_bytes);
            },
            cells);
        cachegen_ckg1 * reader = nullptr;
        check_ok(cachegen_ckg1_open(archive.data(), archive.size(), &reader));
        uint64_t page_bytes = 0;
        uint64_t n_records  = 0;
        check_ok(cachegen_ckg1_describe(reader, &page_bytes, &n_records, nullptr, 0));
        same_with_every_set(
            [&] {
                bytes page(page_bytes);
                check_ok(cachegen_ckg1_decode(reader, page.data(), page.size(), nullptr));
                return page;
            },
            cells);
        cachegen_ckg1_close(reader);
    }
}

} // namespace

int main(int argc, char ** argv) {
    printf("instruction sets:");
    for (const instruction_set & set : available_sets()) {
        printf(" %s", set.name);
    }
    printf("\n");
    const int result = harness::run(argc, argv);
    for (const auto & [what, n] : n_equal()) {
        printf("equal to scalar: %s,%" PRIu64 "\n", what.c_str(), n);
    }
    printf("digest of all that scalar made: %016" PRIx64 "\n", digest());
    return result;
}
