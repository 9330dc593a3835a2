// decode.metal, to be run. Its types are its own: those of the other sources here are compiled with another port.
#include "text_kernels.h"

#define kernels kernels_of_decode_text
#include "metal/decode.metal"

#define KC_ROW(name) { #name, true, text_kernels::run<kernels::metal_decode_arguments, name> },
#define KC_ROW_SIDE(name, store, side)                                                                                 \
    KC_ROW(cachegen_decode_##name##_##side##_narrow_shared)                                                            \
    KC_ROW(cachegen_decode_##name##_##side##_narrow_memory)                                                            \
    KC_ROW(cachegen_decode_##name##_##side##_wide_shared)                                                              \
    KC_ROW(cachegen_decode_##name##_##side##_wide_memory)
#define KC_ROW_STORE(name, store)                                                                                      \
    KC_ROW(cachegen_place_##name)                                                                                      \
    KC_FOR_SIDES(KC_ROW_SIDE, name, store)

uint32_t text_kernels::to_fp16(float value) {
    return kc_to_fp16(value);
}

float text_kernels::from_fp16(uint32_t bits) {
    return kc_from_fp16(bits);
}

std::vector<text_kernels::entry> text_kernels::of_decode() {
    return { KC_FOR_STORES(KC_ROW_STORE) KC_ROW(cachegen_expand) };
}
