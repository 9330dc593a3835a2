// Hostile bytes as a CKG1 archive or as an LCG1 or LCG2 tile: every call ends with a status, touches only its own
// memory and gives the same under every instruction set. The first byte of an input says what is done with the rest.
#include "fuzz.h"

#include <algorithm>
#include <iterator>

namespace {

using namespace fuzz;

enum choice : uint8_t {
    SIZES     = 1,  // magics, sizes and numbers of bytes are made to fit
    TABLES    = 2,  // tables, lengths of streams and maxima of tiles are made to fit
    COVER     = 4,  // the records are laid out anew, so that they cover the page
    BACKWARDS = 8,  // with COVER: from the last one to the first
    CELLS     = 16, // of a tile's destinations: scattered
    LATER     = 32, // a tile's destinations begin before it
    OTHERS    = 64  // a tile as Q4_0, BF16 and transposed F16; else as F16, Q8_0 and transposed F32
};

using bytes = std::vector<uint8_t>;

constexpr uint32_t header_bytes    = 16; // of an archive and of a tile
constexpr uint32_t record_bytes    = 52;
constexpr uint32_t table_bytes     = 66; // of a channel
constexpr uint64_t max_page_bytes  = 1u << 20;
constexpr uint64_t max_tile_values = 1u << 18;

constexpr uint8_t element_bytes[] = { 2, 1, 2, 4, 4, 34, 18 }; // by kind

bool is_transposed(uint32_t kind) {
    return kind == CACHEGEN_CKG1_F16_TRANSPOSED || kind == CACHEGEN_CKG1_F32_TRANSPOSED;
}

bool is_blocks(uint32_t kind) {
    return kind == CACHEGEN_CKG1_Q8_0_ROWS || kind == CACHEGEN_CKG1_Q4_0_ROWS;
}

// Where a tile's parts lie, as far as its header says so; written without the library's parser.
struct tile_parts {
    explicit tile_parts(const uint8_t * tile)
        : is_1(tile[3] != '2'), n_tokens(get<uint16_t>(tile + 6)), n_channels(get<uint32_t>(tile + 8)),
          stream_bytes(get<uint32_t>(tile + 12)) {}

    uint64_t tables() const { return header_bytes + 4 * n_tokens; }
    uint64_t lengths() const { return tables() + table_bytes * n_channels; }
    uint64_t n_bytes() const { return (is_1 ? lengths() + 2 * n_channels : tables()) + stream_bytes; }

