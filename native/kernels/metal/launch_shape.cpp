#include "launch_shape.h"

#include "kernel_lists.h"
#include "status.h"

#include <algorithm>

namespace kernels {

namespace {

// groups of lanes of a threadgroup, at most
constexpr uint32_t decode_groups  = KC_DECODE_THREADS / 32; // as many share a table in threadgroup memory
constexpr uint32_t legacy_groups  = KC_LEGACY_THREADS / 32;
constexpr uint32_t encode_groups  = KC_ENCODE_THREADS / 32;
constexpr uint32_t lay_out_groups = KC_LAY_OUT_THREADS / 32;

constexpr uint32_t span_bytes   = 1024 * sizeof(float);       // of a group of lanes that places rows
constexpr uint32_t ring_bytes   = 2048;                       // of a group of lanes that expands
constexpr uint32_t bounds_bytes = 33 * 32 * sizeof(uint32_t); // of a group of lanes with LCG1 streams
constexpr uint32_t token_bytes  = 32 * 2 * sizeof(uint32_t);  // scales and cells of 32 tokens
constexpr uint32_t class_bytes  = 64;

constexpr const char * store_names[] = {
    "f32", "f16", "bf16", "q8_0", "q4_0", "f32_transposed", "f16_transposed", "bf16_transposed"
};
static_assert(sizeof(store_names) / sizeof(store_names[0]) == n_store_kinds, "one a store");

constexpr uint32_t sides[] = { 1, 2, 4, 8 };

const char * place_name(bool is_shared) {
    return is_shared ? "_shared" : "_memory";
}

std::string decode_name(uint32_t store, uint32_t n_side, bool is_wide, bool is_shared) {
    return std::string("cachegen_decode_") + store_names[store] + "_" + std::to_string(n_side) +
           (is_wide ? "_wide" : "_narrow") + place_name(is_shared);
}

std::string place_rows_name(uint32_t store) {
    return std::string("cachegen_place_") + store_names[store];
}

std::string legacy_name(uint32_t version, uint32_t store) {
    return "cachegen_lcg" + std::to_string(version) + "_" + store_names[store];
}

std::string source_name(const char * what, uint32_t source, uint32_t n_side) {
    return std::string("cachegen_") + what + "_" + store_names[source] + "_" + std::to_string(n_side);
}

/*
 * As many groups of lanes as jobs, threads and memory allow, at least one.
 * fixed_bytes  IN  of a threadgroup, besides group_bytes of each group
 */
launch_shape shape(metal_source source, std::string kernel, uint32_t store, uint32_t n_jobs, uint32_t most_groups,
                   uint64_t fixed_bytes, uint64_t group_bytes, const metal_limits & limits) {
    uint32_t n_groups = std::min({ most_groups, std::max(1u, limits.n_threads / 32), std::max(1u, n_jobs) });
    while (n_groups > 1 && fixed_bytes + n_groups * group_bytes > limits.threadgroup_bytes) {
        n_groups--;
    }
    const uint64_t n_bytes = fixed_bytes + n_groups * group_bytes;
    if (n_bytes > limits.threadgroup_bytes) {
        cachegen::fail(CACHEGEN_ERR_INTERNAL, "%s needs %llu bytes of threadgroup memory, there are %u", kernel.c_str(),
                       static_cast<unsigned long long>(n_bytes), limits.threadgroup_bytes);
    }
    const uint32_t wanted = (n_jobs + n_groups - 1) / n_groups;
    return { source,
             std::move(kernel),
             store,
             32 * n_groups,
             std::max(1u, std::min(wanted, limits.n_threadgroups)),
             static_cast<uint32_t>((n_bytes + 15) / 16 * 16) };
}

// room for it and as many groups as usual: a table in threadgroup memory is worth loading
bool is_shared_table(uint64_t table_bytes, uint64_t group_bytes, uint32_t n_groups, const metal_limits & limits) {
    return table_bytes + n_groups * group_bytes <= limits.threadgroup_bytes;
}

template <typename T> uint64_t address(T * pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

} // namespace

launch_shape shape_of(const planned_launch & launch, const launch_buffers & in, const metal_limits & limits) {
    if (launch.kind == launch_kind::expand) {
        return shape(metal_source::decode, "cachegen_expand", n_store_kinds, in.n_groups, decode_groups, 0, ring_bytes,
                     limits);
    }
    if (launch.kind == launch_kind::place) {
        return shape(metal_source::decode, place_rows_name(launch.store), launch.store, in.n_groups, decode_groups, 0,
                     span_bytes, limits);
    }
    const uint64_t table_bytes = uint64_t{ in.set.n_entries } * sizeof(table_entry);
    const uint64_t group_bytes = decode_group_bytes(launch.store, launch.n_side);
    const bool     is_shared   = is_shared_table(table_bytes, group_bytes, decode_groups, limits);
    return shape(metal_source::decode, decode_name(launch.store, launch.n_side, in.set.n_symbols > 32, is_shared),
                 launch.store, in.n_groups, decode_groups, is_shared ? table_bytes : 0, group_bytes, limits);
}

launch_shape shape_of(const legacy_launch & launch, const legacy_buffers & in, const metal_limits & limits) {
    return shape(metal_source::legacy, legacy_name(launch.version, launch.store), launch.store, in.n_jobs,
                 legacy_groups, 0, token_bytes + (launch.version == 1 ? bounds_bytes : 0), limits);
}

launch_shape shape_of(const encode_launch & launch, const encode_buffers & in, const metal_limits & limits) {
    switch (launch.kind) {
        case encode_kind::scales:
            return shape(metal_source::encode, source_name("scales", launch.source, launch.n_side), launch.source,
                         in.n_jobs, encode_groups, 0, 0, limits);
        case encode_kind::count: {
            const count_bytes bytes = count_shared_bytes(in, launch.n_side);
            return shape(metal_source::encode, source_name("count", launch.source, launch.n_side), launch.source,
                         in.n_jobs, encode_groups, bytes.workgroup, bytes.group, limits);
        }
        case encode_kind::lay_out:
            return shape(metal_source::encode, "cachegen_lay_out", n_store_kinds, in.n_jobs, lay_out_groups, 0, 0,
                         limits);
        case encode_kind::gather:
            return shape(metal_source::encode, "cachegen_gather", n_store_kinds, in.n_jobs, encode_groups, 0, 0,
                         limits);
        default: break;
    }
    const uint64_t table_bytes = uint64_t{ in.set.n_entries } * sizeof(encode_entry) + class_bytes;
    const uint64_t group_bytes = uint64_t{ launch.n_side } * chunk_bytes;
    // four groups at least
    const bool     is_shared   = is_shared_table(table_bytes, group_bytes, encode_groups / 2, limits);
    return shape(metal_source::encode, source_name("encode", launch.source, launch.n_side) + place_name(is_shared),
                 launch.source, in.n_jobs, encode_groups, is_shared ? table_bytes : class_bytes, group_bytes, limits);
}

metal_decode_arguments arguments_of(const launch_buffers & in) {
    return { address(in.units),
             address(in.groups),
             address(in.bytes),
             in.n_bytes,
             address(in.table),
             address(in.values),
             address(in.models),
             address(in.cells),
             address(in.group_words),
             address(in.errors),
             in.n_groups,
             in.set,
             0 };
}

metal_legacy_arguments arguments_of(const legacy_buffers & in) {
    return { address(in.units),         address(in.jobs),   address(in.bytes), address(in.cells),
             address(in.group_streams), address(in.errors), in.n_jobs,         0 };
}

metal_encode_arguments arguments_of(const encode_buffers & in) {
    return { address(in.planes),
             address(in.groups),
             address(in.cells),
             address(in.models),
             address(in.table),
             address(in.slots),
             address(in.class_of),
             address(in.counts),
             address(in.scales),
             address(in.n_words),
             address(in.first_chunk),
             address(in.first_word),
             address(in.states),
             address(in.places),
             address(in.cursors),
             address(in.pool),
             address(in.next_chunk),
             address(in.made),
             address(in.output),
             in.n_jobs,
             in.wave_begin,
             in.page_end,
             in.n_pool,
             in.n_output,
             in.set,
             in.block_tokens,
             0 };
}

std::vector<std::string> kernel_names(metal_source source) {
    std::vector<std::string> names;
    if (source == metal_source::decode) {
        names.push_back("cachegen_expand");
    } else if (source == metal_source::encode) {
        names.insert(names.end(), { "cachegen_lay_out", "cachegen_gather" });
    }
    for (uint32_t store = 0; store < n_store_kinds; store++) {
        if (source == metal_source::legacy) {
            names.push_back(legacy_name(1, store));
            names.push_back(legacy_name(2, store));
            continue;
        }
        if (source == metal_source::decode) {
            names.push_back(place_rows_name(store));
        }
        for (const uint32_t n_side : sides) {
            if (source == metal_source::encode) {
                names.push_back(source_name("scales", store, n_side));
                names.push_back(source_name("count", store, n_side));
            }
            for (const bool is_shared : { true, false }) {
                if (source == metal_source::encode) {
                    names.push_back(source_name("encode", store, n_side) + place_name(is_shared));
                    continue;
                }
                for (const bool is_wide : { false, true }) {
                    names.push_back(decode_name(store, n_side, is_wide, is_shared));
                }
            }
        }
    }
    return names;
}

} // namespace kernels
