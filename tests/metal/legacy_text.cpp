// legacy.metal, to be run: see decode_text.cpp.
#include "text_kernels.h"

#define kernels kernels_of_legacy_text
#include "metal/legacy.metal"

#define KC_ROW(name) { #name, true, text_kernels::run<kernels::metal_legacy_arguments, name> },
#define KC_ROW_STORE(name, store)                                                                                      \
    KC_ROW(cachegen_lcg1_##name)                                                                                       \
    KC_ROW(cachegen_lcg2_##name)

std::vector<text_kernels::entry> text_kernels::of_legacy() {
    return { KC_FOR_STORES(KC_ROW_STORE) };
}
