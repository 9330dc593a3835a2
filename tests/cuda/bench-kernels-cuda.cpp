// Decoding and encoding kernels on a device: symbols a second of a whole page, all of it in the device's memory
// already. With a folder, also from a file there, in the page cache, to the cells.
//   bench-kernels-cuda [TOKENS [REPEATS [THREADS [FOLDER]]]] [--json FILE] [--commit HEX]
#include "archive_decoder.h"
#include "bench-encoder.h"
#include "bench_checks.h"
#include "bench_options.h"
#include "bench_results.h"
#include "cachegen.h"
#include "cuda/cuda_device.h"
#include "cuda/decode.h"
#include "native_tile.h"
#include "status.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace kernels;

namespace {

constexpr uint32_t n_layers   = 28;
constexpr uint32_t n_channels = 1024;

// channels of different spread, each token resembling the one before: made, not a model's
void fill(uint16_t * values, uint32_t n_tokens, uint32_t seed) {
    std::vector<float> before(n_channels);
    std::vector<float> spread(n_channels);
    uint64_t           state = 0x9e3779b97f4a7c15ull * (seed + 1);
    const auto         next  = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // nearly normal: the sum of four uniform numbers
        float sum = 0;
        for (int i = 0; i < 4; i++) {
            sum += static_cast<float>(state >> (16 * i) & 0xffff) * (1.0f / 65536) - 0.5f;
        }
        return sum * 1.7f;
    };
    for (auto & s : spread) {
        s = std::exp(0.8f * next());
    }
    std::vector<float> row(n_channels);
    for (uint32_t t = 0; t < n_tokens; t++) {
        for (uint32_t c = 0; c < n_channels; c++) {
            before[c] = 0.7f * before[c] + spread[c] * next();
            row[c]    = before[c];
        }
        cachegen_rows one{};
        one.type         = CACHEGEN_TYPE_F16;
        one.n_tokens     = 1;
        one.n_rows       = 1;
        one.n_channels   = n_channels;
        one.stride_bytes = n_channels * 2;
        one.n_bytes      = n_channels * 2;
        one.data         = values + size_t{ t } * n_channels;
        cachegen_store_rows(&one, 0, 1, row.data());
    }
}

// all parts of an archive as one plan
part_plan merge(const decode_plan & plan, const cachegen::lcg3::archive & archive, const uint8_t * bytes,
                uint64_t address, const device_limits & limits) {
    part_plan all;
    for (uint32_t part = 1; part <= archive.n_blocks; part++) {
        cachegen::lcg3::payload payload = cachegen::lcg3::part_of(archive, part);
        payload.bytes                   = bytes + payload.offset;
        const part_plan one             = plan.plan(part, payload, address + payload.offset, limits);
        const auto      first_unit      = static_cast<uint32_t>(all.units.size());
        const auto      first_words     = static_cast<uint32_t>(all.group_words.size());
        for (auto unit : one.units) {
            unit.bytes_offset += payload.offset;
            unit.group_words += first_words;
            all.units.push_back(unit);
        }
        all.group_words.insert(all.group_words.end(), one.group_words.begin(), one.group_words.end());
        for (const auto & launch : one.launches) {
            std::vector<group_job> jobs(one.groups.begin() + launch.first_group_job,
                                        one.groups.begin() + launch.first_group_job + launch.n_group_jobs);
            for (auto & job : jobs) {
                job.unit += first_unit;
            }
            const auto same = std::find_if(all.launches.begin(), all.launches.end(), [&](const planned_launch & l) {
                return l.kind == launch.kind && l.store == launch.store && l.n_side == launch.n_side &&
                       l.set == launch.set;
            });
            if (same == all.launches.end()) {
                planned_launch fresh  = launch;
                fresh.first_group_job = static_cast<uint32_t>(all.groups.size());
                all.launches.push_back(fresh);
                all.groups.insert(all.groups.end(), jobs.begin(), jobs.end());
            } else {
                const auto at = all.groups.begin() + same->first_group_job + same->n_group_jobs;
                all.groups.insert(at, jobs.begin(), jobs.end());
                for (auto & l : all.launches) {
                    if (l.first_group_job > same->first_group_job) {
                        l.first_group_job += static_cast<uint32_t>(jobs.size());
                    }
                }
                same->n_group_jobs += static_cast<uint32_t>(jobs.size());
            }
        }
    }
    return all;
}

