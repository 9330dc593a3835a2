#include "lcg3_models.h"

#include "executor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace cachegen::lcg3 {

namespace {

// Orders channels by the spread of their symbols in `n_bands` bands, then by their mean: a start for Lloyd's algorithm
// that does not depend on chance.
metered_vector<uint32_t> start_order(const channel_counts & counts, uint32_t n_bands) {
    const uint64_t        n = counts.n_channels;
    metered_vector<float> mean(n);
    metered_vector<float> spread(n);
    for (uint64_t c = 0; c < n; c++) {
        const uint32_t * symbol = &counts.counts[c * 2 * counts.n_symbols];
        double           total = 0, sum = 0, squares = 0;
        for (uint32_t s = 0; s < counts.n_symbols; s++) {
            total += symbol[s];
            sum += double(symbol[s]) * s;
            squares += double(symbol[s]) * s * s;
        }
        total     = std::max(total, 1.0);
        mean[c]   = static_cast<float>(sum / total);
        spread[c] = static_cast<float>(squares / total - (sum / total) * (sum / total));
    }
    metered_vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return spread[a] != spread[b] ? spread[a] < spread[b] : a < b; });
    for (uint32_t band = 0; band < n_bands; band++) {
        std::sort(order.begin() + static_cast<int64_t>(n * band / n_bands),
                  order.begin() + static_cast<int64_t>(n * (band + 1) / n_bands),
                  [&](uint32_t a, uint32_t b) { return mean[a] != mean[b] ? mean[a] < mean[b] : a < b; });
    }
    return order;
}

} // namespace

// In both functions lane after lane, not token after token: a counter that was just written is slow to read again.

void count_symbols(const uint8_t * symbols, uint32_t n_tokens, uint32_t n_active, uint64_t first_channel,
                   channel_counts & counts) {
    const size_t   stride  = 2 * size_t{ counts.n_symbols };
    uint32_t *     of_lane = counts.symbols_of(first_channel);
    const uint32_t middle  = counts.n_symbols; // where the distances begin
    for (uint32_t lane = 0; lane < n_active; lane++) {
        of_lane[lane * stride + symbols[lane]]++;
    }
    for (uint32_t t = 1; t < n_tokens; t++) {
        const uint8_t * now    = symbols + size_t{ t } * n_lanes;
        const uint8_t * before = now - n_lanes;
        for (uint32_t lane = 0; lane < n_active; lane++) {
            const int32_t distance = std::abs(int32_t{ now[lane] } - int32_t{ before[lane] });
            of_lane[lane * stride + now[lane]]++;
            of_lane[lane * stride + middle + static_cast<uint32_t>(distance)]++;
        }
    }
}

void count_pairs(const uint8_t * symbols, uint32_t n_tokens, uint32_t n_active, const uint8_t * models,
                 const uint8_t * class_of, uint32_t n_classes, uint32_t n_symbols, uint64_t * pairs) {
    uint64_t * of_lane[n_lanes];
    uint32_t   offset_of[max_symbols];
    for (uint32_t lane = 0; lane < n_active; lane++) {
        of_lane[lane] = pairs + size_t{ models[lane] } * n_classes * n_symbols;
    }
    for (uint32_t s = 0; s < n_symbols; s++) {
        offset_of[s] = class_of[s] * n_symbols;
    }
    for (uint32_t t = 1; t < n_tokens; t++) {
        const uint8_t * now    = symbols + size_t{ t } * n_lanes;
        const uint8_t * before = now - n_lanes;
        for (uint32_t lane = 0; lane < n_active; lane++) {
            of_lane[lane][offset_of[before[lane]] + now[lane]]++;
        }
    }
}

