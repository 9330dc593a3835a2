// The device of the decoder and the encoder on Metal: all commands go to the queue of the graphs that use the
// destinations.
#pragma once

#include "../device.h"
#include "metal_library.h"
#include "metal_memory.h"
#include "metal_queue.h"

namespace kernels {

class metal_device : public device {
  public:
    /*
     * queue         IN  of the graphs that use the destinations; everything here is ordered with it
     * destinations  IN  buffers that the planner's destinations or sources lie in; kept. A destination's address is
     *                   its buffer's gpuAddress plus its offset.
     * Throws cachegen::error: ERR_UNSUPPORTED for a device without Metal 3.
     */
    metal_device(MTL::Device * device, MTL::CommandQueue * queue, const std::vector<MTL::Buffer *> & destinations);
    ~metal_device() override;
    metal_device(const metal_device &)             = delete;
    metal_device & operator=(const metal_device &) = delete;

    uint64_t shared_bytes() const override { return limits_.threadgroup_bytes; }
    uint32_t decode_groups() const override { return 1; }
    bool     has_memory_tables() const override { return true; }
    uint64_t address_of(const uint8_t * memory) const override;

    uint64_t allocate(uint64_t n_bytes) override;
    void     release(uint64_t address) override;
    void     clear(uint64_t address, uint64_t n_bytes) override;
    void     upload(uint64_t address, const void * bytes, uint64_t n_bytes) override;
    void     download(void * bytes, uint64_t address, uint64_t n_bytes) override;
    void     wait() override;
    void     launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot) override;
    void     launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) override;

    void      make_slots(uint64_t n_bytes) override;
    uint32_t  n_host_slots() const override { return static_cast<uint32_t>(slots_.size()); }
    uint32_t  n_device_slots() const override { return static_cast<uint32_t>(slots_.size()); }
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
    using commands_ptr = NS::SharedPtr<MTL::CommandBuffer>;

    /*
     * What a part is put into and read from. With unified memory one shared buffer is both: the device reads what the
     * host has written where it is. Else the device has a private copy.
     */
    struct slot {
        NS::SharedPtr<MTL::Buffer> host;
        NS::SharedPtr<MTL::Buffer> device; // the same one, with unified memory
        uint8_t *                  bytes   = nullptr;
        uint64_t                   address = 0;
        metal_commands             commands;       // from submit() to retire()
        uint32_t                   submitted_from; // the host slot of these
        commands_ptr               last_to_read;   // commands that read the host's memory
    };

    template <typename Launch, typename Buffers>
    void encode(metal_commands & commands, const Launch & launch, const Buffers & in);
    void add_slots(uint64_t n_bytes);
    void drop_slots();

    // commit what is open, before anything else is committed; under the mutex
    commands_ptr flush();
    // fills and copies: whole words at multiples of their size, as Metal wants them on a Mac
    void         read_rows(const std::vector<metal_place> & rows, uint64_t n_bytes, const std::vector<uint8_t *> & to);
    void         write_words(const metal_place & place, const void * bytes, uint64_t n_bytes);

    metal_library &                                       library_;
    metal_memory                                          memory_;
    metal_queue                                           queue_;
    metal_limits                                          limits_;
    bool                                                  is_unified_;
    mutable std::mutex                                    mutex_; // of what is below
    metal_commands                                        open_;  // fills, and launches of the encoder
    std::deque<slot>                                      slots_;
    uint64_t                                              slot_bytes_ = 0;
    std::map<const uint8_t *, NS::SharedPtr<MTL::Buffer>> host_memory_; // by its first byte
    commands_ptr                                          marks_[2];
};

} // namespace kernels
