// LCG1 and LCG2 on a device beside libcachegen: the same CKG1 archives into the same destinations, byte by byte. Made
// for any device, an emulated one or a real one.
#pragma once

#include "kernel_parity.h"

namespace kernel_parity {

/*
 * Both formats, head sizes of 64, 80, 96, 128 and 256 and rows that fill no group of lanes, into every type and layout:
 * scattered cells, ranges of tokens, rows with gaps, records left out. Counts records, by format and destination.
 * n_rounds  IN  of all combinations, each with other random numbers
 * is_large  IN  parts of several tiles: for devices
 */
coverage compare_legacy_parts(kernels::device & device, uint32_t n_rounds, bool is_large);

// whole pages of every kind of record, exact bytes too; how many
uint64_t compare_legacy_pages(kernels::device & device, uint32_t n_rounds);

// damaged pages: status, record and what has been written are libcachegen's. Counts archives by status.
coverage compare_damaged_legacy(kernels::device & device, uint32_t n_rounds);

// a small archive cut at every length: refused as by libcachegen, nothing is written; how many
uint64_t compare_truncated_legacy(kernels::device & device);

// the inputs that fuzzing of libcachegen's readers has found. Counts them by status.
coverage compare_legacy_corpus(kernels::device & device, const char * folder);

// LCG1 streams whose codes are at the edges of symbols, and the last code that there is, which is refused; how many
uint64_t compare_legacy_edges(kernels::device & device, uint32_t n_rounds);

// destinations that do not fit their record: refused with the status expected, nothing is written
void check_legacy_destinations(kernels::device & device);

// one page in several uploads; false: the device failed with ERR_OUT_OF_MEMORY
bool decode_legacy_one(kernels::device & device);
// as decode_one()
bool decode_legacy_one(kernels::device & device, std::string & why);

} // namespace kernel_parity
