// A CKG1 archive of LCG1 and LCG2 tiles into a device's memory.
#pragma once

#include "device.h"
#include "legacy_plan.h"

namespace kernels {

constexpr uint64_t default_legacy_batch_bytes = 8 << 20;

class legacy_decoder {
  public:
    /*
     * archive       IN  exactly one; stays as it is while the decoder lives
     * destinations  IN  one a record; their cells are not kept
     * batch_bytes   IN  that are uploaded at a time, unless one record has more
     * Throws cachegen::error; nothing has been written then.
     */
    legacy_decoder(device & device, const void * archive, uint64_t n_bytes,
                   const std::vector<legacy_destination> & destinations,
                   uint64_t                                batch_bytes = default_legacy_batch_bytes);
    ~legacy_decoder();
    legacy_decoder(const legacy_decoder &)             = delete;
    legacy_decoder & operator=(const legacy_decoder &) = delete;

    /*
     * Decode all records and wait for them. Throws what libcachegen throws that decodes one after another: the first
     * record that is refused counts. Records after it can have been written if its symbols are what is wrong; else
     * neither it nor they have.
     */
    void decode();

    // memory besides the destination's, slots included
    uint64_t device_bytes() const { return device_bytes_ + device_.device_slot_bytes(); }
    uint64_t host_bytes() const { return device_.host_slot_bytes(); }

  private:
    void enqueue(const legacy_batch & batch, uint64_t number, const planned_batch & plan, uint8_t * memory);
    void check_errors();
    void release();

    device &                       device_;
    cachegen::legacy::ckg1_archive archive_;
    legacy_plan                    plan_;
    uint64_t                       cells_        = 0; // addresses
    uint64_t                       errors_       = 0;
    uint64_t                       device_bytes_ = 0;
};

} // namespace kernels
