#include "legacy_decoder.h"

#include "status.h"

#include <cstring>

namespace kernels {

using namespace cachegen;
using ull = unsigned long long;

legacy_decoder::legacy_decoder(device & device, const void * archive, uint64_t n_bytes,
                               const std::vector<legacy_destination> & destinations, uint64_t batch_bytes)
    : device_(device), archive_(legacy::parse_ckg1(archive, n_bytes)), plan_(archive_, destinations, batch_bytes) {
    const uint64_t cells_bytes  = plan_.cells().size() * sizeof(uint32_t);
    const uint64_t errors_bytes = archive_.records.size() * sizeof(uint32_t);
    try {
        cells_        = device.allocate(cells_bytes + sizeof(uint32_t)); // never nothing
        errors_       = device.allocate(errors_bytes);
        device_bytes_ = cells_bytes + sizeof(uint32_t) + errors_bytes;
        device.upload(cells_, plan_.cells().data(), cells_bytes);
        device.clear(errors_, errors_bytes);
        device.make_slots(plan_.largest_batch_bytes());
    } catch (...) {
        release();
        throw;
    }
}

legacy_decoder::~legacy_decoder() {
    try {
        device_.wait();
    } catch (const error &) {
        // the memory goes all the same
    }
    release();
}

void legacy_decoder::release() {
    device_.release(cells_);
    device_.release(errors_);
}

void legacy_decoder::enqueue(const legacy_batch & batch, uint64_t number, const planned_batch & plan,
                             uint8_t * memory) {
    const auto     host_slot   = static_cast<uint32_t>(number % device_.n_host_slots());
    const auto     device_slot = static_cast<uint32_t>(number % device_.n_device_slots());
    const uint64_t address     = device_.slot_address(device_slot);
    uint64_t       end         = batch.tiles_bytes;
    const auto     place       = [&](const auto & items) {
        const uint64_t at      = (end + 15) / 16 * 16;
        const uint64_t n_bytes = items.size() * sizeof(items[0]);
        end                    = at + n_bytes;
        if (end > batch.n_bytes) {
            fail(CACHEGEN_ERR_INTERNAL, "a plan larger than its room");
        }
        if (n_bytes > 0) {
            memcpy(memory + at, items.data(), n_bytes);
        }
        return address + at;
    };
    legacy_buffers in{};
    in.units            = reinterpret_cast<const legacy_unit *>(place(plan.units));
    const uint64_t jobs = place(plan.jobs);
    in.group_streams    = reinterpret_cast<const uint32_t *>(place(plan.group_streams));
    in.bytes            = reinterpret_cast<const uint8_t *>(address);
    in.cells            = reinterpret_cast<const uint32_t *>(cells_);
    in.errors           = reinterpret_cast<uint32_t *>(errors_);
    device_.submit(host_slot, device_slot, end, false);
    for (const auto & launch : plan.launches) {
        in.jobs   = reinterpret_cast<const group_job *>(jobs + launch.first_job * sizeof(group_job));
        in.n_jobs = launch.n_jobs;
        device_.launch_legacy(launch, in, device_slot);
    }
    device_.retire(device_slot);
}

void legacy_decoder::decode() {
    uint64_t           number = 0; // of batches with tiles
    std::exception_ptr refused;
    for (const auto & batch : plan_.batches()) {
        uint8_t * const memory =
            batch.tiles_bytes > 0 ? device_.host_slot(static_cast<uint32_t>(number % device_.n_host_slots())) : nullptr;
        const planned_batch plan = plan_.plan(batch, memory);
        if (!plan.launches.empty()) {
            enqueue(batch, number++, plan, memory);
        }
        for (const uint64_t i : plan.exact_records) {
            const auto & record = archive_.records[i];
            device_.upload(reinterpret_cast<uint64_t>(plan_.destinations()[i].rows.data),
                           archive_.bytes + record.payload_offset, record.payload_bytes);
        }
        refused = plan.refused;
        if (refused) {
            break;
        }
    }
    check_errors();
    if (refused) {
        std::rethrow_exception(refused);
    }
}

// of the records that were launched, all of them before a refused one
void legacy_decoder::check_errors() {
    std::vector<uint32_t> errors(archive_.records.size());
    device_.download(errors.data(), errors_, errors.size() * sizeof(uint32_t));
    for (size_t i = 0; i < errors.size(); i++) {
        if (errors[i] != legacy_ok) {
            fail(CACHEGEN_ERR_STREAM, "record %zu: channels from %u on: a symbol that %u bins do not have", i,
                 (errors[i] >> 8) * 32, archive_.records[i].content.n_bins);
        }
    }
}

} // namespace kernels
