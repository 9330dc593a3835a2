// The decoder of LCG3 on Metal: threadgroup memory and entries. What they do is in the bodies; launch_shape.cpp has their
// names, threads and threadgroup memory.
#include "../native_body.h"
#include "kernel_lists.h"
#include "metal_arguments.h"

namespace kernels {

KC_FN launch_buffers buffers_of(constant metal_decode_arguments & arguments) {
    launch_buffers in;
    in.units       = (const device unit_job *) arguments.units;
    in.groups      = (const device group_job *) arguments.groups;
    in.n_groups    = arguments.n_groups;
    in.bytes       = (const device uint8_t *) arguments.bytes;
    in.n_bytes     = arguments.n_bytes;
    in.table       = (const device table_entry *) arguments.table;
    in.values      = (const device uint32_t *) arguments.values;
    in.models      = (const device uint8_t *) arguments.models;
    in.cells       = (const device uint32_t *) arguments.cells;
    in.group_words = (const device uint32_t *) arguments.group_words;
    in.errors      = (device uint32_t *) arguments.errors;
    // member by member: a record is not copied from one address space to another in C++
    in.set.n_entries      = arguments.set.n_entries;
    in.set.n_models       = arguments.set.n_models;
    in.set.n_classes      = arguments.set.n_classes;
    in.set.log2_n_buckets = arguments.set.log2_n_buckets;
    in.set.initial_class  = arguments.set.initial_class;
    in.set.n_symbols      = arguments.set.n_symbols;
    return in;
}

// threadgroup memory: rings of all groups of lanes, the table, then what each group has besides
template <uint32_t STORE, int R, bool IS_WIDE>
KC_FN void decode_with_shared_table(const thread kc_thread & me, constant metal_decode_arguments & arguments,
                                    threadgroup uint8_t * shared) {
    const launch_buffers            in    = buffers_of(arguments);
    threadgroup table_entry * const table =
        (threadgroup table_entry *) (shared + me.n_groups * R * tiling<R>::ring_bytes);
    decode_kernel<STORE, R, IS_WIDE>(me, in, table, shared, (threadgroup uint8_t *) (table + in.set.n_entries));
}

// the same without the table, which is read where it is
template <uint32_t STORE, int R, bool IS_WIDE>
KC_FN void decode_with_memory_table(const thread kc_thread & me, constant metal_decode_arguments & arguments,
                                    threadgroup uint8_t * shared) {
    const launch_buffers in    = buffers_of(arguments);
    const memory_table   table = { 0, in.table };
    decode_jobs<STORE, R, IS_WIDE>(me, in, table, shared, shared + me.n_groups * R * tiling<R>::ring_bytes);
}

} // namespace kernels

#define KC_DECODE(name, store, side, width, is_wide, where)                                                            \
    KC_KERNEL(KC_DECODE_THREADS)                                                                                                     \
    cachegen_decode_##name##_##side##_##width##_##where(KC_ARGUMENTS(kernels::metal_decode_arguments),                 \
                                                        KC_THREADGROUP_MEMORY, KC_POSITION) {                          \
        const kc_thread me = KC_THIS_THREAD;                                                                           \
        kernels::decode_with_##where##_table<store, side, is_wide>(me, arguments, shared);                             \
    }
#define KC_DECODE_SIDE(name, store, side)                                                                              \
    KC_DECODE(name, store, side, narrow, false, shared)                                                                \
    KC_DECODE(name, store, side, narrow, false, memory)                                                                \
    KC_DECODE(name, store, side, wide, true, shared)                                                                   \
    KC_DECODE(name, store, side, wide, true, memory)
#define KC_DECODE_STORE(name, store) KC_FOR_SIDES(KC_DECODE_SIDE, name, store)
KC_FOR_STORES(KC_DECODE_STORE)

// threadgroup memory: a ring of each group of lanes
KC_KERNEL(KC_DECODE_THREADS)
cachegen_expand(KC_ARGUMENTS(kernels::metal_decode_arguments), KC_THREADGROUP_MEMORY, KC_POSITION) {
    const kc_thread               me = KC_THIS_THREAD;
    const kernels::launch_buffers in = kernels::buffers_of(arguments);
    kernels::expand_kernel(me, in, shared);
}

// threadgroup memory: a span of each group of lanes
#define KC_PLACE(name, store)                                                                                          \
    KC_KERNEL(KC_DECODE_THREADS)                                                                                                     \
    cachegen_place_##name(KC_ARGUMENTS(kernels::metal_decode_arguments), KC_THREADGROUP_MEMORY, KC_POSITION) {         \
        const kc_thread               me = KC_THIS_THREAD;                                                             \
        const kernels::launch_buffers in = kernels::buffers_of(arguments);                                             \
        kernels::place_kernel<store>(me, in, (threadgroup float *) shared);                                            \
    }
KC_FOR_STORES(KC_PLACE)
