// The kernels' language on HIP, by the compiler's builtins alone: neither ROCm's headers nor its device libraries are
// needed. Waves are of 64 lanes on CDNA, of 32 on RDNA.
#pragma once

#include <stdint.h>

#define KC_FN static __attribute__((device)) inline __attribute__((always_inline))
#define KC_UNROLL _Pragma("unroll")

// entries: KC_KERNEL(largest workgroup, ...) name(KC_ARGUMENT record in)
#define KC_KERNEL(...) KC_KERNEL_OF(__VA_ARGS__, 0)
#define KC_KERNEL_OF(n_threads, ...)                                                                                   \
    __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(1, n_threads)))
#define KC_ENTRY_FN KC_FN
#define KC_ARGUMENT const
#define KC_SHARED_MEMORY __attribute__((shared))

// pointers that say which memory they are to
#define KC_IN_GLOBAL __attribute__((address_space(1)))
#define KC_IN_SHARED __attribute__((address_space(3)))

using kc_words_2  = uint32_t __attribute__((ext_vector_type(2)));
using kc_floats_4 = float __attribute__((ext_vector_type(4)));
using kc_words_4  = uint32_t __attribute__((ext_vector_type(4)));

#if defined(__GFX9__)
constexpr uint32_t kc_wave_size = 64;
#else
constexpr uint32_t kc_wave_size = 32;
#endif

KC_FN constexpr uint32_t wave_size() {
    return kc_wave_size;
}
KC_FN uint32_t wave_lane() {
    const uint32_t lane = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return kc_wave_size == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, lane) : lane;
}
KC_FN uint64_t wave_ballot(bool value) {
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(value);
#else
    return __builtin_amdgcn_ballot_w32(value);
#endif
}
// address: 4 times the lane whose value is wanted
KC_FN uint32_t wave_permute(uint32_t address, uint32_t value) {
    return (uint32_t) __builtin_amdgcn_ds_bpermute((int) address, (int) value);
}
// from the lane with another number in its group of 32
template <uint32_t MASK> KC_FN uint32_t wave_swizzle_xor(uint32_t value) {
    return (uint32_t) __builtin_amdgcn_ds_swizzle((int) value, MASK << 10 | 31);
}
KC_FN void wave_fence() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

#include "half_wave.h"

KC_FN void kc_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// of the workgroup
KC_FN uint32_t kc_n_groups() {
    return __builtin_amdgcn_workgroup_size_x() / 32;
}

KC_FN kc_thread kc_this_thread() {
    const uint32_t id        = __builtin_amdgcn_workitem_id_x();
    const uint32_t n_threads = __builtin_amdgcn_workgroup_size_x();
    // where a wave is one group, its number is a scalar
    const uint32_t group = kc_wave_size == 32 ? (uint32_t) __builtin_amdgcn_readfirstlane((int) (id / 32)) : id / 32;
    return { id,
             id & 31,
             group,
             n_threads / 32,
             __builtin_amdgcn_workgroup_id_x(),
             __builtin_amdgcn_grid_size_x() / n_threads };
}

KC_FN uint32_t kc_count_bits(uint32_t value) {
    return (uint32_t) __builtin_popcount(value);
}
// 32 for zero, which the builtin alone does not know
KC_FN uint32_t kc_leading_zeros(uint32_t value) {
    return value == 0 ? 32 : (uint32_t) __builtin_clz(value);
}
KC_FN uint32_t kc_float_bits(float value) {
    return __builtin_bit_cast(uint32_t, value);
}
KC_FN float kc_float(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}
KC_FN float kc_sqrt(float value) {
    return __builtin_sqrtf(value);
}

// The same number; what is compared with it is compared again here, not in front of a loop: results of comparisons take
// two scalar registers each in a wave of 64, and there are 102.
KC_FN uint32_t kc_again(uint32_t value) {
    asm volatile("" : "+v"(value));
    return value;
}

// The compiler makes one mixed FMA of a product and a conversion from or to F16, adding +0: -0 would become +0.
KC_FN float kc_rounded(float value) {
    asm("" : "+v"(value));
    return value;
}

// of a number that is no NaN
KC_FN uint32_t kc_to_fp16(float value) {
    return __builtin_bit_cast(uint16_t, (_Float16) kc_rounded(value));
}
KC_FN uint32_t kc_to_fp16_pair(float low, float high) {
    return kc_to_fp16(low) | kc_to_fp16(high) << 16;
}

