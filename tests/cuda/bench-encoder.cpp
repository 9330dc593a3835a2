#include "bench-encoder.h"

#include "archive_encoder.h"
#include "bench_checks.h"
#include "cuda/cuda_device.h"
#include "executor.h"
#include "native_tile.h"
#include "status.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace kernels;

namespace {

constexpr int      n_repeats = 7;
constexpr uint32_t n_kinds   = 5; // of encode_kind

// times every launch of the encoder
class timed_device : public cuda_device {
  public:
    timed_device(int index, cudaStream_t stream) : cuda_device(index, stream), stream_(stream) {}
    ~timed_device() override { forget(); }

    void launch_encode(const encode_launch & launch, const encode_buffers & in) override {
        timed one{ launch.kind, nullptr, nullptr };
        check(cudaEventCreate(&one.begin));
        check(cudaEventCreate(&one.end));
        check(cudaEventRecord(one.begin, stream_));
        cuda_device::launch_encode(launch, in);
        check(cudaEventRecord(one.end, stream_));
        launches_.push_back(one);
    }

    // milliseconds of each kind since the last call, when all is done
    void take(float (&ms)[n_kinds]) {
        check(cudaStreamSynchronize(stream_));
        std::fill(ms, ms + n_kinds, 0.0f);
        for (const auto & one : launches_) {
            float of_one = 0;
            check(cudaEventElapsedTime(&of_one, one.begin, one.end));
            ms[static_cast<int>(one.kind)] += of_one;
        }
        forget();
    }

  private:
    struct timed {
        encode_kind kind;
        cudaEvent_t begin;
        cudaEvent_t end;
    };

    void forget() {
        for (const auto & one : launches_) {
            cudaEventDestroy(one.begin);
            cudaEventDestroy(one.end);
        }
        launches_.clear();
    }

    cudaStream_t       stream_;
    std::vector<timed> launches_;
};

struct variant {
    const char * name;
    uint32_t     type;
    uint32_t     n_rot;
};

// a plane as the variant has it
std::vector<uint8_t> convert(const cachegen_rows & from, const variant & v, cachegen_rows & rows) {
    constexpr uint64_t   step = 256;
    std::vector<uint8_t> bytes(from.n_tokens * cachegen::native_bytes(v.type, from.n_channels));
    std::vector<float>   values(step * from.n_channels);
    rows              = from;
    rows.type         = v.type;
    rows.stride_bytes = cachegen::native_bytes(v.type, from.n_channels);
    rows.n_bytes      = bytes.size();
    rows.data         = bytes.data();
    for (uint64_t t = 0; t < from.n_tokens; t += step) {
        const uint64_t n = std::min(step, from.n_tokens - t);
        check(cachegen_load_rows(&from, t, n, values.data()));
        check(cachegen_hadamard(values.data(), n * from.n_channels, v.n_rot));
        check(cachegen_store_rows(&rows, t, n, values.data()));
    }
    return bytes;
}

int32_t append(void * archive, uint64_t offset, const void * from, uint64_t n_bytes) {
    auto & to = *static_cast<std::vector<uint8_t> *>(archive);
    to.resize(std::max<size_t>(to.size(), offset + n_bytes));
    memcpy(to.data() + offset, from, n_bytes);
    return 0;
}

} // namespace

