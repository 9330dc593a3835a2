// Encoding a page as LCG3: count a sample, choose models, then write block after block.
#include "bit_pack.h"
#include "bytes.h"
#include "executor.h"
#include "lcg3_archive.h"
#include "lcg3_models.h"
#include "lcg3_symbols.h"
#include "lcg3_unit_encoder.h"
#include "native_tile.h"
#include "rans_encode.h"
#include "typed_store.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <system_error>

namespace cachegen::lcg3 {

namespace {

using ull = unsigned long long;

constexpr uint32_t chunk_tokens       = 32; // of the sample
constexpr uint32_t n_lloyd_iterations = 12;
constexpr uint32_t groups_a_step      = 2;         // encoded side by side
constexpr uint64_t values_a_wave      = 16u << 20; // coded before they are written
constexpr uint64_t model_values       = 65536;     // a model for less would cost more than it saves

// Where the archive goes: bytes at growing offsets, then the metadata at offset 0.
class archive_sink {
  public:
    virtual ~archive_sink()                                                   = default;
    virtual void write(uint64_t offset, const void * bytes, uint64_t n_bytes) = 0;
};

// into memory that is handed to the caller; realloc() moves pages instead of copying them
class memory_sink : public archive_sink {
  public:
    memory_sink()                                = default;
    memory_sink(const memory_sink &)             = delete;
    memory_sink & operator=(const memory_sink &) = delete;
    ~memory_sink() override { free(bytes_); }

    void write(uint64_t offset, const void * bytes, uint64_t n_bytes) override {
        const uint64_t end = add_or_fail(offset, n_bytes, "the archive");
        if (end > capacity_) {
            const uint64_t capacity = std::max(end, capacity_ + capacity_ / 8 + 65536);
            void *         grown    = realloc(bytes_, capacity);
            if (grown == nullptr) {
                throw std::bad_alloc();
            }
            bytes_    = static_cast<uint8_t *>(grown);
            capacity_ = capacity;
        }
        if (n_bytes > 0) {
            memcpy(bytes_ + offset, bytes, n_bytes);
        }
    }

    void * release(uint64_t n_bytes) {
        void * shrunk = realloc(bytes_, n_bytes);
        void * result = shrunk ? shrunk : bytes_;
        bytes_        = nullptr;
        return result;
    }

  private:
    uint8_t * bytes_    = nullptr;
    uint64_t  capacity_ = 0;
};

// to a function of the caller
class callback_sink : public archive_sink {
  public:
    explicit callback_sink(const cachegen_sink & sink) : sink_(sink) {}

    void write(uint64_t offset, const void * bytes, uint64_t n_bytes) override {
        if (n_bytes > 0 && sink_.write(sink_.state, offset, bytes, n_bytes) != 0) {
            fail(CACHEGEN_ERR_CALLBACK, "the sink refused %llu bytes at offset %llu", (ull) n_bytes, (ull) offset);
        }
    }

  private:
    const cachegen_sink & sink_;
};

// rows of a plane's source
struct row_range {
    uint64_t first;
    uint32_t n;
};

// the rows that a plane has of some tokens
row_range rows_of(const source_plane & plane, uint64_t first_token, uint32_t n_tokens) {
    const uint64_t begin = std::max<uint64_t>(first_token, plane.record.first_token);
    const uint64_t end   = first_token + n_tokens;
    return { begin - plane.record.first_token, static_cast<uint32_t>(end - std::min(begin, end)) };
}

// Rows as a row_reader delivers them, n_tokens of them.
cachegen_rows as_read(const cachegen_rows & source, uint64_t n_tokens, void * data) {
    cachegen_rows rows{};
    rows.type          = source.type;
    rows.is_transposed = source.is_transposed;
    rows.n_tokens      = n_tokens;
    rows.n_rows        = n_tokens;
    rows.n_channels    = source.n_channels;
    rows.n_bytes       = mul_or_fail(n_tokens, native_bytes(source.type, source.n_channels), "rows that are read");
    rows.stride_bytes  = rows.n_bytes / (source.is_transposed ? source.n_channels : n_tokens);
    rows.data          = data;
    return rows;
}

// Rows of a plane in memory: where the source has them, or read for the purpose.
struct rows_here {
    source_plane            plane;
    uint64_t                first; // of the rows, in the plane's source
    cachegen_rows           read;
    metered_vector<uint8_t> bytes;
};

struct page_encoder {
    metered_vector<source_plane>                       planes;
    cachegen_lcg3_options                              options;
    const cachegen_executor *                          executor;
    const cachegen_row_reader *                        reader;    // or NULL
    unit_encoder *                                     elsewhere; // or NULL
    uint32_t                                           n_tokens;
    uint32_t                                           n_blocks;
    metered_vector<std::unique_ptr<symbol_dictionary>> dictionaries;

