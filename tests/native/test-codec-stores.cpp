// Typed stores and the Hadamard rotation against ggml's own conversions, bit by bit, for every instruction set.
#include "cachegen.h"
#include "ggml.h"
#include "harness.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace {

using bytes = std::vector<uint8_t>;

// the lower halves that matter to F16 and BF16: nothing, next to nothing, below, at and above every tie
constexpr uint32_t lower_halves[] = { 0x0000, 0x0001, 0x0002, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000,
                                      0x2fff, 0x3000, 0x3001, 0x4000, 0x5000, 0x7000, 0x7fff, 0x8000,
                                      0x8001, 0x9000, 0xb000, 0xc000, 0xd000, 0xf000, 0xfffe, 0xffff };

const char * isa_name(uint32_t isa) {
    static const char * const names[] = { "scalar", "AVX2", "AVX-512", "NEON" };
    return names[isa];
}

void for_each_isa(const std::function<void()> & body) {
    const uint32_t before = cachegen_isa_active();
    for (uint32_t isa = CACHEGEN_ISA_SCALAR; isa <= CACHEGEN_ISA_NEON; isa++) {
        const int32_t status = cachegen_isa_select(isa);
        if (status != CACHEGEN_OK) {
            CHECK_EQ(status, int32_t(CACHEGEN_ERR_UNSUPPORTED));
            continue;
        }
        SCOPE(isa_name(isa));
        CHECK_EQ(cachegen_isa_active(), isa);
        body();
    }
    CHECK_EQ(cachegen_isa_select(before), int32_t(CACHEGEN_OK));
}

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float up(float x) {
    return std::nextafter(x, std::numeric_limits<float>::infinity());
}

float down(float x) {
    return std::nextafter(x, -std::numeric_limits<float>::infinity());
}

cachegen_rows rows_of(ggml_type type, uint64_t n_tokens, uint64_t n_channels, void * data) {
    cachegen_rows rows{};
    rows.type         = uint32_t(type);
    rows.n_tokens     = n_tokens;
    rows.n_rows       = n_tokens;
    rows.n_channels   = n_channels;
    rows.stride_bytes = ggml_row_size(type, int64_t(n_channels));
    rows.n_bytes      = n_tokens * rows.stride_bytes;
    rows.data         = data;
    return rows;
}

bytes store(ggml_type type, const std::vector<float> & values, uint64_t n_channels) {
    const uint64_t      n_tokens = values.size() / n_channels;
    bytes               out(n_tokens * ggml_row_size(type, int64_t(n_channels)));
    const cachegen_rows rows = rows_of(type, n_tokens, n_channels, out.data());
    CHECK_EQ(cachegen_store_rows(&rows, 0, n_tokens, values.data()), int32_t(CACHEGEN_OK));
    return out;
}

std::vector<float> load(ggml_type type, bytes & native, uint64_t n_channels) {
    const uint64_t      n_tokens = native.size() / ggml_row_size(type, int64_t(n_channels));
    std::vector<float>  out(n_tokens * n_channels);
    const cachegen_rows rows = rows_of(type, n_tokens, n_channels, native.data());
    CHECK_EQ(cachegen_load_rows(&rows, 0, n_tokens, out.data()), int32_t(CACHEGEN_OK));
    return out;
}

bytes ggml_store(ggml_type type, const std::vector<float> & values, uint64_t n_channels) {
    bytes out(values.size() / n_channels * ggml_row_size(type, int64_t(n_channels)));
    if (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
        for (size_t i = 0; i < values.size(); i++) {
            const uint16_t half =
                type == GGML_TYPE_F16 ? ggml_fp32_to_fp16(values[i]) : ggml_fp32_to_bf16(values[i]).bits;
            memcpy(&out[2 * i], &half, sizeof(half));
        }
        return out;
    }
    ggml_quantize_init(type);
    const size_t n = ggml_quantize_chunk(type, values.data(), out.data(), 0, int64_t(values.size() / n_channels),
                                         int64_t(n_channels), nullptr);
    CHECK_EQ(n, out.size());
    return out;
}

