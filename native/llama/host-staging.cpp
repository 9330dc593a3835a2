#include "host-staging.h"

#include "codec_rows.h"
#include "page-copy.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <mutex>

namespace {

constexpr uint64_t max_staged_bytes = 16u << 20;

uint64_t row_bytes(const ggml_kv_codec_rows & rows) {
    return ggml_row_size(rows.tensor->type, int64_t(rows.n_channels));
}

// n of its tokens in memory of their own, laid out as in its tensor
cachegen_rows packed_rows(const ggml_kv_codec_rows & rows, uint64_t n, uint8_t * data) {
    cachegen_rows result = codec_rows(rows, n, data);
    result.n_tokens      = n;
    return result;
}

// copy(offset in the tensor, offset in the packed bytes, bytes, copies, stride in the tensor, stride in the packed
// bytes) for each run of cells of n tokens from `first` on
template <typename Copy> void for_runs(const ggml_kv_codec_rows & rows, uint64_t first, uint64_t n, Copy && copy) {
    const std::vector<uint32_t> cells(rows.cells + first, rows.cells + first + n);
    const size_t unit = rows.is_transposed ? ggml_type_size(rows.tensor->type) : row_bytes(rows); // of one token
    size_t       done = 0;
    for (const auto & run : page_cell_runs(cells)) {
        const size_t copies = rows.is_transposed ? rows.n_channels : 1;
        copy(rows.offset + run.first * unit, done, run.n * unit, copies, rows.n_cells * unit, n * unit);
        done += run.n * unit;
    }
}

void write_rows(const ggml_kv_codec_rows & rows, uint64_t first, uint64_t n, const uint8_t * packed) {
    for_runs(rows, first, n,
             [&](size_t at, size_t from, size_t size, size_t copies, size_t stride, size_t packed_stride) {
                 ggml_backend_tensor_set_2d(rows.tensor, packed + from, at, size, copies, stride, packed_stride);
             });
}

void read_rows(const ggml_kv_codec_rows & rows, uint64_t first, uint64_t n, uint8_t * packed) {
    for_runs(rows, first, n,
             [&](size_t at, size_t to, size_t size, size_t copies, size_t stride, size_t packed_stride) {
                 ggml_backend_tensor_get_2d(rows.tensor, packed + to, at, size, copies, stride, packed_stride);
             });
}

} // namespace

staged_decoder::staged_decoder(const cachegen_lcg3 * reader, std::vector<ggml_kv_codec_rows> rows, uint32_t n_threads)
    : reader_(reader), rows_(std::move(rows)), executor_(cachegen::make_executor(n_threads)) {}

int32_t staged_decoder::decode_part(uint32_t part, const void * bytes, uint64_t n_bytes, uint32_t first_token,
                                    uint32_t end_token) {
    const cachegen::metering                            counted(&meter_);
    cachegen::metered_vector<cachegen_lcg3_destination> destinations(rows_.size());

    const auto n_wanted = [&](size_t p) {
        const uint32_t first = std::max(first_token, rows_[p].first_token);
        return rows_[p].tensor && first < end_token ? end_token - first : 0;
    };
    for (size_t begin = 0; begin < rows_.size();) {
        size_t   end    = begin;
        uint64_t staged = 0;
        while (end < rows_.size()) {
            const uint64_t more = n_wanted(end) ? n_wanted(end) * row_bytes(rows_[end]) : 0;
            if (staged > 0 && staged + more > max_staged_bytes) {
                break;
            }
            staged += more;
            end++;
        }
        cachegen::metered_array<uint8_t> memory(staged);
        std::fill(destinations.begin(), destinations.end(), cachegen_lcg3_destination{});
        uint8_t * next = memory.get();
        for (size_t p = begin; p < end; ++p) {
            if (const uint32_t n = n_wanted(p)) {
                destinations[p] = { packed_rows(rows_[p], n, next), rows_[p].n_rot, rows_[p].first_token };
                next += destinations[p].rows.n_bytes;
            }
        }
        const int32_t status =
            cachegen_lcg3_decode_part(reader_, part, bytes, n_bytes, first_token, end_token - first_token,
                                      destinations.data(), destinations.size(), executor_.get());
        if (status != CACHEGEN_OK) {
            return status;
        }
        for (size_t p = begin; p < end; ++p) {
            if (const uint32_t n = n_wanted(p)) {
                write_rows(rows_[p], std::max(first_token, rows_[p].first_token) - rows_[p].first_token, n,
                           static_cast<const uint8_t *>(destinations[p].rows.data));
            }
        }
        begin = end;
    }
    return CACHEGEN_OK;
}

int32_t staged_encode(const cachegen_lcg3_plane * planes, const cachegen_lcg3_options * options,
                      const std::vector<ggml_kv_codec_rows> & rows, const std::vector<bool> & is_staged,
                      uint32_t n_threads, ggml_kv_codec_write_t write, void * user_data, uint64_t * n_bytes,
                      uint64_t * peak_bytes) {
    cachegen::memory_meter                  meter;
    const cachegen::metering                counted(&meter);
    cachegen::metered_vector<cachegen_rows> sources(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const auto & one = rows[i];
        if (is_staged[i]) {
            sources[i]        = packed_rows(one, one.n_tokens, nullptr);
            sources[i].n_rows = 0;
        } else {
            sources[i] = tensor_rows(one);
        }
    }

    struct state {
        const std::vector<ggml_kv_codec_rows> & rows;
        std::mutex                              mutex; // a backend is asked by one thread at a time
    } reading = { rows, {} };

    const cachegen_row_reader reader = { &reading,
                                         [](void * user, uint64_t plane, uint64_t first, uint64_t n, void * out) {
                                             auto &                            self = *static_cast<state *>(user);
                                             const std::lock_guard<std::mutex> lock(self.mutex);
                                             read_rows(self.rows[plane], first, n, static_cast<uint8_t *>(out));
                                             return 0;
                                         } };
    const auto          executor = cachegen::make_executor(n_threads);
    const cachegen_sink sink     = { user_data, write };
    const int32_t       status   = cachegen_lcg3_encode_from(planes, sources.data(), rows.size(), &reader, options,
                                                             executor.get(), &sink, n_bytes);
    *peak_bytes                  = meter.peak();
    return status;
}