// every NaN becomes some NaN
KC_FN float kc_from_fp16(uint32_t half) {
    return kc_rounded((float) __builtin_bit_cast(_Float16, (uint16_t) half));
}

template <typename T> KC_FN void kc_write(T * to, T value) {
    *(KC_IN_GLOBAL T *) to = value;
}
KC_FN void kc_write_8(uint8_t * to, uint32_t a, uint32_t b) {
    *(KC_IN_GLOBAL kc_words_2 *) to = kc_words_2{ a, b };
}
KC_FN void kc_write_16(uint8_t * to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    *(KC_IN_GLOBAL kc_words_4 *) to = kc_words_4{ a, b, c, d };
}

// partner + value x sign, sign being 1 or -1: the product is exact, so this is one rounding as of a sum
KC_FN float kc_add_signed(float partner, float value, float sign) {
    return __builtin_fmaf(value, sign, partner);
}

// N words of shared memory, a power of two, at a multiple of their size
template <int N, typename T> KC_FN void kc_read_words(const T * from, T (&to)[N]) {
    if constexpr (N % 4 == 0) {
        KC_UNROLL
        for (int i = 0; i < N; i += 4) {
            const kc_words_4 four = *(const KC_IN_SHARED kc_words_4 *) (from + i);
            __builtin_memcpy(to + i, &four, 16);
        }
    } else {
        KC_UNROLL
        for (int i = 0; i < N; i++) {
            to[i] = *(const KC_IN_SHARED T *) (from + i);
        }
    }
}

// four words to shared memory, at a multiple of 16
KC_FN void kc_write_4_words(float * to, float a, float b, float c, float d) {
    *(KC_IN_SHARED kc_floats_4 *) to = kc_floats_4{ a, b, c, d };
}

// from a device's memory that nobody writes to during the launch
template <typename T> KC_FN T kc_read_only(const T * from) {
    return *(const KC_IN_GLOBAL T *) from;
}

// the number before
KC_FN uint32_t kc_atomic_add(uint32_t * to, uint32_t value) {
    return __hip_atomic_fetch_add((KC_IN_GLOBAL uint32_t *) to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

KC_FN uint64_t kc_multiply_wide(uint32_t a, uint32_t b) {
    return (uint64_t) a * b;
}

// 16 bytes to shared memory, both at a multiple of 16, through registers: the copy is done when kc_sync_group() is
KC_FN void kc_copy_16(void * to, const uint8_t * from) {
    *(KC_IN_SHARED kc_words_4 *) to = *(const KC_IN_GLOBAL kc_words_4 *) from;
}
KC_FN void                  kc_end_batch() {}
template <int N> KC_FN void kc_wait_batches() {}

// a workgroup's shared memory, found by its address in bytes
struct kc_shared {
    uint32_t base;
};

KC_FN kc_shared kc_shared_at(const void * memory) {
    return { (uint32_t) (uintptr_t) (const KC_IN_SHARED uint8_t *) memory };
}
template <typename T> KC_FN KC_IN_SHARED T * kc_shared_pointer(uint32_t address) {
    return (KC_IN_SHARED T *) (uintptr_t) address;
}
KC_FN uint32_t kc_read_u8(const kc_shared &, uint32_t address) {
    return *kc_shared_pointer<const uint8_t>(address);
}
KC_FN uint32_t kc_read_u16(const kc_shared &, uint32_t address) {
    return *kc_shared_pointer<const uint16_t>(address);
}
KC_FN uint64_t kc_read_u64(const kc_shared &, uint32_t address) {
    return *kc_shared_pointer<const uint64_t>(address);
}
KC_FN void kc_write_u8(const kc_shared &, uint32_t address, uint32_t value) {
    *kc_shared_pointer<uint8_t>(address) = (uint8_t) value;
}
KC_FN void kc_write_u16(const kc_shared &, uint32_t address, uint32_t value) {
    *kc_shared_pointer<uint16_t>(address) = (uint16_t) value;
}
KC_FN void kc_atomic_add_u32(const kc_shared &, uint32_t address, uint32_t value) {
    __hip_atomic_fetch_add(kc_shared_pointer<uint32_t>(address), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