std::vector<float> ggml_load(ggml_type type, const bytes & native) {
    const auto *       traits = ggml_get_type_traits(type);
    std::vector<float> out(native.size() / traits->type_size * size_t(traits->blck_size));
    traits->to_float(native.data(), out.data(), int64_t(out.size()));
    return out;
}

const std::vector<float> & interesting_values() {
    static const std::vector<float> values = [] {
        std::vector<float> all;
        for (uint32_t upper = 0; upper < 65536; upper++) {
            for (const uint32_t lower : lower_halves) {
                all.push_back(from_bits(upper << 16 | lower));
            }
        }
        return all;
    }();
    return values;
}

// ---- blocks of 32 values ----

using block = std::array<float, 32>;

struct block_source {
    std::mt19937_64    random{ 1 };
    std::vector<float> values;
    uint64_t           n_blocks = 0;

    double normal() { return std::normal_distribution<double>()(random); }

    uint64_t below(uint64_t n) { return random() % n; }

    void add(const block & one) {
        values.insert(values.end(), one.begin(), one.end());
        n_blocks++;
    }

    // whole rows of a width that has tails for every vector size
    static constexpr uint64_t n_channels = 3 * 32;

    void finish() {
        while (n_blocks % 3 != 0) {
            add(block{});
        }
    }
};

void add_magnitudes(block_source & source) {
    for (int exponent = -149; exponent <= 127; exponent++) {
        for (int repeat = 0; repeat < 24; repeat++) {
            block one;
            for (float & x : one) {
                x = float(std::clamp(std::ldexp(source.normal() / 4, exponent), -double(FLT_MAX), double(FLT_MAX)));
            }
            source.add(one);
        }
    }
}

// any finite bit pattern, in blocks whose exponents lie anywhere, or close together
void add_patterns(block_source & source) {
    for (int repeat = 0; repeat < 8000; repeat++) {
        const uint64_t base  = source.below(254);
        const uint64_t width = 1 + source.below(255 - base);
        block          one;
        for (float & x : one) {
            const auto bits = uint32_t(source.random());
            x               = from_bits((bits & 0x807fffff) | uint32_t(base + source.below(width)) << 23);
        }
        source.add(one);
    }
}

// what a cache holds: F16 numbers
void add_halves_of_a_cache(block_source & source) {
    for (int repeat = 0; repeat < 4000; repeat++) {
        block one;
        for (float & x : one) {
            x = ggml_fp16_to_fp32(ggml_fp32_to_fp16(float(source.normal())));
        }
        source.add(one);
    }
}

// scale a power of two, so that the codes before rounding are k + 0.5 exactly, or one step beside it
void add_ties(block_source & source) {
    for (const float largest : { 127.0f, -127.0f, 8.0f, -8.0f }) {
        const int limit = int(std::fabs(largest));
        for (int exponent = -120; exponent <= 115; exponent += 5) {
            const float scale = std::ldexp(1.0f, exponent);
            for (int first = -limit; first < limit; first += 16) {
                for (int beside = -1; beside <= 1; beside++) {
                    block one{};
                    for (int i = 0; i < 31; i++) {
                        const float tie = (float(std::min(first + i, limit - 1)) + 0.5f) * scale;
                        one[size_t(i)]  = beside < 0 ? down(tie) : beside > 0 ? up(tie) : tie;
                    }
                    one[31] = largest * scale;
                    if (source.below(2)) {
                        std::swap(one[31], one[source.below(31)]);
                    }
                    source.add(one);
                }
            }
        }
    }
    // halves of a scale that is none: the product decides
    for (int repeat = 0; repeat < 4000; repeat++) {
        const float largest = float(source.normal());
        const bool  is_q8   = source.below(2) != 0;
        const float scale   = is_q8 ? std::fabs(largest) / 127 : largest / -8;
        block       one;
        for (float & x : one) {
            const int limit = is_q8 ? 127 : 8;
            x               = (float(source.below(uint64_t(2 * limit))) - float(limit) + 0.5f) * scale;
            const auto side = source.below(3);
            x               = side == 0 ? x : side == 1 ? up(x) : down(x);
            x               = std::clamp(x, -std::fabs(largest), std::fabs(largest));
        }
        one[source.below(32)] = largest;
        source.add(one);
    }
}

