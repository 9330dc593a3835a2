// encode.metal, to be run: see decode_text.cpp.
#include "text_kernels.h"

#define kernels kernels_of_encode_text
#include "metal/encode.metal"

#define KC_ROW(name, has_memory) { #name, has_memory, text_kernels::run<kernels::metal_encode_arguments, name> },
#define KC_ROW_SIDE(name, store, side)                                                                                 \
    KC_ROW(cachegen_scales_##name##_##side, false)                                                                     \
    KC_ROW(cachegen_count_##name##_##side, true)                                                                       \
    KC_ROW(cachegen_encode_##name##_##side##_shared, true)                                                             \
    KC_ROW(cachegen_encode_##name##_##side##_memory, true)
#define KC_ROW_STORE(name, store) KC_FOR_SIDES(KC_ROW_SIDE, name, store)

std::vector<text_kernels::entry> text_kernels::of_encode() {
    return { KC_FOR_STORES(KC_ROW_STORE) KC_ROW(cachegen_lay_out, false) KC_ROW(cachegen_gather, false) };
}
