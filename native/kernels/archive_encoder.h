// The lossy planes of an LCG3 archive from a device's memory: what a backend's KV codec procs need of an encoder.
#pragma once

#include "sample_counter.h"

#include <algorithm>
#include <memory>

namespace kernels {

class archive_encoder : public cachegen::lcg3::unit_encoder {
  public:
    // what the encoder may use of each kind of memory
    struct memory_limits {
        uint64_t pool_bytes   = 48 << 20; // of the device's
        uint64_t output_bytes = 48 << 20; // of the host's, twice: a wave is encoded while the one before is written
    };

    /*
     * rows  IN  one a plane, data being an address on the device; their cells stay until the archive is written
     * Throws cachegen::error, as every function.
     */
    archive_encoder(device & device, const std::vector<cachegen_rows> & rows, const memory_limits & limits);
    archive_encoder(device & device, const std::vector<cachegen_rows> & rows)
        : archive_encoder(device, rows, memory_limits()) {}
    ~archive_encoder() override;
    archive_encoder(const archive_encoder &)             = delete;
    archive_encoder & operator=(const archive_encoder &) = delete;

    // write the archive, once; returns its size. What the device does not encode is read from it.
    uint64_t encode(const cachegen_lcg3_plane * planes, const cachegen_lcg3_options & options,
                    const cachegen_executor * executor, const cachegen_sink & sink);

    // units that the device made, and those that it had no room for, which libcachegen made
    uint64_t n_made() const { return n_made_; }
    uint64_t n_without_room() const { return n_without_room_; }
    // sets whose sample was counted on the device
    uint64_t n_counted() const { return n_counted_; }

    // blocks that were encoded at a time
    uint32_t blocks_a_wave() const { return plan_ ? plan_->blocks_a_wave() : 0; }

    // memory besides the sources'
    uint64_t device_bytes() const { return std::max(device_bytes_, counter_.device_bytes()); }
    uint64_t host_bytes() const { return host_bytes_; }

    bool count_symbols(const cachegen::lcg3::sampled_set & set, cachegen::lcg3::channel_counts & counts) override {
        const bool is_counted = counter_.count_symbols(set, counts);
        n_counted_ += is_counted;
        return is_counted;
    }
    bool count_pairs(const cachegen::lcg3::sampled_set & set, const uint8_t * model_of_channel,
                     const uint8_t * class_of, uint32_t n_classes, uint32_t n_models, uint64_t * pairs) override {
        return counter_.count_pairs(set, model_of_channel, class_of, n_classes, n_models, pairs);
    }
    void prepare(const cachegen::lcg3::trained_page & page) override;
    const cachegen::metered_vector<cachegen::lcg3::unit_bytes> & next() override;

  private:
    static constexpr uint32_t n_outputs = 2;

    // addresses of a set's tables
    struct set_tables {
        uint64_t table;
        uint64_t slots;
        uint64_t class_of;
    };

    static int32_t read(void * self, uint64_t plane, uint64_t first_token, uint64_t n_tokens, void * rows);

    // waves of a plan, each of one block or of several, and the parts of them that next() gives, each of one block
    uint64_t wave_of(uint64_t part) const { return part / plan_->blocks_a_wave(); }
    void     release();
    void     start(uint64_t wave);
    void     take(uint64_t part);

    device &                                             device_;
    std::vector<cachegen_rows>                           rows_;
    memory_limits                                        memory_limits_;
    sample_counter                                       counter_;
    uint64_t                                             n_counted_ = 0;
    const cachegen::lcg3::trained_page *                 page_      = nullptr;
    std::unique_ptr<encode_plan>                         plan_;
    cachegen::metered_vector<cachegen::lcg3::unit_bytes> units_;
    encode_buffers                                       buffers_{}; // what all launches have in common
    std::vector<set_tables>                              tables_;
    uint64_t                                             planes_             = 0; // addresses
    uint64_t                                             jobs_               = 0;
    uint64_t                                             constants_          = 0;
    uint64_t                                             work_               = 0;
    uint8_t *                                            outputs_[n_outputs] = {};
    uint64_t                                             output_begin_       = 0; // after what was made
    uint64_t                                             n_started_          = 0; // waves
    uint64_t                                             n_taken_            = 0; // parts
    uint64_t                                             n_made_             = 0;
    uint64_t                                             n_without_room_     = 0;
    uint64_t                                             device_bytes_       = 0;
    uint64_t                                             host_bytes_         = 0;
};

} // namespace kernels
