#include "archive_encoder.h"

#include "native_tile.h"
#include "packer.h"
#include "status.h"
#include "typed_store.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace kernels {

using namespace cachegen;
using ull = unsigned long long;

namespace {

template <typename T> T * at(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

} // namespace

archive_encoder::archive_encoder(device & device, const std::vector<cachegen_rows> & rows, const memory_limits & limits)
    : device_(device), rows_(rows), memory_limits_(limits), counter_(device, rows_) {
    for (const auto & one : rows_) {
        validate_rows(one, "a source on a device");
    }
}

archive_encoder::~archive_encoder() {
    try {
        device_.wait();
    } catch (const error &) {
        // the memory goes all the same
    }
    release();
}

void archive_encoder::release() {
    for (uint64_t * address : { &constants_, &work_ }) {
        device_.release(*address);
        *address = 0;
    }
    for (auto & output : outputs_) {
        device_.release_host(output);
        output = nullptr;
    }
}

int32_t archive_encoder::read(void * self, uint64_t plane, uint64_t first_token, uint64_t n_tokens, void * rows) {
    auto &         encoder   = *static_cast<archive_encoder *>(self);
    const auto &   source    = encoder.rows_[plane];
    const auto     cell_of   = [&](uint64_t t) { return source.cells != nullptr ? source.cells[t] : t; };
    const uint64_t row_bytes = native_bytes(source.type, source.n_channels);
    const uint64_t element   = source.is_transposed ? native_bytes(source.type, 1) : row_bytes;
    for (uint64_t t = 0; t < n_tokens;) {
        const uint64_t cell  = cell_of(first_token + t);
        uint64_t       n_run = 1;
        while (t + n_run < n_tokens && cell_of(first_token + t + n_run) == cell + n_run) {
            n_run++;
        }
        uint8_t * const to   = static_cast<uint8_t *>(rows) + t * element;
        const uint64_t  from = reinterpret_cast<uint64_t>(source.data);
        if (source.is_transposed) {
            encoder.device_.download_2d(to, n_tokens * element, from + cell * element, source.stride_bytes,
                                        n_run * element, source.n_channels);
        } else {
            encoder.device_.download_2d(to, row_bytes, from + cell * source.stride_bytes, source.stride_bytes,
                                        row_bytes, n_run);
        }
        t += n_run;
    }
    return 0;
}

uint64_t archive_encoder::encode(const cachegen_lcg3_plane * planes, const cachegen_lcg3_options & options,
                                 const cachegen_executor * executor, const cachegen_sink & sink) {
    std::vector<cachegen_rows> sources = rows_;
    for (auto & source : sources) {
        source.data  = nullptr;
        source.cells = nullptr;
    }
    return lcg3::encode_with(*this, planes, sources.data(), sources.size(), { this, read }, options, executor, sink);
}

void archive_encoder::prepare(const lcg3::trained_page & page) {
    counter_.release(); // before there is more
    page_ = &page;
    plan_ = std::make_unique<encode_plan>(page, rows_,
                                          encode_limits{ device_.shared_bytes(), memory_limits_.pool_bytes,
                                                         memory_limits_.output_bytes, device_.has_memory_tables() });
    if (plan_->planes().empty()) {
        return;
    }
    packer         constants;
    const uint64_t planes = constants.add(plan_->planes());
    const uint64_t jobs   = constants.add(plan_->jobs());
    const uint64_t cells  = constants.add(plan_->cells());
    const uint64_t models = constants.add(plan_->models());
    for (const auto & set : plan_->sets()) {
        const uint64_t table = constants.add(set.table);
        const uint64_t slots = constants.add(set.slots);
        tables_.push_back({ table, slots, constants.add(set.class_of) });
    }
    const encode_sizes & sizes = plan_->sizes();
    space                work;
    const uint64_t       pool        = work.add(sizes.n_chunks * chunk_bytes);
    const uint64_t       next_chunk  = work.add(sizes.n_chunks * sizeof(uint32_t));
    const uint64_t       scales      = work.add(sizes.n_scales * sizeof(uint32_t));
    const uint64_t       n_words     = work.add(sizes.n_groups * sizeof(uint32_t));
    const uint64_t       first_chunk = work.add(sizes.n_groups * sizeof(uint32_t));
    const uint64_t       first_word  = work.add(sizes.n_groups * sizeof(uint32_t));
    const uint64_t       states      = work.add(sizes.n_channels * sizeof(uint32_t));
    const uint64_t       places      = work.add(sizes.n_planes * sizeof(unit_place));
    const uint64_t       cursors     = work.add(sizeof(encode_cursors));

    output_begin_               = (sizes.n_planes * sizeof(unit_made) + 15) / 16 * 16;
    const uint64_t output_bytes = output_begin_ + (sizes.output_bytes + 15) / 16 * 16;
    // what has been allocated is released by the destructor
    constants_                  = device_.allocate(constants.bytes().size());
    work_                       = device_.allocate(work.n_bytes());
    for (auto & output : outputs_) {
        output = device_.allocate_host(output_bytes);
    }
    device_.upload(constants_, constants.bytes().data(), constants.bytes().size());
    device_bytes_ = constants.bytes().size() + work.n_bytes();
    host_bytes_   = n_outputs * output_bytes;

    planes_ = constants_ + planes;
    jobs_   = constants_ + jobs;
    for (auto & one : tables_) {
        one.table += constants_;
        one.slots += constants_;
        one.class_of += constants_;
    }
    buffers_.cells       = at<const uint32_t>(constants_ + cells);
    buffers_.models      = at<const uint8_t>(constants_ + models);
    buffers_.scales      = at<uint32_t>(work_ + scales);
    buffers_.n_words     = at<uint32_t>(work_ + n_words);
    buffers_.first_chunk = at<uint32_t>(work_ + first_chunk);
    buffers_.first_word  = at<uint32_t>(work_ + first_word);
    buffers_.states      = at<uint32_t>(work_ + states);
    buffers_.places      = at<unit_place>(work_ + places);
    buffers_.cursors     = at<encode_cursors>(work_ + cursors);
    buffers_.pool        = at<uint8_t>(work_ + pool);
    buffers_.next_chunk  = at<uint32_t>(work_ + next_chunk);
    buffers_.n_pool      = static_cast<uint32_t>(sizes.n_chunks);
    buffers_.n_output    = static_cast<uint32_t>((output_bytes - output_begin_) / 16);
}

// enqueue a wave; waves share all memory but the output
void archive_encoder::start(uint64_t number) {
    const uint64_t      n_plan_waves = plan_->waves().size();
    const encode_wave & wave         = plan_->waves()[number % n_plan_waves];
    if (wave.planes.empty()) {
        return;
    }
    const uint64_t block   = number / n_plan_waves * plan_->blocks_a_wave();
    uint8_t *      output  = outputs_[number % n_outputs];
    encode_buffers in      = buffers_;
    in.planes              = at<const encode_plane>(planes_) + wave.first_job_plane;
    in.wave_begin          = static_cast<uint32_t>(page_->n_exact_tokens + block * page_->block_tokens);
    in.page_end            = page_->n_tokens;
    in.block_tokens        = page_->block_tokens;
    const uint64_t address = device_.address_of(output);
    in.made                = at<unit_made>(address);
    in.output              = at<uint8_t>(address + output_begin_);
    device_.clear(reinterpret_cast<uint64_t>(in.cursors), sizeof(encode_cursors));
    for (const auto & launch : wave.launches) {
        in.groups = at<const group_job>(jobs_) + launch.first_job;
        in.n_jobs = launch.n_jobs;
        if (launch.kind == encode_kind::encode) {
            in.set      = plan_->sets()[launch.set].shape;
            in.table    = at<const encode_entry>(tables_[launch.set].table);
            in.slots    = at<const uint16_t>(tables_[launch.set].slots);
            in.class_of = at<const uint8_t>(tables_[launch.set].class_of);
        }
        device_.launch_encode(launch, in);
    }
    device_.mark(static_cast<uint32_t>(number % n_outputs));
}

// wait for a wave and look at what became of one block's units
void archive_encoder::take(uint64_t part) {
    const uint64_t      number = wave_of(part);
    const encode_wave & wave   = plan_->waves()[part % plan_->waves().size()];
    const uint64_t      block  = part / plan_->waves().size();
    units_.assign(wave.end_plane - wave.first_plane, lcg3::unit_bytes{ nullptr, 0 });
    if (wave.planes.empty()) {
        return;
    }
    device_.wait_for_mark(static_cast<uint32_t>(number % n_outputs));
    const uint8_t * const output = outputs_[number % n_outputs];
    const size_t          before = part % plan_->blocks_a_wave() * wave.planes.size();
    for (size_t i = 0; i < wave.planes.size(); i++) {
        const uint32_t p = wave.planes[i];
        unit_made      made;
        memcpy(&made, output + (before + i) * sizeof(made), sizeof(made));
        const auto &   record = page_->planes[p].source->record;
        const uint64_t begin  = page_->n_exact_tokens + block * page_->block_tokens;
        const uint64_t token  = std::max<uint64_t>(begin, record.first_token) - record.first_token + made.row;
        switch (made.outcome) {
            case made_ok:
                units_[p - wave.first_plane] = { output + output_begin_ + 16 * uint64_t{ made.offset }, made.n_bytes };
                n_made_++;
                break;
            case made_non_finite:
                fail(CACHEGEN_ERR_NON_FINITE,
                     "layer %d, kind %u, token %llu holds a NaN or an infinity; only exact and raw planes can keep it",
                     record.layer, record.kind, (ull) token);
            case made_too_large:
                fail(CACHEGEN_ERR_UNSUPPORTED,
                     "layer %d, kind %u, token %llu holds a value that has no scale of type %u; choose F32 scales",
                     record.layer, record.kind, (ull) token, record.scale_type);
            default: // no room, or the plane begins later
                n_without_room_ += begin + page_->block_tokens > record.first_token;
        }
    }
}

const metered_vector<lcg3::unit_bytes> & archive_encoder::next() {
    const uint64_t n_parts = uint64_t{ page_->n_blocks } * plan_->waves().size();
    const uint64_t part    = n_taken_;
    if (part >= n_parts) {
        fail(CACHEGEN_ERR_INTERNAL, "more units are asked for than the page has");
    }
    // the output of the wave before is free again
    while (n_started_ < std::min(wave_of(n_parts - 1) + 1, wave_of(part) + n_outputs)) {
        start(n_started_);
        n_started_++;
    }
    take(part);
    n_taken_++;
    return units_;
}

} // namespace kernels
