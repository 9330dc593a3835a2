#include "decode_plan.h"

#include "bit_pack.h"
#include "native_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kernels {

namespace {

using namespace cachegen;
using ull = unsigned long long;

constexpr uint32_t max_side    = 8;    // adjacent groups that 32 lanes decode
constexpr uint64_t spare_bytes = 2048; // of shared memory, to align it

// adjacent groups that 32 lanes decode; F16 with one group a lane is for values that are ready when their symbol is
// known
uint32_t n_side_of(uint32_t store, uint32_t rotation) {
    return std::max(store == store_f16 && rotation != 0 ? 2u : 1u, rotation / 32);
}

device_set make_set(const lcg3::symbol_set & set) {
    device_set result{};
    result.shape.n_models       = set.tables.n_models;
    result.shape.n_classes      = set.tables.n_classes;
    result.shape.log2_n_buckets = set.tables.log2_n_buckets;
    result.shape.initial_class  = set.tables.initial_class;
    result.shape.n_symbols      = set.tables.n_symbols;
    result.shape.n_entries      = static_cast<uint32_t>(set.buckets.size());
    const uint32_t width        = lcg3::prob_scale >> set.tables.log2_n_buckets;
    const auto     half         = [&](uint32_t bits, uint32_t upper) {
        const uint32_t symbol = lcg3::half_symbol(bits);
        return lcg3::half_frequency(bits) | symbol << 11 | uint32_t{ set.tables.class_of[symbol] } << 17 | upper << 22;
    };
    for (const lcg3::bucket bucket : set.buckets) {
        const auto     own     = static_cast<uint32_t>(bucket);
        const auto     alias   = static_cast<uint32_t>(bucket >> 32);
        // libcachegen's divider 0: both halves are the same symbol
        const bool     is_one  = own == alias;
        const uint32_t divider = is_one ? width : lcg3::half_divider(own);
        const uint32_t rank    = is_one ? 0 : (lcg3::half_addend(alias) + divider) & 1023;
        result.table.push_back(uint64_t{ half(alias, rank) } << 32 | half(own, divider));
    }
    memcpy(result.values, set.values, sizeof(result.values));
    return result;
}

} // namespace

decode_plan::decode_plan(const lcg3::archive & archive, uint64_t first_token, uint64_t n_tokens,
                         const std::vector<cachegen_lcg3_destination> & destinations)
    : archive_(archive), destinations_(destinations),
      request_(lcg3::make_request(archive, first_token, n_tokens, destinations_.data())) {
    for (const auto & set : archive.sets) {
        sets_.push_back(make_set(set));
    }
    plane_models_.resize(archive.head.n_planes);
    for (const uint32_t p : request_.wanted) {
        const auto &            plane = archive.planes[p];
        const auto &            rows  = destinations_[p].rows;
        const lcg3::token_range range = request_.range(p);
        if (rows.stride_bytes > UINT32_MAX) {
            fail(CACHEGEN_ERR_UNSUPPORTED,
                 "plane %u: a destination with %llu bytes from row to row, or channel to channel", p,
                 (ull) rows.stride_bytes);
        }
        plane_models_[p] = static_cast<uint32_t>(models_.size());
        if (archive.models[p] != nullptr) {
            models_.insert(models_.end(), archive.models[p], archive.models[p] + plane.n_channels);
        }
        wanted_.push_back({ p, range.first, range.first + range.n, cells_.add(rows.cells, range.n) });
    }
}