template <typename T> const T * to_device(cuda_device & device, const std::vector<T> & items) {
    const uint64_t address = device.allocate(items.size() * sizeof(T) + 16);
    device.upload(address, items.data(), items.size() * sizeof(T));
    return reinterpret_cast<const T *>(address);
}

struct variant {
    const char * name;
    uint32_t     type;
    uint32_t     is_transposed;
    uint32_t     n_rot;
    uint32_t     n_side; // 0: the plan's
};

std::vector<cachegen_lcg3_destination> destinations_of(const variant & v, uint32_t n_tokens, uint32_t n_planes,
                                                       uint64_t address) {
    std::vector<cachegen_lcg3_destination> destinations(n_planes);
    const uint64_t                         row_bytes = cachegen::native_bytes(v.type, n_channels);
    for (uint32_t p = 0; p < n_planes; p++) {
        auto & rows           = destinations[p].rows;
        rows.type             = v.type;
        rows.is_transposed    = v.is_transposed;
        rows.n_tokens         = n_tokens;
        rows.n_rows           = n_tokens;
        rows.n_channels       = n_channels;
        rows.stride_bytes     = v.is_transposed ? uint64_t{ n_tokens } * 2 : row_bytes;
        rows.n_bytes          = n_tokens * row_bytes;
        rows.data             = reinterpret_cast<void *>(address + p * rows.n_bytes);
        destinations[p].n_rot = v.n_rot;
    }
    return destinations;
}

// A file that is read by pread() or through a mapping.
struct archive_file {
    int             fd;
    const uint8_t * mapped;
};

int32_t read_file(void * user_data, uint64_t offset, void * bytes, uint64_t n_bytes) {
    const auto & file = *static_cast<const archive_file *>(user_data);
    if (file.mapped != nullptr) {
        memcpy(bytes, file.mapped + offset, n_bytes);
        return 0;
    }
    uint64_t n_done = 0;
    while (n_done < n_bytes) {
        const ssize_t n = pread(file.fd, static_cast<uint8_t *>(bytes) + n_done, n_bytes - n_done,
                                static_cast<off_t>(offset + n_done));
        if (n <= 0) {
            return 1;
        }
        n_done += static_cast<uint64_t>(n);
    }
    return 0;
}

