#include "bytes.h"
#include "caller_bytes.h"
#include "ckg1.h"
#include "executor.h"
#include "native_tile.h"
#include "typed_store.h"

namespace cachegen::legacy {

namespace {

using ull = unsigned long long;

struct record_plan {
    const cachegen_ckg1_part * part;
    uint64_t                   output_offset;
    uint64_t                   decoded_bytes;
    uint64_t                   first_token;
    uint64_t                   n_tokens;
};

void check_part(const cachegen_ckg1_part & part, ull index) {
    if (part.kind >= n_ckg1_kinds || part.reserved0 != 0) {
        fail(CACHEGEN_ERR_ARGUMENT, "part %llu: kind %u; 0 to %u are possible", index, part.kind, n_ckg1_kinds - 1);
    }
    if (part.kind == CACHEGEN_CKG1_EXACT) {
        if (part.rows.data == nullptr || part.rows.n_bytes == 0) {
            fail(CACHEGEN_ERR_ARGUMENT, "part %llu: no exact bytes", index);
        }
        return;
    }
    validate_rows(part.rows, "a part");
    const uint32_t type = type_of_kind(part.kind);
    if (part.rows.n_tokens == 0 || part.rows.type != type ||
        (part.rows.is_transposed != 0) != is_transposed_kind(part.kind)) {
        fail(CACHEGEN_ERR_ARGUMENT, "part %llu: %llu tokens of type %u, transposed %u, for kind %u", index,
             (ull) part.rows.n_tokens, part.rows.type, part.rows.is_transposed, part.kind);
    }
}

std::vector<uint8_t> encode_record(const record_plan & plan, uint32_t version) {
    const cachegen_ckg1_part & part     = *plan.part;
    const bool                 is_exact = part.kind == CACHEGEN_CKG1_EXACT;
    std::vector<uint8_t>       out(ckg1_record_bytes);
    if (is_exact) {
        const auto * data = static_cast<const uint8_t *>(part.rows.data);
        out.insert(out.end(), data, data + part.rows.n_bytes);
    } else {
        const auto content =
            encode_tile(part.rows, plan.first_token, static_cast<uint32_t>(plan.n_tokens), part.n_bins, version);
        out.insert(out.end(), content.begin(), content.end());
    }
    out[0] = static_cast<uint8_t>(part.kind);
    out[1] = static_cast<uint8_t>(element_bytes_of_kind(part.kind));
    put_le<uint64_t>(&out[4], plan.output_offset);
    put_le<uint64_t>(&out[12], plan.decoded_bytes);
    put_le<uint64_t>(&out[20], plan.n_tokens);
    put_le<uint64_t>(&out[28], plan.first_token);
    put_le<uint64_t>(&out[36], is_exact ? 0 : part.rows.n_tokens);
    put_le<uint64_t>(&out[44], out.size() - ckg1_record_bytes);
    return out;
}

} // namespace

} // namespace cachegen::legacy

using namespace cachegen;

int32_t cachegen_ckg1_encode(const struct cachegen_ckg1_part * parts, uint64_t n_parts, uint32_t version,
                             const struct cachegen_executor * executor, void ** archive, uint64_t * n_bytes) {
    return guard([&] {
        if (parts == nullptr || n_parts == 0 || archive == nullptr || n_bytes == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "parts, archive or n_bytes is NULL, or there is no part");
        }
        *archive = nullptr;
        *n_bytes = 0;
        std::vector<legacy::record_plan> plans;
        uint64_t                         page_bytes = 0;
        for (uint64_t p = 0; p < n_parts; p++) {
            const auto & part = parts[p];
            legacy::check_part(part, p);
            if (part.kind == CACHEGEN_CKG1_EXACT) {
                plans.push_back({ &part, page_bytes, part.rows.n_bytes, 0, 0 });
                page_bytes = add_or_fail(page_bytes, part.rows.n_bytes, "the page");
                continue;
            }
            const uint64_t row_bytes = native_bytes(part.rows.type, part.rows.n_channels);
            for (uint64_t t = 0; t < part.rows.n_tokens; t += legacy::max_tile_tokens) {
                const uint64_t n      = std::min<uint64_t>(legacy::max_tile_tokens, part.rows.n_tokens - t);
                const uint64_t offset = legacy::is_transposed_kind(part.kind) ? page_bytes : page_bytes + t * row_bytes;
                plans.push_back({ &part, offset, n * row_bytes, t, n });
            }
            page_bytes = add_or_fail(page_bytes, mul_or_fail(part.rows.n_tokens, row_bytes, "the page"), "the page");
        }
        if (plans.size() > UINT32_MAX) {
            fail(CACHEGEN_ERR_LIMIT, "%zu records in one archive", plans.size());
        }
        std::vector<std::vector<uint8_t>> records(plans.size());
        run_tasks(executor, plans.size(), [&](uint64_t i) { records[i] = legacy::encode_record(plans[i], version); });

        std::vector<uint8_t> out(legacy::ckg1_header_bytes);
        memcpy(out.data(), "CKG1", 4);
        put_le<uint64_t>(&out[4], page_bytes);
        put_le<uint32_t>(&out[12], static_cast<uint32_t>(plans.size()));
        for (auto & record : records) {
            out.insert(out.end(), record.begin(), record.end());
            std::vector<uint8_t>().swap(record);
        }
        *archive = copy_for_caller(out);
        *n_bytes = out.size();
    });
}
