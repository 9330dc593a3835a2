// The kernels' language on Metal: a group of lanes is a simdgroup, which has 32 threads on Apple's devices. Written for
// the Metal Shading Language 2.4, C++14 but for `if constexpr`, which its compiler takes as an extension.
#pragma once

#pragma clang diagnostic ignored "-Wc++17-extensions"
#pragma clang diagnostic ignored "-Wpass-failed" // KC_UNROLL asks for loops that need not be unrolled too

// Bits matter: products and sums are rounded on their own. The host turns fast math off (MTLMathModeSafe), which still
// allows a product and a sum of one expression to be contracted.
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#pragma clang fp contract(off)

#define KC_FN static inline __attribute__((always_inline))
#define KC_UNROLL _Pragma("clang loop unroll(full)")

// entries: KC_KERNEL(largest threadgroup) name(KC_ARGUMENTS(record), KC_THREADGROUP_MEMORY, KC_POSITION)
#define KC_KERNEL(n_threads) [[max_total_threads_per_threadgroup(n_threads)]] kernel void
#define KC_ARGUMENTS(record) constant record & arguments [[buffer(0)]]
#if !defined(KC_FIRST_THREADGROUP) // where address spaces are macros for nothing, the attribute needs another name
#    define KC_FIRST_THREADGROUP threadgroup(0)
#endif
#define KC_THREADGROUP_MEMORY threadgroup uint8_t * shared [[KC_FIRST_THREADGROUP]]
#define KC_POSITION                                                                                                    \
    uint position_id [[thread_index_in_threadgroup]], uint position_lane [[thread_index_in_simdgroup]],                \
        uint position_group [[simdgroup_index_in_threadgroup]], uint position_groups [[simdgroups_per_threadgroup]],   \
        uint position_workgroup [[threadgroup_position_in_grid]], uint position_workgroups [[threadgroups_per_grid]]
#define KC_THIS_THREAD                                                                                                 \
    { position_id, position_lane, position_group, position_groups, position_workgroup, position_workgroups }