model_choice choose_models(const channel_counts & counts, uint32_t n_models, uint32_t n_iterations,
                           const cachegen_executor * executor) {
    const uint64_t n_channels = counts.n_channels;
    const size_t   n_counts   = 2 * size_t{ counts.n_symbols };
    n_models                  = static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(n_models, n_channels)));

    model_choice choice{ n_models, metered_vector<uint8_t>(n_channels) };
    const auto   order = start_order(counts, std::max(1u, static_cast<uint32_t>(std::sqrt(double(n_models)))));
    for (uint64_t i = 0; i < n_channels; i++) {
        choice.model_of_channel[order[i]] = static_cast<uint8_t>(i * n_models / n_channels);
    }

    metered_vector<double> sums(n_models * n_counts);
    metered_vector<float>  costs(n_models * n_counts); // [n_counts][n_models]: bits a symbol or distance
    for (uint32_t iteration = 0; iteration < n_iterations && n_models > 1; iteration++) {
        std::fill(sums.begin(), sums.end(), 0.5);
        for (uint64_t c = 0; c < n_channels; c++) {
            double * sum = &sums[choice.model_of_channel[c] * n_counts];
            for (size_t i = 0; i < n_counts; i++) {
                sum[i] += counts.counts[c * n_counts + i];
            }
        }
        for (uint32_t m = 0; m < n_models; m++) {
            for (size_t half = 0; half < n_counts; half += counts.n_symbols) {
                double total = 0;
                for (size_t i = half; i < half + counts.n_symbols; i++) {
                    total += sums[m * n_counts + i];
                }
                for (size_t i = half; i < half + counts.n_symbols; i++) {
                    costs[i * n_models + m] = static_cast<float>(std::log2(total / sums[m * n_counts + i]));
                }
            }
        }
        std::atomic<bool>  has_changed{ false };
        constexpr uint64_t channels_a_task = 256;
        run_tasks(executor, (n_channels + channels_a_task - 1) / channels_a_task, [&](uint64_t task) {
            metered_vector<float> channel_costs(n_models);
            for (uint64_t c = task * channels_a_task; c < std::min(n_channels, (task + 1) * channels_a_task); c++) {
                const uint32_t * count = &counts.counts[c * n_counts];
                std::fill(channel_costs.begin(), channel_costs.end(), 0.0f);
                for (size_t i = 0; i < n_counts; i++) {
                    if (count[i] == 0) {
                        continue;
                    }
                    const auto    n    = static_cast<float>(count[i]);
                    const float * cost = &costs[i * n_models];
                    for (uint32_t m = 0; m < n_models; m++) {
                        channel_costs[m] += n * cost[m];
                    }
                }
                const auto best = static_cast<uint8_t>(std::min_element(channel_costs.begin(), channel_costs.end()) -
                                                       channel_costs.begin());
                if (best != choice.model_of_channel[c]) {
                    choice.model_of_channel[c] = best;
                    has_changed                = true;
                }
            }
        });
        if (!has_changed) {
            break;
        }
    }

    // leave out models that nobody uses
    metered_vector<uint32_t> renumbered(n_models, UINT32_MAX);
    for (const uint8_t model : choice.model_of_channel) {
        renumbered[model] = 0;
    }
    uint32_t n_used = 0;
    for (auto & number : renumbered) {
        number = number == 0 ? n_used++ : number;
    }
    for (auto & model : choice.model_of_channel) {
        model = static_cast<uint8_t>(renumbered[model]);
    }
    choice.n_models = n_used;
    return choice;
}

uint32_t choose_classes(const uint64_t * counts, uint32_t n_symbols, uint32_t n_classes, uint8_t * class_of) {
    const double total = static_cast<double>(std::accumulate(counts, counts + n_symbols, uint64_t{ 0 })) + 1e-9;
    double       below = 0;
    uint32_t     used  = 0;
    uint32_t     last  = UINT32_MAX;
    for (uint32_t s = 0; s < n_symbols; s++) {
        // by the middle of the symbol's share, in the square-root domain: the classes in the middle are more frequent
        const double   x      = 2 * (below + 0.5 * static_cast<double>(counts[s])) / total - 1;
        const double   shaped = x < 0 ? -std::pow(-x, 1.5) : std::pow(x, 1.5);
        const uint32_t wanted =
            std::min(n_classes - 1, static_cast<uint32_t>(std::max(0.0, (shaped + 1) / 2 * n_classes)));
        if (wanted != last) {
            last = wanted;
            used++;
        }
        class_of[s] = static_cast<uint8_t>(used - 1);
        below += static_cast<double>(counts[s]);
    }
    return used;
}

void make_frequencies(const uint64_t * counts, uint32_t n_symbols, uint16_t * frequencies) {
    const uint64_t total = std::accumulate(counts, counts + n_symbols, uint64_t{ 0 });
    int32_t        left  = prob_scale;
    for (uint32_t s = 0; s < n_symbols; s++) {
        const double share = total ? static_cast<double>(counts[s]) / static_cast<double>(total) : 1.0 / n_symbols;
        frequencies[s]     = static_cast<uint16_t>(std::max(1.0, std::floor(share * prob_scale + 0.5)));
        left -= frequencies[s];
    }
    // give or take one by one where it costs least: log2((f + 1) / f) of gain for each occurrence
    while (left != 0) {
        uint32_t best      = 0;
        double   best_gain = -INFINITY;
        for (uint32_t s = 0; s < n_symbols; s++) {
            const double f = frequencies[s];
            if (left < 0 && frequencies[s] == 1) {
                continue;
            }
            const double n    = static_cast<double>(counts[s]) + 1e-6;
            const double gain = left > 0 ? n * std::log2((f + 1) / f) : n * std::log2((f - 1) / f);
            if (gain > best_gain) {
                best_gain = gain;
                best      = s;
            }
        }
        frequencies[best] = static_cast<uint16_t>(frequencies[best] + (left > 0 ? 1 : -1));
        left += left > 0 ? -1 : 1;
    }
}

} // namespace cachegen::lcg3
