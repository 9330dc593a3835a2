#include "archive_decoder.h"

#include "bytes.h"
#include "packer.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace kernels {

using namespace cachegen;
using ull = unsigned long long;

namespace {

constexpr uint64_t scratch_bytes = 16 << 20;
constexpr uint64_t piece_bytes   = 1 << 20; // that a thread reads at a time

// One thread in eight is left to the caller, who enqueues, and to what goes on beside: a reader that waits for a
// processor holds up its part, and all parts after it.
uint64_t n_readers_for(uint32_t n_threads, uint64_t n_pieces) {
    return std::max<uint64_t>(1, std::min<uint64_t>(n_threads - n_threads / 8, n_pieces));
}

uint32_t n_pieces_of(uint64_t n_bytes) {
    return static_cast<uint32_t>(std::max<uint64_t>(1, (n_bytes + piece_bytes - 1) / piece_bytes));
}

uint64_t aligned(uint64_t n) {
    return (n + 15) / 16 * 16;
}

template <typename T> uint64_t bytes_of(const std::vector<T> & items) {
    return items.size() * sizeof(T);
}

// what a part's plan takes at most. has_rows: a job for every row, not for those of exact rows alone
uint64_t most_plan_bytes(const lcg3::archive & archive, bool has_rows) {
    const uint64_t n_rows =
        has_rows ? std::max(archive.head.block_tokens, archive.head.n_exact_tokens) : archive.head.n_exact_tokens;
    uint64_t n_groups = 0;
    for (const auto & plane : archive.planes) {
        n_groups += (uint64_t{ plane.n_channels } + 31) / 32 + 1;
    }
    return archive.planes.size() * (sizeof(unit_job) + n_rows * sizeof(group_job)) +
           n_groups * (sizeof(group_job) + sizeof(uint32_t)) + 64;
}

const char * words_for(uint32_t error) {
    switch (error) {
        case unit_words_short: return "the words end too early";
        case unit_words_left: return "words are left over";
        default: return "a final state is not 65,536";
    }
}

} // namespace

