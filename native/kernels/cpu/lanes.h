// Lanes on a processor, for tests: every thread of a workgroup is a fiber; collectives meet in waves of 32 or 64 lanes.
// Groups of 32 are made of them by HIP's own code. Lanes of a group that wait at different collectives, or leave while
// others wait, end the process with a message; the two groups of a wave of 64 may be at different places.
#pragma once

#include "collectives.h"
#include "half.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define KC_FN static inline
#define KC_UNROLL

namespace lanes {

struct run_options {
    uint32_t order; // 0: lanes in ascending order, 1: descending, else shuffled by it; a missing barrier shows in one
    uint32_t
        wave_size; // 32 or 64. A wave's two groups meet where they can in order 0, never in order 1, else by chance
};

// n_threads: a multiple of 32
void run_workgroup(uint32_t n_threads, uint32_t workgroup, uint32_t n_workgroups, const run_options & options,
                   const std::function<void(const kc_thread &)> & kernel);

} // namespace lanes

KC_FN uint32_t wave_size() {
    return lanes::wave_size();
}
KC_FN uint32_t wave_lane() {
    return lanes::wave_lane();
}
KC_FN uint64_t wave_ballot(bool value) {
    return lanes::meet(lanes::collective::ballot, value, 0);
}
KC_FN uint32_t wave_permute(uint32_t address, uint32_t value) {
    return static_cast<uint32_t>(lanes::meet(lanes::collective::permute, value, address / 4));
}
template <uint32_t MASK> KC_FN uint32_t wave_swizzle_xor(uint32_t value) {
    return static_cast<uint32_t>(lanes::meet(lanes::collective::swizzle_xor, value, MASK));
}
KC_FN void wave_fence() {
    lanes::meet(lanes::collective::fence, 0, 0);
}

#include "../hip/half_wave.h"

KC_FN void kc_sync() {
    lanes::meet(lanes::collective::sync, 0, 0);
}
KC_FN uint32_t kc_count_bits(uint32_t value) {
    return static_cast<uint32_t>(__builtin_popcount(value));
}
KC_FN uint32_t kc_again(uint32_t value) {
    return value;
}
KC_FN float kc_sqrt(float value) {
    return sqrtf(value);
}
KC_FN uint32_t kc_leading_zeros(uint32_t value) {
    return value == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(value));
}
KC_FN uint32_t kc_float_bits(float value) {
    return cachegen::float_bits(value);
}
KC_FN float kc_float(uint32_t bits) {
    return cachegen::float_from_bits(bits);
}
KC_FN uint32_t kc_to_fp16(float value) {
    return cachegen::fp32_to_fp16(value);
}
KC_FN uint32_t kc_to_fp16_pair(float low, float high) {
    return kc_to_fp16(low) | kc_to_fp16(high) << 16;
}

KC_FN float kc_from_fp16(uint32_t half) {
    return cachegen::fp16_to_fp32(static_cast<uint16_t>(half));
}

KC_FN void kc_copy_16(void * to, const uint8_t * from) {
    memcpy(to, from, 16);
}
KC_FN void                  kc_end_batch() {}
template <int N> KC_FN void kc_wait_batches() {}

template <typename T> KC_FN void kc_write(T * to, T value) {
    *to = value;
}
KC_FN void kc_write_8(uint8_t * to, uint32_t a, uint32_t b) {
    const uint32_t words[] = { a, b };
    memcpy(to, words, 8);
}
KC_FN void kc_write_16(uint8_t * to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t words[] = { a, b, c, d };
    memcpy(to, words, 16);
}
KC_FN float kc_add_signed(float partner, float value, float sign) {
    return partner + value * sign;
}
template <int N, typename T> KC_FN void kc_read_words(const T * from, T (&to)[N]) {
    memcpy(to, from, sizeof(to));
}
KC_FN void kc_write_4_words(float * to, float a, float b, float c, float d) {
    const float words[] = { a, b, c, d };
    memcpy(to, words, 16);
}
template <typename T> KC_FN T kc_read_only(const T * from) {
    return *from;
}
// one lane runs at a time
KC_FN uint32_t kc_atomic_add(uint32_t * to, uint32_t value) {
    const uint32_t before = *to;
    *to += value;
    return before;
}
KC_FN uint64_t kc_multiply_wide(uint32_t a, uint32_t b) {
    return uint64_t{ a } * b;
}

struct kc_shared {
    uint32_t        base;
    const uint8_t * memory;
};
KC_FN kc_shared kc_shared_at(const void * memory) {
    return { 0, static_cast<const uint8_t *>(memory) };
}
KC_FN uint32_t kc_read_u16(const kc_shared & shared, uint32_t address) {
    uint16_t value;
    memcpy(&value, shared.memory + address, sizeof(value));
    return value;
}
KC_FN uint64_t kc_read_u64(const kc_shared & shared, uint32_t address) {
    uint64_t value;
    memcpy(&value, shared.memory + address, sizeof(value));
    return value;
}
KC_FN uint32_t kc_read_u8(const kc_shared & shared, uint32_t address) {
    return shared.memory[address];
}
KC_FN void kc_write_u8(const kc_shared & shared, uint32_t address, uint32_t value) {
    const_cast<uint8_t *>(shared.memory)[address] = static_cast<uint8_t>(value);
}
// one lane runs at a time
KC_FN void kc_atomic_add_u32(const kc_shared & shared, uint32_t address, uint32_t value) {
    uint32_t sum;
    memcpy(&sum, shared.memory + address, sizeof(sum));
    sum += value;
    memcpy(const_cast<uint8_t *>(shared.memory) + address, &sum, sizeof(sum));
}
KC_FN void kc_write_u16(const kc_shared & shared, uint32_t address, uint32_t value) {
    const auto half = static_cast<uint16_t>(value);
    memcpy(const_cast<uint8_t *>(shared.memory) + address, &half, sizeof(half));
}