// the largest magnitude several times, with both signs: the first decides for Q4_0
void add_equal_magnitudes(block_source & source) {
    for (size_t first = 0; first < 32; first++) {
        for (size_t second = 0; second < 32; second++) {
            for (const float sign : { 1.0f, -1.0f }) {
                block one;
                for (float & x : one) {
                    x = float(source.normal() / 8);
                }
                one[first]  = 3 * sign;
                one[second] = second == first ? one[second] : -3 * sign;
                source.add(one);
            }
        }
    }
}

void add_zeros(block_source & source) {
    source.add(block{});
    block one;
    one.fill(-0.0f);
    source.add(one);
    for (size_t i = 0; i < 32; i++) {
        one    = {};
        one[i] = -0.0f;
        source.add(one);
        one.fill(-0.0f);
        one[i] = 0.0f;
        source.add(one);
        for (const float x : { FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_MIN, -1.0f, 1.0f, FLT_MAX, -FLT_MAX }) {
            one    = {};
            one[i] = x;
            source.add(one);
            one.fill(-0.0f);
            one[i] = x;
            source.add(one);
        }
    }
}

// so small that 1 / scale is infinite, the scale zero, or nearly so
void add_subnormals(block_source & source) {
    std::vector<float> largest;
    for (uint32_t bits = 1; bits < 3000; bits += 1 + bits / 64) {
        largest.push_back(from_bits(bits));
    }
    for (const float factor : { 8.0f, 127.0f }) {
        for (int exponent = -149; exponent <= -120; exponent++) {
            float x = std::ldexp(factor, exponent);
            for (int i = 0; i < 6; i++) {
                x = down(x);
            }
            for (int i = 0; i < 12; i++) {
                largest.push_back(x);
                x = up(x);
            }
        }
    }
    for (const float x : largest) {
        for (const float sign : { 1.0f, -1.0f }) {
            block one;
            for (float & value : one) {
                value = float(double(x) * (double(source.below(2001)) / 1000 - 1));
            }
            one[source.below(32)] = x * sign;
            one[source.below(32)] = source.below(2) ? 0.0f : -0.0f;
            source.add(one);
            one.fill(x * sign);
            source.add(one);
        }
    }
}

void add_largest(block_source & source) {
    for (const float top : { FLT_MAX, down(FLT_MAX), FLT_MAX / 2, 65504.0f * 127, 65519.0f * 127, 65520.0f * 127,
                             65536.0f * 127, 65504.0f * 8, 65520.0f * 8, 65536.0f * 8 }) {
        for (const float sign : { 1.0f, -1.0f }) {
            block one;
            for (float & x : one) {
                x = float(double(top) * (double(source.below(2001)) / 1000 - 1));
            }
            one[source.below(32)] = top * sign;
            source.add(one);
            one.fill(top * sign);
            source.add(one);
            one[7] = -one[7];
            source.add(one);
        }
    }
}

const std::vector<std::pair<const char *, void (*)(block_source &)>> block_kinds = {
    { "magnitudes", add_magnitudes },
    { "bit patterns", add_patterns },
    { "F16 numbers", add_halves_of_a_cache },
    { "ties", add_ties },
    { "equal magnitudes", add_equal_magnitudes },
    { "zeros", add_zeros },
    { "subnormals", add_subnormals },
    { "largest", add_largest },
};