    struct set {
        bool                         is_exact;
        uint8_t                      type; // exact: of the planes
        uint32_t                     n_symbols;
        const symbol_dictionary *    dictionary;
        metered_vector<uint32_t>     planes;
        metered_vector<uint64_t>     first_channel; // of each plane, in model_of_channel
        model_choice                 choice;
        uint8_t                      class_of[max_symbols];
        uint32_t                     n_classes;
        metered_vector<uint16_t>     frequencies;
        std::unique_ptr<set_encoder> encoder;
        double                       bits_a_value; // if a unit encoder asks
    };
    metered_vector<set> sets;

    // stretches of tokens the models are made from
    sample_chunks sample() const {
        const uint32_t n_coded  = n_tokens - options.n_exact_tokens;
        const uint32_t wanted   = options.n_sample_tokens == 0 ? n_coded : std::min(n_coded, options.n_sample_tokens);
        const uint32_t n_chunks = (wanted + chunk_tokens - 1) / chunk_tokens;
        sample_chunks  chunks;
        for (uint64_t i = 0; i < n_chunks; i++) {
            const uint64_t begin = wanted == n_coded ? i * chunk_tokens : i * n_coded / n_chunks;
            chunks.emplace_back(options.n_exact_tokens + begin,
                                static_cast<uint32_t>(std::min<uint64_t>(chunk_tokens, n_coded - begin)));
        }
        return chunks;
    }

