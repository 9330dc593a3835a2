// What the decoder and the encoder need of a device: memory, a queue that runs copies and launches in order, and
// staging slots whose upload overlaps the work before them.
#pragma once

#include "decode_plan.h"
#include "encode_plan.h"
#include "legacy_jobs.h"

namespace kernels {

// Every function throws cachegen::error: ERR_OUT_OF_MEMORY, or ERR_INTERNAL with the device's own words.
class device {
  public:
    virtual ~device() = default;

    // bytes of shared memory that a workgroup can have
    virtual uint64_t shared_bytes() const  = 0;
    // groups of lanes in a workgroup that decodes, at least
    virtual uint32_t decode_groups() const = 0;
    // Launches whose set's table does not fit into shared memory beside its groups read it where it is, and have as few
    // groups as the rest needs.
    virtual bool     has_memory_tables() const { return false; }

    // where launches find memory of allocate_host()
    virtual uint64_t address_of(const uint8_t * memory) const { return reinterpret_cast<uint64_t>(memory); }

    // memory on the device; nobody else uses it until it is released
    virtual uint64_t allocate(uint64_t n_bytes)                = 0;
    virtual void     release(uint64_t address)                 = 0;
    virtual void     clear(uint64_t address, uint64_t n_bytes) = 0;

    // wait until it is there
    virtual void upload(uint64_t address, const void * bytes, uint64_t n_bytes) = 0;
    // after everything before
    virtual void download(void * bytes, uint64_t address, uint64_t n_bytes)     = 0;
    virtual void wait()                                                         = 0;

    // after the upload to the device slot and the launches with it before; those of other slots can run at the same
    // time. download() and wait() come after all of them.
    virtual void launch(const planned_launch & launch, const launch_buffers & in, uint32_t device_slot)       = 0;
    // the same for LCG1 and LCG2
    virtual void launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t device_slot) = 0;

    /*
     * Staging: parts come in slots of host memory that the device reads fast, and go to slots of its own. There are at
     * least two of each, with room for n_bytes; whatever was in them is of no more use.
     */
    virtual void      make_slots(uint64_t n_bytes)       = 0;
    virtual uint32_t  n_host_slots() const               = 0;
    virtual uint32_t  n_device_slots() const             = 0;
    virtual uint64_t  slot_address(uint32_t index) const = 0; // of the device's
    // memory of a host slot, after its last upload; on any thread
    virtual uint8_t * host_slot(uint32_t index)          = 0;
    // copy n_bytes of a host slot, after the launches that use the device slot. is_last: the slot's launches come after
    // those of all other slots until now
    virtual void      submit(uint32_t host_slot, uint32_t device_slot, uint64_t n_bytes, bool is_last) = 0;
    // the launches since submit() were the last to use the device slot
    virtual void      retire(uint32_t device_slot)                                                     = 0;
    // bytes of slots: host, device
    virtual uint64_t  host_slot_bytes() const                                                          = 0;
    virtual uint64_t  device_slot_bytes() const                                                        = 0;

    /*
     * For the encoder: memory of the host at a multiple of 16 that launches write to, by address_of(). Nobody else uses
     * it until it is released.
     */
    virtual uint8_t * allocate_host(uint64_t n_bytes)                                        = 0;
    virtual void      release_host(uint8_t * memory)                                         = 0;
    // after everything before, n times n_bytes, so many bytes apart here and there; on any thread
    virtual void      download_2d(uint8_t * bytes, uint64_t bytes_stride, uint64_t address, uint64_t address_stride,
                                  uint64_t n_bytes, uint64_t n)                              = 0;
    virtual void      launch_encode(const encode_launch & launch, const encode_buffers & in) = 0;
    // mark 0 or 1 is here in the queue; wait until all before it is done and what it wrote can be read
    virtual void      mark(uint32_t index)                                                   = 0;
    virtual void      wait_for_mark(uint32_t index)                                          = 0;
};

} // namespace kernels
