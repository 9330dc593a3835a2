// The device encoder beside libcachegen's: the same page, archives compared byte by byte. Made for any device, an
// emulated one or a real one.
#pragma once

#include "kernel_parity.h"

namespace encoder_parity {

using kernel_parity::coverage;

// what became of the lossy units
struct unit_counts {
    uint64_t n_made          = 0; // by the device
    uint64_t n_without_room  = 0; // left to libcachegen
    uint64_t n_counted       = 0; // sets whose sample the device counted
    uint64_t n_in_wide_waves = 0; // made by the device, several blocks at a time
};

/*
 * Lossy planes of every type and layout of source beside exact and raw ones, with rotations, scattered cells, windows,
 * odd values, and memory for a part of a block.
 * n_rounds  IN  of all combinations, each with other random numbers
 * is_large  IN  pages of several thousand tokens: for devices
 */
coverage compare_archives(kernels::device & device, uint32_t n_rounds, bool is_large, unit_counts & counts);

// Statistics of samples, number by number: models of small pages hardly depend on them. Some samples have several runs
// of a plane, some more pairs than shared memory has room for. Returns how many were compared.
uint64_t compare_counts(kernels::device & device, uint32_t n_rounds);

// NaN, infinities and values without a scale, at tokens that no model is made from: the statuses are libcachegen's.
// Returns how many pages were refused.
uint64_t compare_refused(kernels::device & device, uint32_t n_rounds);

// a page whose sample says nothing of the rest: the device runs out of room
unit_counts compare_without_room(kernels::device & device);

// one page of every mode; false: the device failed with ERR_OUT_OF_MEMORY
bool encode_one(kernels::device & device);
// as kernel_parity::decode_one()
bool encode_one(kernels::device & device, std::string & why);

} // namespace encoder_parity
