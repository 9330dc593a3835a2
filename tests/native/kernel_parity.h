// The device decoder beside libcachegen's: the same archives into the same destinations, byte by byte. Made for any
// device, an emulated one or a real one.
#pragma once

#include "device.h"

#include <cstdint>
#include <map>
#include <string>

namespace kernel_parity {

// archives compared, by what was decoded into what: "lossy -> Q8_0", "exact Q4_0 -> F16, transposed" ...
using coverage = std::map<std::string, uint64_t>;

/*
 * Every mode and type of source into every type and layout, with rotations, scattered cells, windows and ranges.
 * n_rounds  IN  of all combinations, each with other random numbers
 * is_large  IN  pages of several thousand tokens: for devices
 */
coverage compare_pages(kernels::device & device, uint32_t n_rounds, bool is_large);

// rotated values into blocks, some of which have an infinity or a NaN
coverage compare_rotated_blocks(kernels::device & device);

// damaged archives: the statuses are libcachegen's; nothing outside of the destination's rows is written
uint64_t compare_damaged(kernels::device & device, uint32_t n_rounds);

// one page of every mode; false: the device failed with ERR_OUT_OF_MEMORY
bool decode_one(kernels::device & device);
// the same; it may also fail with ERR_INTERNAL or ERR_UNSUPPORTED. why: with what words
bool decode_one(kernels::device & device, std::string & why);

// OK, or a status that a device fails with
bool is_of_device(int32_t status);

void print(const coverage & covered);

} // namespace kernel_parity
