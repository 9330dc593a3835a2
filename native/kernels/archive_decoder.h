// An LCG3 archive into a device's memory, part by part: what a backend's KV codec procs need of a decoder.
#pragma once

#include "device.h"

namespace kernels {

class archive_decoder {
  public:
    /*
     * metadata      IN  the archive's first n_bytes; stay as they are while the decoder lives
     * destinations  IN  one a plane; their cells are not kept
     * Throws cachegen::error.
     */
    archive_decoder(device & device, const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                    uint64_t first_token, uint64_t n_tokens, const std::vector<device_rows> & destinations);
    ~archive_decoder();
    archive_decoder(const archive_decoder &)             = delete;
    archive_decoder & operator=(const archive_decoder &) = delete;

    // memory for the next part's n_bytes, which part() does not copy again
    uint8_t * part_memory(uint64_t n_bytes);

    // check a part, enqueue its upload and decoding; the bytes can be anywhere and are not kept
    void part(uint32_t part, const void * bytes, uint64_t n_bytes);

    // wait for everything; what the device found wrong is thrown here
    void finish();

    // device memory that is not the destination's
    uint64_t device_bytes() const { return device_bytes_; }

  private:
    uint64_t room_for_plan(uint64_t n_bytes) const;

    device &                device_;
    cachegen::lcg3::archive archive_;
    decode_plan             plan_;
    device_limits           limits_{};
    uint32_t                next_slot_    = 0;
    uint8_t *               memory_       = nullptr; // of the next slot, if somebody has asked for it
    uint64_t                constants_    = 0;       // tables, values, model numbers, cells
    uint64_t                errors_       = 0;
    uint64_t                device_bytes_ = 0;
    std::vector<uint64_t>   tables_; // addresses, of each set
    std::vector<uint64_t>   values_;
    uint64_t                models_ = 0;
    uint64_t                cells_  = 0;
};

} // namespace kernels
