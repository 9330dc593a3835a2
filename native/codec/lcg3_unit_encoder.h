// Units of lossy planes made elsewhere, on a device: the rest of an archive stays libcachegen's. Not a part of the C
// interface.
#pragma once

#include "cachegen.h"
#include "lcg3_models.h"
#include "lcg3_symbols.h"
#include "meter.h"
#include "rans_encode.h"

#include <cstdint>
#include <utility>

namespace cachegen::lcg3 {

// What a page's units are made with, once its models are known.
struct trained_page {
    struct plane {
        const source_plane * source;
        const set_encoder *  encoder;      // of its set; NULL: raw
        const uint8_t *      models;       // of its channels
        double               bits_a_value; // of its set, in the sample; 0 if nothing is known
    };

    uint32_t              n_tokens;
    uint32_t              n_exact_tokens;
    uint32_t              block_tokens;
    uint32_t              n_blocks;
    metered_vector<plane> planes;
};

struct unit_bytes {
    const uint8_t * bytes; // NULL: not made here
    uint32_t        n_bytes;
};

// stretches of tokens the models are made from: first token and number of tokens
using sample_chunks = metered_vector<std::pair<uint64_t, uint32_t>>;

// What a set's models are made from.
struct sampled_set {
    const metered_vector<source_plane> * page;   // its planes
    const metered_vector<uint32_t> *     planes; // the set's, numbers in the page
    const sample_chunks *                chunks;
    uint32_t                             n_symbols;
};

// Every function throws cachegen::error.
class unit_encoder {
  public:
    virtual ~unit_encoder() = default;

    /*
     * Count the symbols of a sample, as count_symbols() and count_pairs() do: the channels of a set's planes one after
     * another. False, and nothing is counted, if libcachegen is to do it: it also finds the words for what is wrong.
     * Pairs are asked for after the symbols, of the same set.
     */
    virtual bool count_symbols(const sampled_set & set, channel_counts & counts)      = 0;
    virtual bool count_pairs(const sampled_set & set, const uint8_t * model_of_channel, const uint8_t * class_of,
                             uint32_t n_classes, uint32_t n_models, uint64_t * pairs) = 0;

    // once, before any unit; the page stays until the last one
    virtual void prepare(const trained_page & page) = 0;

    /*
     * The units of the next planes, one at least: of block 0 from plane 0 on, after its last plane of block 1, and so
     * on, but none of two blocks. The bytes stay until the next call. Units that are not made here are libcachegen's to
     * make.
     */
    virtual const metered_vector<unit_bytes> & next() = 0;
};

/*
 * cachegen_lcg3_encode_from() with units made elsewhere. Where an archive was made does not show in its bytes.
 * Returns the archive's size.
 */
uint64_t encode_with(unit_encoder & units, const cachegen_lcg3_plane * planes, const cachegen_rows * sources,
                     uint64_t n_planes, const cachegen_row_reader & reader, const cachegen_lcg3_options & options,
                     const cachegen_executor * executor, const cachegen_sink & sink);

} // namespace cachegen::lcg3