archive_decoder::archive_decoder(device & device, const void * metadata, uint64_t n_bytes, uint64_t archive_bytes,
                                 uint64_t first_token, uint64_t n_tokens,
                                 const std::vector<cachegen_lcg3_destination> & destinations)
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

    limits_.shared_bytes      = device.shared_bytes();
    limits_.decode_groups     = device.decode_groups();
    limits_.has_memory_tables = device.has_memory_tables();
    limits_.scratch_bytes =
        std::min(std::max(scratch_bytes, plan_.largest_scratch()), plan_.largest_scratch() * archive_.head.n_planes);
    plan_bytes_ = most_plan_bytes(archive_, plan_.needs_scratch(limits_));
    try {
        constants_    = device.allocate(constants.bytes().size() + 16);
        errors_       = device.allocate(n_units * sizeof(uint32_t));
        device_bytes_ = constants.bytes().size() + n_units * sizeof(uint32_t);
        if (plan_.needs_scratch(limits_)) {
            limits_.scratch = device.allocate(limits_.scratch_bytes);
            device_bytes_ += limits_.scratch_bytes;
        }
        device.upload(constants_, constants.bytes().data(), constants.bytes().size());
        uint64_t largest_part = 0;
        for (uint32_t part = 0; part <= archive_.n_blocks; part++) {
            largest_part = std::max(largest_part, lcg3::part_of(archive_, part).n_bytes);
        }
        device.clear(errors_, n_units * sizeof(uint32_t));
        device.make_slots(aligned(largest_part) + plan_bytes_);
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

// check what is in the memory of a slot, whose digest is known; on any thread
part_plan archive_decoder::prepare(uint32_t part, uint64_t number, uint64_t digest, uint8_t * memory) const {
    lcg3::payload payload = lcg3::part_of(archive_, part);
    payload.bytes         = memory;
    if (part == 0) {
        lcg3::check_padding(archive_, payload);
    }
    lcg3::check_digest(archive_, part, digest);
    const auto device_slot = static_cast<uint32_t>(number % device_.n_device_slots());
    return plan_.plan(part, payload, device_.slot_address(device_slot), limits_);
}

void archive_decoder::enqueue(uint32_t part, uint64_t number, const part_plan & plan, uint8_t * memory) {
    if (plan.launches.empty()) {
        return;
    }
    const auto     host_slot   = static_cast<uint32_t>(number % device_.n_host_slots());
    const auto     device_slot = static_cast<uint32_t>(number % device_.n_device_slots());
    const uint64_t address     = device_.slot_address(device_slot);
    const uint64_t n_bytes     = lcg3::part_of(archive_, part).n_bytes;
    uint64_t       end         = n_bytes;
    const auto     place       = [&](const auto & items) {
        const uint64_t at = aligned(end);
        end               = at + bytes_of(items);
        if (end > aligned(n_bytes) + plan_bytes_) {
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
    in.n_bytes          = end;
    in.models           = reinterpret_cast<const uint8_t *>(models_);
    in.cells            = reinterpret_cast<const uint32_t *>(cells_);
    in.errors = reinterpret_cast<uint32_t *>(errors_ + uint64_t{ part } * archive_.head.n_planes * sizeof(uint32_t));
    device_.submit(host_slot, device_slot, end, limits_.scratch != 0); // parts share the scratch
    for (const auto & launch : plan.launches) {
        in.groups   = reinterpret_cast<const group_job *>(jobs + launch.first_group_job * sizeof(group_job));
        in.n_groups = launch.n_group_jobs;
        if (launch.kind != launch_kind::place) {
            in.set    = plan_.sets()[launch.set].shape;
            in.table  = reinterpret_cast<const table_entry *>(tables_[launch.set]);
            in.values = reinterpret_cast<const uint32_t *>(values_[launch.set]);
        }
        device_.launch(launch, in, device_slot);
    }
    device_.retire(device_slot);
}

void archive_decoder::part(uint32_t part, const void * bytes, uint64_t n_bytes) {
    const lcg3::payload expected = lcg3::part_of(archive_, part);
    if (bytes == nullptr || n_bytes != expected.n_bytes) {
        fail(CACHEGEN_ERR_ARGUMENT, "part %u has %llu bytes, %llu were given", part, (ull) expected.n_bytes,
             (ull) n_bytes);
    }
    const uint64_t  number = n_parts_++;
    uint8_t * const memory = device_.host_slot(static_cast<uint32_t>(number % device_.n_host_slots()));
    memcpy(memory, bytes, n_bytes);
    const auto [begin, end] = lcg3::digested_range(archive_, part);
    const uint64_t digest   = lcg3::digest_of(memory + (begin - expected.offset), end - begin);
    enqueue(part, number, prepare(part, number, digest, memory), memory);
}

// Threads read pieces of parts into slots. Whoever has read the next piece of a part's digest goes on with the digest,
// and who has done the last one checks the part; this one enqueues parts in order. A slot is free when its part has
// been enqueued: host_slot() waits for the upload.
void archive_decoder::run(const uint32_t * parts, uint64_t n_parts, const source & from, uint32_t n_threads) {
    struct part_state {
        std::vector<bool>   is_read; // pieces
        uint32_t            n_digested   = 0;
        bool                is_digesting = false; // on some thread
        bool                is_ready     = false;
        lcg3::stream_digest digest;
        part_plan           plan;
    };
    const uint64_t          first   = n_parts_;
    const uint32_t          n_slots = device_.n_host_slots();
    std::vector<part_state> states(n_parts);
    std::mutex              mutex;
    std::condition_variable changed;
    uint64_t                next_part  = 0; // to be read
    uint32_t                next_piece = 0; // of it
    uint64_t                n_done     = 0; // enqueued
    cachegen_status         status     = CACHEGEN_OK;
    std::string             message;

    const auto stop = [&](cachegen_status why, const char * what) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (status == CACHEGEN_OK) {
            status  = why;
            message = what;
        }
        changed.notify_all();
    };
    const auto guarded = [&](const auto & body) {
        try {
            body();
        } catch (const error & err) {
            stop(err.status, err.what());
        } catch (const std::bad_alloc &) {
            stop(CACHEGEN_ERR_OUT_OF_MEMORY, "out of memory");
        }
    };
    uint64_t n_pieces = 0;
    for (uint64_t index = 0; index < n_parts; index++) {
        const uint32_t n = n_pieces_of(lcg3::part_of(archive_, parts[index]).n_bytes);
        states[index].is_read.resize(n);
        n_pieces += n;
    }
    const auto work = [&] {
        while (true) {
            uint64_t index;
            uint32_t piece;
            {
                std::unique_lock<std::mutex> lock(mutex);
                // the slot's part before has been enqueued
                changed.wait(lock, [&] {
                    return status != CACHEGEN_OK || next_part == n_parts || next_part < n_done + n_slots;
                });
                if (status != CACHEGEN_OK || next_part == n_parts) {
                    return;
                }
                index = next_part;
                piece = next_piece++;
                if (next_piece == states[index].is_read.size()) {
                    next_part++;
                    next_piece = 0;
                }
            }
            const uint64_t      number  = first + index;
            const lcg3::payload where   = lcg3::part_of(archive_, parts[index]);
            const uint64_t      begin   = std::min(piece * piece_bytes, where.n_bytes);
            const uint64_t      n_bytes = std::min(piece_bytes, where.n_bytes - begin);
            uint8_t * const     memory  = device_.host_slot(static_cast<uint32_t>(number % n_slots));
            if (from.read(from.user_data, where.offset + begin, memory + begin, n_bytes) != 0) {
                fail(CACHEGEN_ERR_CALLBACK, "part %u could not be read", parts[index]);
            }
            part_state & state              = states[index];
            const auto [from_byte, to_byte] = lcg3::digested_range(archive_, parts[index]);
            std::unique_lock<std::mutex> lock(mutex);
            state.is_read[piece] = true;
            if (state.is_digesting) {
                continue;
            }
            state.is_digesting = true;
            while (state.n_digested < state.is_read.size() && state.is_read[state.n_digested]) {
                const uint64_t piece_begin = where.offset + state.n_digested * piece_bytes;
                lock.unlock();
                const uint64_t digest_begin = std::max(piece_begin, from_byte);
                const uint64_t digest_end   = std::min(piece_begin + piece_bytes, to_byte);
                if (digest_begin < digest_end) {
                    state.digest.update(memory + (digest_begin - where.offset), digest_end - digest_begin);
                }
                lock.lock();
                state.n_digested++;
            }
            state.is_digesting = false;
            if (state.n_digested < state.is_read.size()) {
                continue;
            }
            lock.unlock();
            part_plan plan = prepare(parts[index], number, state.digest.value(), memory);
            lock.lock();
            state.plan     = std::move(plan);
            state.is_ready = true;
            changed.notify_all();
        }
    };
    std::vector<std::thread> threads;
    guarded([&] {
        const uint64_t n = n_readers_for(n_threads, n_pieces);
        threads.reserve(n);
        for (uint64_t i = 0; i < n; i++) {
            try {
                threads.emplace_back([&] { guarded(work); });
            } catch (const std::system_error &) {
                if (threads.empty()) {
                    fail(CACHEGEN_ERR_OUT_OF_MEMORY, "no thread could be started");
                }
                break;
            }
        }
        for (uint64_t index = 0; index < n_parts; index++) {
            part_plan plan;
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return status != CACHEGEN_OK || states[index].is_ready; });
                if (status != CACHEGEN_OK) {
                    return;
                }
                plan = std::move(states[index].plan);
            }
            if (from.next(from.user_data, parts[index]) != 0) {
                fail(CACHEGEN_ERR_CALLBACK, "the caller stopped before part %u", parts[index]);
            }
            enqueue(parts[index], first + index, plan,
                    device_.host_slot(static_cast<uint32_t>((first + index) % n_slots)));
            const std::lock_guard<std::mutex> lock(mutex);
            n_done = index + 1;
            changed.notify_all();
        }
    });
    for (auto & thread : threads) {
        thread.join();
    }
    n_parts_ += n_parts;
    if (status != CACHEGEN_OK) {
        throw error(status, message);
    }
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
