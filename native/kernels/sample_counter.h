// Statistics of a sample of a page, counted on the device that holds its rows: what models are made from.
#pragma once

#include "kept_memory.h"
#include "lcg3_unit_encoder.h"

#include <vector>

namespace kernels {

class sample_counter {
  public:
    // rows: one a plane of the page, data being an address on the device
    sample_counter(device & device, const std::vector<cachegen_rows> & rows)
        : device_(device), rows_(rows), sample_(device), counts_(device) {}

    // See lcg3::unit_encoder. Pairs are those of the set whose symbols were counted last: what the device was told of
    // its sample, and the scales found there, stay until the next one.
    bool count_symbols(const cachegen::lcg3::sampled_set & set, cachegen::lcg3::channel_counts & counts);
    bool count_pairs(const cachegen::lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
                     uint32_t n_classes, uint32_t n_models, uint64_t * pairs);

    // no memory on the device is held any more
    void release();

    // the most that was held
    uint64_t device_bytes() const { return device_bytes_; }

  private:
    struct job_list {
        uint64_t address;
        uint32_t n_jobs;
    };
    // sources that one kernel reads
    struct sources_of_kernel {
        uint32_t source; // enum store_kind
        uint32_t n_side;
        job_list tiles;  // that scales are found of
        job_list groups; // that are counted
    };

    bool     can_count(const cachegen::lcg3::sampled_set & set) const;
    void     describe(const cachegen::lcg3::sampled_set & set);
    void     launch(encode_kind kind);
    uint64_t clear_counts(uint64_t n_counts, uint64_t n_more_bytes);

    device &                           device_;
    const std::vector<cachegen_rows> & rows_;
    kept_memory                        sample_; // its description and scales
    kept_memory                        counts_;
    bool                               has_scales_ = false;
    std::vector<sources_of_kernel>     sources_;
    uint64_t                           n_channels_ = 0; // of the set
    uint64_t                           n_scales_   = 0;
    encode_buffers                     buffers_{}; // what all launches have in common
    uint64_t                           device_bytes_ = 0;
};

} // namespace kernels