void check_blocks(ggml_type type) {
    for (const auto & [name, add] : block_kinds) {
        SCOPE(name);
        block_source source;
        add(source);
        source.finish();
        const bytes expected = ggml_store(type, source.values, block_source::n_channels);
        for_each_isa([&] {
            const bytes ours       = store(type, source.values, block_source::n_channels);
            const auto  block_size = ggml_type_size(type);
            for (size_t b = 0; b < source.n_blocks; b++) {
                SCOPE("block " + std::to_string(b) + ", first value " + harness::show(source.values[32 * b]));
                const bytes left(ours.begin() + b * block_size, ours.begin() + (b + 1) * block_size);
                const bytes right(expected.begin() + b * block_size, expected.begin() + (b + 1) * block_size);
                CHECK_SAME_BITS(left, right);
            }
        });
    }
}

// every code under every scale: the 65,536 bit patterns of an F16 number
void check_loads_of_blocks(ggml_type type) {
    std::mt19937_64 random(2);
    const size_t    block_size = ggml_type_size(type);
    bytes           native(65536 * block_size);
    for (uint32_t scale = 0; scale < 65536; scale++) {
        uint8_t *      at   = &native[scale * block_size];
        const uint16_t half = uint16_t(scale);
        memcpy(at, &half, sizeof(half));
        for (size_t i = 2; i < block_size; i++) {
            at[i] = uint8_t(random());
        }
    }
    const std::vector<float> expected = ggml_load(type, native);
    for_each_isa([&] { CHECK_SAME_BITS(load(type, native, 128), expected); });
}

void check_stores_of_halves(ggml_type type) {
    const auto & values   = interesting_values();
    const bytes  expected = ggml_store(type, values, values.size());
    for_each_isa([&] {
        CHECK_SAME_BITS(store(type, values, values.size()), expected);
        // rows that fill no vector
        constexpr uint64_t       n_channels = 21;
        const std::vector<float> some(values.begin(),
                                      values.begin() + int64_t(values.size() / n_channels * n_channels));
        CHECK_SAME_BITS(store(type, some, n_channels), bytes(expected.begin(), expected.begin() + 2 * some.size()));
    });
}

void check_loads_of_halves(ggml_type type) {
    bytes native(65536 * 2);
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        const uint16_t half = uint16_t(pattern);
        memcpy(&native[2 * pattern], &half, sizeof(half));
    }
    const std::vector<float> expected = ggml_load(type, native);
    for_each_isa([&] {
        for (const uint64_t n_channels : { 65536, 4, 2, 1 }) {
            CHECK_SAME_BITS(load(type, native, n_channels), expected);
        }
    });
}

// every value through transposed rows, among them squares of 8 x 8 and what is left beside them
void check_transposed(ggml_type type) {
    const size_t       element  = ggml_type_size(type);
    constexpr uint64_t n_tokens = 43;
    for (const uint64_t n_channels : { 1, 8, 29 }) {
        const auto &             all = interesting_values();
        const std::vector<float> values(
            all.begin(), all.begin() + int64_t(all.size() / (n_tokens * n_channels) * (n_tokens * n_channels)));
        bytes expected(values.size() * element);
        if (type == GGML_TYPE_F32) {
            memcpy(expected.data(), values.data(), expected.size());
        } else {
            expected = ggml_store(type, values, values.size());
        }
        for_each_isa([&] {
            const uint64_t stride = (n_tokens + 3) * element;
            for (uint64_t begin = 0; begin < values.size(); begin += n_tokens * n_channels) {
                bytes         out(n_channels * stride, 0xAA);
                cachegen_rows rows = rows_of(type, n_tokens, n_channels, out.data());
                rows.is_transposed = 1;
                rows.stride_bytes  = stride;
                rows.n_bytes       = out.size();
                CHECK_EQ(cachegen_store_rows(&rows, 0, n_tokens, &values[begin]), int32_t(CACHEGEN_OK));
                bytes back;
                for (uint64_t t = 0; t < n_tokens; t++) {
                    for (uint64_t c = 0; c < n_channels; c++) {
                        const auto at = out.begin() + int64_t(c * stride + t * element);
                        back.insert(back.end(), at, at + int64_t(element));
                    }
                }
                const auto from = expected.begin() + int64_t(begin * element);
                CHECK_SAME_BITS(back, bytes(from, from + int64_t(back.size())));
                for (uint64_t c = 0; c < n_channels; c++) {
                    CHECK(std::all_of(out.begin() + int64_t(c * stride + n_tokens * element),
                                      out.begin() + int64_t((c + 1) * stride), [](uint8_t x) { return x == 0xAA; }));
                }
                std::vector<float> loaded(n_tokens * n_channels);
                CHECK_EQ(cachegen_load_rows(&rows, 0, n_tokens, loaded.data()), int32_t(CACHEGEN_OK));
                if (type != GGML_TYPE_F32) {
                    CHECK_SAME_BITS(loaded, ggml_load(type, back));
                }
            }
        });
    }
}

