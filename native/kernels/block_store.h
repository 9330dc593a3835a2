// Rotated values into blocks of 32, 16 values a lane: tiles go through shared memory, so that a lane has neighbours in
// channel, which need no shuffles. The bits are those of rotate_tile() and store_blocks().
#pragma once

#include "store_body.h"

namespace kernels {

/*
 * A tile of tokens x 32 R channels as 16 lane-owned values, in two ways: in segments of adjacent channels, and strided
 * by 16 channels. The chunks of 4 channels are permuted so that lanes meet in no bank of shared memory.
 */
template <int R> struct block_tile {
    static KC_CONSTANT int      n_values = 16; // of a lane
    static KC_CONSTANT int      tokens   = n_values / R;
    static KC_CONSTANT uint32_t lanes    = 2 * R; // that have a token
    // floats from token to token, for the banks of strided reads
    static KC_CONSTANT uint32_t stride   = 32 * R + (R == 2 ? 4 : R == 4 ? 8 : 16);
    static KC_CONSTANT uint32_t bytes    = tokens * stride * 4;
};

// where channel c of a token is, in floats
KC_FN uint32_t tile_index(uint32_t c) {
    return ((c >> 2) ^ (c >> 4 & 7)) << 2 | (c & 3);
}

// one value a lane, group and token, to tokens [first, first + T) of a tile
template <int R, int T> KC_FN void put_values(const KC_PRIVATE kc_thread & me, KC_SHARED float * tile, uint32_t first,
                                              const KC_PRIVATE float (&values)[R][T]) {
    KC_UNROLL
    for (int r = 0; r < R; r++) {
        const uint32_t index = tile_index(32 * r + me.lane);
        KC_UNROLL
        for (int t = 0; t < T; t++) {
            tile[(first + t) * block_tile<R>::stride + index] = values[r][t];
        }
    }
}

// A lane's segment: 16 adjacent channels of token lane / lanes.
template <int R> KC_FN uint32_t segment_index(uint32_t lane, uint32_t quarter) {
    const uint32_t segment = lane % block_tile<R>::lanes;
    return lane / block_tile<R>::lanes * block_tile<R>::stride + (((4 * segment + quarter) ^ (segment & 7)) << 2);
}

template <int R>
KC_FN void get_segment(const KC_PRIVATE kc_thread & me, const KC_SHARED float * tile, KC_PRIVATE float (&values)[16]) {
    KC_UNROLL
    for (int quarter = 0; quarter < 4; quarter++) {
        float four[4];
        kc_read_words<4>(tile + segment_index<R>(me.lane, quarter), four);
        KC_UNROLL
        for (int i = 0; i < 4; i++) {
            values[4 * quarter + i] = four[i];
        }
    }
}

template <int R>
KC_FN void put_segment(const KC_PRIVATE kc_thread & me, KC_SHARED float * tile, const KC_PRIVATE float (&values)[16]) {
    KC_UNROLL
    for (int quarter = 0; quarter < 4; quarter++) {
        KC_SHARED float * const to = tile + segment_index<R>(me.lane, quarter);
        kc_write_4_words(to, values[4 * quarter], values[4 * quarter + 1], values[4 * quarter + 2],
                         values[4 * quarter + 3]);
    }
}

// Value k of token q: channel lane % 16 + 16 k of token q, or q + tokens / 2 for the upper lanes.
template <int R> KC_FN uint32_t strided_index(uint32_t lane, int q, int k) {
    const uint32_t token = (lane >> 4) * (block_tile<R>::tokens / 2) + q;
    return token * block_tile<R>::stride + tile_index((lane & 15) + 16 * k);
}

// one stage of the butterflies on values `distance` apart
KC_FN void rotate_stage(KC_PRIVATE float (&values)[16], int distance) {
    KC_UNROLL
    for (int i = 0; i < 16; i++) {
        if ((i & distance) == 0) {
            const float u        = values[i];
            const float v        = values[i + distance];
            values[i]            = u + v;
            values[i + distance] = u - v;
        }
    }
}

// Rotate a tile by a Hadamard matrix every n_rot channels. All lanes have put their values and met; they have not met
// after this.
template <int R> KC_FN void rotate_block_tile(const KC_PRIVATE kc_thread & me, KC_SHARED float * tile, uint32_t n_rot,
                                              float factor, KC_PRIVATE float (&values)[16]) {
    KC_UNROLL
    for (int i = 0; i < 16; i++) {
        values[i] *= factor;
    }
    KC_UNROLL
    for (int distance = 1; distance < 16; distance *= 2) {
        if ((uint32_t) distance < n_rot) {
            rotate_stage(values, distance);
        }
    }
    constexpr int n_strided = 2 * R; // of a token
    put_segment<R>(me, tile, values);
    kc_sync_group();
    if (n_rot <= 16) {
        return;
    }
    float strided[16];
    KC_UNROLL
    for (int i = 0; i < 16; i++) {
        strided[i] = tile[strided_index<R>(me.lane, i / n_strided, i % n_strided)];
    }
    KC_UNROLL
    for (int distance = 1; distance < n_strided; distance *= 2) {
        if (16 * (uint32_t) distance < n_rot) {
            rotate_stage(strided, distance);
        }
    }
    KC_UNROLL
    for (int i = 0; i < 16; i++) {
        tile[strided_index<R>(me.lane, i / n_strided, i % n_strided)] = strided[i];
    }
    kc_sync_group();
    get_segment<R>(me, tile, values);
}

// value i, 0 to 31, of the block that a lane has a half of
template <int R> KC_FN float tile_value(const KC_PRIVATE kc_thread & me, const KC_SHARED float * tile, uint32_t i) {
    const uint32_t segment = (me.lane % block_tile<R>::lanes & ~1u) + i / 16;
    const uint32_t chunk   = (4 * segment + i % 16 / 4) ^ (segment & 7);
    return tile[me.lane / block_tile<R>::lanes * block_tile<R>::stride + 4 * chunk + i % 4];
}

// what a lane has of a block: its scale, and the codes of 16 values, 8 bits each
struct half_block {
    uint32_t scale_bits;
    uint32_t codes[4];
};

// Blocks with an infinity or a NaN: see odd_block_q8_0().
template <uint32_t STORE, int R> KC_FN void
code_odd_block(const KC_PRIVATE kc_thread & me, const KC_SHARED float * tile, KC_PRIVATE half_block & block) {
    float largest = 0;
    float extreme = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const float value     = tile_value<R>(me, tile, i);
        const float magnitude = magnitude_of(value);
        if (STORE == store_q8_0) {
            largest = largest > magnitude ? largest : magnitude;
        } else if (largest < magnitude) { // a NaN is left out
            largest = magnitude;
            extreme = value;
        }
    }
    const float scale   = STORE == store_q8_0 ? largest / 127 : extreme / -8;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    block.scale_bits    = fp16_of(scale);
    for (uint32_t word = 0; word < 4; word++) {
        block.codes[word] = 0;
        for (uint32_t i = 0; i < 4; i++) {
            const float    value = tile_value<R>(me, tile, (me.lane & 1) * 16 + 4 * word + i);
            const uint32_t code  = STORE == store_q8_0 ? odd_code_q8_0(value, inverse) : odd_code_q4_0(value, inverse);
            block.codes[word] |= code << (8 * i);
        }
    }
}

