// The device of the decoder and the encoder on CUDA, and on HIP by the same source: one stream for copies, one for the
// work.
#pragma once

#include "../device.h"
#include "runtime.h"

namespace kernels {

// Pinned memory, events and copies of one CUDA device, kept for the next decoder: cudaHostAlloc takes about a
// millisecond for a MiB.
class staging_ring;

class cuda_device : public device {
  public:
    // stream: of the graphs that use the destinations; everything here is ordered with it
    cuda_device(int index, cudaStream_t stream);
    ~cuda_device() override;
    cuda_device(const cuda_device &)             = delete;
    cuda_device & operator=(const cuda_device &) = delete;

    uint64_t shared_bytes() const override { return shared_bytes_; }
    uint32_t decode_groups() const override { return min_decode_groups; }
    uint64_t allocate(uint64_t n_bytes) override;
    void     release(uint64_t address) override;
    void     clear(uint64_t address, uint64_t n_bytes) override;
    void     upload(uint64_t address, const void * bytes, uint64_t n_bytes) override;
    void     download(void * bytes, uint64_t address, uint64_t n_bytes) override;
    void     wait() override;
    void     launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot) override;
    void     launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) override;

    // of a workgroup that decodes, at most; 128 to 512
    void set_threads(uint32_t n_threads) { n_threads_ = n_threads; }

    void      make_slots(uint64_t n_bytes) override;
    uint32_t  n_host_slots() const override;
    uint32_t  n_device_slots() const override;
    uint8_t * host_slot(uint32_t index) override;
    uint64_t  slot_address(uint32_t index) const override;
    void      submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool is_last) override;
    void      retire(uint32_t device_slot) override;
    uint64_t  host_slot_bytes() const override;
    uint64_t  device_slot_bytes() const override;

    uint8_t * allocate_host(uint64_t n_bytes) override;
    void      release_host(uint8_t * memory) override;
    void      download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                          uint64_t n_bytes, uint64_t n) override;
    void      launch_encode(const encode_launch & launch, const encode_buffers & in) override;
    void      mark(uint32_t index) override;
    void      wait_for_mark(uint32_t index) override;

  private:
    int            index_;
    cudaStream_t   stream_;
    staging_ring * ring_;
    uint64_t       shared_bytes_ = 0;
    uint32_t       n_threads_    = default_decode_threads;
    uint32_t       n_processors_ = 0;
    cudaEvent_t    marks_[2]     = {};
};

// free what is kept between decoders; none may be in use
void release_staging_rings();

} // namespace kernels