// From a file to the cells, as a backend does it. Returns rows of results.
json measure_file(const std::string & path, const uint8_t * bytes, uint64_t n_bytes, uint32_t n_parts,
                  uint32_t n_tokens, uint32_t n_planes, uint64_t destination, cudaStream_t stream, uint32_t threads,
                  int n_repeats) {
    FILE * out = fopen(path.c_str(), "wb");
    if (out == nullptr || fwrite(bytes, 1, n_bytes, out) != n_bytes || fclose(out) != 0) {
        printf("cannot write %s\n", path.c_str());
        exit(1);
    }
    json          results    = json::array();
    const variant variants[] = {
        { "F16", CACHEGEN_TYPE_F16, 0, 0, 0 },
        { "F32", CACHEGEN_TYPE_F32, 0, 0, 0 },
        { "Q8_0, rotated 128", CACHEGEN_TYPE_Q8_0, 0, 128, 0 },
        { "Q4_0, rotated 128", CACHEGEN_TYPE_Q4_0, 0, 128, 0 },
    };
    std::vector<uint32_t> parts(n_parts);
    for (uint32_t i = 0; i < n_parts; i++) {
        parts[i] = i;
    }
    const uint64_t n_metadata_bytes =
        cachegen::lcg3::part_of(cachegen::lcg3::parse_metadata(bytes, n_bytes, n_bytes), 0).offset;
    for (const bool is_mapped : { false, true }) {
        for (const uint32_t n_threads : { 16u, 8u, 4u, 2u }) {
            for (const auto & v : variants) {
                if (n_threads < 8 && v.type != CACHEGEN_TYPE_F16) {
                    continue;
                }
                const auto destinations = destinations_of(v, n_tokens, n_planes, destination);
                samples    ms[3]; // all, until the decoder is there, until all is enqueued
                for (int i = 0; i < n_repeats + 1; i++) {
                    const auto t_start = std::chrono::steady_clock::now();
                    const auto elapsed = [&] {
                        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t_start)
                            .count();
                    };
                    archive_file file{ open(path.c_str(), O_RDONLY), nullptr };
                    void *       mapped = nullptr;
                    if (is_mapped) {
                        mapped      = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.fd, 0);
                        file.mapped = static_cast<const uint8_t *>(mapped);
                    }
                    double opened_ms   = 0;
                    double enqueued_ms = 0;
                    try {
                        cuda_device device(0, stream);
                        device.set_threads(threads);
                        archive_decoder decoder(device, bytes, n_metadata_bytes, n_bytes, 0, n_tokens, destinations);
                        opened_ms = elapsed();
                        decoder.run(parts.data(), parts.size(),
                                    { &file, read_file, [](void *, uint32_t) { return 0; } }, n_threads);
                        enqueued_ms = elapsed();
                        decoder.finish();
                    } catch (const cachegen::error & err) {
                        printf("%s\n", err.what());
                        exit(1);
                    }
                    if (mapped != nullptr) {
                        munmap(mapped, n_bytes);
                    }
                    close(file.fd);
                    if (i > 0) {
                        ms[0].add(elapsed());
                        ms[1].add(opened_ms);
                        ms[2].add(enqueued_ms);
                    }
                }
                const char * read = is_mapped ? "mmap" : "pread";
                printf("from a file, %-5s %2u threads  %-18s %s ms, decoder ready at %.2f, enqueued at %.2f  %5.1f "
                       "GB/s of archive\n",
                       read, n_threads, v.name, ms[0].text(2).c_str(), ms[1].median(), ms[2].median(),
                       n_bytes / 1e6 / ms[0].median());
                fflush(stdout);
                results.push_back({ { "read", read },
                                    { "threads", n_threads },
                                    { "rows", v.name },
                                    { "archive_bytes", n_bytes },
                                    { "ms", ms[0] },
                                    { "ready_ms", ms[1] },
                                    { "enqueued_ms", ms[2] } });
            }
        }
    }
    remove(path.c_str());
    return results;
}

