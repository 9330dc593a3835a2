#include "metal_device.h"

#include "metal_errors.h"
#include "status.h"

#include <algorithm>
#include <cstring>

namespace kernels {

using namespace cachegen;
using ull = unsigned long long;

namespace {

// what the slots may take together; there are two at least
constexpr uint64_t max_slots_bytes = 64 << 20;
constexpr uint32_t max_slots       = 4;
// of memory that rows of private buffers come by
constexpr uint64_t max_read_bytes  = 8 << 20;
constexpr uint64_t page_bytes      = 16 << 10; // Apple's
constexpr uint64_t word_bytes      = 4;

uint64_t rounded(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// whole words around bytes of a buffer
struct words {
    uint64_t begin;
    uint64_t n_bytes;

    words(const metal_place & place, uint64_t n)
        : begin(place.offset / word_bytes * word_bytes),
          n_bytes(rounded(place.offset + n, word_bytes) - place.offset / word_bytes * word_bytes) {
        if (begin + n_bytes > place.buffer->length()) {
            fail(CACHEGEN_ERR_INTERNAL, "Metal: a buffer of %llu bytes ends within a word",
                 static_cast<ull>(place.buffer->length()));
        }
    }
};

bool is_shared(MTL::Buffer * buffer) {
    return buffer->storageMode() == MTL::StorageModeShared;
}

} // namespace

metal_device::metal_device(MTL::Device * device, MTL::CommandQueue * queue,
                           const std::vector<MTL::Buffer *> & destinations)
    : library_(library_of(device)), memory_(device), queue_(queue), is_unified_(device->hasUnifiedMemory()) {
    const autorelease_scope scope;
    if (!is_metal_device_supported(device)) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "Metal: the device has no Metal 3, whose addresses of buffers the codec uses");
    }
    limits_.threadgroup_bytes = static_cast<uint32_t>(device->maxThreadgroupMemoryLength());
    for (MTL::Buffer * one : destinations) {
        memory_.add(NS::RetainPtr(one));
    }
}

metal_device::~metal_device() {
    try {
        wait();
    } catch (const error &) {
        // what was waited for is done all the same
    }
    // what goes with the members goes within a pool
    const autorelease_scope scope;
    open_.take();
    drop_slots();
    marks_[0].reset();
    marks_[1].reset();
    host_memory_.clear();
    memory_.remove_all();
}

metal_device::commands_ptr metal_device::flush() {
    return queue_.commit(open_);
}

uint64_t metal_device::allocate(uint64_t n_bytes) {
    const autorelease_scope scope;
    return memory_.add(memory_.make_private(rounded(n_bytes, word_bytes), "device memory"));
}

void metal_device::release(uint64_t address) {
    const autorelease_scope scope;
    memory_.remove(address);
}

void metal_device::clear(uint64_t address, uint64_t n_bytes) {
    const autorelease_scope scope;
    if (n_bytes == 0) {
        return;
    }
    const metal_place                 place = memory_.find(address, n_bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place.offset % word_bytes != 0 || n_bytes % word_bytes != 0) {
        fail(CACHEGEN_ERR_INTERNAL, "Metal: a fill that is not of whole words");
    }
    open_.blit(queue_.get())->fillBuffer(place.buffer.get(), NS::Range(place.offset, n_bytes), 0);
}

void metal_device::write_words(const metal_place & place, const void * bytes, uint64_t n_bytes) {
    const auto     from = memory_.make_shared(bytes, n_bytes, "an upload");
    metal_commands commands;
    commands.blit(queue_.get())->copyFromBuffer(from.get(), 0, place.buffer.get(), place.offset, n_bytes);
    commands_ptr committed;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        flush();
        committed = queue_.commit(commands);
    }
    queue_.wait(committed);
}

void metal_device::upload(uint64_t address, const void * bytes, uint64_t n_bytes) {
    const autorelease_scope scope;
    if (n_bytes == 0) {
        return;
    }
    metal_place place = memory_.find(address, n_bytes);
    const words window(place, n_bytes);
    if (window.begin == place.offset && window.n_bytes == n_bytes) {
        write_words(place, bytes, n_bytes);
        return;
    }
    // what else is in the first and the last word stays
    std::vector<uint8_t> around(window.n_bytes);
    const uint64_t       skipped = place.offset - window.begin;
    place.offset                 = window.begin;
    read_rows({ place }, window.n_bytes, { around.data() });
    memcpy(around.data() + skipped, bytes, n_bytes);
    write_words(place, around.data(), around.size());
}