    void check(const cachegen_lcg3_plane * described, const cachegen_rows * sources, uint64_t n_planes);
    void fetch(uint32_t p, uint64_t first_row, uint32_t n, rows_here & out) const;
    void make_dictionaries();
    void assign_sets();
    template <typename Use>
    void for_sampled_groups(const set & one, uint64_t i, const sample_chunks & chunks, const Use & use) const;
    void train(set & one);
    const uint8_t *            models_of(uint32_t plane) const;
    trained_page               describe_trained() const;
    metered_vector<unit_bytes> next_units(uint32_t first_plane) const;
    metered_vector<uint8_t>    encode_unit(uint32_t plane, uint32_t block) const;
    metered_vector<uint8_t>    make_metadata(const metered_vector<uint32_t> & unit_sizes,
                                             const metered_vector<uint64_t> & digests) const;
    uint64_t                   write(archive_sink & sink) const;
};

void page_encoder::fetch(uint32_t p, uint64_t first_row, uint32_t n, rows_here & out) const {
    out.plane = planes[p];
    out.first = first_row;
    if (out.plane.rows->data != nullptr || n == 0) {
        return;
    }
    out.bytes.resize(n * native_bytes(out.plane.record.type, out.plane.record.n_channels));
    if (reader->read(reader->state, p, first_row, n, out.bytes.data()) != 0) {
        fail(CACHEGEN_ERR_CALLBACK, "plane %u: the reader gave up at token %llu", p, (ull) first_row);
    }
    out.read       = as_read(*out.plane.rows, n, out.bytes.data());
    out.plane.rows = &out.read;
    out.first      = 0;
}

void page_encoder::check(const cachegen_lcg3_plane * described, const cachegen_rows * sources, uint64_t n_planes) {
    if (options.struct_size != sizeof(options)) {
        fail(CACHEGEN_ERR_STRUCT_SIZE, "cachegen_lcg3_options of %u bytes, this library's has %zu", options.struct_size,
             sizeof(options));
    }
    if (options.flags != 0 || options.reserved != 0) {
        fail(CACHEGEN_ERR_ARGUMENT, "flags %u, reserved %u: this library knows no such flag", options.flags,
             options.reserved);
    }
    if (options.block_tokens < min_block_tokens || options.block_tokens > max_block_tokens ||
        options.n_exact_tokens > max_exact_tokens || options.n_models < 1 || options.n_models > max_models ||
        options.n_classes < 1 || options.n_classes > max_classes) {
        fail(CACHEGEN_ERR_ARGUMENT,
             "blocks of %u tokens, %u exact tokens, %u models, %u classes: outside of the limits", options.block_tokens,
             options.n_exact_tokens, options.n_models, options.n_classes);
    }
    if (n_planes < 1 || n_planes > max_planes) {
        fail(CACHEGEN_ERR_ARGUMENT, "%llu planes; 1 to %u are possible", (ull) n_planes, max_planes);
    }
    bool has_ended = false;
    for (const char c : options.profile) {
        has_ended |= c == 0;
        if (has_ended ? c != 0 : c <= ' ' || c > '~') {
            fail(CACHEGEN_ERR_ARGUMENT, "a profile's name is printable ASCII without blanks, padded with zeros");
        }
    }
    const uint64_t tokens = add_or_fail(described[0].first_token, sources[0].n_tokens, "a page's tokens");
    if (tokens < 1 || tokens > max_tokens) {
        fail(CACHEGEN_ERR_ARGUMENT, "%llu tokens; 1 to %u are possible", (ull) tokens, max_tokens);
    }
    n_tokens               = static_cast<uint32_t>(tokens);
    options.n_exact_tokens = std::min(options.n_exact_tokens, n_tokens);
    const uint32_t n_coded = n_tokens - options.n_exact_tokens;
    n_blocks               = n_coded / options.block_tokens + (n_coded % options.block_tokens != 0);

    for (uint64_t p = 0; p < n_planes; p++) {
        const auto & plane = described[p];
        if (plane.struct_size != sizeof(plane)) {
            fail(CACHEGEN_ERR_STRUCT_SIZE, "cachegen_lcg3_plane of %u bytes, this library's has %zu", plane.struct_size,
                 sizeof(plane));
        }
        char       any_address = 0;
        const bool is_read     = reader != nullptr && sources[p].data == nullptr && sources[p].n_tokens > 0;
        validate_rows(is_read ? as_read(sources[p], sources[p].n_tokens, &any_address) : sources[p], "a source");
        if (plane.first_token >= tokens || sources[p].n_tokens != tokens - plane.first_token ||
            sources[p].type != plane.type || sources[p].n_channels != plane.n_channels) {
            fail(CACHEGEN_ERR_MISMATCH,
                 "plane %llu is described as tokens %u to %llu x %u channels of type %u; its source is another",
                 (ull) p, plane.first_token, (ull) tokens, plane.n_channels, plane.type);
        }
        if (plane.n_channels > max_channels || plane.kind < 1 || plane.kind > 3 || plane.mode > CACHEGEN_LCG3_EXACT ||
            plane.is_unrotated > 1 || plane.reserved0 != 0) {
            fail(CACHEGEN_ERR_ARGUMENT, "plane %llu: %u channels, kind %u, mode %u", (ull) p, plane.n_channels,
                 plane.kind, plane.mode);
        }
        if (plane.n_rot != 0 && (plane.n_rot < 2 || plane.n_rot > max_rotation ||
                                 (plane.n_rot & (plane.n_rot - 1)) != 0 || plane.n_channels % plane.n_rot != 0)) {
            fail(CACHEGEN_ERR_ARGUMENT, "plane %llu: a rotation of %u values in %u channels", (ull) p, plane.n_rot,
                 plane.n_channels);
        }
        source_plane source{};
        source.rows               = &sources[p];
        source.record.layer       = plane.layer;
        source.record.kind        = static_cast<uint8_t>(plane.kind);
        source.record.mode        = static_cast<uint8_t>(plane.mode);
        source.record.type        = static_cast<uint8_t>(plane.type);
        source.record.n_channels  = plane.n_channels;
        source.record.n_rot       = static_cast<uint16_t>(plane.n_rot);
        source.record.first_token = plane.first_token;
        if (plane.mode == CACHEGEN_LCG3_LOSSY) {
            if (plane.n_symbols < 3 || plane.n_symbols > 63 || plane.n_symbols % 2 == 0) {
                fail(CACHEGEN_ERR_ARGUMENT, "plane %llu: %u symbols; choose an odd number from 3 to 63", (ull) p,
                     plane.n_symbols);
            }
            if (plane.scale_type != CACHEGEN_TYPE_F32 && plane.scale_type != CACHEGEN_TYPE_F16 &&
                plane.scale_type != CACHEGEN_TYPE_BF16) {
                fail(CACHEGEN_ERR_ARGUMENT, "plane %llu: scales of type %u; choose F32, F16 or BF16", (ull) p,
                     plane.scale_type);
            }
            source.n_symbols         = plane.n_symbols;
            source.record.scale_type = static_cast<uint8_t>(plane.scale_type);
            source.record.flags      = plane.is_unrotated && plane.n_rot != 0 ? plane_flag_unrotated : 0;
        }
        planes.push_back(source);
    }
}

// exact planes: find the upper bits that occur; planes of a type with too many different ones are kept raw
void page_encoder::make_dictionaries() {
    for (const uint8_t type :
         { CACHEGEN_TYPE_F32, CACHEGEN_TYPE_F16, CACHEGEN_TYPE_Q4_0, CACHEGEN_TYPE_Q8_0, CACHEGEN_TYPE_BF16 }) {
        metered_vector<uint32_t> members;
        for (uint32_t p = 0; p < planes.size(); p++) {
            if (planes[p].record.mode == CACHEGEN_LCG3_EXACT && planes[p].record.type == type) {
                members.push_back(p);
            }
        }
        if (members.empty()) {
            continue;
        }
        uint64_t   counts[512] = {};
        std::mutex mutex;
        run_tasks(executor, members.size(), [&](uint64_t i) {
            uint64_t        own[512] = {};
            const row_range rows =
                rows_of(planes[members[i]], options.n_exact_tokens, n_tokens - options.n_exact_tokens);
            rows_here here;
            for (uint32_t t = 0; t < rows.n; t += options.block_tokens) {
                const uint32_t n = std::min(options.block_tokens, rows.n - t);
                fetch(members[i], rows.first + t, n, here);
                count_upper_bits(here.plane, here.first, n, own);
            }
            const std::lock_guard<std::mutex> lock(mutex);
            for (uint32_t v = 0; v < 512; v++) {
                counts[v] += own[v];
            }
        });
        auto       dictionary = std::make_unique<symbol_dictionary>();
        const bool has_one    = make_dictionary(counts, type, *dictionary);
        for (const uint32_t p : members) {
            if (!has_one) {
                planes[p].record.mode = CACHEGEN_LCG3_RAW;
                continue;
            }
            const uint32_t n_bits     = type == CACHEGEN_TYPE_F32    ? 32
                                        : type == CACHEGEN_TYPE_Q8_0 ? 8
                                        : type == CACHEGEN_TYPE_Q4_0 ? 4
                                                                     : 16;
            planes[p].record.raw_bits = static_cast<uint8_t>(n_bits - upper_bits_of(type));
            planes[p].n_symbols       = dictionary->n_symbols;
            planes[p].dictionary      = dictionary.get();
        }
        dictionaries.push_back(std::move(dictionary));
    }
}

// planes with the same symbols share a set
void page_encoder::assign_sets() {
    for (uint32_t p = 0; p < planes.size(); p++) {
        auto & plane = planes[p];
        if (plane.record.mode == CACHEGEN_LCG3_RAW) {
            continue;
        }
        size_t s = 0;
        while (s < sets.size() && (sets[s].n_symbols != plane.n_symbols || sets[s].dictionary != plane.dictionary)) {
            s++;
        }
        if (s == sets.size()) {
            if (s == max_sets) {
                fail(CACHEGEN_ERR_ARGUMENT, "more than %u different numbers of symbols in one page", max_sets);
            }
            sets.emplace_back();
            sets[s].n_symbols  = plane.n_symbols;
            sets[s].dictionary = plane.dictionary;
        }
        plane.record.set = static_cast<uint8_t>(s);
        sets[s].first_channel.push_back(sets[s].planes.empty() ? 0
                                                               : sets[s].first_channel.back() +
                                                                     planes[sets[s].planes.back()].record.n_channels);
        sets[s].planes.push_back(p);
    }
}

// symbols of plane one.planes[i] in the sample: use(symbols, n_tokens, n_active lanes, first channel in the set)
template <typename Use> void page_encoder::for_sampled_groups(const set & one, uint64_t i, const sample_chunks & chunks,
                                                              const Use & use) const {
    const source_plane & plane      = planes[one.planes[i]];
    const uint32_t       n_channels = plane.record.n_channels;
    token_symbols        symbols;
    rows_here            here;
    for (const auto & [first_token, n_chunk] : chunks) {
        const auto [first_row, n] = rows_of(plane, first_token, n_chunk);
        if (n == 0) {
            continue;
        }
        fetch(one.planes[i], first_row, n, here);
        make_symbols(here.plane, here.first, n, false, symbols);
        for (uint32_t c = 0; c < n_channels; c += n_lanes) {
            use(&symbols.symbols[size_t{ c } * n], n, std::min(n_lanes, n_channels - c), one.first_channel[i] + c);
        }
    }
}

void page_encoder::train(set & one) {
    const uint64_t n_channels = one.first_channel.back() + planes[one.planes.back()].record.n_channels;
    const uint32_t n_symbols  = one.n_symbols;
    const auto     chunks     = sample();

    channel_counts           counts(n_channels, n_symbols);
    metered_vector<uint64_t> totals(n_symbols);
    const sampled_set        sampled{ &planes, &one.planes, &chunks, n_symbols };
    if (elsewhere == nullptr || !elsewhere->count_symbols(sampled, counts)) {
        run_tasks(executor, one.planes.size(), [&](uint64_t i) {
            for_sampled_groups(one, i, chunks, [&](const uint8_t * symbols, uint32_t n, uint32_t n_active, uint64_t c) {
                count_symbols(symbols, n, n_active, c, counts);
            });
        });
    }
    for (uint64_t c = 0; c < n_channels; c++) {
        const uint32_t * of_symbols = counts.symbols_of(c);
        for (uint32_t s = 0; s < n_symbols; s++) {
            totals[s] += of_symbols[s];
        }
    }
    one.n_classes           = choose_classes(totals.data(), n_symbols, options.n_classes, one.class_of);
    const uint64_t n_values = n_channels * (n_tokens - options.n_exact_tokens);
    const auto     n_models = std::min<uint64_t>(options.n_models, std::max<uint64_t>(1, n_values / model_values));
    one.choice              = choose_models(counts, static_cast<uint32_t>(n_models), n_lloyd_iterations, executor);

    const size_t             n_counts = size_t{ one.choice.n_models } * one.n_classes * n_symbols;
    metered_vector<uint64_t> pairs(n_counts);
    const uint8_t *          models = one.choice.model_of_channel.data();
    if (elsewhere == nullptr ||
        !elsewhere->count_pairs(sampled, models, one.class_of, one.n_classes, one.choice.n_models, pairs.data())) {
        std::mutex mutex;
        run_tasks(executor, one.planes.size(), [&](uint64_t i) {
            metered_vector<uint64_t> own(n_counts);
            for_sampled_groups(one, i, chunks, [&](const uint8_t * symbols, uint32_t n, uint32_t n_active, uint64_t c) {
                count_pairs(symbols, n, n_active, models + c, one.class_of, one.n_classes, n_symbols, own.data());
            });
            const std::lock_guard<std::mutex> lock(mutex);
            for (size_t k = 0; k < n_counts; k++) {
                pairs[k] += own[k];
            }
        });
    }
    // a class that a model's channels never reached gets the model's overall distribution
    one.frequencies.resize(n_counts);
    run_tasks(executor, one.choice.n_models, [&](uint64_t m) {
        metered_vector<uint64_t> overall(n_symbols);
        for (uint32_t k = 0; k < one.n_classes * n_symbols; k++) {
            overall[k % n_symbols] += pairs[m * one.n_classes * n_symbols + k];
        }
        for (uint32_t k = 0; k < one.n_classes; k++) {
            const size_t begin = (m * one.n_classes + k) * n_symbols;
            const bool   is_empty =
                std::all_of(&pairs[begin], &pairs[begin] + n_symbols, [](uint64_t count) { return count == 0; });
            make_frequencies(is_empty ? overall.data() : &pairs[begin], n_symbols, &one.frequencies[begin]);
        }
    });
    if (elsewhere != nullptr) {
        double n_bits = 0;
        double n      = 0;
        for (size_t k = 0; k < n_counts; k++) {
            n += static_cast<double>(pairs[k]);
            n_bits += static_cast<double>(pairs[k]) * std::log2(double{ prob_scale } / one.frequencies[k]);
        }
        one.bits_a_value = n > 0 ? n_bits / n : 0;
    }
    one.encoder = std::make_unique<set_encoder>(one.frequencies.data(), n_symbols, one.n_classes, one.choice.n_models,
                                                one.class_of, one.class_of[n_symbols / 2], executor);
}

// of a lossy or exact plane's channels
const uint8_t * page_encoder::models_of(uint32_t plane) const {
    const set &  one = sets[planes[plane].record.set];
    const size_t in_set =
        static_cast<size_t>(std::find(one.planes.begin(), one.planes.end(), plane) - one.planes.begin());
    return &one.choice.model_of_channel[one.first_channel[in_set]];
}

trained_page page_encoder::describe_trained() const {
    trained_page page{ n_tokens, options.n_exact_tokens, options.block_tokens, n_blocks, {} };
    for (uint32_t p = 0; p < planes.size(); p++) {
        trained_page::plane plane{ &planes[p], nullptr, nullptr, 0 };
        if (planes[p].record.mode != CACHEGEN_LCG3_RAW) {
            const set & one    = sets[planes[p].record.set];
            plane.encoder      = one.encoder.get();
            plane.models       = models_of(p);
            plane.bits_a_value = one.bits_a_value;
        }
        page.planes.push_back(plane);
    }
    return page;
}

// what is made elsewhere of the next planes of a block; else as many planes as keep their units small
metered_vector<unit_bytes> page_encoder::next_units(uint32_t first_plane) const {
    if (elsewhere != nullptr) {
        metered_vector<unit_bytes> units = elsewhere->next();
        if (units.empty() || units.size() > planes.size() - first_plane) {
            fail(CACHEGEN_ERR_INTERNAL, "%zu units from plane %u on, of %zu planes", units.size(), first_plane,
                 planes.size());
        }
        return units;
    }
    size_t   n_wave   = 0;
    uint64_t n_values = 0;
    while (first_plane + n_wave < planes.size() && (n_wave == 0 || n_values < values_a_wave)) {
        n_values += uint64_t{ options.block_tokens } * planes[first_plane + n_wave].record.n_channels;
        n_wave++;
    }
    return metered_vector<unit_bytes>(n_wave, unit_bytes{ nullptr, 0 });
}

metered_vector<uint8_t> page_encoder::encode_unit(uint32_t plane_index, uint32_t block) const {
    const source_plane & plane       = planes[plane_index];
    const uint64_t       first_token = options.n_exact_tokens + uint64_t{ block } * options.block_tokens;
    const auto [first_row, n_rows]   = rows_of(
        plane, first_token, static_cast<uint32_t>(std::min<uint64_t>(options.block_tokens, n_tokens - first_token)));
    const uint32_t n_channels = plane.record.n_channels;

    metered_vector<uint8_t> unit;
    if (n_rows == 0) {
        return unit; // the plane begins later
    }
    rows_here here;
    fetch(plane_index, first_row, n_rows, here);
    if (plane.record.mode == CACHEGEN_LCG3_RAW) {
        const uint64_t row_bytes = native_bytes(plane.record.type, n_channels);
        unit.resize((n_rows * row_bytes + unit_alignment - 1) / unit_alignment * unit_alignment);
        fetch_native(*here.plane.rows, here.first, n_rows, 0, n_channels, unit.data(), row_bytes);
        return unit;
    }

    token_symbols symbols;
    make_symbols(here.plane, here.first, n_rows, true, symbols);

    unit_record record{};
    if (!symbols.scales.empty()) {
        const auto [least, most] = std::minmax_element(symbols.scales.begin(), symbols.scales.end());
        record.scale_base        = *least;
        while (record.scale_bits < 32 && (*most - *least) >> record.scale_bits != 0) {
            record.scale_bits++;
        }
    }
    const uint32_t n_groups    = (n_channels + n_lanes - 1) / n_lanes;
    const uint64_t scale_bytes = packed_bytes(symbols.scales.size(), record.scale_bits);
    const uint64_t words_begin =
        sizeof(record) + 4 * size_t{ n_groups } + 4 * size_t{ n_channels } + scale_bytes + symbols.raw.size();
    unit.resize(words_begin);
    put_le(unit.data(), record);
    uint8_t * n_words = unit.data() + sizeof(record);
    uint8_t * states  = n_words + 4 * size_t{ n_groups };
    uint8_t * scales  = states + 4 * size_t{ n_channels };
    uint8_t * raw     = scales + scale_bytes;
    for (size_t i = 0; i < symbols.scales.size(); i++) {
        pack_bits(scales, i, record.scale_bits, symbols.scales[i] - record.scale_base);
    }
    if (!symbols.raw.empty()) {
        memcpy(raw, symbols.raw.data(), symbols.raw.size());
    }

    const set &             one      = sets[plane.record.set];
    const uint8_t *         models   = models_of(plane_index);
    // a vector more than can be written: the encoder stores before it knows what it keeps
    const size_t            n_buffer = size_t{ n_rows } * n_lanes + 8;
    metered_array<uint16_t> buffer(n_buffer * groups_a_step);
    metered_vector<uint8_t> words;
    for (uint32_t first = 0; first < n_groups; first += groups_a_step) {
        group_words    groups[groups_a_step];
        const uint32_t n = std::min(groups_a_step, n_groups - first);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t g   = first + i;
            groups[i].models   = models + size_t{ g } * n_lanes;
            groups[i].symbols  = &symbols.symbols[size_t{ g } * n_rows * n_lanes];
            groups[i].n_active = std::min(n_lanes, n_channels - g * n_lanes);
            groups[i].end      = buffer.get() + n_buffer * (i + 1);
        }
        encode_groups(*one.encoder, groups, n, n_rows);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t g       = first + i;
            const size_t   n_bytes = 2 * static_cast<size_t>(groups[i].end - groups[i].begin);
            put_le<uint32_t>(n_words + 4 * size_t{ g }, static_cast<uint32_t>(n_bytes / 2));
            memcpy(states + 4 * size_t{ g } * n_lanes, groups[i].states, 4 * size_t{ groups[i].n_active });
            const auto * bytes = reinterpret_cast<const uint8_t *>(groups[i].begin);
            words.insert(words.end(), bytes, bytes + n_bytes);
        }
    }
    unit.insert(unit.end(), words.begin(), words.end());
    unit.resize((unit.size() + unit_alignment - 1) / unit_alignment * unit_alignment);
    if (unit.size() > UINT32_MAX) {
        fail(CACHEGEN_ERR_LIMIT, "plane %u, block %u: %llu bytes in one unit; choose shorter blocks", plane_index,
             block, (ull) unit.size());
    }
    return unit;
}

