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

// what jobs are made of, of sources that one kernel reads
struct jobs_of_kernel {
    uint32_t               source;
    uint32_t               n_side;
    std::vector<group_job> tiles;
    std::vector<group_job> groups;
};

jobs_of_kernel & jobs_for(std::vector<jobs_of_kernel> & all, uint32_t source, uint32_t n_side) {
    for (auto & one : all) {
        if (one.source == source && one.n_side == n_side) {
            return one;
        }
    }
    return all.emplace_back(jobs_of_kernel{ source, n_side, {}, {} });
}

// jobs that count stretches [first, end) of a plane, in runs of about the same length
void add_runs(std::vector<encode_plane> & stretches, uint32_t first, uint32_t end, uint32_t n_side,
              std::vector<group_job> & jobs) {
    const uint32_t n      = end - first;
    const uint32_t n_runs = (n + max_run_stretches - 1) / max_run_stretches;
    for (uint32_t i = 0; i < n_runs; i++) {
        encode_plane & head = stretches[first + n * i / n_runs];
        head.n_stretches    = n * (i + 1) / n_runs - n * i / n_runs;
        for (uint32_t group = 0; group < head.n_groups; group += n_side) {
            jobs.push_back({ first + n * i / n_runs, group });
        }
    }
}

} // namespace

