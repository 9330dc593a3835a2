#include "page.h"

#include "ggml-backend.h"
#include "llama-context.h"

#include <cstring>

namespace {

constexpr uint64_t most_part_bytes = 16 << 20; // a part of the native control; it is staged as a whole

void set_name(char (&to)[16], const char * name) {
    strncpy(to, name, sizeof(to));
}

} // namespace

bool cache_page::has(const cell_bytes & expected) const {
    for (size_t i = 0; i < components.size(); i++) {
        std::vector<uint8_t> now(cells[i].size());
        ggml_backend_tensor_get(components[i].tensor, now.data(), 0, now.size());
        if (now != expected[i]) {
            return false;
        }
    }
    return true;
}

cache_page read_page(llama_context * ctx, int32_t n_tokens) {
    const auto * cache = dynamic_cast<llama_kv_cache *>(ctx->get_memory());
    if (cache == nullptr) {
        throw std::runtime_error("this model's memory is not one cache of K and V");
    }
    cache_page page;
    page.n_tokens   = n_tokens;
    page.components = cache->page_components(0);
    for (const auto & c : page.components) {
        if (c.transposed) {
            throw std::runtime_error("the cache holds V transposed");
        }
        const uint64_t row_bytes = ggml_row_size(c.tensor->type, c.n_embd);
        page.cells.emplace_back(row_bytes * static_cast<uint64_t>(n_tokens));
        auto & cells = page.cells.back();
        ggml_backend_tensor_get(c.tensor, cells.data(), 0, cells.size());
        page.n_bytes += cells.size();
        cachegen_rows rows{};
        rows.type         = static_cast<uint32_t>(c.tensor->type);
        rows.n_tokens     = static_cast<uint64_t>(n_tokens);
        rows.n_rows       = rows.n_tokens;
        rows.n_channels   = c.n_embd;
        rows.stride_bytes = row_bytes;
        rows.n_bytes      = cells.size();
        rows.data         = cells.data();
        page.rows.push_back(rows);
    }
    return page;
}

std::vector<cachegen_lcg3_plane> native_planes(const cache_page & page) {
    std::vector<cachegen_lcg3_plane> planes;
    for (const auto & c : page.components) {
        cachegen_lcg3_plane plane{};
        plane.struct_size = sizeof(plane);
        plane.layer       = static_cast<int32_t>(c.il);
        plane.kind        = c.is_v ? CACHEGEN_KIND_V : CACHEGEN_KIND_K;
        plane.mode        = CACHEGEN_LCG3_RAW;
        plane.type        = static_cast<uint32_t>(c.tensor->type);
        plane.n_channels  = c.n_embd;
        plane.n_rot       = c.n_rot;
        planes.push_back(plane);
    }
    return planes;
}

std::vector<cachegen_lcg3_plane> balanced_planes(const cache_page & page) {
    std::vector<cachegen_lcg3_plane> planes = native_planes(page);
    for (auto & plane : planes) {
        plane.mode         = CACHEGEN_LCG3_LOSSY;
        plane.is_unrotated = plane.n_rot != 0;
        plane.n_symbols    = plane.kind == CACHEGEN_KIND_V ? 13 : 31;
        plane.scale_type   = CACHEGEN_TYPE_BF16;
    }
    return planes;
}

cachegen_lcg3_options balanced_options() {
    cachegen_lcg3_options options{};
    options.struct_size     = sizeof(options);
    options.block_tokens    = 1024;
    options.n_exact_tokens  = 4;
    options.n_models        = 32;
    options.n_classes       = 9;
    options.n_sample_tokens = 1024;
    set_name(options.profile, "balanced");
    return options;
}

cachegen_lcg3_options native_options(const cache_page & page) {
    cachegen_lcg3_options options = balanced_options();
    options.n_exact_tokens        = 0;
    set_name(options.profile, "native");
    const uint64_t token_bytes = page.n_bytes / static_cast<uint64_t>(page.n_tokens);
    while (options.block_tokens > 32 && options.block_tokens * token_bytes > most_part_bytes) {
        options.block_tokens /= 2;
    }
    return options;
}

cell_bytes decode_archive(const cache_page & page, const void * archive, uint64_t n_bytes,
                          const cachegen_executor * executor) {
    cachegen_lcg3 * reader = nullptr;
    check_codec(cachegen_lcg3_open(archive, n_bytes, &reader));
    cell_bytes                             decoded(page.cells.size());
    std::vector<cachegen_lcg3_destination> destinations;
    for (size_t i = 0; i < decoded.size(); i++) {
        decoded[i].resize(page.cells[i].size());
        cachegen_lcg3_destination destination{};
        destination.rows      = page.rows[i];
        destination.rows.data = decoded[i].data();
        destination.n_rot     = page.components[i].n_rot;
        destinations.push_back(destination);
    }
    const int32_t status = cachegen_lcg3_decode(reader, 0, static_cast<uint64_t>(page.n_tokens), destinations.data(),
                                                destinations.size(), executor);
    cachegen_lcg3_close(reader);
    check_codec(status);
    return decoded;
}