// Bytes appended to a vector.
class byte_writer {
  public:
    void append(const void * bytes, size_t n) {
        const auto * begin = static_cast<const uint8_t *>(bytes);
        out_.insert(out_.end(), begin, begin + n);
    }
    template <typename T> void put(const T & value) { append(&value, sizeof(value)); }
    void align(size_t alignment) { out_.resize((out_.size() + alignment - 1) / alignment * alignment); }
    metered_vector<uint8_t> & bytes() { return out_; }

  private:
    metered_vector<uint8_t> out_;
};

// Everything before the payload, complete but for archive_bytes and the metadata's own digest; its size does not depend
// on the numbers given.
metered_vector<uint8_t> page_encoder::make_metadata(const metered_vector<uint32_t> & unit_sizes,
                                                    const metered_vector<uint64_t> & digests) const {
    byte_writer out;
    header      head{};
    head.magic          = magic;
    head.version        = version;
    head.header_bytes   = sizeof(head);
    head.n_tokens       = n_tokens;
    head.n_exact_tokens = options.n_exact_tokens;
    head.block_tokens   = options.block_tokens;
    head.n_planes       = static_cast<uint32_t>(planes.size());
    head.n_sets         = static_cast<uint32_t>(sets.size());
    memcpy(head.profile, options.profile, sizeof(head.profile));
    out.put(head);
    for (const auto & plane : planes) {
        out.put(plane.record);
    }
    for (const auto & one : sets) {
        out.put(set_record{ static_cast<uint8_t>(one.n_symbols), static_cast<uint8_t>(one.n_classes),
                            one.class_of[one.n_symbols / 2], 0, static_cast<uint16_t>(one.choice.n_models), 0 });
        for (uint32_t s = 0; s < one.n_symbols; s++) {
            if (one.dictionary) {
                out.put(one.dictionary->values[s]);
            } else {
                const auto centre = static_cast<float>(one.n_symbols / 2);
                out.put((static_cast<float>(s) - centre) / centre);
            }
        }
        out.append(one.class_of, one.n_symbols);
        for (const uint16_t frequency : one.frequencies) {
            out.put(static_cast<uint8_t>(std::min<uint16_t>(frequency, 255)));
            if (frequency >= 255) {
                out.put(frequency);
            }
        }
        out.align(8);
    }
    for (uint32_t p = 0; p < planes.size(); p++) {
        if (planes[p].record.mode != CACHEGEN_LCG3_RAW) {
            out.append(models_of(p), planes[p].record.n_channels);
        }
    }
    out.align(8);
    out.append(unit_sizes.data(), unit_sizes.size() * sizeof(uint32_t));
    out.align(8);
    out.append(digests.data(), digests.size() * sizeof(uint64_t));
    out.put(uint64_t{ 0 });
    return std::move(out.bytes());
}

