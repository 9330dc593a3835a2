#include "emulated_device.h"

#include "../count_body.h"
#include "../dispatch.h"
#include "../gather_body.h"
#include "../legacy_body.h"
#include "../native_body.h"
#include "status.h"

#include <cstdlib>
#include <vector>

namespace kernels {

using namespace cachegen;

namespace {

// three groups: what they share is seen, and a wave of 64 is filled to its half
constexpr uint32_t n_threads = 96;

uint8_t * bytes_at(uint64_t address) {
    return reinterpret_cast<uint8_t *>(address);
}

using decode_entry = void (*)(const kc_thread &, const launch_buffers &, table_entry *, uint8_t *, uint8_t *);
using place_entry  = void (*)(const kc_thread &, const launch_buffers &, float *);

decode_entry decode_entry_of(uint32_t store, uint32_t n_side, bool is_wide) {
    return with_store_and_side(store, n_side, [&](auto kind, auto side) -> decode_entry {
        return is_wide ? decode_kernel<decltype(kind)::value, decltype(side)::value, true>
                       : decode_kernel<decltype(kind)::value, decltype(side)::value, false>;
    });
}

place_entry place_entry_of(uint32_t store) {
    return with_store(store, [](auto kind) -> place_entry { return place_kernel<decltype(kind)::value>; });
}

using legacy_entry = void (*)(const kc_thread &, const legacy_buffers &, uint32_t *, token_scratch *);

legacy_entry legacy_entry_of(uint32_t version, uint32_t store) {
    return with_store(store, [&](auto kind) -> legacy_entry {
        return version == 1 ? legacy_kernel<1, decltype(kind)::value> : legacy_kernel<2, decltype(kind)::value>;
    });
}

using scales_entry  = void (*)(const kc_thread &, const encode_buffers &);
using count_entry   = void (*)(const kc_thread &, const encode_buffers &, uint32_t *);
using encoder_entry = void (*)(const kc_thread &, const encode_buffers &, uint16_t *, encode_entry *, uint8_t *);

scales_entry scales_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> scales_entry {
        return scales_kernel<decltype(kind)::value, decltype(side)::value>;
    });
}

count_entry count_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> count_entry {
        return count_kernel<decltype(kind)::value, decltype(side)::value>;
    });
}

encoder_entry encode_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> encoder_entry {
        return encode_kernel<decltype(kind)::value, decltype(side)::value>;
    });
}

} // namespace

void emulated_device::count(const char * what) {
    if (++n_calls_ == fail_at_) {
        fail(CACHEGEN_ERR_OUT_OF_MEMORY, "%s was made to fail", what);
    }
}

emulated_device::~emulated_device() {
    for (const auto & [address, bytes] : memory_) {
        free(bytes);
    }
}

uint64_t emulated_device::allocate(uint64_t n_bytes) {
    count("an allocation");
    auto * bytes = static_cast<uint8_t *>(malloc(n_bytes));
    if (bytes == nullptr) {
        throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uint64_t>(bytes);
    memory_[address]   = bytes;
    return address;
}

void emulated_device::release(uint64_t address) {
    if (address != 0) {
        free(memory_.at(address));
        memory_.erase(address);
    }
}

void emulated_device::clear(uint64_t address, uint64_t n_bytes) {
    count("a fill");
    memset(bytes_at(address), 0, n_bytes);
}

void emulated_device::upload(uint64_t address, const void * bytes, uint64_t n_bytes) {
    count("an upload");
    if (n_bytes > 0) {
        memcpy(bytes_at(address), bytes, n_bytes);
    }
}

void emulated_device::download(void * bytes, uint64_t address, uint64_t n_bytes) {
    count("a download");
    if (n_bytes > 0) {
        memcpy(bytes, bytes_at(address), n_bytes);
    }
}

void emulated_device::make_slots(uint64_t n_bytes) {
    count("staging memory");
    slot_bytes_ = n_bytes;
    host_slots_.assign(n_host_slots(), std::vector<uint8_t>(n_bytes));
    device_slots_.assign(n_device_slots(), std::vector<uint8_t>(n_bytes));
}

uint8_t * emulated_device::host_slot(uint32_t index) {
    count("a slot");
    return host_slots_.at(index).data();
}

uint64_t emulated_device::slot_address(uint32_t index) const {
    return reinterpret_cast<uint64_t>(device_slots_.at(index).data());
}

void emulated_device::submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool) {
    count("a copy");
    memcpy(device_slots_.at(device_slot).data(), host_slots_.at(host_slot).data(), n_bytes);
}

