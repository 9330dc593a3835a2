// libcachegen built without its encoders reads the worked examples of the format pages. That this links at all is the
// point: nothing of the decoder needs the encoder.
#include "cachegen.h"
#include "harness.h"

#include <cstdlib>
#include <fstream>

namespace {

// the bytes of the one block of hex in a page of docs/formats
std::vector<uint8_t> example_of(const char * page) {
    std::ifstream        in(std::string(FORMAT_PAGES) + "/" + page);
    std::vector<uint8_t> bytes;
    bool                 is_inside = false;
    for (std::string line; std::getline(in, line);) {
        if (line.rfind("```", 0) == 0) {
            is_inside = line == "```hex";
            continue;
        }
        std::istringstream words(is_inside ? line : "");
        for (std::string word; words >> word;) {
            bytes.push_back(static_cast<uint8_t>(strtoul(word.c_str(), nullptr, 16)));
        }
    }
    CHECK(!bytes.empty());
    return bytes;
}

cachegen_rows f16_rows(std::vector<uint16_t> & data, uint64_t n_tokens, uint64_t n_channels) {
    data.assign(n_tokens * n_channels, 0xffff);
    cachegen_rows rows{};
    rows.type         = CACHEGEN_TYPE_F16;
    rows.n_tokens     = n_tokens;
    rows.n_rows       = n_tokens;
    rows.n_channels   = n_channels;
    rows.stride_bytes = 2 * n_channels;
    rows.n_bytes      = 2 * data.size();
    rows.data         = data.data();
    return rows;
}

} // namespace

TEST(lcg3_example_decodes) {
    const auto      bytes  = example_of("lcg3.md");
    cachegen_lcg3 * reader = nullptr;
    CHECK_EQ(cachegen_lcg3_open(bytes.data(), bytes.size(), &reader), CACHEGEN_OK);
    cachegen_lcg3_info info{};
    info.struct_size = sizeof(info);
    CHECK_EQ(cachegen_lcg3_describe(reader, &info, nullptr, 0), CACHEGEN_OK);
    CHECK_EQ(info.n_tokens, 13u);
    CHECK_EQ(info.n_planes, 1u);
    CHECK_EQ(cachegen_lcg3_verify(reader, nullptr), CACHEGEN_OK);
    std::vector<uint16_t>     data;
    cachegen_lcg3_destination destination{};
    destination.rows = f16_rows(data, info.n_tokens, 2);
    CHECK_EQ(cachegen_lcg3_decode(reader, 0, info.n_tokens, &destination, 1, nullptr), CACHEGEN_OK);
    CHECK_EQ(data[0], 0x34cd); // the exact row
    CHECK_EQ(data[1], 0xc700);
    for (const uint16_t half : data) {
        CHECK(half != 0xffff);
    }
    cachegen_lcg3_close(reader);
}

TEST(legacy_examples_decode) {
    for (const char * page : { "lcg1.md", "lcg2.md" }) {
        const harness::scope scope(page);
        const auto           bytes = example_of(page);
        cachegen_tile_info   info{};
        info.struct_size = sizeof(info);
        CHECK_EQ(cachegen_tile_describe(bytes.data(), bytes.size(), &info), CACHEGEN_OK);
        std::vector<uint16_t> data;
        const auto            rows = f16_rows(data, info.n_tokens, info.n_channels);
        CHECK_EQ(cachegen_tile_decode(bytes.data(), bytes.size(), &rows, 0), CACHEGEN_OK);
        for (const uint16_t half : data) {
            CHECK(half != 0xffff);
        }
    }
    const auto      bytes  = example_of("ckg1.md");
    cachegen_ckg1 * reader = nullptr;
    CHECK_EQ(cachegen_ckg1_open(bytes.data(), bytes.size(), &reader), CACHEGEN_OK);
    uint64_t page_bytes = 0;
    uint64_t n_records  = 0;
    CHECK_EQ(cachegen_ckg1_describe(reader, &page_bytes, &n_records, nullptr, 0), CACHEGEN_OK);
    CHECK_EQ(n_records, 3u);
    std::vector<uint8_t> decoded(page_bytes);
    CHECK_EQ(cachegen_ckg1_decode(reader, decoded.data(), decoded.size(), nullptr), CACHEGEN_OK);
    CHECK_EQ(decoded[16], 0xab); // the exact record
    CHECK_EQ(decoded[17], 0xcd);
    cachegen_ckg1_close(reader);
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
