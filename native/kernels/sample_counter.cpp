#include "sample_counter.h"

#include "packer.h"
#include "status.h"

#include <algorithm>
#include <cmath>

namespace kernels {

using namespace cachegen;

namespace {

template <typename T> T * at(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

// memory of a device while a sample is counted
class held_memory {
  public:
    held_memory(device & device, uint64_t n_bytes) : device_(device), address_(device.allocate(n_bytes)) {}
    ~held_memory() {
        try {
            device_.wait();
        } catch (const error &) {
            // the memory goes all the same
        }
        device_.release(address_);
    }
    held_memory(const held_memory &)             = delete;
    held_memory & operator=(const held_memory &) = delete;

    uint64_t address() const { return address_; }

  private:
    device & device_;
    uint64_t address_;
};

} // namespace

bool sample_counter::can_count(const lcg3::sampled_set & set) const {
    uint64_t n_values = 0;
    uint64_t n_counts = 0;
    for (const uint32_t p : *set.planes) {
        const auto & plane = (*set.page)[p];
        const auto & rows  = rows_[p];
        if (rows.data == nullptr || plane.dictionary != nullptr || rotation_of(plane.record) > max_encoded_rotation ||
            rows.stride_bytes > UINT32_MAX) {
            return false;
        }
        n_counts += uint64_t{ 2 } * set.n_symbols * plane.record.n_channels;
        for (const auto & [first_token, n_tokens] : *set.chunks) {
            if (n_tokens > sample_tokens) {
                return false;
            }
            n_values += uint64_t{ n_tokens } * plane.record.n_channels;
        }
    }
    // 32 bits a counter, and the lists of jobs are to stay small
    return n_values < UINT32_MAX && n_counts < UINT32_MAX && set.chunks->size() * set.planes->size() <= 1 << 16;
}

// class_of: NULL to count symbols and distances. False: values have no scale, and counts are as they were.
bool sample_counter::count(const lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
                           uint32_t n_classes, uint32_t * counts, uint64_t n_counts) {
    struct launch_jobs {
        uint32_t               source;
        uint32_t               n_side;
        std::vector<group_job> tiles;
        std::vector<group_job> groups;
    };
    std::vector<encode_plane> planes;
    std::vector<uint32_t>     cells;
    std::vector<launch_jobs>  launches;
    uint32_t                  n_channels = 0;
    for (const uint32_t p : *set.planes) {
        const auto &   plane  = (*set.page)[p];
        const auto &   rows   = rows_[p];
        const uint32_t source = store_of(rows);
        const uint32_t n_side = side_of(rotation_of(plane.record));
        auto           jobs   = std::find_if(launches.begin(), launches.end(),
                                             [&](const auto & l) { return l.source == source && l.n_side == n_side; });
        if (jobs == launches.end()) {
            jobs = launches.insert(launches.end(), { source, n_side, {}, {} });
        }
        for (const auto & [first_token, n_chunk] : *set.chunks) {
            const uint64_t begin = std::max<uint64_t>(first_token, plane.record.first_token);
            const uint64_t end   = first_token + n_chunk;
            if (begin >= end) {
                continue;
            }
            const auto   n     = static_cast<uint32_t>(end - begin);
            const auto   index = static_cast<uint32_t>(planes.size());
            encode_plane job   = describe_source(plane, rows);
            // its tokens are the last of a block of sample_tokens
            job.first_token    = sample_tokens - n;
            job.cells          = static_cast<uint32_t>(cells.size());
            job.scales         = index * sample_tokens;
            job.models         = n_channels;
            job.counts         = 2 * set.n_symbols * n_channels;
            for (uint64_t t = begin; t < end; t++) {
                const uint64_t row = t - plane.record.first_token;
                cells.push_back(rows.cells != nullptr ? rows.cells[row] : static_cast<uint32_t>(row));
            }
            planes.push_back(job);
            for (uint32_t row = 0; row < n; row += scale_tokens) {
                jobs->tiles.push_back({ index, row });
            }
            for (uint32_t group = 0; group < job.n_groups; group += n_side) {
                jobs->groups.push_back({ index, group });
            }
        }
        n_channels += plane.record.n_channels;
    }

    packer                constants;
    const uint64_t        planes_at = constants.add(planes);
    const uint64_t        cells_at  = constants.add(cells);
    std::vector<uint64_t> jobs_at;
    for (const auto & one : launches) {
        jobs_at.push_back(constants.add(one.tiles));
        jobs_at.push_back(constants.add(one.groups));
    }
    const uint64_t        models_at = constants.add(models, models != nullptr ? n_channels : 0);
    const uint64_t        class_at  = constants.add(class_of, class_of != nullptr ? lcg3::max_symbols : 0);
    space                 work;
    const uint64_t        n_constants = work.add(constants.bytes().size());
    const uint64_t        counts_at   = work.add(n_counts * sizeof(uint32_t));
    const uint64_t        scales_at   = work.add(planes.size() * sample_tokens * sizeof(uint32_t));
    const held_memory     memory(device_, work.n_bytes() + 16);
    const uint64_t        begin = memory.address() + n_constants;
    std::vector<uint32_t> scales(planes.size() * sample_tokens);
    device_bytes_ = std::max(device_bytes_, work.n_bytes());
    device_.upload(begin, constants.bytes().data(), constants.bytes().size());
    device_.clear(memory.address() + counts_at, n_counts * sizeof(uint32_t));
    device_.clear(memory.address() + scales_at, scales.size() * sizeof(uint32_t));

    encode_buffers in{};
    in.planes        = at<const encode_plane>(begin + planes_at);
    in.page_end      = sample_tokens;
    in.block_tokens  = sample_tokens;
    in.cells         = at<const uint32_t>(begin + cells_at);
    in.models        = at<const uint8_t>(begin + models_at);
    in.class_of      = class_of != nullptr ? at<const uint8_t>(begin + class_at) : nullptr;
    in.scales        = at<uint32_t>(memory.address() + scales_at);
    in.counts        = at<uint32_t>(memory.address() + counts_at);
    in.set.n_symbols = set.n_symbols;
    in.set.n_classes = n_classes;
    for (size_t i = 0; i < launches.size(); i++) {
        const auto & one = launches[i];
        for (const bool is_scales : { true, false }) {
            const auto & jobs = is_scales ? one.tiles : one.groups;
            in.groups         = at<const group_job>(begin + jobs_at[2 * i + (is_scales ? 0 : 1)]);
            in.n_jobs         = static_cast<uint32_t>(jobs.size());
            if (in.n_jobs > 0) {
                device_.launch_encode(
                    { is_scales ? encode_kind::scales : encode_kind::count, one.source, one.n_side, 0, 0, in.n_jobs },
                    in);
            }
        }
    }
    device_.download(scales.data(), memory.address() + scales_at, scales.size() * sizeof(uint32_t));
    if (std::any_of(scales.begin(), scales.end(), [](uint32_t bits) { return bits >= scale_too_large; })) {
        return false;
    }
    device_.download(counts, memory.address() + counts_at, n_counts * sizeof(uint32_t));
    return true;
}

bool sample_counter::count_symbols(const lcg3::sampled_set & set, lcg3::channel_counts & counts) {
    return can_count(set) && count(set, nullptr, nullptr, 0, counts.counts.data(), counts.counts.size());
}

bool sample_counter::count_pairs(const lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
                                 uint32_t n_classes, uint32_t n_models, uint64_t * pairs) {
    std::vector<uint32_t> counted(size_t{ n_models } * n_classes * set.n_symbols);
    if (!can_count(set) || !count(set, models, class_of, n_classes, counted.data(), counted.size())) {
        return false;
    }
    std::copy(counted.begin(), counted.end(), pairs);
    return true;
}

} // namespace kernels