bool sample_counter::can_count(const lcg3::sampled_set & set) const {
    uint64_t n_values = 0;
    uint64_t n_counts = 0;
    for (const uint32_t p : *set.planes) {
        const auto & plane = (*set.page)[p];
        const auto & rows  = rows_[p];
        if (rows.data == nullptr || plane.dictionary != nullptr || rotation_of(plane.record) > max_encoded_rotation ||
            rows.stride_bytes > UINT32_MAX ||
            run_bytes(set.n_symbols, side_of(rotation_of(plane.record))) > device_.shared_bytes()) {
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

// tell the device of a set's sample
void sample_counter::describe(const lcg3::sampled_set & set) {
    std::vector<encode_plane>   stretches;
    std::vector<uint32_t>       cells;
    std::vector<jobs_of_kernel> all_jobs;
    uint32_t                    n_channels = 0;
    for (const uint32_t p : *set.planes) {
        const auto &   plane  = (*set.page)[p];
        const auto &   rows   = rows_[p];
        const uint32_t n_side = side_of(rotation_of(plane.record));
        auto &         jobs   = jobs_for(all_jobs, store_of(rows), n_side);
        const auto     first  = static_cast<uint32_t>(stretches.size());
        for (const auto & [first_token, n_chunk] : *set.chunks) {
            const uint64_t begin = std::max<uint64_t>(first_token, plane.record.first_token);
            const uint64_t end   = first_token + n_chunk;
            if (begin >= end) {
                continue;
            }
            const auto   n     = static_cast<uint32_t>(end - begin);
            const auto   index = static_cast<uint32_t>(stretches.size());
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
            stretches.push_back(job);
            for (uint32_t row = 0; row < n; row += scale_tokens) {
                jobs.tiles.push_back({ index, row });
            }
        }
        add_runs(stretches, first, static_cast<uint32_t>(stretches.size()), n_side, jobs.groups);
        n_channels += plane.record.n_channels;
    }

    packer         constants;
    const uint64_t stretches_at = constants.add(stretches);
    const uint64_t cells_at     = constants.add(cells);
    sources_.clear();
    for (const auto & one : all_jobs) {
        const uint64_t tiles  = constants.add(one.tiles);
        const uint64_t groups = constants.add(one.groups);
        sources_.push_back({ one.source,
                             one.n_side,
                             { tiles, static_cast<uint32_t>(one.tiles.size()) },
                             { groups, static_cast<uint32_t>(one.groups.size()) } });
    }
    n_channels_ = n_channels;
    n_scales_   = stretches.size() * sample_tokens;
    space          memory;
    const uint64_t constants_at = memory.add(constants.bytes().size());
    const uint64_t scales_at    = memory.add(n_scales_ * sizeof(uint32_t));
    const uint64_t begin        = sample_.at_least(memory.n_bytes() + 16);
    for (auto & one : sources_) {
        one.tiles.address += begin + constants_at;
        one.groups.address += begin + constants_at;
    }
    device_.upload(begin + constants_at, constants.bytes().data(), constants.bytes().size());
    device_.clear(begin + scales_at, n_scales_ * sizeof(uint32_t));

    buffers_               = {};
    buffers_.planes        = at<const encode_plane>(begin + constants_at + stretches_at);
    buffers_.page_end      = sample_tokens;
    buffers_.block_tokens  = sample_tokens;
    buffers_.cells         = at<const uint32_t>(begin + constants_at + cells_at);
    buffers_.scales        = at<uint32_t>(begin + scales_at);
    buffers_.set.n_symbols = set.n_symbols;
}

void sample_counter::launch(encode_kind kind) {
    for (const auto & one : sources_) {
        const job_list & jobs = kind == encode_kind::scales ? one.tiles : one.groups;
        buffers_.groups       = at<const group_job>(jobs.address);
        buffers_.n_jobs       = jobs.n_jobs;
        if (jobs.n_jobs > 0) {
            device_.launch_encode({ kind, one.source, one.n_side, 0, 0, jobs.n_jobs }, buffers_);
        }
    }
}

// room for n_counts counters, which are 0, in front of n_more_bytes; returns its address
uint64_t sample_counter::clear_counts(uint64_t n_counts, uint64_t n_more_bytes) {
    const uint64_t n_bytes = n_counts * sizeof(uint32_t);
    const uint64_t address = counts_.at_least(n_bytes + n_more_bytes);
    device_bytes_          = std::max(device_bytes_, sample_.n_bytes() + counts_.n_bytes());
    device_.clear(address, n_bytes);
    buffers_.counts = at<uint32_t>(address);
    return address;
}

bool sample_counter::count_symbols(const lcg3::sampled_set & set, lcg3::channel_counts & counts) {
    has_scales_ = false;
    if (!can_count(set)) {
        return false;
    }
    describe(set);
    const uint64_t counts_at = clear_counts(counts.counts.size(), 0);
    launch(encode_kind::scales);
    launch(encode_kind::count);
    std::vector<uint32_t> scales(n_scales_);
    device_.download(scales.data(), reinterpret_cast<uint64_t>(buffers_.scales), scales.size() * sizeof(uint32_t));
    has_scales_ = std::none_of(scales.begin(), scales.end(), [](uint32_t bits) { return bits >= scale_too_large; });
    if (has_scales_) {
        device_.download(counts.counts.data(), counts_at, counts.counts.size() * sizeof(uint32_t));
    }
    return has_scales_;
}

bool sample_counter::count_pairs(const lcg3::sampled_set & set, const uint8_t * models, const uint8_t * class_of,
                                 uint32_t n_classes, uint32_t n_models, uint64_t * pairs) {
    if (!has_scales_) {
        return false;
    }
    std::vector<uint32_t> counts(size_t{ n_models } * n_classes * set.n_symbols);
    const bool            fits = pairs_bytes(counts.size()) <= device_.shared_bytes();
    packer                constants;
    const uint64_t        models_at    = constants.add(models, n_channels_);
    const uint64_t        class_at     = constants.add(class_of, lcg3::max_symbols);
    const uint64_t        counts_at    = clear_counts(counts.size(), constants.bytes().size() + 16);
    const uint64_t        constants_at = (counts_at + counts.size() * sizeof(uint32_t) + 15) / 16 * 16;
    device_.upload(constants_at, constants.bytes().data(), constants.bytes().size());
    buffers_.models        = at<const uint8_t>(constants_at + models_at);
    buffers_.class_of      = at<const uint8_t>(constants_at + class_at);
    buffers_.set.n_classes = n_classes;
    buffers_.set.n_entries = fits ? static_cast<uint32_t>(counts.size()) : 0;
    launch(encode_kind::count);
    device_.download(counts.data(), counts_at, counts.size() * sizeof(uint32_t));
    std::copy(counts.begin(), counts.end(), pairs);
    return true;
}

void sample_counter::release() {
    has_scales_ = false;
    sample_.release();
    counts_.release();
}

} // namespace kernels
