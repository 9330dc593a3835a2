/*
 * The kernels of a source: how many threads they are made for, and which there are, one a combination of template
 * arguments. KC_FOR_STORES(F) is F(name, store) for every store, KC_FOR_SIDES(F, name, store) is F(name, store, side)
 * for the adjacent groups that 32 lanes have. With KC_ONLY_STORE defined as a store_kind's number, that store alone: a
 * cache has rows of one store or two.
 */
#pragma once

// threads of a threadgroup, at most
#define KC_DECODE_THREADS 128
#define KC_LEGACY_THREADS 128
#define KC_ENCODE_THREADS 256
#define KC_LAY_OUT_THREADS 32 // a plane's layout takes one group of lanes

#if !defined(KC_ONLY_STORE)
#    define KC_FOR_STORES(F)                                                                                           \
        KC_STORE_0(F)                                                                                                  \
        KC_STORE_1(F)                                                                                                  \
        KC_STORE_2(F)                                                                                                  \
        KC_STORE_3(F)                                                                                                  \
        KC_STORE_4(F)                                                                                                  \
        KC_STORE_5(F)                                                                                                  \
        KC_STORE_6(F)                                                                                                  \
        KC_STORE_7(F)
#else
#    define KC_FOR_STORES(F) KC_JOIN(KC_STORE_, KC_ONLY_STORE)(F)
#endif

#define KC_JOIN_AS_IS(a, b) a##b
#define KC_JOIN(a, b) KC_JOIN_AS_IS(a, b)

#define KC_STORE_0(F) F(f32, kernels::store_f32)
#define KC_STORE_1(F) F(f16, kernels::store_f16)
#define KC_STORE_2(F) F(bf16, kernels::store_bf16)
#define KC_STORE_3(F) F(q8_0, kernels::store_q8_0)
#define KC_STORE_4(F) F(q4_0, kernels::store_q4_0)
#define KC_STORE_5(F) F(f32_transposed, kernels::store_f32_transposed)
#define KC_STORE_6(F) F(f16_transposed, kernels::store_f16_transposed)
#define KC_STORE_7(F) F(bf16_transposed, kernels::store_bf16_transposed)

#define KC_FOR_SIDES(F, name, store)                                                                                   \
    F(name, store, 1)                                                                                                  \
    F(name, store, 2)                                                                                                  \
    F(name, store, 4)                                                                                                  \
    F(name, store, 8)