json bench_encoder(const std::vector<cachegen_lcg3_plane> & planes, const std::vector<cachegen_rows> & sources,
                   const cachegen_lcg3_options & options, const cachegen_executor * executor, uint64_t memory,
                   cudaStream_t stream, double bytes_per_ms) {
    json          results    = json::array();
    const variant variants[] = {
        { "F16", CACHEGEN_TYPE_F16, 0 },
        { "F32", CACHEGEN_TYPE_F32, 0 },
        { "Q8_0, rotated 128", CACHEGEN_TYPE_Q8_0, 128 },
    };
    for (const auto & v : variants) {
        std::vector<cachegen_lcg3_plane>  described = planes;
        std::vector<cachegen_rows>        on_host(planes.size());
        std::vector<std::vector<uint8_t>> bytes(planes.size());
        cachegen::run_tasks(executor, planes.size(),
                            [&](uint64_t p) { bytes[p] = convert(sources[p], v, on_host[p]); });
        std::vector<cachegen_rows> on_device = on_host;
        timed_device               device(0, stream);
        uint64_t                   next         = memory;
        double                     n_values     = 0;
        double                     source_bytes = 0;
        for (size_t p = 0; p < planes.size(); p++) {
            described[p].type         = v.type;
            described[p].n_rot        = v.n_rot;
            described[p].is_unrotated = v.n_rot != 0;
            on_device[p].data         = reinterpret_cast<void *>(next);
            device.upload(next, bytes[p].data(), bytes[p].size());
            next += (bytes[p].size() + 255) / 256 * 256;
            source_bytes += double(bytes[p].size());
            n_values += double(on_host[p].n_tokens - options.n_exact_tokens) * double(on_host[p].n_channels);
        }
        void *   expected = nullptr;
        uint64_t n_bytes  = 0;
        check(cachegen_lcg3_encode(described.data(), on_host.data(), on_host.size(), &options, executor, &expected,
                                   &n_bytes));

        samples              totals;
        float                sums[n_kinds] = {};
        float                ms[n_kinds];
        samples              whole;
        bool                 is_same      = true;
        uint64_t             n_left       = 0;
        uint64_t             device_bytes = 0;
        uint64_t             host_bytes   = 0;
        std::vector<uint8_t> archive;
        for (int i = 0; i < n_repeats + 1; i++) {
            archive.clear();
            const auto begin = std::chrono::steady_clock::now();
            check(cachegen::guard([&] {
                archive_encoder encoder(device, on_device);
                encoder.encode(described.data(), options, executor, { &archive, append });
                n_left       = encoder.n_without_room();
                device_bytes = encoder.device_bytes();
                host_bytes   = encoder.host_bytes();
            }));
            const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
            is_same &= archive.size() == n_bytes && memcmp(archive.data(), expected, n_bytes) == 0;
            device.take(ms);
            if (i > 0) { // the first one allocates
                double total = 0;
                for (uint32_t k = 0; k < n_kinds; k++) {
                    total += ms[k];
                    sums[k] += ms[k];
                }
                totals.add(total);
                whole.add(spent.count());
            }
        }
        json row = kernel_row("encode", v.name, options.n_classes, n_values, totals, source_bytes + double(n_bytes),
                              bytes_per_ms);
        const double sum = sums[0] + sums[1] + sums[2] + sums[3] + sums[4];
        printf(
            "classes %u  encode %-18s %s ms  %6.1f G symbols/s, %.1f %% of the roofline  scales %.0f%%, words %.0f%%, "
            "layout %.0f%%, gather %.0f%%, counting %.0f%%  %.3f bits a value%s\n",
            options.n_classes, v.name, totals.text(3).c_str(), row["giga_symbols_per_s"].get<double>(),
            100 * row["roofline_share"].get<double>(), 100 * sums[0] / sum, 100 * sums[1] / sum, 100 * sums[2] / sum,
            100 * sums[3] / sum, 100 * sums[4] / sum, double(n_bytes) * 8 / n_values,
            is_same ? "" : "  ANOTHER ARCHIVE");
        printf("    with training and digests %s ms; %.1f MiB of the device, %.1f MiB of the host; "
               "%llu units left to the host\n",
               whole.text(1).c_str(), device_bytes / 1048576.0, host_bytes / 1048576.0,
               static_cast<unsigned long long>(n_left));
        fflush(stdout);
        const char * kinds[] = { "scales", "words", "layout", "gather", "counting" };
        for (uint32_t k = 0; k < n_kinds; k++) {
            row["shares"][kinds[k]] = sums[k] / sum;
        }
        row["with_training_ms"]   = whole;
        row["archive_bytes"]      = n_bytes;
        row["device_bytes"]       = device_bytes;
        row["host_bytes"]         = host_bytes;
        row["units_left_to_host"] = n_left;
        row["is_same"]            = is_same;
        results.push_back(row);
        cachegen_free(expected);
    }
    return results;
}
