// A group of 32 lanes in a wave of 32 or 64, by what AMD's waves do as a whole: a wave of 64 is two groups, which may
// be at different places. Written over wave_size(), wave_lane(), wave_ballot(), wave_permute(), wave_swizzle_xor() and
// wave_fence(): instructions in port_hip.h, emulated in cpu/lanes.h.
#pragma once

// the group is the wave's upper half
KC_FN bool kc_is_upper_half() {
    return wave_size() == 64 && (wave_lane() & 32) != 0;
}

KC_FN uint32_t kc_ballot(bool value) {
    const uint64_t lanes = wave_ballot(value); // none of a half that is elsewhere
    return kc_is_upper_half() ? (uint32_t) (lanes >> 32) : (uint32_t) lanes;
}

KC_FN uint32_t kc_shuffle(uint32_t value, uint32_t lane) {
    return wave_permute(4 * ((lane & 31) | (kc_is_upper_half() ? 32 : 0)), value);
}

KC_FN uint32_t kc_shuffle_xor(uint32_t value, uint32_t mask) {
    // lanes of an instruction are constants
    switch (mask) {
        case 1: return wave_swizzle_xor<1>(value);
        case 2: return wave_swizzle_xor<2>(value);
        case 4: return wave_swizzle_xor<4>(value);
        case 8: return wave_swizzle_xor<8>(value);
        case 16: return wave_swizzle_xor<16>(value);
        default: return kc_shuffle(value, wave_lane() ^ mask);
    }
}

KC_FN uint32_t kc_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

KC_FN uint32_t kc_max(uint32_t value) {
    value = kc_larger(value, wave_swizzle_xor<1>(value));
    value = kc_larger(value, wave_swizzle_xor<2>(value));
    value = kc_larger(value, wave_swizzle_xor<4>(value));
    value = kc_larger(value, wave_swizzle_xor<8>(value));
    return kc_larger(value, wave_swizzle_xor<16>(value));
}

// a wave's accesses to shared memory are done in their order: the compiler must not change it
KC_FN void kc_sync_group() {
    wave_fence();
}
