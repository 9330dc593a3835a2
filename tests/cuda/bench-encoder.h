// The encoding kernels of a device on a whole page that is in its memory already.
#pragma once

#include "bench_results.h"
#include "cachegen.h"
#include "cuda/runtime.h"

#include <vector>

/*
 * Print symbols a second of F16 rows, F32 rows and Q8_0 rows rotated by 128, the share of each kernel, and whether the
 * archive is libcachegen's.
 * planes, sources  IN  F16 rows in the host's memory
 * memory           IN  address on the device, with room for the page as F32
 * bytes_per_ms     IN  that a copy on the device reads and writes
 * Returns the rows of results; "is_same" of each: the archive is libcachegen's.
 */
json bench_encoder(const std::vector<cachegen_lcg3_plane> & planes, const std::vector<cachegen_rows> & sources,
                   const cachegen_lcg3_options & options, const cachegen_executor * executor, uint64_t memory,
                   cudaStream_t stream, double bytes_per_ms);