void digest_units(const metered_vector<unit_bytes> & units, stream_digest & digest) {
    for (const auto & unit : units) {
        digest.update(unit.bytes, unit.n_bytes);
    }
}

// `other` on a thread of its own, if there are to be several and one can be had; it must not throw
template <typename Other, typename Own>
void beside(const cachegen_executor * executor, const Other & other, const Own & own) {
    std::future<void> running;
    if (executor != nullptr) {
        try {
            running = std::async(std::launch::async, other);
        } catch (const std::system_error &) {
            // one after the other
        }
    }
    if (!running.valid()) {
        other();
    }
    own();
    if (running.valid()) {
        running.get();
    }
}

// Writes the payload, then the metadata. Returns the archive's size.
uint64_t page_encoder::write(archive_sink & sink) const {
    const auto align_to = [](uint64_t n, uint64_t alignment) { return (n + alignment - 1) / alignment * alignment; };
    metered_vector<uint32_t> unit_sizes(uint64_t{ n_blocks } * planes.size());
    metered_vector<uint64_t> digests(uint64_t{ n_blocks } + 1);
    const uint64_t           metadata_bytes = make_metadata(unit_sizes, digests).size();
    const uint64_t           exact_begin    = align_to(metadata_bytes, payload_alignment);
    uint64_t                 offset         = exact_begin;

    constexpr uint32_t rows_a_write = 256;
    stream_digest      exact_digest;
    for (uint32_t p = 0; p < planes.size(); p++) {
        const auto &    plane     = planes[p];
        const uint64_t  row_bytes = native_bytes(plane.record.type, plane.record.n_channels);
        const row_range rows      = rows_of(plane, 0, options.n_exact_tokens);
        for (uint32_t t = 0; t < rows.n; t += rows_a_write) {
            const uint32_t          n = std::min(rows_a_write, rows.n - t);
            metered_vector<uint8_t> bytes(n * row_bytes);
            rows_here               here;
            fetch(p, rows.first + t, n, here);
            fetch_native(*here.plane.rows, here.first, n, 0, plane.record.n_channels, bytes.data(), row_bytes);
            exact_digest.update(bytes.data(), bytes.size());
            sink.write(offset, bytes.data(), bytes.size());
            offset += bytes.size();
        }
    }
    digests[0] = exact_digest.value();
    const metered_vector<uint8_t> padding(align_to(offset, payload_alignment) - offset);
    sink.write(offset, padding.data(), padding.size());
    offset += padding.size();

    for (uint32_t block = 0; block < n_blocks; block++) {
        stream_digest digest;
        for (size_t first = 0; first < planes.size();) {
            metered_vector<unit_bytes>              made   = next_units(static_cast<uint32_t>(first));
            const size_t                            n_wave = made.size();
            metered_vector<metered_vector<uint8_t>> units(n_wave);
            run_tasks(executor, n_wave, [&](uint64_t i) {
                if (made[i].bytes == nullptr) {
                    units[i] = encode_unit(static_cast<uint32_t>(first + i), block);
                }
            });
            for (size_t i = 0; i < n_wave; i++) {
                if (made[i].bytes == nullptr) {
                    made[i] = { units[i].data(), static_cast<uint32_t>(units[i].size()) };
                }
                unit_sizes[block * planes.size() + first + i] = made[i].n_bytes;
            }
            beside(
                executor, [&] { digest_units(made, digest); },
                [&] {
                    for (const auto & unit : made) {
                        sink.write(offset, unit.bytes, unit.n_bytes);
                        offset += unit.n_bytes;
                    }
                });
            first += n_wave;
        }
        digests[uint64_t{ block } + 1] = digest.value();
    }

    metered_vector<uint8_t> metadata = make_metadata(unit_sizes, digests);
    auto                    head     = get_le<header>(metadata.data());
    head.archive_bytes               = offset;
    head.metadata_bytes              = metadata_bytes;
    put_le(metadata.data(), head);
    put_le<uint64_t>(&metadata[metadata_bytes - sizeof(uint64_t)],
                     digest_of(metadata.data(), metadata_bytes - sizeof(uint64_t)));
    metadata.resize(exact_begin);
    sink.write(0, metadata.data(), metadata.size());
    return offset;
}

} // namespace

} // namespace cachegen::lcg3

