#include "cuda_device.h"

#include "decode.h"
#include "encode.h"
#include "legacy.h"
#include "pinned_memory.h"
#include "status.h"

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace kernels {

using namespace cachegen;

namespace {

// what the slots may take together; there are two at least
constexpr uint64_t max_host_bytes   = 120 << 20;
constexpr uint64_t max_device_bytes = 60 << 20;
constexpr uint64_t max_kept_bytes   = 8 << 20; // of released memory, for whoever is next
constexpr uint32_t max_host_slots   = 16;
constexpr uint32_t max_device_slots = 4;

uint32_t n_slots_for(uint64_t max_bytes, uint64_t n_bytes, uint32_t max_slots) {
    return static_cast<uint32_t>(std::min<uint64_t>(max_slots, std::max<uint64_t>(2, max_bytes / n_bytes)));
}

void check(cudaError_t error, const char * what) {
    if (error == cudaSuccess) {
        return;
    }
    cudaGetLastError(); // not for the next caller
    fail(error == cudaErrorMemoryAllocation ? CACHEGEN_ERR_OUT_OF_MEMORY : CACHEGEN_ERR_INTERNAL, "%s: %s: %s",
         device_runtime, what, cudaGetErrorString(error));
}

// makes a device the current one of this thread for a while
class current_device {
  public:
    explicit current_device(int index) {
        check(cudaGetDevice(&before_), "the current device");
        if (before_ != index) {
            check(cudaSetDevice(index), "choosing a device");
        }
    }
    ~current_device() { cudaSetDevice(before_); }
    current_device(const current_device &)             = delete;
    current_device & operator=(const current_device &) = delete;

  private:
    int before_ = 0;
};

} // namespace

class staging_ring {
  public:
    explicit staging_ring(int index) : index_(index) {
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "a stream");
        const cudaError_t error = cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming);
        if (error != cudaSuccess) {
            cudaStreamDestroy(copies_);
        }
        check(error, "an event");
    }

    ~staging_ring() {
        drop();
        for (const auto & one : kept_) {
            cudaFree(one.memory);
        }
        cudaEventDestroy(begun_);
        cudaStreamDestroy(copies_);
    }

    staging_ring(const staging_ring &)             = delete;
    staging_ring & operator=(const staging_ring &) = delete;

    // start: what is done on the slots' streams comes after what is on `start` now
    void make(uint64_t n_bytes, cudaStream_t start) {
        check(cudaStreamSynchronize(copies_), "an upload");
        if (n_bytes > slot_bytes_) {
            drop();
            grow(n_bytes);
        }
        check(cudaEventRecord(begun_, start), "an event");
        for (const auto & slot : device_) {
            check(cudaStreamWaitEvent(slot.work, begun_, 0), "an event");
        }
    }

    // Small memory stays here between decoders: to allocate and free it takes longer than to fill it.
    void * allocate(uint64_t n_bytes) {
        auto best = kept_.end();
        for (auto it = kept_.begin(); it != kept_.end(); ++it) {
            if (it->n_bytes >= n_bytes && (best == kept_.end() || it->n_bytes < best->n_bytes)) {
                best = it;
            }
        }
        block taken{ nullptr, n_bytes };
        if (best != kept_.end()) {
            taken = *best;
            kept_.erase(best);
        } else {
            check(cudaMalloc(&taken.memory, n_bytes), "device memory");
        }
        try {
            taken_.push_back(taken);
        } catch (...) {
            cudaFree(taken.memory);
            throw;
        }
        return taken.memory;
    }

    void release(void * memory) {
        const auto it = std::find_if(taken_.begin(), taken_.end(), [&](const block & b) { return b.memory == memory; });
        if (it == taken_.end()) {
            return;
        }
        uint64_t n_kept = it->n_bytes;
        for (const auto & one : kept_) {
            n_kept += one.n_bytes;
        }
        if (n_kept <= max_kept_bytes) {
            kept_.splice(kept_.end(), taken_, it);
        } else {
            cudaFree(memory);
            taken_.erase(it);
        }
    }

    uint8_t * host(uint32_t index) {
        // an event that was never recorded is done
        check(cudaEventSynchronize(host_[index].copied), "waiting for a staging slot");
        return host_[index].bytes;
    }

    void submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool is_last) {
        auto & from = host_[host_slot];
        auto & to   = device_[device_slot];
        check(cudaStreamWaitEvent(copies_, to.used, 0), "an upload");
        check(cudaMemcpyAsync(to.bytes, from.bytes, n_bytes, cudaMemcpyHostToDevice, copies_), "an upload");
        check(cudaEventRecord(from.copied, copies_), "an upload");
        check(cudaStreamWaitEvent(to.work, from.copied, 0), "an upload");
        for (size_t i = 0; is_last && i < device_.size(); i++) {
            check(cudaStreamWaitEvent(to.work, device_[i].used, 0), "an event");
        }
    }

    void retire(uint32_t device_slot) {
        check(cudaEventRecord(device_[device_slot].used, device_[device_slot].work), "an event");
    }

    // what is put on `stream` from now on comes after all launches that are retired
    void join(cudaStream_t stream) {
        for (const auto & slot : device_) {
            check(cudaStreamWaitEvent(stream, slot.used, 0), "an event");
        }
    }

    void wait() {
        check(cudaStreamSynchronize(copies_), "an upload");
        for (const auto & slot : device_) {
            check(cudaStreamSynchronize(slot.work), "decoding");
        }
    }

    int          index() const { return index_; }
    cudaStream_t work(uint32_t index) const { return device_[index].work; }
    uint64_t     address(uint32_t index) const { return reinterpret_cast<uint64_t>(device_[index].bytes); }
    uint32_t     n_host() const { return static_cast<uint32_t>(host_.size()); }
    uint32_t     n_device() const { return static_cast<uint32_t>(device_.size()); }
    uint64_t     slot_bytes() const { return slot_bytes_; }

  private:
    struct host_memory {
        uint8_t *   bytes  = nullptr;
        cudaEvent_t copied = nullptr;
    };
    struct device_memory {
        uint8_t *    bytes = nullptr;
        cudaEvent_t  used  = nullptr;
        cudaStream_t work  = nullptr; // of its own: a part alone does not fill a device
    };

    void grow(uint64_t n_bytes) {
        const uint64_t rounded = (n_bytes + (1 << 20) - 1) >> 20 << 20;
        try {
            for (uint32_t i = 0; i < n_slots_for(max_host_bytes, rounded, max_host_slots); i++) {
                host_.emplace_back();
                check(cudaHostAlloc(reinterpret_cast<void **>(&host_.back().bytes), rounded, cudaHostAllocDefault),
                      "pinned memory for staging");
                check(cudaEventCreateWithFlags(&host_.back().copied, cudaEventDisableTiming), "an event");
            }
            for (uint32_t i = 0; i < n_slots_for(max_device_bytes, rounded, max_device_slots); i++) {
                device_.emplace_back();
                check(cudaMalloc(reinterpret_cast<void **>(&device_.back().bytes), rounded),
                      "device memory for staging");
                check(cudaEventCreateWithFlags(&device_.back().used, cudaEventDisableTiming), "an event");
                check(cudaStreamCreateWithFlags(&device_.back().work, cudaStreamNonBlocking), "a stream");
            }
        } catch (...) {
            drop();
            throw;
        }
        slot_bytes_ = rounded;
    }

    void drop() {
        for (auto & slot : host_) {
            cudaFreeHost(slot.bytes);
            if (slot.copied != nullptr) {
                cudaEventDestroy(slot.copied);
            }
        }
        for (auto & slot : device_) {
            cudaFree(slot.bytes);
            if (slot.used != nullptr) {
                cudaEventDestroy(slot.used);
            }
            if (slot.work != nullptr) {
                cudaStreamDestroy(slot.work);
            }
        }
        host_.clear();
        device_.clear();
        slot_bytes_ = 0;
    }

    struct block {
        void *   memory;
        uint64_t n_bytes;
    };

    int                        index_;
    std::list<block>           taken_;
    std::list<block>           kept_;
    cudaStream_t               copies_     = nullptr;
    cudaEvent_t                begun_      = nullptr;
    uint64_t                   slot_bytes_ = 0;
    std::vector<host_memory>   host_;
    std::vector<device_memory> device_;
};

