// The decoder of LCG1 and LCG2 tiles on Metal: threadgroup memory and entries. What they do is in the body.
#include "../legacy_body.h"
#include "kernel_lists.h"
#include "metal_arguments.h"

namespace kernels {

// threadgroup memory: scales and cells of each group of lanes, then, for LCG1, bounds of each
template <uint32_t VERSION, uint32_t STORE>
KC_FN void decode_tiles(const thread kc_thread & me, constant metal_legacy_arguments & arguments,
                        threadgroup uint8_t * shared) {
    legacy_buffers in;
    in.units         = (const device legacy_unit *) arguments.units;
    in.jobs          = (const device group_job *) arguments.jobs;
    in.n_jobs        = arguments.n_jobs;
    in.bytes         = (const device uint8_t *) arguments.bytes;
    in.cells         = (const device uint32_t *) arguments.cells;
    in.group_streams = (const device uint32_t *) arguments.group_streams;
    in.errors        = (device uint32_t *) arguments.errors;

    threadgroup token_scratch * const scratch = (threadgroup token_scratch *) shared;
    legacy_kernel<VERSION, STORE>(me, in, (threadgroup uint32_t *) (scratch + me.n_groups), scratch);
}

} // namespace kernels

#define KC_LEGACY(name, store, version)                                                                                \
    KC_KERNEL(KC_LEGACY_THREADS)                                                                                                     \
    cachegen_lcg##version##_##name(KC_ARGUMENTS(kernels::metal_legacy_arguments), KC_THREADGROUP_MEMORY,               \
                                   KC_POSITION) {                                                                      \
        const kc_thread me = KC_THIS_THREAD;                                                                           \
        kernels::decode_tiles<version, store>(me, arguments, shared);                                                  \
    }
#define KC_LEGACY_STORE(name, store)                                                                                   \
    KC_LEGACY(name, store, 1)                                                                                          \
    KC_LEGACY(name, store, 2)
KC_FOR_STORES(KC_LEGACY_STORE)
