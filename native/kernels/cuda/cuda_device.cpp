#include "cuda_device.h"

#include "decode.h"
#include "status.h"

#include <memory>
#include <mutex>
#include <vector>

namespace kernels {

using namespace cachegen;

namespace {

constexpr uint32_t n_ring_slots = 4;

void check(cudaError_t error, const char * what) {
    if (error == cudaSuccess) {
        return;
    }
    cudaGetLastError(); // not for the next caller
    fail(error == cudaErrorMemoryAllocation ? CACHEGEN_ERR_OUT_OF_MEMORY : CACHEGEN_ERR_INTERNAL, "CUDA: %s: %s", what,
         cudaGetErrorString(error));
}

// makes a device the current one of this thread for a while
class current_device {
  public:
    explicit current_device(int index) {
        check(cudaGetDevice(&before_), "cudaGetDevice");
        if (before_ != index) {
            check(cudaSetDevice(index), "cudaSetDevice");
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
    struct staged {
        uint8_t *   host    = nullptr;
        uint8_t *   device  = nullptr;
        uint64_t    n_bytes = 0;
        cudaEvent_t copied  = nullptr;
        cudaEvent_t used    = nullptr;
        bool        is_used = false; // `used` has been recorded
    };

    explicit staging_ring(int index) : index_(index) {
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "a stream");
    }

    ~staging_ring() {
        for (auto & slot : slots_) {
            drop(slot);
            if (slot.copied != nullptr) {
                cudaEventDestroy(slot.copied);
            }
            if (slot.used != nullptr) {
                cudaEventDestroy(slot.used);
            }
        }
        cudaStreamDestroy(copies_);
    }

    staging_ring(const staging_ring &)             = delete;
    staging_ring & operator=(const staging_ring &) = delete;

    uint8_t * slot(uint32_t index, uint64_t n_bytes) {
        staged & slot = slots_[index];
        if (slot.is_used) {
            check(cudaEventSynchronize(slot.used), "waiting for a staging slot");
        }
        if (slot.n_bytes < n_bytes) {
            drop(slot);
            const uint64_t rounded = (n_bytes + (1 << 20) - 1) >> 20 << 20;
            check(cudaHostAlloc(reinterpret_cast<void **>(&slot.host), rounded, cudaHostAllocDefault),
                  "pinned memory for staging");
            check(cudaMalloc(reinterpret_cast<void **>(&slot.device), rounded), "device memory for staging");
            slot.n_bytes = rounded;
        }
        if (slot.copied == nullptr) {
            check(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming), "an event");
        }
        if (slot.used == nullptr) {
            check(cudaEventCreateWithFlags(&slot.used, cudaEventDisableTiming), "an event");
        }
        return slot.host;
    }

    int          index() const { return index_; }
    cudaStream_t copies() const { return copies_; }
    staged &     at(uint32_t index) { return slots_[index]; }

  private:
    static void drop(staged & slot) {
        cudaFreeHost(slot.host);
        cudaFree(slot.device);
        slot.host    = nullptr;
        slot.device  = nullptr;
        slot.n_bytes = 0;
        slot.is_used = false;
    }

    int          index_;
    cudaStream_t copies_ = nullptr;
    staged       slots_[n_ring_slots];
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
}

cuda_device::cuda_device(int index, cudaStream_t stream) : index_(index), stream_(stream) {
    const current_device current(index);
    int                  shared_bytes = 0;
    int                  n_processors = 0;
    check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index), "its shared memory");
    check(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, index), "its multiprocessors");
    shared_bytes_   = static_cast<uint64_t>(shared_bytes);
    max_workgroups_ = static_cast<uint32_t>(n_processors) * 8;
    ring_           = take_ring(index);
}

cuda_device::~cuda_device() {
    const std::lock_guard<std::mutex> lock(idle_mutex);
    idle_rings.emplace_back(ring_);
}

uint64_t cuda_device::allocate(uint64_t n_bytes) {
    const current_device current(index_);
    void *               memory = nullptr;
    check(cudaMalloc(&memory, n_bytes), "device memory");
    return reinterpret_cast<uint64_t>(memory);
}

void cuda_device::release(uint64_t address) {
    const current_device current(index_);
    cudaFree(reinterpret_cast<void *>(address));
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
    check(cudaMemcpyAsync(bytes, reinterpret_cast<const void *>(address), n_bytes, cudaMemcpyDeviceToHost, stream_),
          "a download");
    check(cudaStreamSynchronize(stream_), "decoding");
}

void cuda_device::wait() {
    const current_device current(index_);
    check(cudaStreamSynchronize(ring_->copies()), "an upload");
    check(cudaStreamSynchronize(stream_), "decoding");
}

void cuda_device::launch(const planned_launch & launch, const launch_buffers & in) {
    const current_device current(index_);
    switch (launch.kind) {
        case launch_kind::decode:
            check(launch_decode(in, launch.store, launch.n_side, in.set.n_symbols > 32, n_threads_, max_workgroups_,
                                stream_),
                  "launching the decoder");
            break;
        case launch_kind::expand: check(launch_expand(in, stream_), "launching the decoder"); break;
        default: check(launch_place(in, launch.store, stream_), "launching a store"); break;
    }
}

uint32_t cuda_device::n_slots() const {
    return n_ring_slots;
}

uint8_t * cuda_device::slot(uint32_t index, uint64_t n_bytes) {
    const current_device current(index_);
    return ring_->slot(index, n_bytes);
}

uint64_t cuda_device::slot_address(uint32_t index) const {
    return reinterpret_cast<uint64_t>(ring_->at(index).device);
}

void cuda_device::submit(uint32_t index, uint64_t n_bytes) {
    const current_device current(index_);
    auto &               slot = ring_->at(index);
    check(cudaMemcpyAsync(slot.device, slot.host, n_bytes, cudaMemcpyHostToDevice, ring_->copies()), "an upload");
    check(cudaEventRecord(slot.copied, ring_->copies()), "an upload");
    check(cudaStreamWaitEvent(stream_, slot.copied, 0), "an upload");
}

void cuda_device::retire(uint32_t index) {
    const current_device current(index_);
    auto &               slot = ring_->at(index);
    check(cudaEventRecord(slot.used, stream_), "an event");
    slot.is_used = true;
}

} // namespace kernels