namespace {

// rings that no decoder uses
std::mutex                                 idle_mutex;
std::vector<std::unique_ptr<staging_ring>> idle_rings;

staging_ring * take_ring(int index) {
    {
        const std::lock_guard<std::mutex> lock(idle_mutex);
        for (auto it = idle_rings.begin(); it != idle_rings.end(); ++it) {
            if ((*it)->index() == index) {
                staging_ring * ring = it->release();
                idle_rings.erase(it);
                return ring;
            }
        }
    }
    return new staging_ring(index);
}

} // namespace

void release_staging_rings() {
    const std::lock_guard<std::mutex> lock(idle_mutex);
    idle_rings.clear();
    release_idle_pinned();
}

cuda_device::cuda_device(int index, cudaStream_t stream) : index_(index), stream_(stream) {
    const current_device current(index);
    int                  shared_bytes = 0;
    int                  n_processors = 0;
    check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index), "its shared memory");
    check(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, index), "its multiprocessors");
    shared_bytes_ = static_cast<uint64_t>(shared_bytes);
    n_processors_ = static_cast<uint32_t>(n_processors);
    ring_         = take_ring(index);
}

cuda_device::~cuda_device() {
    for (cudaEvent_t mark : marks_) {
        if (mark != nullptr) {
            cudaEventDestroy(mark);
        }
    }
    const std::lock_guard<std::mutex> lock(idle_mutex);
    idle_rings.emplace_back(ring_);
}