bool decode_plan::is_fused(const wanted_plane & wanted, const device_limits & limits) const {
    const auto & plane = archive_.planes[wanted.plane];
    if (static_cast<lcg3::plane_mode>(plane.mode) != lcg3::plane_mode::lossy) {
        return false;
    }
    const uint32_t from     = lcg3::coded_rotation(plane);
    const uint32_t to       = destinations_[wanted.plane].n_rot;
    const uint32_t rotation = std::max(from, to);
    // one rotation at most, and one that 32 lanes have at hand
    if (from != to && ((from != 0 && to != 0) || rotation > 32 * max_side)) {
        return false;
    }
    const uint32_t store       = store_of(destinations_[wanted.plane].rows);
    const uint64_t group_bytes = decode_group_bytes(store, n_side_of(store, from != to ? rotation : 0));
    if (limits.has_memory_tables) {
        return group_bytes <= limits.shared_bytes;
    }
    const uint64_t table_bytes = uint64_t{ sets_[plane.set].shape.n_entries } * sizeof(table_entry);
    return spare_bytes + table_bytes + limits.decode_groups * group_bytes <= limits.shared_bytes;
}

uint64_t decode_plan::largest_scratch() const {
    uint64_t largest = 0;
    for (const auto & wanted : wanted_) {
        const auto & plane = archive_.planes[wanted.plane];
        const auto   mode  = static_cast<lcg3::plane_mode>(plane.mode);
        if (mode != lcg3::plane_mode::raw) {
            const uint32_t type = mode == lcg3::plane_mode::lossy ? uint32_t{ CACHEGEN_TYPE_F32 } : plane.type;
            largest             = std::max(largest, native_bytes(type, plane.n_channels) * archive_.head.block_tokens);
        }
    }
    return largest;
}

bool decode_plan::needs_scratch(const device_limits & limits) const {
    return std::any_of(wanted_.begin(), wanted_.end(), [&](const wanted_plane & w) { return !is_fused(w, limits); });
}

bool decode_plan::has_tokens_of(uint32_t block) const {
    const auto [first, end] = request_.blocks();
    return block >= first && block < end;
}

std::vector<uint32_t> decode_plan::unit_planes(uint32_t block) const {
    std::vector<uint32_t> result;
    if (!has_tokens_of(block)) {
        return result;
    }
    for (const auto & wanted : wanted_) {
        if (archive_.unit_n_tokens(block, wanted.plane) > 0) {
            result.push_back(wanted.plane);
        }
    }
    return result;
}

unit_job decode_plan::describe(const wanted_plane & wanted, uint64_t first_token, uint32_t n_rows) const {
    const auto & plane = archive_.planes[wanted.plane];
    const auto & to    = destinations_[wanted.plane];
    unit_job     unit{};
    unit.dest            = reinterpret_cast<uint64_t>(to.rows.data);
    unit.dest_stride     = static_cast<uint32_t>(to.rows.stride_bytes);
    unit.n_rows          = n_rows;
    unit.n_channels      = plane.n_channels;
    unit.n_groups        = (plane.n_channels + 31) / 32;
    unit.native_type     = plane.type;
    const uint64_t begin = std::max(first_token, wanted.first_token);
    const uint64_t end   = std::min(first_token + n_rows, wanted.end_token);
    unit.first_row       = static_cast<uint32_t>(begin - std::min(begin, first_token));
    unit.end_row         = static_cast<uint32_t>(end - std::min(end, first_token));
    unit.cells           = wanted.cells + static_cast<uint32_t>(begin - wanted.first_token);
    unit.undo_rotation   = plane.n_rot != to.n_rot ? plane.n_rot : 0;
    unit.apply_rotation  = plane.n_rot != to.n_rot ? to.n_rot : 0;
    unit.is_same         = plane.type == to.rows.type && plane.n_rot == to.n_rot;
    return unit;
}

