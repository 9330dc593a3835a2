// A device for tests: the kernels' own source, run lane by lane on the processor. Memory is malloc's, so that an
// address sanitizer sees what a kernel touches.
#pragma once

#include "../device.h"
#include "../port.h"

#include <atomic>
#include <map>
#include <vector>

namespace kernels {

class emulated_device : public device {
  public:
    // shared_bytes, decode_groups: what a workgroup has; the others: see lanes::run_options
    explicit emulated_device(uint32_t order = 0, uint64_t shared_bytes = 227 << 10, uint32_t wave_size = 32,
                             uint32_t decode_groups = 8)
        : options_{ order, wave_size }, shared_bytes_(shared_bytes), decode_groups_(decode_groups) {}
    ~emulated_device() override;

    uint64_t shared_bytes() const override { return shared_bytes_; }
    uint32_t decode_groups() const override { return decode_groups_; }
    uint64_t allocate(uint64_t n_bytes) override;
    void     release(uint64_t address) override;
    void     clear(uint64_t address, uint64_t n_bytes) override;
    void     upload(uint64_t address, const void * bytes, uint64_t n_bytes) override;
    void     download(void * bytes, uint64_t address, uint64_t n_bytes) override;
    void     wait() override {}
    void     launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot) override;
    void     launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) override;

    void      make_slots(uint64_t n_bytes) override;
    uint32_t  n_host_slots() const override { return 3; }
    uint32_t  n_device_slots() const override { return 2; }
    uint8_t * host_slot(uint32_t index) override;
    uint64_t  slot_address(uint32_t index) const override;
    void      submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool is_last) override;
    void      retire(uint32_t) override {}
    uint64_t  host_slot_bytes() const override { return 3 * slot_bytes_; }
    uint64_t  device_slot_bytes() const override { return 2 * slot_bytes_; }

    uint8_t * allocate_host(uint64_t n_bytes) override;
    void      release_host(uint8_t * memory) override;
    void      download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                          uint64_t n_bytes, uint64_t n) override;
    void      launch_encode(const encode_launch & launch, const encode_buffers & in) override;
    void      mark(uint32_t) override {}
    void      wait_for_mark(uint32_t) override {}

    // the allocation, upload, copy or launch with this number fails; 0: none
    void     fail_at(uint64_t number) { fail_at_ = number; }
    uint64_t n_calls() const { return n_calls_; }
    uint64_t n_allocations() const { return memory_.size(); }
    uint64_t n_launches(launch_kind kind) const { return n_launches_[static_cast<int>(kind)]; }
    uint64_t n_legacy_launches(uint32_t version) const { return n_legacy_launches_[version - 1]; }

  protected:
    // a call to the device: fails if it is the one that is to
    void count(const char * what);

    lanes::run_options options_;
    uint64_t           n_launches_[3]        = {};
    uint64_t           n_legacy_launches_[2] = {};

  private:
    uint64_t                          shared_bytes_;
    uint32_t                          decode_groups_;
    uint64_t                          fail_at_ = 0;
    std::atomic<uint64_t>             n_calls_{ 0 };
    std::map<uint64_t, uint8_t *>     memory_;
    uint64_t                          slot_bytes_ = 0;
    std::vector<std::vector<uint8_t>> host_slots_;
    std::vector<std::vector<uint8_t>> device_slots_;
};

} // namespace kernels