    bool     is_1;
    uint64_t n_tokens;
    uint64_t n_channels;
    uint64_t stream_bytes;
};

// Sizes of a tile that fit each other; it is cut, or padded with zeros.
void fit_sizes(bytes & tile, bool has_blocks) {
    tile.resize(std::max<size_t>(tile.size(), header_bytes + 4));
    const bool is_1 = tile[3] != '2';
    memcpy(tile.data(), is_1 ? "LCG1" : "LCG2", 4);
    tile[4]             = tile[4] == 16 ? 16 : 32;
    const uint32_t bits = tile[4] == 16 ? 4 : 5;
    tile[5]             = static_cast<uint8_t>(is_1 ? 0 : bits);
    tile_parts is(tile.data());
    is.n_tokens            = std::min<uint64_t>(std::max<uint64_t>(is.n_tokens, 1), 256);
    const uint64_t n_left  = tile.size() - std::min<uint64_t>(tile.size(), is.tables());
    const uint64_t n_most  = is_1 ? n_left / (table_bytes + 3) : n_left * 8 / (is.n_tokens * bits);
    const uint64_t n_block = has_blocks && n_most >= 32 ? 32 : 1;
    // one more than fits is let through: padded
    is.n_channels          = std::max<uint64_t>(std::min(is.n_channels, n_most + 1) / n_block * n_block, n_block);
    if (is_1) {
        is.stream_bytes = 0;
        is.stream_bytes = tile.size() - std::min<uint64_t>(tile.size(), is.n_bytes());
        is.stream_bytes = std::min(std::max(is.stream_bytes, is.n_channels), 256 * is.n_channels);
    } else {
        is.stream_bytes = (is.n_tokens * is.n_channels * bits + 7) / 8;
    }
    put(tile.data() + 6, static_cast<uint16_t>(is.n_tokens));
    put(tile.data() + 8, static_cast<uint32_t>(is.n_channels));
    put(tile.data() + 12, static_cast<uint32_t>(is.stream_bytes));
    tile.resize(is.n_bytes());
}

// A table that rises strictly from 0 to 65,535.
void fit_table(uint8_t * table) {
    int32_t before = -1;
    for (int32_t i = 0; i <= 32; i++) {
        const int32_t value = i == 0 ? 0 : i == 32 ? 65535 : get<uint16_t>(table + 2 * i);
        before              = std::min(std::max(value, before + 1), 65503 + i);
        put(table + 2 * i, static_cast<uint16_t>(before));
    }
}

void fit_tables(bytes & tile) {
    if (tile.size() < header_bytes) {
        return;
    }
    const tile_parts is(tile.data());
    if (is.n_bytes() != tile.size()) {
        return;
    }
    for (uint64_t t = 0; t < is.n_tokens; t++) {
        uint8_t *      at   = tile.data() + header_bytes + 4 * t;
        const uint32_t bits = get<uint32_t>(at) & 0x7fffffff;
        put(at, std::min<uint32_t>(bits, 0x477fefff)); // below 65,520
    }
    if (!is.is_1) {
        const uint64_t n_last = is.n_tokens * is.n_channels * tile[5] % 8;
        if (n_last != 0 && is.stream_bytes > 0) {
            tile.back() = static_cast<uint8_t>(tile.back() & ((1u << n_last) - 1));
        }
        return;
    }
    int64_t difference = static_cast<int64_t>(is.stream_bytes);
    for (const bool is_repair : { false, true }) {
        for (uint64_t c = 0; c < is.n_channels; c++) {
            uint8_t *     at     = tile.data() + is.lengths() + 2 * c;
            const int64_t length = get<uint16_t>(at);
            const int64_t wanted = is_repair ? length + difference : length;
            const int64_t fitted = std::min<int64_t>(std::max<int64_t>(wanted, 1), 256);
            difference -= is_repair ? fitted - length : fitted;
            put(at, static_cast<uint16_t>(fitted));
        }
    }
    for (uint64_t c = 0; c < is.n_channels; c++) {
        fit_table(tile.data() + is.tables() + table_bytes * c);
    }
}

struct record {
    uint8_t head[record_bytes];
    bytes   payload;
};

template <typename T> T field(const record & of, uint32_t offset) {
    return get<T>(of.head + offset);
}

constexpr uint32_t at_output_offset = 4;
constexpr uint32_t at_decoded_bytes = 12;
constexpr uint32_t at_n_tokens      = 20;
constexpr uint32_t at_token_start   = 28;
constexpr uint32_t at_total_tokens  = 36;
constexpr uint32_t at_payload_bytes = 44;

void fit_record(record & one, uint8_t choices) {
    uint8_t * head = one.head;
    if (choices & SIZES) {
        head[0] = static_cast<uint8_t>(head[0] % std::size(element_bytes));
        head[2] = 0;
        head[3] = 0;
        if (head[0] == CACHEGEN_CKG1_EXACT) {
            one.payload.resize(std::max<size_t>(one.payload.size(), 1));
            put(head + at_decoded_bytes, uint64_t{ one.payload.size() });
        } else {
            fit_sizes(one.payload, is_blocks(head[0]));
            const tile_parts tile(one.payload.data());
            if (is_blocks(head[0]) && tile.n_channels % 32 != 0) {
                head[0] = CACHEGEN_CKG1_F16_ROWS;
            }
            const uint64_t per_block = is_blocks(head[0]) ? 32 : 1;
            put(head + at_decoded_bytes, tile.n_tokens * tile.n_channels / per_block * element_bytes[head[0]]);
            put(head + at_n_tokens, tile.n_tokens);
        }
        head[1] = element_bytes[head[0]];
        put(head + at_payload_bytes, uint64_t{ one.payload.size() });
    }
    if ((choices & TABLES) && head[0] != CACHEGEN_CKG1_EXACT) {
        fit_tables(one.payload);
    }
}

// the same slab, as far as they say so themselves
bool is_one_slab(const record & a, const record & b) {
    return is_transposed(a.head[0]) && a.head[0] == b.head[0] && a.payload.size() >= header_bytes &&
           b.payload.size() >= header_bytes && get<uint32_t>(&a.payload[8]) == get<uint32_t>(&b.payload[8]) &&
           field<uint64_t>(a, at_output_offset) == field<uint64_t>(b, at_output_offset);
}

// rows that say a place in a slab, which no reader needs
bool is_within(const record & rows) {
    const auto total = field<uint64_t>(rows, at_total_tokens);
    const auto start = field<uint64_t>(rows, at_token_start);
    return start <= total && field<uint64_t>(rows, at_n_tokens) <= total - start;
}

// Lay the records out one after another; what belongs to one slab stays so. Returns the size of the page.
uint64_t cover(std::vector<record> & records, uint8_t choices) {
    std::vector<record *> order;
    for (auto & one : records) {
        order.push_back(&one);
    }
    if (choices & BACKWARDS) {
        std::reverse(order.begin(), order.end());
    }
    uint64_t covered = 0;
    for (size_t begin = 0; begin < order.size();) {
        size_t   end      = begin + 1;
        uint64_t n_tokens = field<uint64_t>(*order[begin], at_n_tokens);
        uint64_t n_bytes  = field<uint64_t>(*order[begin], at_decoded_bytes);
        while (end < order.size() && is_one_slab(*order[begin], *order[end])) {
            n_tokens += field<uint64_t>(*order[end], at_n_tokens);
            n_bytes += field<uint64_t>(*order[end], at_decoded_bytes);
            end++;
        }
        uint64_t token = 0;
        for (size_t i = begin; i < end; i++) {
            uint8_t * head = order[i]->head;
            put(head + at_output_offset, covered);
            if (is_transposed(head[0])) {
                put(head + at_token_start, token);
                put(head + at_total_tokens, n_tokens);
            } else if (!is_within(*order[i])) {
                put(head + at_token_start, uint64_t{ 0 });
                put(head + at_total_tokens, uint64_t{ 0 });
            }
            token += field<uint64_t>(*order[i], at_n_tokens);
        }
        covered += n_bytes;
        begin = end;
    }
    return covered;
}

bytes fit_archive(uint8_t choices, const bytes & archive) {
    if (archive.size() < header_bytes) {
        return archive;
    }
    bytes               head(archive.begin(), archive.begin() + header_bytes);
    const uint32_t      n_records = get<uint32_t>(head.data() + 12);
    std::vector<record> records;
    size_t              at = header_bytes;
    while (records.size() < std::max<uint32_t>(n_records, 1) && archive.size() - at >= record_bytes) {
        record one;
        memcpy(one.head, archive.data() + at, record_bytes);
        const size_t n_left  = archive.size() - at - record_bytes;
        const bool   is_last = records.size() + 1 == n_records;
        uint64_t     n_bytes = field<uint64_t>(one, at_payload_bytes);
        if (n_bytes > n_left || ((choices & SIZES) && (is_last || n_left - n_bytes < record_bytes))) {
            if (!(choices & SIZES)) {
                break;
            }
            n_bytes = n_left;
        }
        at += record_bytes;
        one.payload.assign(archive.data() + at, archive.data() + at + n_bytes);
        at += n_bytes;
        fit_record(one, choices);
        records.push_back(std::move(one));
    }
    if (choices & SIZES) {
        memcpy(head.data(), "CKG1", 4);
        put(head.data() + 12, static_cast<uint32_t>(records.size()));
        at = archive.size();
    }
    if (choices & COVER) {
        put(head.data() + 4, cover(records, choices));
    }
    bytes res = std::move(head);
    for (const auto & one : records) {
        res.insert(res.end(), one.head, one.head + record_bytes);
        res.insert(res.end(), one.payload.begin(), one.payload.end());
    }
    res.insert(res.end(), archive.data() + at, archive.data() + archive.size());
    return res;
}

buffer fit(uint8_t choices, const uint8_t * data, size_t size) {
    bytes res(data, data + size);
    if (size >= 3 && memcmp(data, "LCG", 3) == 0) {
        if (choices & SIZES) {
            fit_sizes(res, false);
        }
        if (choices & TABLES) {
            fit_tables(res);
        }
    } else if (choices & (SIZES | TABLES | COVER)) {
        res = fit_archive(choices, res);
    }
    return buffer(res.data(), res.size());
}

// What the bytes gave: one status a call, and the bytes of every successful decode.
struct outcome {
    std::vector<int32_t> statuses;
    std::vector<buffer>  decoded;