// ---- the rotation ----

void butterfly(float * x, uint32_t n) {
    const float scale = 1.0f / std::sqrt(float(n));
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= scale;
    }
    for (uint32_t distance = 1; distance < n; distance *= 2) {
        for (uint32_t i = 0; i < n; i++) {
            if ((i & distance) == 0) {
                const float u   = x[i];
                const float v   = x[i | distance];
                x[i]            = u + v;
                x[i | distance] = u - v;
            }
        }
    }
}

bool has_odd_bits(uint32_t x) {
    bool res = false;
    for (; x != 0; x &= x - 1) {
        res = !res;
    }
    return res;
}

} // namespace

TEST(f16_stores) {
    check_stores_of_halves(GGML_TYPE_F16);
}

TEST(bf16_stores) {
    check_stores_of_halves(GGML_TYPE_BF16);
}

TEST(f16_loads) {
    check_loads_of_halves(GGML_TYPE_F16);
}

TEST(bf16_loads) {
    check_loads_of_halves(GGML_TYPE_BF16);
}

TEST(transposed_stores) {
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        SCOPE(ggml_type_name(type));
        check_transposed(type);
    }
}

TEST(q8_0_stores) {
    check_blocks(GGML_TYPE_Q8_0);
}

TEST(q4_0_stores) {
    check_blocks(GGML_TYPE_Q4_0);
}

TEST(q8_0_loads) {
    check_loads_of_blocks(GGML_TYPE_Q8_0);
}

TEST(q4_0_loads) {
    check_loads_of_blocks(GGML_TYPE_Q4_0);
}