void emulated_device::launch(const planned_launch & launch, const launch_buffers & in, uint32_t) {
    count("a launch");
    n_launches_[static_cast<int>(launch.kind)]++;
    const uint32_t jobs_a_workgroup = n_threads / 32;
    // fewer workgroups than the jobs need: some take a second one
    const uint32_t n_workgroups     = std::max(1u, (in.n_groups + jobs_a_workgroup - 1) / jobs_a_workgroup * 2 / 3);
    for (uint32_t w = 0; w < n_workgroups; w++) {
        std::vector<uint8_t> rings(jobs_a_workgroup * 8 * tiling<8>::ring_bytes);
        if (launch.kind == launch_kind::decode) {
            std::vector<table_entry>   table(in.set.n_entries);
            // as much as the kernel has on a device, for whoever looks for accesses beyond it
            std::vector<token_scratch> lanes_memory(
                (jobs_a_workgroup * lane_bytes(launch.store, launch.n_side) + sizeof(token_scratch) - 1) /
                sizeof(token_scratch));
            auto * const lanes_bytes = reinterpret_cast<uint8_t *>(lanes_memory.data());
            const auto   entry       = decode_entry_of(launch.store, launch.n_side, in.set.n_symbols > 32);
            lanes::run_workgroup(n_threads, w, n_workgroups, options_,
                                 [&](const kc_thread & me) { entry(me, in, table.data(), rings.data(), lanes_bytes); });
        } else if (launch.kind == launch_kind::expand) {
            lanes::run_workgroup(n_threads, w, n_workgroups, options_,
                                 [&](const kc_thread & me) { expand_kernel(me, in, rings.data()); });
        } else {
            std::vector<float> span(jobs_a_workgroup * max_span);
            const auto         entry = place_entry_of(launch.store);
            lanes::run_workgroup(n_threads, w, n_workgroups, options_,
                                 [&](const kc_thread & me) { entry(me, in, span.data()); });
        }
    }
}

void emulated_device::launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t) {
    count("a launch");
    n_legacy_launches_[launch.version - 1]++;
    const uint32_t groups       = n_threads / 32;
    const uint32_t n_workgroups = std::max(1u, (in.n_jobs + groups - 1) / groups * 2 / 3);
    const auto     entry        = legacy_entry_of(launch.version, launch.store);
    for (uint32_t w = 0; w < n_workgroups; w++) {
        std::vector<uint32_t>      bounds(launch.version == 1 ? groups * stream_table_entries : 0);
        std::vector<token_scratch> scratch(groups);
        lanes::run_workgroup(n_threads, w, n_workgroups, options_,
                             [&](const kc_thread & me) { entry(me, in, bounds.data(), scratch.data()); });
    }
}

uint8_t * emulated_device::allocate_host(uint64_t n_bytes) {
    return bytes_at(allocate(n_bytes));
}

void emulated_device::release_host(uint8_t * memory) {
    release(reinterpret_cast<uint64_t>(memory));
}

void emulated_device::download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                                  uint64_t n_bytes, uint64_t n) {
    count("a download");
    for (uint64_t i = 0; i < n; i++) {
        memcpy(bytes + i * bytes_stride, bytes_at(address + i * address_stride), n_bytes);
    }
}

void emulated_device::launch_encode(const encode_launch & launch, const encode_buffers & in) {
    count("a launch");
    const uint32_t groups       = n_threads / 32;
    const uint32_t n_workgroups = std::max(1u, (in.n_jobs + groups - 1) / groups * 2 / 3);
    for (uint32_t w = 0; w < n_workgroups; w++) {
        const auto run = [&](const auto & entry) { lanes::run_workgroup(n_threads, w, n_workgroups, options_, entry); };
        if (launch.kind == encode_kind::scales) {
            const auto entry = scales_entry_of(launch.source, launch.n_side);
            run([&](const kc_thread & me) { entry(me, in); });
        } else if (launch.kind == encode_kind::count) {
            const auto            entry = count_entry_of(launch.source, launch.n_side);
            const count_bytes     bytes = count_shared_bytes(in, launch.n_side);
            // nobody clears shared memory
            std::vector<uint32_t> shared((bytes.workgroup + groups * bytes.group) / sizeof(uint32_t), 0xa5a5a5a5);
            run([&](const kc_thread & me) { entry(me, in, shared.data()); });
        } else if (launch.kind == encode_kind::encode) {
            const auto                entry = encode_entry_of(launch.source, launch.n_side);
            std::vector<uint32_t>     rings(groups * launch.n_side * chunk_bytes / 4);
            std::vector<encode_entry> table(in.set.n_entries);
            std::vector<uint8_t>      class_of(64);
            run([&](const kc_thread & me) {
                entry(me, in, reinterpret_cast<uint16_t *>(rings.data()), table.data(), class_of.data());
            });
        } else if (launch.kind == encode_kind::lay_out) {
            run([&](const kc_thread & me) { lay_out_kernel(me, in); });
        } else {
            run([&](const kc_thread & me) { gather_kernel(me, in); });
        }
    }
}

} // namespace kernels