void metal_device::read_rows(const std::vector<metal_place> & rows, uint64_t n_bytes,
                             const std::vector<uint8_t *> & to) {
    const uint64_t most_bytes = rounded(n_bytes, word_bytes) + word_bytes; // around a row
    const uint64_t n_at_once  = std::max<uint64_t>(1, max_read_bytes / most_bytes);
    for (size_t first = 0; first < rows.size(); first += n_at_once) {
        const size_t   n      = std::min<size_t>(n_at_once, rows.size() - first);
        const auto     copies = memory_.make_shared(n * most_bytes, "a download");
        metal_commands commands;
        for (size_t i = 0; i < n; i++) {
            const metal_place & row = rows[first + i];
            const words         window(row, n_bytes);
            // Memory that the host sees is read where it is; copying a word of it is what Metal orders after all that
            // writes to the buffer.
            const bool          is_here = is_shared(row.buffer.get());
            if (!is_here || i == 0 || row.buffer != rows[first + i - 1].buffer) {
                commands.blit(queue_.get())
                    ->copyFromBuffer(row.buffer.get(), window.begin, copies.get(), i * most_bytes,
                                     is_here ? word_bytes : window.n_bytes);
            }
        }
        commands_ptr committed;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            flush();
            committed = queue_.commit(commands);
        }
        queue_.wait(committed);
        for (size_t i = 0; i < n; i++) {
            const metal_place & row = rows[first + i];
            const uint8_t *     from =
                is_shared(row.buffer.get())
                    ? static_cast<const uint8_t *>(row.buffer->contents()) + row.offset
                    : static_cast<const uint8_t *>(copies->contents()) + i * most_bytes + row.offset % word_bytes;
            memcpy(to[first + i], from, n_bytes);
        }
    }
}

void metal_device::download(void * bytes, uint64_t address, uint64_t n_bytes) {
    download_2d(static_cast<uint8_t *>(bytes), n_bytes, address, n_bytes, n_bytes, 1);
}

void metal_device::download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                               uint64_t n_bytes, uint64_t n) {
    const autorelease_scope scope;
    if (n_bytes == 0 || n == 0) {
        return;
    }
    // rows without gaps are one
    if (bytes_stride == n_bytes && address_stride == n_bytes) {
        n_bytes *= n;
        n = 1;
    }
    std::vector<metal_place> rows;
    std::vector<uint8_t *>   to;
    for (uint64_t i = 0; i < n; i++) {
        rows.push_back(memory_.find(address + i * address_stride, n_bytes));
        to.push_back(bytes + i * bytes_stride);
    }
    read_rows(rows, n_bytes, to);
}

void metal_device::wait() {
    const autorelease_scope scope;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        flush();
    }
    queue_.wait_for_all();
}

template <typename Launch, typename Buffers>
void metal_device::encode(metal_commands & commands, const Launch & launch, const Buffers & in) {
    launch_shape       shape     = shape_of(launch, in, limits_);
    auto * const       pipeline  = library_.pipeline(shape.source, shape.store, shape.kernel);
    const NS::UInteger n_threads = pipeline->maxTotalThreadsPerThreadgroup();
    if (n_threads < 32) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "Metal: %s has at most %llu threads", shape.kernel.c_str(),
             static_cast<ull>(n_threads));
    }
    if (n_threads < shape.n_threads) { // its registers leave room for no more
        metal_limits fewer = limits_;
        fewer.n_threads    = static_cast<uint32_t>(n_threads);
        shape              = shape_of(launch, in, fewer);
    }
    const auto                         arguments = arguments_of(in);
    MTL::ComputeCommandEncoder * const encoder   = commands.compute(queue_.get());
    if (commands.named_version() != memory_.version()) {
        commands.set_named_version(memory_.use_all(encoder));
    }
    encoder->setComputePipelineState(pipeline);
    encoder->setBytes(&arguments, sizeof(arguments), 0);
    if (shape.threadgroup_bytes > 0) {
        encoder->setThreadgroupMemoryLength(shape.threadgroup_bytes, 0);
    }
    encoder->dispatchThreadgroups(MTL::Size(shape.n_threadgroups, 1, 1), MTL::Size(shape.n_threads, 1, 1));
}

void metal_device::launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    encode(slots_.at(device_slot).commands, launch, in);
}

void metal_device::launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    encode(slots_.at(device_slot).commands, launch, in);
}

void metal_device::launch_encode(const encode_launch & launch, const encode_buffers & in) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    encode(open_, launch, in);
}

