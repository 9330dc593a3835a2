#include "page-copy.h"

#include "page-digest.h"

#include <algorithm>
#include <cstring>

namespace {

// small enough to stay in a core's own cache between the copy and the digest
constexpr size_t digest_chunk_bytes = 128 * 1024;

// below this many elements a run a gather loop is faster than a memcpy per run
constexpr size_t min_run_for_memcpy = 16;

class chunked_digest {
  public:
    explicit chunked_digest(bool enabled) : enabled(enabled) {}

    void update(const uint8_t * data, size_t n_bytes) {
        if (enabled) {
            digest.update(data, n_bytes);
        }
    }

    uint64_t value() const { return enabled ? digest.value() : 0; }

    const bool enabled;

  private:
    page_digest digest;
};

// with a digest in chunks, without one in one piece: large copies can then bypass the cache
template <typename Copy> void for_chunks(const chunked_digest & digest, size_t n_bytes, Copy && copy) {
    const size_t chunk_bytes = digest.enabled ? digest_chunk_bytes : n_bytes;
    for (size_t i = 0; i < n_bytes; i += chunk_bytes) {
        copy(i, std::min(chunk_bytes, n_bytes - i));
    }
}

template <typename T> void gather(const uint8_t * src, const std::vector<page_cell_run> & runs, uint8_t * dst) {
    for (const auto & run : runs) {
        for (uint32_t i = 0; i < run.n; ++i) {
            memcpy(dst, src + (size_t(run.first) + i) * sizeof(T), sizeof(T));
            dst += sizeof(T);
        }
    }
}

template <typename T> void scatter(const uint8_t * src, const std::vector<page_cell_run> & runs, uint8_t * dst) {
    for (const auto & run : runs) {
        for (uint32_t i = 0; i < run.n; ++i) {
            memcpy(dst + (size_t(run.first) + i) * sizeof(T), src, sizeof(T));
            src += sizeof(T);
        }
    }
}

bool use_gather(const std::vector<page_cell_run> & runs, uint32_t n_tokens, size_t el_bytes) {
    return (el_bytes == 2 || el_bytes == 4) && n_tokens < runs.size() * min_run_for_memcpy;
}

} // namespace

std::vector<page_cell_run> page_cell_runs(const std::vector<uint32_t> & idxs) {
    std::vector<page_cell_run> runs;
    for (const uint32_t idx : idxs) {
        if (!runs.empty() && runs.back().first + runs.back().n == idx) {
            runs.back().n++;
        } else {
            runs.push_back({ idx, 1 });
        }
    }
    return runs;
}

uint64_t page_copy_out(const page_host_tensor & src, const std::vector<page_cell_run> & runs, uint32_t n_tokens,
                       uint8_t * packed, bool with_digest) {
    chunked_digest digest(with_digest);

    if (!src.transposed) {
        for (const auto & run : runs) {
            const uint8_t * rows = src.data + size_t(run.first) * src.row_bytes;
            for_chunks(digest, size_t(run.n) * src.row_bytes, [&](size_t offset, size_t n_bytes) {
                memcpy(packed + offset, rows + offset, n_bytes);
                digest.update(packed + offset, n_bytes);
            });
            packed += size_t(run.n) * src.row_bytes;
        }
        return digest.value();
    }

    const size_t el_bytes      = src.row_bytes / src.n_channels;
    const size_t channel_bytes = size_t(n_tokens) * el_bytes;
    const bool   by_element    = use_gather(runs, n_tokens, el_bytes);

    for (uint32_t j = 0; j < src.n_channels; ++j) {
        const uint8_t * channel = src.data + size_t(j) * src.n_cells * el_bytes;
        if (by_element) {
            el_bytes == 2 ? gather<uint16_t>(channel, runs, packed) : gather<uint32_t>(channel, runs, packed);
        } else {
            uint8_t * dst = packed;
            for (const auto & run : runs) {
                memcpy(dst, channel + size_t(run.first) * el_bytes, size_t(run.n) * el_bytes);
                dst += size_t(run.n) * el_bytes;
            }
        }
        digest.update(packed, channel_bytes);
        packed += channel_bytes;
    }
    return digest.value();
}

uint64_t page_copy_in(const page_host_tensor & dst, const std::vector<page_cell_run> & runs, uint32_t n_tokens,
                      const uint8_t * packed, bool with_digest) {
    chunked_digest digest(with_digest);

    if (!dst.transposed) {
        for (const auto & run : runs) {
            uint8_t * rows = dst.data + size_t(run.first) * dst.row_bytes;
            for_chunks(digest, size_t(run.n) * dst.row_bytes, [&](size_t offset, size_t n_bytes) {
                digest.update(packed + offset, n_bytes);
                memcpy(rows + offset, packed + offset, n_bytes);
            });
            packed += size_t(run.n) * dst.row_bytes;
        }
        return digest.value();
    }

    const size_t el_bytes      = dst.row_bytes / dst.n_channels;
    const size_t channel_bytes = size_t(n_tokens) * el_bytes;
    const bool   by_element    = use_gather(runs, n_tokens, el_bytes);

    for (uint32_t j = 0; j < dst.n_channels; ++j) {
        uint8_t * channel = dst.data + size_t(j) * dst.n_cells * el_bytes;
        digest.update(packed, channel_bytes);
        if (by_element) {
            el_bytes == 2 ? scatter<uint16_t>(packed, runs, channel) : scatter<uint32_t>(packed, runs, channel);
        } else {
            const uint8_t * src = packed;
            for (const auto & run : runs) {
                memcpy(channel + size_t(run.first) * el_bytes, src, size_t(run.n) * el_bytes);
                src += size_t(run.n) * el_bytes;
            }
        }
        packed += channel_bytes;
    }
    return digest.value();
}
