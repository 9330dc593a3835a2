// The kernels' language on CUDA: a group of lanes is a warp.
#pragma once

#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#define KC_FN static __device__ __forceinline__
#define KC_UNROLL _Pragma("unroll")

// entries: KC_KERNEL(launch bounds) name(KC_ARGUMENT record in)
#define KC_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
// inlined as nvcc sees fit: forced, other kernels get other registers
#define KC_ENTRY_FN __device__
#define KC_ARGUMENT const __grid_constant__
#define KC_SHARED_MEMORY __shared__

// of the workgroup
KC_FN uint32_t kc_n_groups() {
    return blockDim.x / 32;
}
KC_FN kc_thread kc_this_thread() {
    return { threadIdx.x, threadIdx.x & 31, threadIdx.x / 32, kc_n_groups(), blockIdx.x, gridDim.x };
}

KC_FN uint32_t kc_ballot(bool value) {
    return __ballot_sync(0xffffffffu, value);
}
KC_FN uint32_t kc_shuffle(uint32_t value, uint32_t lane) {
    return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
}
KC_FN uint32_t kc_shuffle_xor(uint32_t value, uint32_t mask) {
    return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}
KC_FN uint32_t kc_max(uint32_t value) {
    return __reduce_max_sync(0xffffffffu, value);
}
KC_FN void kc_sync_group() {
    __syncwarp();
}
KC_FN void kc_sync() {
    __syncthreads();
}
KC_FN uint32_t kc_count_bits(uint32_t value) {
    return static_cast<uint32_t>(__popc(static_cast<int>(value)));
}
// 32 for zero
KC_FN uint32_t kc_leading_zeros(uint32_t value) {
    return static_cast<uint32_t>(__clz(static_cast<int>(value)));
}
// the same number: see port_hip.h
KC_FN uint32_t kc_again(uint32_t value) {
    return value;
}
KC_FN uint32_t kc_float_bits(float value) {
    return __float_as_uint(value);
}
KC_FN float kc_float(uint32_t bits) {
    return __uint_as_float(bits);
}
KC_FN float kc_sqrt(float value) {
    return sqrtf(value);
}
KC_FN uint32_t kc_to_fp16_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

// of a number that is no NaN; packing a pair is faster than converting one
KC_FN uint32_t kc_to_fp16(float value) {
    return kc_to_fp16_pair(value, 0.0f) & 0xffff;
}

// every NaN becomes some NaN
KC_FN float kc_from_fp16(uint32_t half) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
}

// to a device's memory, which the compiler cannot tell from other kinds
KC_FN void kc_write(uint8_t * to, uint8_t value) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(static_cast<uint32_t>(value)) : "memory");
}
KC_FN void kc_write(uint16_t * to, uint16_t value) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(value) : "memory");
}
KC_FN void kc_write(uint32_t * to, uint32_t value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
KC_FN void kc_write(float * to, float value) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

KC_FN void kc_write_8(uint8_t * to, uint32_t a, uint32_t b) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}
KC_FN void kc_write_16(uint8_t * to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// partner + value x sign, sign being 1 or -1: the product is exact, so this is one rounding as of a sum
KC_FN float kc_add_signed(float partner, float value, float sign) {
    return __fmaf_rn(value, sign, partner);
}

// N words, a power of two, at a multiple of their size
template <int N, typename T> KC_FN void kc_read_words(const T * from, T (&to)[N]) {
    if constexpr (N % 4 == 0) {
        for (int i = 0; i < N; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(from + i);
            memcpy(to + i, &four, 16);
        }
    } else {
        for (int i = 0; i < N; i++) {
            to[i] = from[i];
        }
    }
}

// four words to shared memory, at a multiple of 16
KC_FN void kc_write_4_words(float * to, float a, float b, float c, float d) {
    *reinterpret_cast<float4 *>(to) = make_float4(a, b, c, d);
}

// from a device's memory that nobody writes to during the launch
template <typename T> KC_FN T kc_read_only(const T * from) {
    return __ldg(from);
}

// the number before
KC_FN uint32_t kc_atomic_add(uint32_t * to, uint32_t value) {
    return atomicAdd(to, value);
}

KC_FN uint64_t kc_multiply_wide(uint32_t a, uint32_t b) {
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}

// Start to copy 16 bytes to shared memory, both at a multiple of 16.
KC_FN void kc_copy_16(void * to, const uint8_t * from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}
// the copies since the last call are one batch
KC_FN void kc_end_batch() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// all batches but the last N have arrived, for every lane after kc_sync_group()
template <int N> KC_FN void kc_wait_batches() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// a workgroup's shared memory, found by its address in bytes
struct kc_shared {
    uint32_t base;
};
KC_FN kc_shared kc_shared_at(const void * memory) {
    return { static_cast<uint32_t>(__cvta_generic_to_shared(memory)) };
}
KC_FN uint32_t kc_read_u16(const kc_shared &, uint32_t address) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    return value;
}
KC_FN uint64_t kc_read_u64(const kc_shared &, uint32_t address) {
    uint64_t value;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address));
    return value;
}
KC_FN uint32_t kc_read_u8(const kc_shared &, uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
KC_FN void kc_write_u8(const kc_shared &, uint32_t address, uint32_t value) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
KC_FN void kc_write_u16(const kc_shared &, uint32_t address, uint32_t value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(value)) : "memory");
}
KC_FN void kc_atomic_add_u32(const kc_shared &, uint32_t address, uint32_t value) {
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