void metal_device::drop_slots() {
    for (const auto & one : slots_) {
        memory_.remove(one.address);
    }
    slots_.clear();
    slot_bytes_ = 0;
}

void metal_device::add_slots(uint64_t n_bytes) {
    const auto n = std::min<uint64_t>(max_slots, std::max<uint64_t>(2, max_slots_bytes / n_bytes));
    for (uint64_t i = 0; i < n; i++) {
        slot & one  = slots_.emplace_back();
        one.host    = memory_.make_shared(n_bytes, "staging");
        one.device  = is_unified_ ? one.host : memory_.make_private(n_bytes, "staging on the device");
        one.bytes   = static_cast<uint8_t *>(one.host->contents());
        one.address = memory_.add(one.device);
    }
    slot_bytes_ = n_bytes;
}

void metal_device::make_slots(uint64_t n_bytes) {
    wait();
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (n_bytes <= slot_bytes_) {
        return;
    }
    drop_slots();
    try {
        add_slots(rounded(n_bytes, page_bytes));
    } catch (...) {
        drop_slots();
        throw;
    }
}

uint64_t metal_device::host_slot_bytes() const {
    return slots_.size() * slot_bytes_;
}

uint64_t metal_device::device_slot_bytes() const {
    return is_unified_ ? 0 : slots_.size() * slot_bytes_;
}

uint8_t * metal_device::host_slot(uint32_t index) {
    const autorelease_scope scope;
    commands_ptr            last;
    uint8_t *               bytes;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        last  = slots_.at(index).last_to_read;
        bytes = slots_.at(index).bytes;
    }
    if (last.get() != nullptr) {
        queue_.wait(last);
    }
    return bytes;
}

uint64_t metal_device::slot_address(uint32_t index) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return slots_.at(index).address;
}

// In one queue the launches of a slot come after those of all others, whichever is the last.
void metal_device::submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    const slot &                      from = slots_.at(host_slot);
    slot &                            to   = slots_.at(device_slot);
    if (n_bytes > slot_bytes_) {
        fail(CACHEGEN_ERR_INTERNAL, "%llu bytes do not fit into a slot", static_cast<ull>(n_bytes));
    }
    flush();
    to.commands.take(); // launches of a part that failed
    to.submitted_from = host_slot;
    if (from.host != to.device) {
        to.commands.blit(queue_.get())
            ->copyFromBuffer(from.host.get(), 0, to.device.get(), 0, rounded(n_bytes, word_bytes));
    }
}

void metal_device::retire(uint32_t device_slot) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    slot &                            one       = slots_.at(device_slot);
    const commands_ptr                committed = queue_.commit(one.commands);
    if (committed.get() != nullptr) {
        slots_.at(one.submitted_from).last_to_read = committed;
        one.last_to_read                           = committed;
    }
}

uint64_t metal_device::address_of(const uint8_t * memory) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto                        after = host_memory_.upper_bound(memory);
    if (after != host_memory_.begin()) {
        const auto &   found  = *std::prev(after);
        const uint64_t offset = static_cast<uint64_t>(memory - found.first);
        if (offset < found.second->length()) {
            return found.second->gpuAddress() + offset;
        }
    }
    fail(CACHEGEN_ERR_INTERNAL, "Metal: memory that allocate_host() did not give");
}

uint8_t * metal_device::allocate_host(uint64_t n_bytes) {
    const autorelease_scope           scope;
    const auto                        buffer = memory_.make_shared(n_bytes, "memory for units");
    auto * const                      bytes  = static_cast<uint8_t *>(buffer->contents());
    const std::lock_guard<std::mutex> lock(mutex_);
    host_memory_[bytes] = buffer;
    try {
        memory_.add(buffer);
    } catch (...) {
        host_memory_.erase(bytes);
        throw;
    }
    return bytes;
}

void metal_device::release_host(uint8_t * memory) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto                        found = host_memory_.find(memory);
    if (found != host_memory_.end()) {
        memory_.remove(found->second->gpuAddress());
        host_memory_.erase(found);
    }
}

void metal_device::mark(uint32_t index) {
    const autorelease_scope           scope;
    const std::lock_guard<std::mutex> lock(mutex_);
    marks_[index] = flush();
}

void metal_device::wait_for_mark(uint32_t index) {
    const autorelease_scope scope;
    commands_ptr            last;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        last = marks_[index];
    }
    if (last.get() != nullptr) {
        queue_.wait(last);
    } else { // nothing was launched since the commands before it
        queue_.wait_for_all();
    }
}

} // namespace kernels
