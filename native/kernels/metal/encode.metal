// The encoder on Metal: threadgroup memory and entries. What they do is in the bodies.
#include "../count_body.h"
#include "../gather_body.h"
#include "kernel_lists.h"
#include "metal_arguments.h"

namespace kernels {

KC_FN encode_buffers buffers_of(constant metal_encode_arguments & arguments) {
    encode_buffers in;
    in.planes      = (const device encode_plane *) arguments.planes;
    in.groups      = (const device group_job *) arguments.groups;
    in.n_jobs      = arguments.n_jobs;
    in.wave_begin  = arguments.wave_begin;
    in.page_end    = arguments.page_end;
    in.block_tokens = arguments.block_tokens;
    in.cells       = (const device uint32_t *) arguments.cells;
    in.models      = (const device uint8_t *) arguments.models;
    in.table       = (const device encode_entry *) arguments.table;
    in.slots       = (const device uint16_t *) arguments.slots;
    in.class_of    = (const device uint8_t *) arguments.class_of;
    in.counts      = (device uint32_t *) arguments.counts;
    in.scales      = (device uint32_t *) arguments.scales;
    in.n_words     = (device uint32_t *) arguments.n_words;
    in.first_chunk = (device uint32_t *) arguments.first_chunk;
    in.first_word  = (device uint32_t *) arguments.first_word;
    in.states      = (device uint32_t *) arguments.states;
    in.places      = (device unit_place *) arguments.places;
    in.cursors     = (device encode_cursors *) arguments.cursors;
    in.pool        = (device uint8_t *) arguments.pool;
    in.next_chunk  = (device uint32_t *) arguments.next_chunk;
    in.n_pool      = arguments.n_pool;
    in.made        = (device unit_made *) arguments.made;
    in.output      = (device uint8_t *) arguments.output;
    in.n_output    = arguments.n_output;
    // member by member: a record is not copied from one address space to another in C++
    in.set.n_entries     = arguments.set.n_entries;
    in.set.n_classes     = arguments.set.n_classes;
    in.set.log2_stride   = arguments.set.log2_stride;
    in.set.initial_class = arguments.set.initial_class;
    in.set.n_symbols     = arguments.set.n_symbols;
    return in;
}

// threadgroup memory: rings of all groups of lanes, classes of 64 symbols, the table
template <uint32_t SOURCE, int R>
KC_FN void encode_with_shared_table(const thread kc_thread & me, constant metal_encode_arguments & arguments,
                                    threadgroup uint8_t * shared) {
    const encode_buffers        in       = buffers_of(arguments);
    threadgroup uint8_t * const class_of = shared + me.n_groups * R * chunk_bytes;
    encode_kernel<SOURCE, R>(me, in, (threadgroup uint16_t *) shared, (threadgroup encode_entry *) (class_of + 64),
                             class_of);
}

// the same without the table, which is read where it is
template <uint32_t SOURCE, int R>
KC_FN void encode_with_memory_table(const thread kc_thread & me, constant metal_encode_arguments & arguments,
                                    threadgroup uint8_t * shared) {
    const encode_buffers        in       = buffers_of(arguments);
    threadgroup uint8_t * const class_of = shared + me.n_groups * R * chunk_bytes;
    load_classes(me, in, class_of);
    const memory_table                entries = { 0, in.table };
    const encode_tables<memory_table> tables  = { entries, kc_shared_at(class_of) };
    encode_jobs<SOURCE, R>(me, in, tables, (threadgroup uint16_t *) shared);
}

} // namespace kernels

#define KC_SCALES(name, source, side)                                                                                  \
    KC_KERNEL(KC_ENCODE_THREADS)                                                                                                     \
    cachegen_scales_##name##_##side(KC_ARGUMENTS(kernels::metal_encode_arguments), KC_POSITION) {                      \
        const kc_thread               me = KC_THIS_THREAD;                                                             \
        const kernels::encode_buffers in = kernels::buffers_of(arguments);                                             \
        kernels::scales_kernel<source, side>(me, in);                                                                  \
    }
#define KC_COUNT(name, source, side)                                                                                   \
    KC_KERNEL(KC_ENCODE_THREADS)                                                                                                     \
    cachegen_count_##name##_##side(KC_ARGUMENTS(kernels::metal_encode_arguments), KC_THREADGROUP_MEMORY,               \
                                   KC_POSITION) {                                                                      \
        const kc_thread               me = KC_THIS_THREAD;                                                             \
        const kernels::encode_buffers in = kernels::buffers_of(arguments);                                             \
        kernels::count_kernel<source, side>(me, in, (threadgroup uint32_t *) shared);                                  \
    }
#define KC_ENCODE(name, source, side, where)                                                                           \
    KC_KERNEL(KC_ENCODE_THREADS)                                                                                                     \
    cachegen_encode_##name##_##side##_##where(KC_ARGUMENTS(kernels::metal_encode_arguments), KC_THREADGROUP_MEMORY,    \
                                              KC_POSITION) {                                                           \
        const kc_thread me = KC_THIS_THREAD;                                                                           \
        kernels::encode_with_##where##_table<source, side>(me, arguments, shared);                                     \
    }
#define KC_ENCODE_SIDE(name, source, side)                                                                             \
    KC_SCALES(name, source, side)                                                                                      \
    KC_COUNT(name, source, side)                                                                                       \
    KC_ENCODE(name, source, side, shared)                                                                              \
    KC_ENCODE(name, source, side, memory)
#define KC_ENCODE_SOURCE(name, source) KC_FOR_SIDES(KC_ENCODE_SIDE, name, source)
KC_FOR_STORES(KC_ENCODE_SOURCE)

KC_KERNEL(KC_LAY_OUT_THREADS)
cachegen_lay_out(KC_ARGUMENTS(kernels::metal_encode_arguments), KC_POSITION) {
    const kc_thread               me = KC_THIS_THREAD;
    const kernels::encode_buffers in = kernels::buffers_of(arguments);
    kernels::lay_out_kernel(me, in);
}

KC_KERNEL(KC_ENCODE_THREADS)
cachegen_gather(KC_ARGUMENTS(kernels::metal_encode_arguments), KC_POSITION) {
    const kc_thread               me = KC_THIS_THREAD;
    const kernels::encode_buffers in = kernels::buffers_of(arguments);
    kernels::gather_kernel(me, in);
}