void decode_plan::add_exact_rows(part_plan & plan, const lcg3::payload & bytes, uint64_t bytes_address) const {
    uint64_t                            offset = archive_.exact_offset;
    std::vector<std::vector<group_job>> by_store(n_store_kinds);
    auto                                wanted = wanted_.begin();
    for (uint32_t p = 0; p < archive_.head.n_planes && wanted != wanted_.end(); p++) {
        const auto &   plane     = archive_.planes[p];
        const uint64_t row_bytes = native_bytes(plane.type, plane.n_channels);
        const uint32_t n_rows    = archive_.n_exact_rows(p);
        if (wanted->plane == p) {
            unit_job unit = describe(*wanted, plane.first_token, n_rows);
            unit.native   = bytes_address + (offset - bytes.offset);
            for (uint32_t row = unit.first_row; row < unit.end_row; row++) {
                by_store[store_of(destinations_[p].rows)].push_back({ static_cast<uint32_t>(plan.units.size()), row });
            }
            plan.units.push_back(unit);
            ++wanted;
        }
        offset += n_rows * row_bytes;
    }
    for (uint32_t store = 0; store < n_store_kinds; store++) {
        if (!by_store[store].empty()) {
            plan.launches.push_back({ launch_kind::place, store, 0, 0, static_cast<uint32_t>(plan.groups.size()),
                                      static_cast<uint32_t>(by_store[store].size()) });
            plan.groups.insert(plan.groups.end(), by_store[store].begin(), by_store[store].end());
        }
    }
}

