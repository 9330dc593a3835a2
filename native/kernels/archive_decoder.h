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
                    uint64_t first_token, uint64_t n_tokens,
                    const std::vector<cachegen_lcg3_destination> & destinations);
    ~archive_decoder();
    archive_decoder(const archive_decoder &)             = delete;
    archive_decoder & operator=(const archive_decoder &) = delete;

    // check a part, enqueue its upload and decoding; the bytes can be anywhere and are not kept
    void part(uint32_t part, const void * bytes, uint64_t n_bytes);

    // What run() reads from: see ggml-kv-codec.h.
    struct source {
        void * user_data;
        int32_t (*read)(void * user_data, uint64_t offset, void * bytes, uint64_t n_bytes);
        int32_t (*next)(void * user_data, uint32_t part);
    };

    // the same for several parts, read and checked on threads of their own, n_threads at most
    void run(const uint32_t * parts, uint64_t n_parts, const source & from, uint32_t n_threads);

    // wait for everything; what the device found wrong is thrown here
    void finish();

    // memory besides the destination's, slots included
    uint64_t device_bytes() const { return device_bytes_ + device_.device_slot_bytes(); }
    uint64_t host_bytes() const { return device_.host_slot_bytes(); }

  private:
    part_plan prepare(uint32_t part, uint64_t number, uint64_t digest, uint8_t * memory) const;
    void      enqueue(uint32_t part, uint64_t number, const part_plan & plan, uint8_t * memory);

    device &                device_;
    cachegen::lcg3::archive archive_;
    decode_plan             plan_;
    device_limits           limits_{};
    uint64_t                n_parts_      = 0; // so far
    uint64_t                plan_bytes_   = 0; // of a part's plan, at most
    uint64_t                constants_    = 0; // tables, values, model numbers, cells
    uint64_t                errors_       = 0;
    uint64_t                device_bytes_ = 0;
    std::vector<uint64_t>   tables_; // addresses, of each set
    std::vector<uint64_t>   values_;
    uint64_t                models_ = 0;
    uint64_t                cells_  = 0;
};

} // namespace kernels
