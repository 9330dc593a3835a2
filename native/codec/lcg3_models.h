// Encoder's choice of shared models: which channels share one, and the frequencies of each.
#pragma once

#include "cachegen.h"
#include "lcg3_format.h"
#include "meter.h"

#include <cstdint>

namespace cachegen::lcg3 {

/*
 * What is counted of one channel to find its model: how often each symbol occurs, and how often each distance between a
 * token's symbol and the one before it. Both together tell channels apart nearly as well as their full order-1 counts,
 * in a ninth of the memory.
 */
struct channel_counts {
    explicit channel_counts(uint64_t n_channels, uint32_t n_symbols)
        : n_channels(n_channels), n_symbols(n_symbols), counts(n_channels * 2 * n_symbols) {}

    uint32_t * symbols_of(uint64_t channel) { return &counts[channel * 2 * n_symbols]; }
    uint32_t * distances_of(uint64_t channel) { return &counts[channel * 2 * n_symbols + n_symbols]; }

    uint64_t                 n_channels;
    uint32_t                 n_symbols;
    metered_vector<uint32_t> counts;
};

/*
 * Count one group of a channel_counts' channels.
 * symbols        IN  [n_tokens][32], of which n_active lanes are channels
 * first_channel  IN  of the group, in counts
 */
void count_symbols(const uint8_t * symbols, uint32_t n_tokens, uint32_t n_active, uint64_t first_channel,
                   channel_counts & counts);

/*
 * Count how often each symbol follows each class in the channels of each model; a first token follows nothing.
 * models  IN     of the lanes
 * pairs   IN/OUT [n_models][n_classes][n_symbols]
 */
void count_pairs(const uint8_t * symbols, uint32_t n_tokens, uint32_t n_active, const uint8_t * models,
                 const uint8_t * class_of, uint32_t n_classes, uint32_t n_symbols, uint64_t * pairs);

/*
 * Share n_models among the channels: Lloyd's algorithm with the coding cost as the distance.
 * Returns the model of each channel; every number below the returned n_models is used.
 */
struct model_choice {
    uint32_t                n_models;
    metered_vector<uint8_t> model_of_channel;
};

model_choice choose_models(const channel_counts & counts, uint32_t n_models, uint32_t n_iterations,
                           const cachegen_executor * executor);

/*
 * Classes of symbols for the context: neighbours in order, about equally frequent.
 * counts    IN  n_symbols
 * class_of  OUT n_symbols
 * Returns the number of classes, at most n_classes.
 */
uint32_t choose_classes(const uint64_t * counts, uint32_t n_symbols, uint32_t n_classes, uint8_t * class_of);

/*
 * Frequencies of one distribution: they sum to 1,024 and none is zero. Fewer than 1,024 symbols.
 * counts       IN  n_symbols; all zero gives a uniform distribution
 * frequencies  OUT n_symbols
 */
void make_frequencies(const uint64_t * counts, uint32_t n_symbols, uint16_t * frequencies);

} // namespace cachegen::lcg3
