// From a part of an archive to launches: every rule of the format that does not need the symbols is checked here, on
// the host, with libcachegen's own code.
#pragma once

#include "jobs.h"
#include "lcg3_request.h"
#include "plan_rows.h"

#include <vector>

namespace kernels {

// A set's tables as the kernels read them.
struct device_set {
    set_shape                shape;
    std::vector<table_entry> table;
    uint32_t                 values[64];
};

enum class launch_kind { decode, expand, place };

struct planned_launch {
    launch_kind kind;
    uint32_t    store;  // decode, place
    uint32_t    n_side; // decode
    uint32_t    set;    // decode, expand
    uint32_t    first_group_job;
    uint32_t    n_group_jobs;
};

// What has to be done with one part, in this order.
struct part_plan {
    std::vector<unit_job>       units;
    std::vector<group_job>      groups;
    std::vector<uint32_t>       group_words;
    std::vector<planned_launch> launches;
    uint32_t                    block = 0;
};

// What a launch can use of the device.
struct device_limits {
    uint64_t shared_bytes;              // of a workgroup
    uint32_t decode_groups;             // of lanes, in a workgroup that decodes, at least
    uint64_t scratch_bytes;             // for native rows, at least largest_scratch()
    uint64_t scratch;                   // its address
    bool     has_memory_tables = false; // of the device
};

class decode_plan {
  public:
    // destinations: one a plane, data being an address on the device; cells in host memory, not kept. Throws
    // cachegen::error for a range or destination that does not fit the archive.
    decode_plan(const cachegen::lcg3::archive & archive, uint64_t first_token, uint64_t n_tokens,
                const std::vector<cachegen_lcg3_destination> & destinations);

    const std::vector<device_set> & sets() const { return sets_; }
    const std::vector<uint8_t> &    models() const { return models_; }
    const std::vector<uint32_t> &   cells() const { return cells_.all(); }

    // bytes of the largest unit's native rows
    uint64_t largest_scratch() const;
    // some plane cannot go straight to its destination
    bool     needs_scratch(const device_limits & limits) const;

    // the planes whose units a block's plan has, in its order
    std::vector<uint32_t> unit_planes(uint32_t block) const;

    /*
     * bytes          IN  the part, in host memory; its digest and padding have been checked
     * bytes_address  IN  of the copy that the device will read
     */
    part_plan plan(uint32_t part, const cachegen::lcg3::payload & bytes, uint64_t bytes_address,
                   const device_limits & limits) const;

  private:
    struct wanted_plane {
        uint32_t plane;
        uint64_t first_token; // of the archive
        uint64_t end_token;
        uint32_t cells; // index of first_token's
    };

    bool     is_fused(const wanted_plane & wanted, const device_limits & limits) const;
    unit_job describe(const wanted_plane & wanted, uint64_t first_token, uint32_t n_rows) const;
    void     add_block(part_plan & plan, const cachegen::lcg3::payload & bytes, uint64_t bytes_address,
                       const device_limits & limits) const;
    void     add_exact_rows(part_plan & plan, const cachegen::lcg3::payload & bytes, uint64_t bytes_address) const;

    bool has_tokens_of(uint32_t block) const;

    const cachegen::lcg3::archive &        archive_;
    std::vector<cachegen_lcg3_destination> destinations_;
    cachegen::lcg3::decode_request         request_; // of destinations_
    std::vector<wanted_plane>              wanted_;
    std::vector<device_set>                sets_;
    std::vector<uint8_t>                   models_;
    std::vector<uint32_t>                  plane_models_; // index of each plane's first
    cell_lists                             cells_;
};

} // namespace kernels
