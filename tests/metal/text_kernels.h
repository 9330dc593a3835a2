// The kernels of the .metal sources by name, as functions: their text is compiled with run/metal_stdlib.
#pragma once

#include <cstdint>
#include <vector>

namespace text_kernels {

// where a thread is: the attributes of KC_POSITION
struct position {
    uint32_t id;
    uint32_t lane;
    uint32_t group;
    uint32_t n_groups;
    uint32_t workgroup;
    uint32_t n_workgroups;
};

struct entry {
    const char * name;
    bool         has_memory; // a threadgroup argument
    void (*run)(const void * arguments, uint8_t * memory, const position & at);
};

// conversions of port_metal.h
uint32_t to_fp16(float value);
float    from_fp16(uint32_t bits);

std::vector<entry> of_decode();
std::vector<entry> of_legacy();
std::vector<entry> of_encode();

// With threadgroup memory and without.
template <typename Arguments>
using with_memory = void (*)(const Arguments &, uint8_t *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t);
template <typename Arguments>
using without_memory = void (*)(const Arguments &, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t);

template <typename Arguments, with_memory<Arguments> FUNCTION>
void run(const void * arguments, uint8_t * memory, const position & at) {
    FUNCTION(*static_cast<const Arguments *>(arguments), memory, at.id, at.lane, at.group, at.n_groups, at.workgroup,
             at.n_workgroups);
}
template <typename Arguments, without_memory<Arguments> FUNCTION>
void run(const void * arguments, uint8_t *, const position & at) {
    FUNCTION(*static_cast<const Arguments *>(arguments), at.id, at.lane, at.group, at.n_groups, at.workgroup,
             at.n_workgroups);
}

} // namespace text_kernels