using namespace cachegen;

namespace {

// What both entry points check and prepare.
uint64_t encode_to(const cachegen_lcg3_plane * planes, const cachegen_rows * sources, uint64_t n_planes,
                   const cachegen_row_reader * reader, const cachegen_lcg3_options & options,
                   const cachegen_executor * executor, lcg3::unit_encoder * elsewhere, lcg3::archive_sink & sink) {
    if (planes == nullptr || sources == nullptr) {
        fail(CACHEGEN_ERR_ARGUMENT, "planes or sources is NULL");
    }
    lcg3::page_encoder encoder{};
    encoder.options   = options;
    encoder.executor  = executor;
    encoder.reader    = reader;
    encoder.elsewhere = elsewhere;
    encoder.check(planes, sources, n_planes);
    encoder.make_dictionaries();
    encoder.assign_sets();
    for (auto & one : encoder.sets) {
        encoder.train(one);
    }
    lcg3::trained_page trained; // stays until the last unit
    if (elsewhere != nullptr) {
        trained = encoder.describe_trained();
        elsewhere->prepare(trained);
    }
    return encoder.write(sink);
}

} // namespace

uint64_t lcg3::encode_with(unit_encoder & units, const cachegen_lcg3_plane * planes, const cachegen_rows * sources,
                           uint64_t n_planes, const cachegen_row_reader & reader, const cachegen_lcg3_options & options,
                           const cachegen_executor * executor, const cachegen_sink & sink) {
    callback_sink to_caller(sink);
    return encode_to(planes, sources, n_planes, &reader, options, executor, &units, to_caller);
}

