// From a CKG1 archive of LCG1 and LCG2 tiles to launches: every rule of the formats that does not need the symbols is
// checked here, on the host, with libcachegen's own code.
#pragma once

#include "ckg1.h"
#include "legacy_jobs.h"
#include "plan_rows.h"

#include <exception>
#include <vector>

namespace kernels {

// Where one record goes.
struct legacy_destination {
    cachegen_rows rows{};          // data: an address on the device, NULL leaves the record out; of exact bytes n_bytes
                                   // and data count alone. Addresses and strides are multiples of an element's bytes.
    uint64_t      first_token = 0; // of rows: where the first wanted token goes
    uint32_t      from_token  = 0; // tokens [from_token, from_token + n_wanted) of the record's tile are wanted; all
    uint32_t      n_wanted    = 0; // are decoded
};

// one a record, for a whole page at an address on the device
std::vector<legacy_destination> page_destinations(const cachegen::legacy::ckg1_archive & archive, uint64_t page);

// Some adjacent records, as they lie in a staging slot: tiles, each at a multiple of 16, then room for what launches
// are told of them.
struct legacy_batch {
    uint64_t first_record;
    uint64_t end_record;
    uint64_t tiles_bytes; // a multiple of 16
    uint64_t n_bytes;     // of all
};

// What has to be done with a batch.
struct planned_batch {
    std::vector<legacy_unit>   units;
    std::vector<group_job>     jobs;
    std::vector<uint32_t>      group_streams;
    std::vector<legacy_launch> launches;
    std::vector<uint64_t>      exact_records;
    std::exception_ptr         refused; // why the batch ends before one of its records; NULL if it does not
};

class legacy_plan {
  public:
    /*
     * archive       IN  stays as it is while the plan lives
     * destinations  IN  one a record; cells in host memory, not kept
     * batch_bytes   IN  of a batch, unless one record has more
     * Throws cachegen::error for a destination that does not fit its record.
     */
    legacy_plan(const cachegen::legacy::ckg1_archive & archive, const std::vector<legacy_destination> & destinations,
                uint64_t batch_bytes);

    const std::vector<uint32_t> &           cells() const { return cells_.all(); }
    const std::vector<legacy_batch> &       batches() const { return batches_; }
    const std::vector<legacy_destination> & destinations() const { return destinations_; }

    uint64_t largest_batch_bytes() const;

    // Check the tiles of a batch and copy them. memory  OUT tiles_bytes, those after a refused record left as they are
    planned_batch plan(const legacy_batch & batch, uint8_t * memory) const;

  private:
    const cachegen::legacy::ckg1_archive & archive_;
    std::vector<legacy_destination>        destinations_;
    std::vector<uint32_t>                  cell_lists_; // index of each record's first, or no_cell_list
    cell_lists                             cells_;
    std::vector<legacy_batch>              batches_;
};

} // namespace kernels