int run(const bench_options & options) {
    const auto &        words     = options.words;
    const uint32_t      n_tokens  = words.size() > 0 ? static_cast<uint32_t>(std::stoi(words[0])) : 19000;
    const int           n_repeats = words.size() > 1 ? std::stoi(words[1]) : 9;
    const int           threads   = words.size() > 2 ? std::stoi(words[2]) : static_cast<int>(default_decode_threads);
    const uint32_t      n_planes  = 2 * n_layers;
    cachegen_executor * executor  = nullptr;
    const uint32_t      n_threads = std::max(1u, std::thread::hardware_concurrency());
    check(cachegen_executor_new(n_threads, &executor));

    std::vector<std::vector<uint16_t>> values(n_planes);
    std::vector<cachegen_lcg3_plane>   planes(n_planes);
    std::vector<cachegen_rows>         sources(n_planes);
    {
        std::vector<std::thread> threads;
        for (uint32_t i = 0; i < n_threads; i++) {
            threads.emplace_back([&, i] {
                for (uint32_t p = i; p < n_planes; p += n_threads) {
                    values[p].resize(size_t{ n_tokens } * n_channels);
                    fill(values[p].data(), n_tokens, p);
                }
            });
        }
        for (auto & thread : threads) {
            thread.join();
        }
    }
    for (uint32_t p = 0; p < n_planes; p++) {
        auto & plane      = planes[p];
        plane.struct_size = sizeof(plane);
        plane.layer       = static_cast<int32_t>(p / 2);
        plane.kind        = 1 + p % 2;
        plane.mode        = CACHEGEN_LCG3_LOSSY;
        plane.type        = CACHEGEN_TYPE_F16;
        plane.n_channels  = n_channels;
        plane.n_symbols   = p % 2 ? 13 : 31;
        plane.scale_type  = CACHEGEN_TYPE_BF16;
        auto & rows       = sources[p];
        rows.type         = CACHEGEN_TYPE_F16;
        rows.n_tokens     = n_tokens;
        rows.n_rows       = n_tokens;
        rows.n_channels   = n_channels;
        rows.stride_bytes = n_channels * 2;
        rows.n_bytes      = values[p].size() * 2;
        rows.data         = values[p].data();
    }
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda_device    device(0, stream);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    const launch_limits of_launch = { static_cast<uint32_t>(properties.multiProcessorCount),
                                      static_cast<uint32_t>(threads), device.shared_bytes() };
    cudaEvent_t         begin     = nullptr;
    cudaEvent_t         end       = nullptr;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    const uint64_t destination = device.allocate(uint64_t{ n_tokens } * n_channels * n_planes * 4);

    // what the memory takes: a fill and a copy of the F16 page
    const uint64_t fp16_bytes   = uint64_t{ n_tokens } * n_channels * n_planes * 2;
    double         bytes_per_ms = 0; // of a copy
    bool           is_good      = true;
    json           results      = new_results("bench-kernels-cuda", options.text("commit"), properties.name);
    results["tokens"]           = n_tokens;
    results["repeats"]          = n_repeats;
    results["workgroup"]        = threads;
    results["kernels"]          = json::array();
    results["files"]            = json::array();
    for (int copy = 0; copy < 2; copy++) {
        samples all_ms;
        for (int i = 0; i < n_repeats; i++) {
            check(cudaEventRecord(begin, stream));
            if (copy) {
                check(cudaMemcpyAsync(reinterpret_cast<void *>(destination),
                                      reinterpret_cast<void *>(destination + fp16_bytes), fp16_bytes,
                                      cudaMemcpyDeviceToDevice, stream));
            } else {
                check(cudaMemsetAsync(reinterpret_cast<void *>(destination), 0, fp16_bytes, stream));
            }
            check(cudaEventRecord(end, stream));
            check(cudaEventSynchronize(end));
            float ms = 0;
            check(cudaEventElapsedTime(&ms, begin, end));
            all_ms.add(ms);
        }
        bytes_per_ms = (copy + 1) * fp16_bytes / all_ms.median();
        printf("%s of %.0f MB: %.3f ms, %.2f TB/s\n", copy ? "copy" : "fill", fp16_bytes / 1e6, all_ms.median(),
               bytes_per_ms / 1e9);
        results["memory"][copy ? "copy" : "fill"] = { { "moved_bytes", (copy + 1) * fp16_bytes }, { "ms", all_ms } };
    }

    for (const uint32_t n_classes : { 9u, 1u }) {
        cachegen_lcg3_options lcg3{};
        lcg3.struct_size     = sizeof(lcg3);
        lcg3.block_tokens    = 1024;
        lcg3.n_exact_tokens  = 4;
        lcg3.n_models        = 32;
        lcg3.n_classes       = n_classes;
        lcg3.n_sample_tokens = 1024;
        void *   archive     = nullptr;
        uint64_t n_bytes     = 0;
        check(cachegen_lcg3_encode(planes.data(), sources.data(), n_planes, &lcg3, executor, &archive, &n_bytes));
        const auto * bytes    = static_cast<const uint8_t *>(archive);
        const auto   parsed   = cachegen::lcg3::parse_metadata(bytes, n_bytes, n_bytes);
        const double n_values = double(n_tokens - 4) * n_channels * n_planes;
        printf("classes %u: %.1f MB, %.3f bits a value\n", n_classes, n_bytes / 1e6, n_bytes * 8 / n_values);
        const uint64_t at = device.allocate(n_bytes);
        device.upload(at, bytes, n_bytes);

        const variant variants[] = {
            { "F16", CACHEGEN_TYPE_F16, 0, 0, 1 },
            { "F16, 2 a lane", CACHEGEN_TYPE_F16, 0, 0, 2 },
            { "F16, 4 a lane", CACHEGEN_TYPE_F16, 0, 0, 4 },
            { "F32", CACHEGEN_TYPE_F32, 0, 0, 1 },
            { "F32, 2 a lane", CACHEGEN_TYPE_F32, 0, 0, 2 },
            { "BF16", CACHEGEN_TYPE_BF16, 0, 0, 1 },
            { "Q8_0, 1 a lane", CACHEGEN_TYPE_Q8_0, 0, 0, 1 },
            { "Q8_0, 2 a lane", CACHEGEN_TYPE_Q8_0, 0, 0, 2 },
            { "Q8_0, 4 a lane", CACHEGEN_TYPE_Q8_0, 0, 0, 4 },
            { "Q8_0, rotated 64", CACHEGEN_TYPE_Q8_0, 0, 64, 0 },
            { "Q8_0, rotated 128", CACHEGEN_TYPE_Q8_0, 0, 128, 0 },
            { "Q4_0, 2 a lane", CACHEGEN_TYPE_Q4_0, 0, 0, 2 },
            { "Q4_0, 4 a lane", CACHEGEN_TYPE_Q4_0, 0, 0, 4 },
            { "Q4_0, rotated 128", CACHEGEN_TYPE_Q4_0, 0, 128, 0 },
            { "F16, transposed", CACHEGEN_TYPE_F16, 1, 0, 1 },
        };
        for (const auto & v : variants) {
            const auto          destinations = destinations_of(v, n_tokens, n_planes, destination);
            const uint64_t      row_bytes    = cachegen::native_bytes(v.type, n_channels);
            const decode_plan   plan(parsed, 0, n_tokens, destinations);
            const device_limits limits{ device.shared_bytes(), device.decode_groups(), 0, 0 };
            part_plan           all = merge(plan, parsed, bytes, at, limits);
            if (std::any_of(all.launches.begin(), all.launches.end(),
                            [](const planned_launch & l) { return l.kind != launch_kind::decode; })) {
                printf("classes %u  %-18s not measured: a set's table does not fit into a workgroup\n", n_classes,
                       v.name);
                continue;
            }
            std::vector<uint32_t> errors(all.units.size());
            launch_buffers        in{};
            in.units       = to_device(device, all.units);
            in.group_words = to_device(device, all.group_words);
            in.bytes       = reinterpret_cast<const uint8_t *>(at);
            in.n_bytes     = n_bytes;
            in.models      = to_device(device, plan.models());
            in.cells       = to_device(device, plan.cells());
            in.errors      = const_cast<uint32_t *>(to_device(device, errors));
            std::vector<std::vector<group_job>> groups;
            std::vector<const group_job *>      on_device;
            std::vector<const table_entry *>    tables;
            std::vector<const uint32_t *>       symbol_values;
            for (auto & launch : all.launches) {
                std::vector<group_job> jobs(all.groups.begin() + launch.first_group_job,
                                            all.groups.begin() + launch.first_group_job + launch.n_group_jobs);
                if (v.n_side != 0 && v.n_side != launch.n_side) {
                    std::vector<group_job> again;
                    for (const auto & job : jobs) {
                        for (uint32_t g = 0; g < launch.n_side; g++) {
                            if ((job.first_group + g) % v.n_side == 0) {
                                again.push_back({ job.unit, job.first_group + g });
                            }
                        }
                    }
                    jobs          = again;
                    launch.n_side = v.n_side;
                }
                on_device.push_back(to_device(device, jobs));
                groups.push_back(std::move(jobs));
                tables.push_back(to_device(device, plan.sets()[launch.set].table));
                symbol_values.push_back(to_device(device, std::vector<uint32_t>(plan.sets()[launch.set].values,
                                                                                plan.sets()[launch.set].values + 64)));
            }
            samples all_ms;
            for (int i = 0; i < n_repeats + 1; i++) {
                check(cudaEventRecord(begin, stream));
                for (size_t l = 0; l < all.launches.size(); l++) {
                    in.groups   = on_device[l];
                    in.n_groups = static_cast<uint32_t>(groups[l].size());
                    in.set      = plan.sets()[all.launches[l].set].shape;
                    in.table    = tables[l];
                    in.values   = symbol_values[l];
                    check(launch_decode(in, all.launches[l].store, all.launches[l].n_side, in.set.n_symbols > 32,
                                        of_launch, stream));
                }
                check(cudaEventRecord(end, stream));
                check(cudaEventSynchronize(end));
                if (i > 0) {
                    float ms = 0;
                    check(cudaEventElapsedTime(&ms, begin, end));
                    all_ms.add(ms);
                }
            }
            device.download(errors.data(), reinterpret_cast<uint64_t>(in.errors), errors.size() * 4);
            const bool   is_sound = std::all_of(errors.begin(), errors.end(), [](uint32_t e) { return e == 0; });
            const double moved    = double(n_bytes) + double(row_bytes) * n_tokens * n_planes;
            json         row      = kernel_row("decode", v.name, n_classes, n_values, all_ms, moved, bytes_per_ms);
            printf("classes %u  %-18s %s ms  %6.1f G symbols/s  %5.2f TB/s moved, %.1f %% of the roofline%s\n",
                   n_classes, v.name, all_ms.text(3).c_str(), row["giga_symbols_per_s"].get<double>(),
                   moved / 1e9 / all_ms.median(), 100 * row["roofline_share"].get<double>(),
                   is_sound ? "" : "  WITH ERRORS");
            fflush(stdout);
            row["is_sound"] = is_sound;
            is_good         = is_good && is_sound;
            results["kernels"].push_back(row);
            for (size_t l = 0; l < all.launches.size(); l++) {
                for (const void * p :
                     { (const void *) on_device[l], (const void *) tables[l], (const void *) symbol_values[l] }) {
                    device.release(reinterpret_cast<uint64_t>(p));
                }
            }
            for (const void * p : { (const void *) in.units, (const void *) in.group_words, (const void *) in.models,
                                    (const void *) in.cells, (const void *) in.errors }) {
                device.release(reinterpret_cast<uint64_t>(p));
            }
        }
        device.release(at);
        if (words.size() > 3 && n_classes > 1) {
            results["files"] = measure_file(words[3] + "/page.lcg3", bytes, n_bytes, parsed.n_blocks + 1, n_tokens,
                                            n_planes, destination, stream, static_cast<uint32_t>(threads), n_repeats);
        }
        cachegen_free(archive);
        for (const auto & row : bench_encoder(planes, sources, lcg3, executor, destination, stream, bytes_per_ms)) {
            is_good = is_good && row["is_same"].get<bool>();
            results["kernels"].push_back(row);
        }
        if (options.has("json")) {
            write_results(options.text("json"), results);
        }
    }
    device.release(destination);
    cachegen_executor_free(executor);
    return is_good ? 0 : 1;
}

} // namespace

int main(int argc, char ** argv) {
    try {
        return run(bench_options(argc, argv, { "json", "commit" }));
    } catch (const std::exception & err) {
        printf("failed: %s\n", err.what());
        return 1;
    }
}