template <uint32_t STORE, int R> KC_FN void code_block(const KC_PRIVATE kc_thread & me, const KC_SHARED float * tile,
                                                       const KC_PRIVATE float (&values)[16],
                                                       KC_PRIVATE half_block & block) {
    uint32_t largest = 0;
    KC_UNROLL
    for (int i = 0; i < 16; i++) {
        const uint32_t magnitude = kc_float_bits(values[i]) & 0x7fffffff;
        largest                  = largest > magnitude ? largest : magnitude;
    }
    uint32_t extreme = largest; // with its sign for Q4_0
    if (STORE == store_q4_0) {
        // the sign of the first value of the largest magnitude; of a block of zeros no -0
        KC_UNROLL
        for (int i = 15; i >= 0; i--) {
            const uint32_t bits = kc_float_bits(values[i]);
            extreme             = (bits & 0x7fffffff) == largest ? bits : extreme;
        }
        const uint32_t other  = kc_shuffle_xor(extreme, 1);
        const uint32_t lower  = me.lane & 1 ? other : extreme;
        const uint32_t upper  = me.lane & 1 ? extreme : other;
        const bool     is_low = (lower & 0x7fffffff) >= (upper & 0x7fffffff);
        extreme               = is_low ? lower : upper;
        largest               = extreme & 0x7fffffff;
        extreme               = largest == 0 ? 0 : extreme;
    } else {
        const uint32_t other = kc_shuffle_xor(largest, 1);
        largest              = largest > other ? largest : other;
        extreme              = largest;
    }
    if (largest >= infinity_bits) {
        code_odd_block<STORE, R>(me, tile, block);
        return;
    }
    const float scale   = STORE == store_q8_0 ? kc_float(extreme) / 127 : kc_float(extreme) / -8;
    const float inverse = inverse_scale(scale);
    const float offset  = STORE == store_q4_0 ? q4_0_offset(scale) : 0.0f;
    block.scale_bits    = fp16_of(scale);
    KC_UNROLL
    for (int word = 0; word < 4; word++) {
        uint32_t codes = 0;
        KC_UNROLL
        for (int i = 0; i < 4; i++) {
            const float    value = values[4 * word + i];
            const uint32_t code  = STORE == store_q8_0 ? code_q8_0(value, inverse) : code_q4_0(value, inverse, offset);
            codes |= code << (8 * i);
        }
        block.codes[word] = codes;
    }
}

// What the tokens' blocks are copied with.
struct block_image {
    KC_GLOBAL uint8_t *        column; // of the destination's row 0
    const KC_SHARED uint32_t * cells;
    const KC_SHARED uint8_t *  bytes;
    uint32_t                   stride;
};