    bool ok(int32_t status) {
        statuses.push_back(check_status(status));
        return status == CACHEGEN_OK;
    }

    bool operator==(const outcome & other) const { return statuses == other.statuses && decoded == other.decoded; }
};

struct reader_deleter {
    void operator()(cachegen_ckg1 * reader) const { cachegen_ckg1_close(reader); }
};

void read_archive(const buffer & archive, outcome & res) {
    cachegen_ckg1 * opened = nullptr;
    if (!res.ok(cachegen_ckg1_open(archive.data.get(), archive.n_bytes, &opened))) {
        FUZZ_CHECK(opened == nullptr);
        return;
    }
    const std::unique_ptr<cachegen_ckg1, reader_deleter> reader(opened);
    uint64_t                                             page_bytes = 0;
    uint64_t                                             n_records  = 0;
    FUZZ_CHECK(cachegen_ckg1_describe(opened, &page_bytes, &n_records, nullptr, 0) == CACHEGEN_OK);
    FUZZ_CHECK(page_bytes > 0 && page_bytes <= 16 * archive.n_bytes);
    FUZZ_CHECK(n_records > 0 && n_records <= archive.n_bytes / record_bytes);
    std::vector<cachegen_ckg1_record> records(n_records);
    FUZZ_CHECK(cachegen_ckg1_describe(opened, &page_bytes, &n_records, records.data(), n_records - 1) ==
               CACHEGEN_ERR_BUFFER_SIZE);
    FUZZ_CHECK(cachegen_ckg1_describe(opened, &page_bytes, &n_records, records.data(), n_records) == CACHEGEN_OK);
    uint64_t decoded_bytes = 0;
    for (const auto & one : records) {
        FUZZ_CHECK(one.payload_offset <= archive.n_bytes && one.payload_bytes <= archive.n_bytes - one.payload_offset);
        FUZZ_CHECK(one.output_offset < page_bytes && one.decoded_bytes <= page_bytes - one.output_offset);
        decoded_bytes += one.decoded_bytes;
    }
    FUZZ_CHECK(decoded_bytes == page_bytes);
    if (page_bytes > max_page_bytes) {
        return;
    }
    buffer page(page_bytes);
    if (res.ok(cachegen_ckg1_decode(opened, page.data.get(), page_bytes, nullptr))) {
        // every byte of the page was written, whatever was there before
        buffer again(page_bytes);
        memset(again.data.get(), 0x55, page_bytes);
        FUZZ_CHECK(cachegen_ckg1_decode(opened, again.data.get(), page_bytes, nullptr) == CACHEGEN_OK);
        FUZZ_CHECK(again == page);
        res.decoded.push_back(std::move(page));
    }
}

void decode_tile(uint8_t choices, const buffer & tile, const cachegen_tile_info & info, uint32_t type,
                 bool is_transposed, outcome & res) {
    if (is_block_type(type) && info.n_channels % 32 != 0) {
        return;
    }
    const uint32_t        first_token = choices & LATER ? 3 : 0;
    const uint32_t        n_tokens    = first_token + info.n_tokens;
    typed_rows            destination(type, is_transposed, n_tokens, info.n_channels);
    std::vector<uint32_t> cells;
    if (choices & CELLS) { // runs of two, backwards
        for (uint32_t t = 0; t < n_tokens; t++) {
            cells.push_back((n_tokens - 1 - t) ^ (n_tokens % 2 == 0 ? 1 : 0));
        }
        destination.rows.cells = cells.data();
    }
    if (!res.ok(cachegen_tile_decode(tile.data.get(), tile.n_bytes, &destination.rows, first_token))) {
        return;
    }
    if (type == CACHEGEN_TYPE_F32 && first_token == 0) {
        for (uint64_t i = 0; i < destination.bytes.n_bytes; i += 4) {
            FUZZ_CHECK((get<uint32_t>(destination.bytes.data.get() + i) & 0x7f800000) != 0x7f800000);
        }
    }
    res.decoded.push_back(std::move(destination.bytes));
}

void read_tile(uint8_t choices, const buffer & tile, outcome & res) {
    cachegen_tile_info info{};
    info.struct_size = sizeof(info);
    if (!res.ok(cachegen_tile_describe(tile.data.get(), tile.n_bytes, &info))) {
        return;
    }
    FUZZ_CHECK(info.version == 1 || info.version == 2);
    FUZZ_CHECK(info.n_tokens >= 1 && info.n_tokens <= 256 && info.stream_bytes <= tile.n_bytes);
    if (uint64_t{ info.n_tokens } * info.n_channels > max_tile_values) {
        return;
    }
    const bool is_others = (choices & OTHERS) != 0;
    decode_tile(choices, tile, info, is_others ? CACHEGEN_TYPE_BF16 : CACHEGEN_TYPE_F16, false, res);
    decode_tile(choices, tile, info, is_others ? CACHEGEN_TYPE_Q4_0 : CACHEGEN_TYPE_Q8_0, false, res);
    decode_tile(choices, tile, info, is_others ? CACHEGEN_TYPE_F16 : CACHEGEN_TYPE_F32, true, res);
}

outcome read(uint8_t choices, const buffer & input) {
    outcome res;
    read_archive(input, res);
    read_tile(choices, input, res);
    return res;
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const buffer input = fit(data[0], data + 1, size - 1);
    use_isa(isas()[0]);
    const outcome expected = read(data[0], input);
    for (size_t i = 1; i < isas().size(); i++) {
        use_isa(isas()[i]);
        FUZZ_CHECK(read(data[0], input) == expected);
    }
    return 0;
}