int32_t cachegen_lcg3_encode(const struct cachegen_lcg3_plane * planes, const struct cachegen_rows * sources,
                             uint64_t n_planes, const struct cachegen_lcg3_options * options,
                             const struct cachegen_executor * executor, void ** archive, uint64_t * n_bytes) {
    return guard([&] {
        if (archive == nullptr || options == nullptr || n_bytes == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "archive, options or n_bytes is NULL");
        }
        *archive = nullptr;
        *n_bytes = 0;
        lcg3::memory_sink sink;
        const uint64_t archive_bytes = encode_to(planes, sources, n_planes, nullptr, *options, executor, nullptr, sink);
        *archive                     = sink.release(archive_bytes);
        *n_bytes                     = archive_bytes;
    });
}

int32_t cachegen_lcg3_encode_from(const struct cachegen_lcg3_plane * planes, const struct cachegen_rows * sources,
                                  uint64_t n_planes, const struct cachegen_row_reader * reader,
                                  const struct cachegen_lcg3_options * options,
                                  const struct cachegen_executor * executor, const struct cachegen_sink * sink,
                                  uint64_t * n_bytes) {
    return guard([&] {
        if (sink == nullptr || sink->write == nullptr || n_bytes == nullptr || reader == nullptr ||
            reader->read == nullptr || options == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "sink, reader, a function of them, options or n_bytes is NULL");
        }
        *n_bytes = 0;
        lcg3::callback_sink to_caller(*sink);
        *n_bytes = encode_to(planes, sources, n_planes, reader, *options, executor, nullptr, to_caller);
    });
}

int32_t cachegen_lcg3_encode_to(const struct cachegen_lcg3_plane * planes, const struct cachegen_rows * sources,
                                uint64_t n_planes, const struct cachegen_lcg3_options * options,
                                const struct cachegen_executor * executor, const struct cachegen_sink * sink,
                                uint64_t * n_bytes) {
    return guard([&] {
        if (sink == nullptr || sink->write == nullptr || options == nullptr || n_bytes == nullptr) {
            fail(CACHEGEN_ERR_ARGUMENT, "sink, its function, options or n_bytes is NULL");
        }
        *n_bytes = 0;
        lcg3::callback_sink to_caller(*sink);
        *n_bytes = encode_to(planes, sources, n_planes, nullptr, *options, executor, nullptr, to_caller);
    });
}