// W bytes: word i of the tokens, each of which has n_words
template <uint32_t W> KC_FN void copy_word(const KC_PRIVATE destination & dest, const KC_PRIVATE block_image & image,
                                           uint32_t i, uint32_t n_words) {
    const uint32_t token = i / n_words;
    const uint32_t at    = (i - token * n_words) * W;
    const uint32_t cell  = image.cells[token];
    if (cell == no_cell) {
        return;
    }
    KC_GLOBAL uint8_t * const       to   = image.column + kc_multiply_wide(cell, dest.stride) + at;
    const KC_SHARED uint8_t * const from = image.bytes + token * image.stride + at;
    if (W == 8) {
        uint32_t words[2];
        kc_read_words<2>((const KC_SHARED uint32_t *) from, words);
        kc_write_8(to, words[0], words[1]);
    } else if (W == 4) {
        kc_write((KC_GLOBAL uint32_t *) to, *(const KC_SHARED uint32_t *) from);
    } else {
        kc_write((KC_GLOBAL uint16_t *) to, *(const KC_SHARED uint16_t *) from);
    }
}

// all R blocks of each token
template <uint32_t W, uint32_t TOKENS, uint32_t N_BYTES> KC_FN void copy_blocks(const KC_PRIVATE kc_thread &   me,
                                                                                const KC_PRIVATE destination & dest,
                                                                                const KC_PRIVATE block_image & image) {
    constexpr uint32_t n_words = N_BYTES / W;
    KC_UNROLL
    for (uint32_t i = 0; i < TOKENS * n_words; i += 32) {
        if (i + me.lane < TOKENS * n_words) {
            copy_word<W>(dest, image, i + me.lane, n_words);
        }
    }
}

/*
 * Store the tile that all lanes have put their values into, after they have met. The destination has all R groups.
 * cells  IN  where each token goes; no_cell: nowhere
 */
template <uint32_t STORE, int R>
KC_FN void store_block_tile(const KC_PRIVATE kc_thread & me, const KC_PRIVATE destination & dest, uint32_t first_group,
                            uint32_t n_rot, float factor, const KC_SHARED uint32_t * cells, KC_SHARED float * tile) {
    constexpr uint32_t block_bytes  = STORE == store_q8_0 ? 34 : 18;
    constexpr uint32_t image_stride = (block_bytes * R + 7) / 8 * 8;
    float              values[16];
    get_segment<R>(me, tile, values);
    if (n_rot != 0) {
        rotate_block_tile<R>(me, tile, kc_again(n_rot), factor, values);
    }
    half_block block;
    code_block<STORE, R>(me, tile, values, block);
    kc_sync_group(); // the values have been used: the bytes take their place
    KC_SHARED uint8_t * const  image   = (KC_SHARED uint8_t *) tile;
    const uint32_t             segment = me.lane % block_tile<R>::lanes;
    const uint32_t             upper   = segment & 1;
    KC_SHARED uint8_t * const  to = image + me.lane / block_tile<R>::lanes * image_stride + segment / 2 * block_bytes;
    KC_SHARED uint16_t * const codes = (KC_SHARED uint16_t *) (to + 2);
    if (upper == 0) {
        *(KC_SHARED uint16_t *) to = (uint16_t) block.scale_bits;
    }
    if (STORE == store_q8_0) {
        KC_UNROLL
        for (int i = 0; i < 4; i++) {
            codes[8 * upper + 2 * i]     = (uint16_t) block.codes[i];
            codes[8 * upper + 2 * i + 1] = (uint16_t) (block.codes[i] >> 16);
        }
    } else {
        // byte i: value i, and value i + 16 above it; each half of the block makes 8 bytes
        KC_UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t kept          = upper == 0 ? block.codes[i] : block.codes[2 + i];
            const uint32_t given         = upper == 0 ? block.codes[2 + i] : block.codes[i];
            const uint32_t taken         = kc_shuffle_xor(given, 1);
            const uint32_t bytes         = upper == 0 ? kept | taken << 4 : taken | kept << 4;
            codes[4 * upper + 2 * i]     = (uint16_t) bytes;
            codes[4 * upper + 2 * i + 1] = (uint16_t) (bytes >> 16);
        }
    }
    kc_sync_group();
    constexpr uint32_t n_tokens = block_tile<R>::tokens;
    constexpr uint32_t n_bytes  = block_bytes * R;
    constexpr uint32_t width    = n_bytes % 8 == 0 ? 8 : 4;
    const block_image  from     = { dest.data + (uint64_t) first_group * block_bytes, cells, image, image_stride };
    if ((((uint32_t) (uint64_t) from.column | dest.stride) & (width - 1)) == 0) {
        copy_blocks<width, n_tokens, n_bytes>(me, dest, from);
    } else {
        copy_blocks<2, n_tokens, n_bytes>(me, dest, from);
    }
}

} // namespace kernels