void decode_plan::add_block(part_plan & plan, const lcg3::payload & bytes, uint64_t bytes_address,
                            const device_limits & limits) const {
    struct kind_jobs {
        planned_launch         launch;
        std::vector<group_job> groups;
    };
    std::vector<kind_jobs> direct; // in any order
    std::vector<kind_jobs> staged; // in turn: they share the scratch
    uint64_t               scratch_used = 0;
    size_t                 batch_begin  = 0;
    const auto             jobs_of = [](std::vector<kind_jobs> & all, size_t from, launch_kind kind, uint32_t store,
                                        uint32_t n_side, uint32_t set) -> std::vector<group_job> & {
        for (size_t i = from; i < all.size(); i++) {
            const auto & l = all[i].launch;
            if (l.kind == kind && l.store == store && l.n_side == n_side && l.set == set) {
                return all[i].groups;
            }
        }
        all.push_back({ { kind, store, n_side, set, 0, 0 }, {} });
        return all.back().groups;
    };
    for (const auto & wanted : wanted_) {
        const uint32_t p      = wanted.plane;
        const auto &   plane  = archive_.planes[p];
        const auto     mode   = static_cast<lcg3::plane_mode>(plane.mode);
        const uint32_t n_rows = archive_.unit_n_tokens(plan.block, p);
        const uint32_t from   = archive_.unit_first_token(plan.block, p);
        const uint32_t store  = store_of(destinations_[p].rows);
        const auto     index  = static_cast<uint32_t>(plan.units.size());
        if (n_rows == 0) {
            continue;
        }
        unit_job unit     = describe(wanted, from, n_rows);
        unit.bytes_offset = archive_.unit_begin(plan.block, p) - bytes.offset;
        if (mode == lcg3::plane_mode::raw) {
            lcg3::check_raw_unit(archive_, bytes, plan.block, p);
            unit.native = bytes_address + unit.bytes_offset;
            for (uint32_t row = unit.first_row; row < unit.end_row; row++) {
                jobs_of(direct, 0, launch_kind::place, store, 0, 0).push_back({ index, row });
            }
            plan.units.push_back(unit);
            continue;
        }
        const lcg3::unit_view view = lcg3::parse_unit(archive_, bytes, plan.block, p);
        lcg3::check_scales(archive_, view, plan.block, p);
        const uint8_t * const begin = bytes.at(archive_.unit_begin(plan.block, p));
        unit.scales_offset          = static_cast<uint32_t>(view.packed_scales - begin);
        unit.raw_offset             = static_cast<uint32_t>(view.packed_raw - begin);
        unit.words_offset           = static_cast<uint32_t>(view.group_words[0] - begin);
        unit.scale_base             = view.scale_base;
        unit.scale_bits             = view.scale_bits;
        unit.n_scales_a_row         = view.n_scales_a_row;
        unit.scale_type             = plane.scale_type;
        unit.raw_bits               = plane.raw_bits;
        unit.is_exact               = mode == lcg3::plane_mode::exact;
        unit.models                 = plane_models_[p];
        unit.group_words            = static_cast<uint32_t>(plan.group_words.size());
        for (const uint8_t * words : view.group_words) {
            plan.group_words.push_back(static_cast<uint32_t>((words - view.group_words[0]) / 2));
        }
        if (is_fused(wanted, limits)) {
            const uint32_t rotation = lcg3::coded_rotation(plane) != destinations_[p].n_rot
                                          ? std::max(lcg3::coded_rotation(plane), destinations_[p].n_rot)
                                          : 0;
            unit.undo_rotation      = 0;
            unit.apply_rotation     = rotation;
            unit.rotation_factor    = rotation ? 1.0f / std::sqrt(static_cast<float>(rotation)) : 0;
            const uint32_t n_side   = n_side_of(store, rotation);
            auto &         jobs     = jobs_of(direct, 0, launch_kind::decode, store, n_side, plane.set);
            for (uint32_t group = 0; group < unit.n_groups; group += n_side) {
                jobs.push_back({ index, group });
            }
        } else {
            if (mode == lcg3::plane_mode::lossy) {
                unit.native_type             = CACHEGEN_TYPE_F32;
                const uint32_t from_rotation = lcg3::coded_rotation(plane);
                unit.undo_rotation           = from_rotation != destinations_[p].n_rot ? from_rotation : 0;
                unit.apply_rotation          = from_rotation != destinations_[p].n_rot ? destinations_[p].n_rot : 0;
                unit.is_same =
                    destinations_[p].rows.type == CACHEGEN_TYPE_F32 && from_rotation == destinations_[p].n_rot;
            }
            const uint64_t needed = (native_bytes(unit.native_type, plane.n_channels) * n_rows + 15) / 16 * 16;
            if (scratch_used + needed > limits.scratch_bytes) {
                batch_begin  = staged.size();
                scratch_used = 0;
            }
            unit.native = limits.scratch + scratch_used;
            scratch_used += needed;
            // all of a batch's expands before its places
            auto & expands = jobs_of(staged, batch_begin, launch_kind::expand, 0, 0, plane.set);
            for (uint32_t group = 0; group < unit.n_groups; group++) {
                expands.push_back({ index, group });
            }
            auto & places = jobs_of(staged, batch_begin, launch_kind::place, store, 0, 0);
            for (uint32_t row = unit.first_row; row < unit.end_row; row++) {
                places.push_back({ index, row });
            }
            std::stable_partition(staged.begin() + static_cast<std::ptrdiff_t>(batch_begin), staged.end(),
                                  [](const kind_jobs & k) { return k.launch.kind == launch_kind::expand; });
        }
        plan.units.push_back(unit);
    }
    for (auto * all : { &direct, &staged }) {
        for (auto & one : *all) {
            one.launch.first_group_job = static_cast<uint32_t>(plan.groups.size());
            one.launch.n_group_jobs    = static_cast<uint32_t>(one.groups.size());
            if (one.launch.n_group_jobs > 0) {
                plan.launches.push_back(one.launch);
            }
            plan.groups.insert(plan.groups.end(), one.groups.begin(), one.groups.end());
        }
    }
}

part_plan decode_plan::plan(uint32_t part, const lcg3::payload & bytes, uint64_t bytes_address,
                            const device_limits & limits) const {
    part_plan plan;
    if (part == 0) {
        if (request_.has_exact_rows()) {
            add_exact_rows(plan, bytes, bytes_address);
        }
        return plan;
    }
    plan.block = part - 1;
    if (has_tokens_of(plan.block)) {
        add_block(plan, bytes, bytes_address, limits);
    }
    return plan;
}

} // namespace kernels
