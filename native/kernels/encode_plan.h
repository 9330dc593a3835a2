// From a page whose models are known to launches that are the same for all of its blocks: which planes the device
// encodes, how many at a time, and what each launch is told.
#pragma once

#include "encode_jobs.h"
#include "lcg3_unit_encoder.h"
#include "plan_rows.h"

#include <vector>

namespace kernels {

enum class encode_kind { scales, encode, lay_out, gather, count };

struct encode_launch {
    encode_kind kind;
    uint32_t    source; // scales, encode, count: enum store_kind, how the source keeps its values
    uint32_t    n_side; // the same: adjacent groups that 32 lanes have
    uint32_t    set;    // encode
    uint32_t    first_job;
    uint32_t    n_jobs;
};

// A set's tables as the kernels read them.
struct encode_set {
    encode_set_shape          shape;
    std::vector<encode_entry> table;
    std::vector<uint16_t>     slots;
    std::vector<uint8_t>      class_of;
};

// Planes of a block, or of several blocks, that are encoded at a time: [first_plane, end_plane) of the page.
struct encode_wave {
    uint32_t                   first_plane;
    uint32_t                   end_plane;
    uint32_t                   first_job_plane; // of those that the device encodes, in the plan's planes
    std::vector<uint32_t>      planes;          // the same, in the page; for every block they come again in the plan
    std::vector<encode_launch> launches;
};

// What the encoder may use.
struct encode_limits {
    uint64_t shared_bytes;              // of a workgroup
    uint64_t pool_bytes;                // of the device's memory, for words
    uint64_t output_bytes;              // of the host's memory, for the units of a wave
    bool     has_memory_tables = false; // of the device
};

// What the largest wave needs.
struct encode_sizes {
    uint64_t n_planes;
    uint64_t n_scales;
    uint64_t n_groups;
    uint64_t n_channels;
    uint64_t n_chunks;
    uint64_t output_bytes;
};

class encode_plan {
  public:
    // rows: one a plane, data being an address on the device, or NULL; cells in host memory, not kept. Throws
    // cachegen::error for rows that are not the page's.
    encode_plan(const cachegen::lcg3::trained_page & page, const std::vector<cachegen_rows> & rows,
                const encode_limits & limits);

    const std::vector<encode_set> &   sets() const { return sets_; }
    const std::vector<encode_plane> & planes() const { return planes_; }
    const std::vector<group_job> &    jobs() const { return jobs_; }
    const std::vector<uint8_t> &      models() const { return models_; }
    const std::vector<uint32_t> &     cells() const { return cells_.all(); }
    // of a block, one after another; a single one has blocks_a_wave() blocks
    const std::vector<encode_wave> &  waves() const { return waves_; }
    uint32_t                          blocks_a_wave() const { return blocks_a_wave_; }
    const encode_sizes &              sizes() const { return sizes_; }

  private:
    // what a plane's unit is expected to take
    struct cost {
        uint64_t pool_bytes;
        uint64_t output_bytes;
    };

    bool     can_encode(uint32_t p, const cachegen_rows & rows, const encode_limits & limits);
    cost     expected(uint32_t p, double margin) const;
    uint32_t set_of(const cachegen::lcg3::set_encoder & encoder);
    void     add_plane(encode_wave & wave, uint32_t p, const cachegen_rows & rows);
    void     add_blocks(encode_wave & wave, uint32_t n_blocks);
    void     add_jobs(encode_wave & wave);

    const cachegen::lcg3::trained_page &             page_;
    uint32_t                                         block_rows_; // of the largest block
    std::vector<encode_set>                          sets_;
    std::vector<const cachegen::lcg3::set_encoder *> encoders_; // of sets_
    std::vector<encode_plane>                        planes_;
    std::vector<uint32_t>                            plane_sources_; // enum store_kind, of planes_
    std::vector<uint32_t>                            plane_sets_;
    std::vector<group_job>                           jobs_;
    std::vector<uint8_t>                             models_;
    cell_lists                                       cells_;
    std::vector<encode_wave>                         waves_;
    uint32_t                                         blocks_a_wave_ = 1;
    encode_sizes                                     sizes_{};
    encode_sizes                                     wave_sizes_{};
};

// largest rotation that 32 lanes have at hand
constexpr uint32_t max_encoded_rotation = 256;

// that is undone before values are coded, 0 for none
uint32_t rotation_of(const cachegen::lcg3::plane_record & plane);

// what launches are told of a plane's source; the indexes are 0
encode_plane describe_source(const cachegen::lcg3::source_plane & plane, const cachegen_rows & rows);

// adjacent groups that 32 lanes need for a rotation
inline uint32_t side_of(uint32_t rotation) {
    return rotation <= 32 ? 1 : rotation / 32;
}

// shared memory of a workgroup that counts pairs: their counters, and classes
inline uint64_t pairs_bytes(uint64_t n_counters) {
    return n_counters * sizeof(uint32_t) + 64;
}

// shared memory of a group of lanes that counts symbols: see channel_counters
inline uint64_t run_bytes(uint32_t n_symbols, uint32_t n_side) {
    return uint64_t{ 32 } * n_side * ((2 * n_symbols + 3) / 4) * sizeof(uint32_t);
}

// shared memory of a workgroup that encodes with a set
inline uint64_t encode_shared_bytes(const encode_set_shape & set, uint32_t n_side,
                                    uint32_t n_groups = encode_groups_a_workgroup) {
    return uint64_t{ n_groups } * n_side * chunk_bytes + uint64_t{ set.n_entries } * sizeof(encode_entry) + 64;
}

// of a workgroup, and of each of its groups of lanes
struct count_bytes {
    uint64_t workgroup;
    uint64_t group;
};

// shared memory of a counting launch
inline count_bytes count_shared_bytes(const encode_buffers & in, uint32_t n_side) {
    return in.class_of != nullptr ? count_bytes{ pairs_bytes(in.set.n_entries), 0 }
                                  : count_bytes{ 0, run_bytes(in.set.n_symbols, n_side) };
}

} // namespace kernels
