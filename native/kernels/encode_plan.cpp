#include "encode_plan.h"

#include "status.h"
#include "typed_store.h"

#include <algorithm>
#include <cmath>

namespace kernels {

namespace {

using namespace cachegen;
using ull = unsigned long long;

constexpr uint64_t values_a_wave   = 16 << 20; // of planes that the device does not encode
constexpr uint64_t max_cells       = 1 << 28;
constexpr double   bits_if_unknown = 4;
constexpr double   most_bits       = 10.01; // a symbol of frequency 1, and what rounding adds
// more than the sample's bits: a wave is planned with the first, gets memory with the second
constexpr double   planned_margin  = 1.125;
constexpr double   memory_margin   = 1.4;
// A launch has so many groups of lanes if it can; a page takes so many waves at least, one of which is written while
// the next one is made.
constexpr uint32_t wanted_groups   = 4096;
constexpr uint32_t least_waves     = 4;

uint32_t n_groups_of(const lcg3::plane_record & plane) {
    return (plane.n_channels + 31) / 32;
}

encode_set make_set(const lcg3::set_encoder & encoder) {
    encode_set result{};
    result.shape.n_entries     = static_cast<uint32_t>(encoder.symbols.size());
    result.shape.n_classes     = encoder.n_classes;
    result.shape.log2_stride   = encoder.log2_stride;
    result.shape.initial_class = encoder.initial_class;
    for (const auto & symbol : encoder.symbols) {
        result.table.push_back(uint64_t{ symbol.first_slot } << 48 | uint64_t{ symbol.frequency } << 32 |
                               symbol.reciprocal);
    }
    result.slots.assign(encoder.slots.begin(), encoder.slots.end());
    result.class_of.assign(encoder.class_of, encoder.class_of + sizeof(encoder.class_of));
    return result;
}

} // namespace

uint32_t rotation_of(const lcg3::plane_record & plane) {
    return plane.flags & lcg3::plane_flag_unrotated ? plane.n_rot : 0;
}

encode_plane describe_source(const lcg3::source_plane & plane, const cachegen_rows & rows) {
    encode_plane job{};
    job.data            = reinterpret_cast<uint64_t>(rows.data);
    job.stride          = static_cast<uint32_t>(rows.stride_bytes);
    job.first_token     = plane.record.first_token;
    job.n_channels      = plane.record.n_channels;
    job.n_groups        = n_groups_of(plane.record);
    job.scale_type      = plane.record.scale_type;
    job.is_fp16         = plane.record.type == CACHEGEN_TYPE_F16;
    job.rotation        = rotation_of(plane.record);
    job.rotation_factor = job.rotation ? 1.0f / std::sqrt(static_cast<float>(job.rotation)) : 0;
    return job;
}

encode_plan::encode_plan(const lcg3::trained_page & page, const std::vector<cachegen_rows> & rows,
                         const encode_limits & limits)
    : page_(page), block_rows_(std::min(page.block_tokens, page.n_tokens - page.n_exact_tokens)) {
    if (rows.size() != page.planes.size()) {
        fail(CACHEGEN_ERR_ARGUMENT, "rows of %zu planes, the page has %zu", rows.size(), page.planes.size());
    }
    cost     wave_cost{};
    uint64_t n_values = 0; // left to libcachegen
    for (uint32_t p = 0; p < rows.size(); p++) {
        const bool is_encoded = can_encode(p, rows[p], limits);
        const cost of_plane   = is_encoded ? expected(p, planned_margin) : cost{};
        if (waves_.empty() || n_values >= values_a_wave ||
            wave_cost.pool_bytes + of_plane.pool_bytes > limits.pool_bytes ||
            wave_cost.output_bytes + of_plane.output_bytes > limits.output_bytes) {
            waves_.push_back({ p, p, static_cast<uint32_t>(planes_.size()), {}, {} });
            wave_cost   = {};
            wave_sizes_ = {};
            n_values    = 0;
        }
        encode_wave & wave = waves_.back();
        wave.end_plane     = p + 1;
        if (is_encoded) {
            wave_cost.pool_bytes += of_plane.pool_bytes;
            wave_cost.output_bytes += of_plane.output_bytes;
            add_plane(wave, p, rows[p]);
        } else {
            n_values += uint64_t{ block_rows_ } * page.planes[p].source->record.n_channels;
        }
    }
    if (waves_.size() == 1 && wave_cost.pool_bytes > 0) {
        // launches of one block do not fill a device
        const uint64_t n_groups = std::max<uint64_t>(1, wave_sizes_.n_groups);
        const uint64_t n_blocks =
            std::min({ limits.pool_bytes / wave_cost.pool_bytes, limits.output_bytes / wave_cost.output_bytes,
                       (wanted_groups + n_groups - 1) / n_groups, uint64_t{ page.n_blocks / least_waves } });
        blocks_a_wave_ = std::max(1u, static_cast<uint32_t>(n_blocks));
        if (uint64_t{ page.n_tokens } + uint64_t{ blocks_a_wave_ } * page.block_tokens > UINT32_MAX) {
            blocks_a_wave_ = 1; // tokens are counted in 32 bits
        }
        add_blocks(waves_[0], blocks_a_wave_);
    }
    for (auto & wave : waves_) {
        cost with_margin{};
        cost most{};
        for (const uint32_t p : wave.planes) {
            const cost a = expected(p, memory_margin);
            const cost b = expected(p, 0);
            with_margin.pool_bytes += a.pool_bytes * blocks_a_wave_;
            with_margin.output_bytes += a.output_bytes * blocks_a_wave_;
            most.pool_bytes += b.pool_bytes * blocks_a_wave_;
            most.output_bytes += b.output_bytes * blocks_a_wave_;
        }
        sizes_.n_chunks = std::max(
            sizes_.n_chunks, std::min({ with_margin.pool_bytes, most.pool_bytes, limits.pool_bytes }) / chunk_bytes);
        sizes_.output_bytes = std::max(sizes_.output_bytes,
                                       std::min({ with_margin.output_bytes, most.output_bytes, limits.output_bytes }));
        add_jobs(wave);
    }
}

bool encode_plan::can_encode(uint32_t p, const cachegen_rows & rows, const encode_limits & limits) {
    const auto & plane  = page_.planes[p];
    const auto & record = plane.source->record;
    if (rows.data == nullptr) {
        return false;
    }
    validate_rows(rows, "a source on a device");
    if (rows.type != record.type || rows.n_channels != record.n_channels ||
        rows.n_tokens != page_.n_tokens - record.first_token) {
        fail(CACHEGEN_ERR_MISMATCH, "plane %u: the page has %u tokens x %u channels of type %u, its rows another", p,
             page_.n_tokens - record.first_token, record.n_channels, record.type);
    }
    if (static_cast<lcg3::plane_mode>(record.mode) != lcg3::plane_mode::lossy || page_.n_blocks == 0 ||
        rotation_of(record) > max_encoded_rotation || rows.stride_bytes > UINT32_MAX ||
        cells_.all().size() + rows.n_tokens > max_cells) {
        return false;
    }
    const cost of_plane = expected(p, planned_margin);
    if (of_plane.pool_bytes > limits.pool_bytes || of_plane.output_bytes > limits.output_bytes) {
        return false;
    }
    if (limits.has_memory_tables) {
        return encode_shared_bytes({}, side_of(rotation_of(record))) / encode_groups_a_workgroup <= limits.shared_bytes;
    }
    const uint64_t table_bytes = plane.encoder->symbols.size() * sizeof(encode_entry);
    return table_bytes + encode_shared_bytes({}, side_of(rotation_of(record))) <= limits.shared_bytes;
}

// margin: by which the sample's bits are multiplied; 0: the most that any values can take
encode_plan::cost encode_plan::expected(uint32_t p, double margin) const {
    const auto &   plane    = page_.planes[p];
    const auto &   record   = plane.source->record;
    const uint64_t n_groups = n_groups_of(record);
    const double   n_values = static_cast<double>(block_rows_) * record.n_channels;
    const double   bits     = plane.bits_a_value > 0 ? plane.bits_a_value : bits_if_unknown;
    const auto     words =
        static_cast<uint64_t>(n_values * (margin > 0 ? std::min(bits * margin, most_bits) : most_bits) / 8);
    return { words + n_groups * chunk_bytes,
             words + 8 + 4 * n_groups + 4 * uint64_t{ record.n_channels } + 4 * uint64_t{ block_rows_ } + 32 };
}

uint32_t encode_plan::set_of(const lcg3::set_encoder & encoder) {
    const auto known = std::find(encoders_.begin(), encoders_.end(), &encoder);
    const auto index = static_cast<uint32_t>(known - encoders_.begin());
    if (known == encoders_.end()) {
        encoders_.push_back(&encoder);
        sets_.push_back(make_set(encoder));
    }
    return index;
}

void encode_plan::add_plane(encode_wave & wave, uint32_t p, const cachegen_rows & rows) {
    const auto & plane  = page_.planes[p];
    const auto & record = plane.source->record;
    encode_plane job    = describe_source(*plane.source, rows);
    job.cells           = cells_.add(rows.cells, rows.n_tokens);
    job.models          = static_cast<uint32_t>(models_.size());
    job.scales          = static_cast<uint32_t>(wave_sizes_.n_scales);
    job.groups          = static_cast<uint32_t>(wave_sizes_.n_groups);
    job.channels        = static_cast<uint32_t>(wave_sizes_.n_channels);
    models_.insert(models_.end(), plane.models, plane.models + record.n_channels);
    planes_.push_back(job);
    plane_sources_.push_back(store_of(rows));
    plane_sets_.push_back(set_of(*plane.encoder));
    sets_[plane_sets_.back()].shape.n_symbols = plane.source->n_symbols;
    wave.planes.push_back(p);
    wave_sizes_.n_planes++;
    wave_sizes_.n_scales += block_rows_;
    wave_sizes_.n_groups += job.n_groups;
    wave_sizes_.n_channels += record.n_channels;
    sizes_.n_planes   = std::max(sizes_.n_planes, wave_sizes_.n_planes);
    sizes_.n_scales   = std::max(sizes_.n_scales, wave_sizes_.n_scales);
    sizes_.n_groups   = std::max(sizes_.n_groups, wave_sizes_.n_groups);
    sizes_.n_channels = std::max(sizes_.n_channels, wave_sizes_.n_channels);
}

// the planes of a wave's other blocks, after those of the first
void encode_plan::add_blocks(encode_wave & wave, uint32_t n_blocks) {
    const encode_sizes of_block = wave_sizes_;
    const size_t       n        = wave.planes.size();
    for (uint32_t block = 1; block < n_blocks; block++) {
        for (size_t i = 0; i < n; i++) {
            encode_plane job = planes_[wave.first_job_plane + i];
            job.block_token  = block * page_.block_tokens;
            job.scales += block * static_cast<uint32_t>(of_block.n_scales);
            job.groups += block * static_cast<uint32_t>(of_block.n_groups);
            job.channels += block * static_cast<uint32_t>(of_block.n_channels);
            planes_.push_back(job);
            plane_sources_.push_back(plane_sources_[wave.first_job_plane + i]);
            plane_sets_.push_back(plane_sets_[wave.first_job_plane + i]);
        }
    }
    for (uint64_t encode_sizes::* one :
         { &encode_sizes::n_planes, &encode_sizes::n_scales, &encode_sizes::n_groups, &encode_sizes::n_channels }) {
        sizes_.*one = of_block.*one * n_blocks;
    }
}

void encode_plan::add_jobs(encode_wave & wave) {
    struct launch_jobs {
        encode_launch          launch;
        std::vector<group_job> jobs;
    };
    std::vector<launch_jobs> scales;
    std::vector<launch_jobs> encodes;
    const auto jobs_of = [](std::vector<launch_jobs> & all, const encode_launch & launch) -> std::vector<group_job> & {
        for (auto & one : all) {
            if (one.launch.source == launch.source && one.launch.n_side == launch.n_side &&
                one.launch.set == launch.set) {
                return one.jobs;
            }
        }
        all.push_back({ launch, {} });
        return all.back().jobs;
    };
    std::vector<group_job> groups;
    const auto             n_planes = static_cast<uint32_t>(wave.planes.size()) * blocks_a_wave_;
    for (uint32_t i = 0; i < n_planes; i++) {
        const uint32_t       index  = wave.first_job_plane + i;
        const encode_plane & plane  = planes_[index];
        const uint32_t       source = plane_sources_[index];
        const uint32_t       n_side = side_of(plane.rotation);
        auto &               tiles  = jobs_of(scales, { encode_kind::scales, source, n_side, 0, 0, 0 });
        for (uint32_t row = 0; row < block_rows_; row += scale_tokens) {
            tiles.push_back({ i, row });
        }
        auto & sides = jobs_of(encodes, { encode_kind::encode, source, n_side, plane_sets_[index], 0, 0 });
        for (uint32_t group = 0; group < plane.n_groups; group += n_side) {
            sides.push_back({ i, group });
        }
        for (uint32_t group = 0; group < plane.n_groups; group++) {
            groups.push_back({ i, group });
        }
    }
    if (wave.planes.empty()) {
        return;
    }
    std::vector<launch_jobs> all = std::move(scales);
    all.insert(all.end(), encodes.begin(), encodes.end());
    all.push_back({ { encode_kind::lay_out, 0, 0, 0, 0, n_planes }, {} });
    all.push_back({ { encode_kind::gather, 0, 0, 0, 0, 0 }, std::move(groups) });
    for (auto & one : all) {
        one.launch.first_job = static_cast<uint32_t>(jobs_.size());
        if (one.launch.kind != encode_kind::lay_out) {
            one.launch.n_jobs = static_cast<uint32_t>(one.jobs.size());
        }
        jobs_.insert(jobs_.end(), one.jobs.begin(), one.jobs.end());
        wave.launches.push_back(one.launch);
    }
}

} // namespace kernels
