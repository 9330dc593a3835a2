#include "archive_decoder.h"

#include "bytes.h"

#include <algorithm>
#include <cstring>

namespace kernels {

using namespace cachegen;
using ull = unsigned long long;

namespace {

constexpr uint64_t scratch_bytes = 16 << 20;

uint64_t aligned(uint64_t n) {
    return (n + 15) / 16 * 16;
}

template <typename T> uint64_t bytes_of(const std::vector<T> & items) {
    return items.size() * sizeof(T);
}

// several arrays one after another
class packer {
  public:
    template <typename T> uint64_t add(const T * items, uint64_t n) {
        const uint64_t at = aligned(bytes_.size());
        bytes_.resize(at + n * sizeof(T));
        if (n > 0) {
            memcpy(&bytes_[at], items, n * sizeof(T));
        }
        return at;
    }
    const std::vector<uint8_t> & bytes() const { return bytes_; }

  private:
    std::vector<uint8_t> bytes_;
};

const char * words_for(uint32_t error) {
    switch (error) {
        case unit_words_short: return "the words end too early";
        case unit_words_left: return "words are left over";
        default: return "a final state is not 65,536";
    }
}

} // namespace

archive_decoder::archive_decoder(device & device, const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                 uint64_t first_token, uint64_t n_tokens, const std::vector<device_rows> & destinations)
    : device_(device), archive_(lcg3::parse_metadata(metadata, n_bytes, archive_bytes)),
      plan_(archive_, first_token, n_tokens, destinations) {
    packer                constants;
    std::vector<uint64_t> tables;
    std::vector<uint64_t> values;
    for (const auto & set : plan_.sets()) {
        tables.push_back(constants.add(set.table.data(), set.table.size()));
        values.push_back(constants.add(set.values, 64));
    }
    const uint64_t models  = constants.add(plan_.models().data(), plan_.models().size());
    const uint64_t cells   = constants.add(plan_.cells().data(), plan_.cells().size());
    const uint64_t n_units = uint64_t{ archive_.n_blocks + 1 } * archive_.head.n_planes;

    limits_.shared_bytes = device.shared_bytes();
    limits_.scratch_bytes =
        std::min(std::max(scratch_bytes, plan_.largest_scratch()), plan_.largest_scratch() * archive_.head.n_planes);
    try {
        constants_    = device.allocate(constants.bytes().size() + 16);
        errors_       = device.allocate(n_units * sizeof(uint32_t));
        device_bytes_ = constants.bytes().size() + n_units * sizeof(uint32_t);
        if (plan_.needs_scratch(limits_)) {
            limits_.scratch = device.allocate(limits_.scratch_bytes);
            device_bytes_ += limits_.scratch_bytes;
        }
        device.upload(constants_, constants.bytes().data(), constants.bytes().size());
        device.clear(errors_, n_units * sizeof(uint32_t));
    } catch (...) {
        for (const uint64_t address : { constants_, errors_, limits_.scratch }) {
            device.release(address);
        }
        throw;
    }
    for (size_t s = 0; s < tables.size(); s++) {
        tables_.push_back(constants_ + tables[s]);
        values_.push_back(constants_ + values[s]);
    }
    models_ = constants_ + models;
    cells_  = constants_ + cells;
}

archive_decoder::~archive_decoder() {
    try {
        device_.wait();
    } catch (const error &) {
        // the memory goes all the same
    }
    for (const uint64_t address : { constants_, errors_, limits_.scratch }) {
        device_.release(address);
    }
}

// what a part's plan takes at most, behind its bytes
uint64_t archive_decoder::room_for_plan(uint64_t n_bytes) const {
    uint64_t n_groups = 0;
    uint64_t n_rows   = 0;
    for (const auto & plane : archive_.planes) {
        n_groups += (uint64_t{ plane.n_channels } + 31) / 32 + 1;
        n_rows += std::max(archive_.head.block_tokens, archive_.head.n_exact_tokens);
    }
    const bool needs_rows = plan_.needs_scratch(limits_);
    return aligned(n_bytes) + archive_.planes.size() * sizeof(unit_job) + n_groups * (sizeof(group_job) + 4) +
           (needs_rows ? n_rows : uint64_t{ archive_.head.n_exact_tokens } * archive_.planes.size()) *
               sizeof(group_job) +
           64;
}

uint8_t * archive_decoder::part_memory(uint64_t n_bytes) {
    memory_ = device_.slot(next_slot_, room_for_plan(n_bytes));
    return memory_;
}

void archive_decoder::part(uint32_t part, const void * bytes, uint64_t n_bytes) {
    const lcg3::payload expected = lcg3::part_of(archive_, part);
    if (bytes == nullptr || n_bytes != expected.n_bytes) {
        fail(CACHEGEN_ERR_ARGUMENT, "part %u has %llu bytes, %llu were given", part, (ull) expected.n_bytes,
             (ull) n_bytes);
    }
    uint8_t * const memory = memory_ != nullptr ? memory_ : part_memory(n_bytes);
    memory_                = nullptr;
    const uint32_t slot    = next_slot_;
    const uint64_t address = device_.slot_address(slot);
    if (bytes != memory) {
        memcpy(memory, bytes, n_bytes);
    }
    const part_plan plan = plan_.plan(part, { memory, expected.offset, n_bytes }, address, limits_);
    if (plan.launches.empty()) {
        return;
    }
    uint64_t   end   = n_bytes;
    const auto place = [&](const auto & items) {
        const uint64_t at = aligned(end);
        end               = at + bytes_of(items);
        if (end > room_for_plan(n_bytes)) {
            fail(CACHEGEN_ERR_INTERNAL, "a plan larger than its room");
        }
        if (!items.empty()) {
            memcpy(memory + at, items.data(), bytes_of(items));
        }
        return address + at;
    };
    launch_buffers in{};
    in.units            = reinterpret_cast<const unit_job *>(place(plan.units));
    const uint64_t jobs = place(plan.groups);
    in.group_words      = reinterpret_cast<const uint32_t *>(place(plan.group_words));
    in.bytes            = reinterpret_cast<const uint8_t *>(address);
    in.n_bytes          = room_for_plan(n_bytes);
    in.models           = reinterpret_cast<const uint8_t *>(models_);
    in.cells            = reinterpret_cast<const uint32_t *>(cells_);
    in.errors = reinterpret_cast<uint32_t *>(errors_ + uint64_t{ part } * archive_.head.n_planes * sizeof(uint32_t));
    device_.submit(slot, end);
    for (const auto & launch : plan.launches) {
        in.groups   = reinterpret_cast<const group_job *>(jobs + launch.first_group_job * sizeof(group_job));
        in.n_groups = launch.n_group_jobs;
        if (launch.kind != launch_kind::place) {
            in.set    = plan_.sets()[launch.set].shape;
            in.table  = reinterpret_cast<const table_entry *>(tables_[launch.set]);
            in.values = reinterpret_cast<const uint32_t *>(values_[launch.set]);
        }
        device_.launch(launch, in);
    }
    device_.retire(slot);
    next_slot_ = (slot + 1) % device_.n_slots();
}

void archive_decoder::finish() {
    const uint32_t        n_planes = archive_.head.n_planes;
    std::vector<uint32_t> errors(uint64_t{ archive_.n_blocks + 1 } * n_planes);
    device_.download(errors.data(), errors_, bytes_of(errors));
    for (uint32_t part = 1; part <= archive_.n_blocks; part++) {
        // units are numbered in the order of the planes that have tokens of the block and are wanted
        const auto planes = plan_.unit_planes(part - 1);
        for (size_t u = 0; u < planes.size(); u++) {
            const uint32_t error = errors[uint64_t{ part } * n_planes + u];
            if (error != 0) {
                fail(CACHEGEN_ERR_STREAM, "block %u, plane %u, channels from %u on: %s; no encoder wrote this",
                     part - 1, planes[u], (error >> 8) * 32, words_for(error & 255));
            }
        }
    }
}

} // namespace kernels
