// Statistics of a sample of a page, counted on the device that holds its rows: what models are made from.
#pragma once

#include "device.h"
#include "lcg3_unit_encoder.h"

#include <vector>

namespace kernels {

class sample_counter {
  public:
    // rows: one a plane of the page, data being an address on the device
    sample_counter(device & device, const std::vector<cachegen_rows> & rows) : device_(device), rows_(rows) {}

    // See lcg3::unit_encoder. Memory on the device is held during a call only.
    bool count_symbols(const cachegen::lcg3::sampled_set & set, cachegen::lcg3::channel_counts & counts);
    bool count_pairs(const cachegen::lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
                     uint32_t n_classes, uint32_t n_models, uint64_t * pairs);

    // the most that a call has held
    uint64_t device_bytes() const { return device_bytes_; }

  private:
    bool can_count(const cachegen::lcg3::sampled_set & set) const;
    bool count(const cachegen::lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
               uint32_t n_classes, uint32_t * counts, uint64_t n_counts);

    device &                           device_;
    const std::vector<cachegen_rows> & rows_;
    uint64_t                           device_bytes_ = 0;
};

} // namespace kernels
