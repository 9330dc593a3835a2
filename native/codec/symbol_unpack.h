// Symbols of 4 or 5 bits, packed lowest bit first, as bytes.
#pragma once

#include <cstdint>

namespace cachegen {

/*
 * packed   IN  whole bytes, the first symbol in the lowest bits
 * n        IN  symbols
 * symbols  OUT n
 */
using unpack_function = void (*)(const uint8_t * packed, uint64_t n, uint8_t * symbols);

struct symbol_unpackers {
    unpack_function unpack_4;
    unpack_function unpack_5;
};

extern const symbol_unpackers scalar_unpackers;
extern const symbol_unpackers avx2_unpackers;
extern const symbol_unpackers avx512_unpackers;

// the ones for active_isa()
const symbol_unpackers & unpackers();

} // namespace cachegen