uint64_t cuda_device::allocate(uint64_t n_bytes) {
    const current_device current(index_);
    return reinterpret_cast<uint64_t>(ring_->allocate(n_bytes));
}

void cuda_device::release(uint64_t address) {
    const current_device current(index_);
    ring_->release(reinterpret_cast<void *>(address));
}

void cuda_device::clear(uint64_t address, uint64_t n_bytes) {
    const current_device current(index_);
    check(cudaMemsetAsync(reinterpret_cast<void *>(address), 0, n_bytes, stream_), "a fill");
}

void cuda_device::upload(uint64_t address, const void * bytes, uint64_t n_bytes) {
    const current_device current(index_);
    check(cudaMemcpyAsync(reinterpret_cast<void *>(address), bytes, n_bytes, cudaMemcpyHostToDevice, stream_),
          "an upload");
    check(cudaStreamSynchronize(stream_), "an upload");
}

void cuda_device::download(void * bytes, uint64_t address, uint64_t n_bytes) {
    const current_device current(index_);
    ring_->join(stream_);
    check(cudaMemcpyAsync(bytes, reinterpret_cast<const void *>(address), n_bytes, cudaMemcpyDeviceToHost, stream_),
          "a download");
    check(cudaStreamSynchronize(stream_), "decoding");
}

void cuda_device::wait() {
    const current_device current(index_);
    ring_->wait();
    check(cudaStreamSynchronize(stream_), "decoding");
}

void cuda_device::launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot) {
    const current_device current(index_);
    const cudaStream_t   stream = ring_->work(device_slot);
    switch (launch.kind) {
        case launch_kind::decode:
            check(launch_decode(in, launch.store, launch.n_side, in.set.n_symbols > 32,
                                { n_processors_, n_threads_, shared_bytes_ }, stream),
                  "launching the decoder");
            break;
        case launch_kind::expand: check(launch_expand(in, stream), "launching the decoder"); break;
        default: check(launch_place(in, launch.store, stream), "launching a store"); break;
    }
}

void cuda_device::launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) {
    const current_device current(index_);
    check(launch_legacy_decode(launch, in, 8 * n_processors_, ring_->work(device_slot)), "launching the decoder");
}

void cuda_device::make_slots(uint64_t n_bytes) {
    const current_device current(index_);
    ring_->make(n_bytes, stream_);
}

uint32_t cuda_device::n_host_slots() const {
    return ring_->n_host();
}

uint32_t cuda_device::n_device_slots() const {
    return ring_->n_device();
}

uint64_t cuda_device::host_slot_bytes() const {
    return ring_->n_host() * ring_->slot_bytes();
}

uint64_t cuda_device::device_slot_bytes() const {
    return ring_->n_device() * ring_->slot_bytes();
}

uint8_t * cuda_device::host_slot(uint32_t index) {
    const current_device current(index_);
    return ring_->host(index);
}

uint64_t cuda_device::slot_address(uint32_t index) const {
    return ring_->address(index);
}

void cuda_device::submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool is_last) {
    const current_device current(index_);
    ring_->submit(host_slot, device_slot, n_bytes, is_last);
}

void cuda_device::retire(uint32_t device_slot) {
    const current_device current(index_);
    ring_->retire(device_slot);
}

uint8_t * cuda_device::allocate_host(uint64_t n_bytes) {
    const current_device current(index_);
    uint8_t *            memory = nullptr;
    check(take_pinned(n_bytes, &memory), "pinned memory for units");
    return memory;
}

void cuda_device::release_host(uint8_t * memory) {
    give_pinned(memory);
}

void cuda_device::download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                              uint64_t n_bytes, uint64_t n) {
    const current_device current(index_);
    const auto *         from   = reinterpret_cast<const void *>(address);
    // rows without gaps are one copy, which has no largest stride
    const bool           is_one = n == 1 || (bytes_stride == n_bytes && address_stride == n_bytes);
    check(is_one ? cudaMemcpyAsync(bytes, from, n_bytes * n, cudaMemcpyDeviceToHost, stream_)
                 : cudaMemcpy2DAsync(bytes, bytes_stride, from, address_stride, n_bytes, n, cudaMemcpyDeviceToHost,
                                     stream_),
          "a download");
    check(cudaStreamSynchronize(stream_), "a download");
}

void cuda_device::launch_encode(const encode_launch & launch, const encode_buffers & in) {
    const current_device current(index_);
    check(launch_encoder(launch, in, { n_processors_, shared_bytes_ }, stream_), "launching the encoder");
}

void cuda_device::mark(uint32_t index) {
    const current_device current(index_);
    if (marks_[index] == nullptr) {
        check(cudaEventCreateWithFlags(&marks_[index], cudaEventDisableTiming), "an event");
    }
    check(cudaEventRecord(marks_[index], stream_), "an event");
}

void cuda_device::wait_for_mark(uint32_t index) {
    const current_device current(index_);
    check(cudaEventSynchronize(marks_[index]), "encoding");
}

} // namespace kernels