KC_FN uint32_t kc_ballot(bool value) {
    return (uint32_t) (simd_vote::vote_t) simd_ballot(value);
}
KC_FN uint32_t kc_shuffle(uint32_t value, uint32_t lane) {
    return simd_shuffle(value, (ushort) (lane & 31));
}
KC_FN uint32_t kc_shuffle_xor(uint32_t value, uint32_t mask) {
    return simd_shuffle_xor(value, (ushort) mask);
}
KC_FN uint32_t kc_max(uint32_t value) {
    return simd_max(value);
}
KC_FN void kc_sync_group() {
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
KC_FN void kc_sync() {
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

KC_FN uint32_t kc_count_bits(uint32_t value) {
    return popcount(value);
}
// 32 for zero
KC_FN uint32_t kc_leading_zeros(uint32_t value) {
    return clz(value);
}
// the same number: see port_hip.h
KC_FN uint32_t kc_again(uint32_t value) {
    return value;
}
KC_FN uint32_t kc_float_bits(float value) {
    return as_type<uint32_t>(value);
}
KC_FN float kc_float(uint32_t bits) {
    return as_type<float>(bits);
}
KC_FN float kc_sqrt(float value) {
    return precise::sqrt(value);
}

// Conversions with whole numbers alone, but for one sum of ordinary numbers: Metal lets a device flush subnormal
// numbers.

// of a number that is no NaN
KC_FN uint32_t kc_to_fp16(float value) {
    const uint32_t bits      = as_type<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    // below 2^-14 the last place is 2^-24, as it is of 0.5
    const float    sum       = as_type<float>(magnitude) + 0.5f;
    const uint32_t small     = as_type<uint32_t>(sum) - 0x3f000000;
    const uint32_t rounded   = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10);
    const uint32_t large     = magnitude >= 0x477ff000 ? 0x7c00 : rounded;
    return (magnitude < 0x38800000 ? small : large) | (bits >> 16 & 0x8000);
}
KC_FN uint32_t kc_to_fp16_pair(float low, float high) {
    return kc_to_fp16(low) | kc_to_fp16(high) << 16;
}

// every NaN becomes some NaN
KC_FN float kc_from_fp16(uint32_t bits) {
    const uint32_t exponent  = bits >> 10 & 31;
    const uint32_t mantissa  = bits & 1023;
    const float    small     = (float) mantissa * 5.9604644775390625e-8f; // 2^-24
    const uint32_t large     = ((bits & 0x7fff) << 13) + (exponent == 31 ? 0x70000000 : 0x38000000);
    const uint32_t magnitude = exponent == 0 ? as_type<uint32_t>(small) : large;
    return as_type<float>((bits & 0x8000) << 16 | magnitude);
}

template <typename T> KC_FN void kc_write(KC_GLOBAL T * to, T value) {
    *to = value;
}
KC_FN void kc_write_8(KC_GLOBAL uint8_t * to, uint32_t a, uint32_t b) {
    *(KC_GLOBAL uint2 *) to = uint2(a, b);
}
KC_FN void kc_write_16(KC_GLOBAL uint8_t * to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    *(KC_GLOBAL uint4 *) to = uint4(a, b, c, d);
}

// partner + value x sign, sign being 1 or -1: the product is exact, so this is one rounding as of a sum
KC_FN float kc_add_signed(float partner, float value, float sign) {
    return fma(value, sign, partner);
}

// N words of shared memory, a power of two, at a multiple of their size
template <int N, typename T> KC_FN void kc_read_words(const KC_SHARED T * from, KC_PRIVATE T (&to)[N]) {
    if constexpr (N % 4 == 0) {
        KC_UNROLL
        for (int i = 0; i < N; i += 4) {
            const uint4 four = *(const KC_SHARED uint4 *) (from + i);
            to[i]            = as_type<T>(four.x);
            to[i + 1]        = as_type<T>(four.y);
            to[i + 2]        = as_type<T>(four.z);
            to[i + 3]        = as_type<T>(four.w);
        }
    } else {
        KC_UNROLL
        for (int i = 0; i < N; i++) {
            to[i] = from[i];
        }
    }
}

// four words to shared memory, at a multiple of 16
KC_FN void kc_write_4_words(KC_SHARED float * to, float a, float b, float c, float d) {
    *(KC_SHARED float4 *) to = float4(a, b, c, d);
}

// from a device's memory that nobody writes to during the launch
template <typename T> KC_FN T kc_read_only(const KC_GLOBAL T * from) {
    return *from;
}

// the number before
KC_FN uint32_t kc_atomic_add(KC_GLOBAL uint32_t * to, uint32_t value) {
    return atomic_fetch_add_explicit((KC_GLOBAL atomic_uint *) to, value, memory_order_relaxed);
}

KC_FN uint64_t kc_multiply_wide(uint32_t a, uint32_t b) {
    return (uint64_t) a * b;
}

// 16 bytes to shared memory, both at a multiple of 16, through registers: the copy is done when kc_sync_group() is
KC_FN void kc_copy_16(KC_SHARED uint8_t * to, const KC_GLOBAL uint8_t * from) {
    *(KC_SHARED uint4 *) to = *(const KC_GLOBAL uint4 *) from;
}
KC_FN void                  kc_end_batch() {}
template <int N> KC_FN void kc_wait_batches() {}

// a part of a threadgroup's memory, found by bytes from its begin
struct kc_shared {
    uint32_t            base;
    KC_SHARED uint8_t * memory;
};

template <typename T> KC_FN kc_shared kc_shared_at(KC_SHARED T * memory) {
    const kc_shared shared = { 0, (KC_SHARED uint8_t *) memory };
    return shared;
}
KC_FN uint32_t kc_read_u8(const KC_PRIVATE kc_shared & shared, uint32_t address) {
    return shared.memory[address];
}
KC_FN uint32_t kc_read_u16(const KC_PRIVATE kc_shared & shared, uint32_t address) {
    return *(const KC_SHARED uint16_t *) (shared.memory + address);
}
KC_FN uint64_t kc_read_u64(const KC_PRIVATE kc_shared & shared, uint32_t address) {
    return *(const KC_SHARED uint64_t *) (shared.memory + address);
}
KC_FN void kc_write_u8(const KC_PRIVATE kc_shared & shared, uint32_t address, uint32_t value) {
    shared.memory[address] = (uint8_t) value;
}
KC_FN void kc_write_u16(const KC_PRIVATE kc_shared & shared, uint32_t address, uint32_t value) {
    *(KC_SHARED uint16_t *) (shared.memory + address) = (uint16_t) value;
}
KC_FN void kc_atomic_add_u32(const KC_PRIVATE kc_shared & shared, uint32_t address, uint32_t value) {
    atomic_fetch_add_explicit((KC_SHARED atomic_uint *) (shared.memory + address), value, memory_order_relaxed);
}