// rows anywhere, in any order, with gaps: what lies between them stays
TEST(cells_and_strides) {
    constexpr uint64_t n_tokens = 19;
    constexpr uint64_t n_rows   = 40;
    std::mt19937_64    random(3);
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        SCOPE(ggml_type_name(type));
        for (const uint64_t n_channels : { 32, 96, 160 }) {
            std::vector<float> values(n_tokens * n_channels);
            for (float & x : values) {
                x = float(std::normal_distribution<double>()(random));
            }
            std::vector<uint32_t> cells(n_rows);
            for (uint32_t i = 0; i < n_rows; i++) {
                cells[i] = i;
            }
            std::shuffle(cells.begin(), cells.end(), random);
            cells.resize(n_tokens);

            const uint64_t row_bytes = ggml_row_size(type, int64_t(n_channels));
            const uint64_t stride    = row_bytes + 6;
            for_each_isa([&] {
                const bytes   plain = store(type, values, n_channels);
                bytes         out((n_rows - 1) * stride + row_bytes, 0xAA);
                bytes         expected = out;
                cachegen_rows rows     = rows_of(type, n_tokens, n_channels, out.data());
                rows.n_rows            = n_rows;
                rows.stride_bytes      = stride;
                rows.n_bytes           = out.size();
                rows.cells             = cells.data();
                // in two parts, the second one first
                CHECK_EQ(cachegen_store_rows(&rows, 7, n_tokens - 7, &values[7 * n_channels]), int32_t(CACHEGEN_OK));
                CHECK_EQ(cachegen_store_rows(&rows, 0, 7, values.data()), int32_t(CACHEGEN_OK));
                for (uint64_t t = 0; t < n_tokens; t++) {
                    std::copy_n(plain.begin() + int64_t(t * row_bytes), row_bytes,
                                expected.begin() + int64_t(cells[t] * stride));
                }
                CHECK_SAME_BITS(out, expected);
                std::vector<float> loaded(n_tokens * n_channels);
                CHECK_EQ(cachegen_load_rows(&rows, 0, n_tokens, loaded.data()), int32_t(CACHEGEN_OK));
                bytes copy = plain;
                CHECK_SAME_BITS(loaded, load(type, copy, n_channels));
                // one byte less, one cell too far
                rows.n_bytes--;
                CHECK_EQ(cachegen_store_rows(&rows, 0, n_tokens, values.data()), int32_t(CACHEGEN_ERR_ARGUMENT));
                rows.n_bytes++;
                rows.n_rows = *std::max_element(cells.begin(), cells.end());
                CHECK_EQ(cachegen_store_rows(&rows, 0, n_tokens, values.data()), int32_t(CACHEGEN_ERR_ARGUMENT));
                CHECK_SAME_BITS(out, expected);
            });
        }
    }
}

TEST(rotation) {
    std::mt19937_64 random(4);
    for (uint32_t n = 2; n <= 1024; n *= 2) {
        SCOPE("n_rot " + std::to_string(n));
        for (const int exponent : { -140, -30, 0, 30, 110 }) {
            std::vector<float> values(3 * n);
            for (float & x : values) {
                x = float(std::ldexp(std::normal_distribution<double>()(random), exponent));
            }
            values[random() % values.size()] *= 100;
            std::vector<float> expected = values;
            for (size_t begin = 0; begin < values.size(); begin += n) {
                butterfly(&expected[begin], n);
            }
            for_each_isa([&] {
                std::vector<float> rotated = values;
                CHECK_EQ(cachegen_hadamard(rotated.data(), rotated.size(), n), int32_t(CACHEGEN_OK));
                CHECK_SAME_BITS(rotated, expected);
            });
            // a rounding a level, of numbers no larger than the sum of magnitudes
            for (size_t begin = 0; begin < values.size(); begin += n) {
                double sum = 0;
                for (uint32_t i = 0; i < n; i++) {
                    sum += std::fabs(double(values[begin + i]));
                }
                const double root      = std::sqrt(double(n));
                const double tolerance = (std::log2(n) + 3) * (FLT_EPSILON / 2 * sum / root + n * double(FLT_TRUE_MIN));
                for (uint32_t i = 0; i < n; i++) {
                    double exact = 0;
                    for (uint32_t j = 0; j < n; j++) {
                        exact += (has_odd_bits(i & j) ? -1 : 1) * double(values[begin + j]);
                    }
                    CHECK(std::fabs(exact / root - double(expected[begin + i])) <= tolerance);
                }
            }
        }
    }
}

TEST(wrong_rotations) {
    std::vector<float>       values(48, 1.5f);
    const std::vector<float> before = values;
    CHECK_EQ(cachegen_hadamard(values.data(), 48, 0), int32_t(CACHEGEN_OK));
    for (const uint32_t n_rot : { 1u, 3u, 6u, 24u, 32u, 48u, 64u, 2048u, 0x80000000u }) {
        SCOPE("n_rot " + std::to_string(n_rot));
        CHECK_EQ(cachegen_hadamard(values.data(), 48, n_rot), int32_t(CACHEGEN_ERR_ARGUMENT));
    }
    CHECK_EQ(cachegen_hadamard(nullptr, 48, 16), int32_t(CACHEGEN_ERR_ARGUMENT));
    CHECK_SAME_BITS(values, before);
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
