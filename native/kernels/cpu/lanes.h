// Lanes on a processor, for tests: every thread of a workgroup is a fiber; collectives meet in groups of 32. Lanes of a
// group that wait at different collectives, or leave while others wait, end the process with a message.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define KC_FN static inline
#define KC_UNROLL

struct kc_thread {
    uint32_t id;
    uint32_t lane;
    uint32_t group;
    uint32_t n_groups;
    uint32_t workgroup;
    uint32_t n_workgroups;
};

namespace lanes {

enum class collective : uint32_t { none, ballot, shuffle, shuffle_xor, max, min, sync_group, sync, done };

// what this lane gets when all lanes of its group have come to the same collective
uint32_t meet(collective which, uint32_t value, uint32_t argument);

/*
 * Run a workgroup of n_threads, a multiple of 32.
 * order  0: lanes in ascending order, 1: descending, else shuffled by it. A missing barrier shows in one of them.
 */
void run_workgroup(uint32_t n_threads, uint32_t workgroup, uint32_t n_workgroups, uint32_t order,
                   const std::function<void(const kc_thread &)> & kernel);

} // namespace lanes

KC_FN uint32_t kc_ballot(bool value) {
    return lanes::meet(lanes::collective::ballot, value, 0);
}
KC_FN uint32_t kc_shuffle(uint32_t value, uint32_t lane) {
    return lanes::meet(lanes::collective::shuffle, value, lane & 31);
}
KC_FN uint32_t kc_shuffle_xor(uint32_t value, uint32_t mask) {
    return lanes::meet(lanes::collective::shuffle_xor, value, mask);
}
KC_FN uint32_t kc_max(uint32_t value) {
    return lanes::meet(lanes::collective::max, value, 0);
}
KC_FN uint32_t kc_min(uint32_t value) {
    return lanes::meet(lanes::collective::min, value, 0);
}
KC_FN void kc_sync_group() {
    lanes::meet(lanes::collective::sync_group, 0, 0);
}
KC_FN void kc_sync() {
    lanes::meet(lanes::collective::sync, 0, 0);
}
KC_FN uint32_t kc_count_bits(uint32_t value) {
    return static_cast<uint32_t>(__builtin_popcount(value));
}
KC_FN uint32_t kc_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
KC_FN float kc_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
// of a number that is no NaN, to nearest, ties to even
KC_FN uint32_t kc_to_fp16(float value) {
    const uint32_t bits      = kc_float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t       half;
    if (magnitude >= 0x47800000) { // 65,536
        half = 0x7c00;
    } else if (magnitude < 0x38800000) { // below 2^-14: the sum has the spacing of F16's subnormal numbers
        half = kc_float_bits(kc_float(magnitude) + 0.5f) - 0x3f000000;
    } else {
        half = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    return (bits >> 16 & 0x8000) | half;
}
KC_FN uint32_t kc_to_fp16_pair(float low, float high) {
    return kc_to_fp16(low) | kc_to_fp16(high) << 16;
}

struct kc_shared_table {
    uint32_t         base;
    const uint64_t * words;
};
KC_FN kc_shared_table kc_table_at(const uint64_t * words) {
    return { 0, words };
}
KC_FN uint64_t kc_table_word(const kc_shared_table & table, uint32_t address) {
    return table.words[address / 8];
}

KC_FN void kc_copy_16(void * to, const uint8_t * from) {
    memcpy(to, from, 16);
}
KC_FN void                  kc_end_batch() {}
template <int N> KC_FN void kc_wait_batches() {}

struct kc_shared_bytes {
    uint32_t        base;
    const uint8_t * bytes;
};
KC_FN kc_shared_bytes kc_bytes_at(const void * bytes) {
    return { 0, static_cast<const uint8_t *>(bytes) };
}
KC_FN uint32_t kc_shared_u16(const kc_shared_bytes & shared, uint32_t address) {
    uint16_t value;
    memcpy(&value, shared.bytes + address, sizeof(value));
    return value;
}
template <typename T> KC_FN void kc_write(T * to, T value) {
    *to = value;
}
KC_FN uint64_t kc_multiply_wide(uint32_t a, uint32_t b) {
    return uint64_t{ a } * b;
}
KC_FN uint32_t kc_shift_in_words(const kc_thread & me, const kc_shared_bytes & ring, uint32_t state, uint32_t & next,
                                 uint32_t base, uint32_t mask) {
    const bool     needs_word = state < 65536;
    const uint32_t needing    = kc_ballot(needs_word);
    const uint32_t word       = next + 2 * kc_count_bits(needing & ((1u << me.lane) - 1));
    next += 2 * kc_count_bits(needing);
    return needs_word ? state << 16 | kc_shared_u16(ring, (word & mask) | base) : state;
}
