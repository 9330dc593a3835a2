#include "lcg3_models.h"

#include "executor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace cachegen::lcg3 {

namespace {

constexpr uint64_t channels_a_task    = 256;
constexpr uint64_t channels_of_search = 1024; // with 5 times as many, SmolLM2's archive is 0.05 % smaller

uint64_t n_channel_tasks(uint64_t n_channels) {
    return (n_channels + channels_a_task - 1) / channels_a_task;
}

// The counts that models are made from: of all channels, or of some in equal distances, whose places in a stretch take
// turns.
channel_counts thinned(const channel_counts & counts, uint64_t step) {
    channel_counts some(counts.n_channels / step, counts.n_symbols);
    const size_t   n_counts = 2 * size_t{ counts.n_symbols };
    for (uint64_t i = 0; i < some.n_channels; i++) {
        const auto from = counts.counts.begin() + static_cast<int64_t>((i * step + i % step) * n_counts);
        std::copy(from, from + static_cast<int64_t>(n_counts), some.symbols_of(i));
    }
    return some;
}

// Orders channels by the spread of their symbols in `n_bands` bands, then by their mean: a start for Lloyd's algorithm
// that does not depend on chance.
metered_vector<uint32_t> start_order(const channel_counts & counts, uint32_t n_bands,
                                     const cachegen_executor * executor) {
    const uint64_t        n = counts.n_channels;
    metered_vector<float> mean(n);
    metered_vector<float> spread(n);
    run_tasks(executor, n_channel_tasks(n), [&](uint64_t task) {
        for (uint64_t c = task * channels_a_task; c < std::min(n, (task + 1) * channels_a_task); c++) {
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
    });
    metered_vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    const auto by = [](const metered_vector<float> & keys) {
        return [&keys](uint32_t a, uint32_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; };
    };
    const auto begin_of = [&](uint64_t band) { return order.begin() + static_cast<int64_t>(n * band / n_bands); };
    for (uint32_t band = 1; band < n_bands; band++) {
        std::nth_element(begin_of(band - 1), begin_of(band), order.end(), by(spread));
    }
    run_tasks(executor, n_bands, [&](uint64_t band) { std::sort(begin_of(band), begin_of(band + 1), by(mean)); });
    return order;
}

// Lloyd's algorithm: a model's bits for each symbol and distance, then the cheapest model of each channel.
class model_search {
  public:
    model_search(const channel_counts & counts, uint32_t n_models, const cachegen_executor * executor,
                 metered_vector<uint8_t> & model_of_channel)
        : counts_(counts), n_counts_(2 * size_t{ counts.n_symbols }), n_models_(n_models), executor_(executor),
          models_(model_of_channel), stride_((n_models + models_a_step - 1) / models_a_step * models_a_step),
          n_parts_(std::min<uint64_t>(max_parts, n_channel_tasks(counts.n_channels))),
          sums_(n_parts_ * n_models * n_counts_), costs_(n_counts_ * stride_) {}

    // what the models there are cost
    void start() {
        run_tasks(executor_, n_parts_, [&](uint64_t part) { add_up(part); });
        make_costs();
    }

    // False: no channel has found a cheaper one.
    bool improve() {
        std::atomic<bool> has_changed{ false };
        run_tasks(executor_, n_parts_, [&](uint64_t part) {
            if (choose(part)) {
                has_changed = true;
            }
            add_up(part);
        });
        make_costs();
        return has_changed;
    }

    // the cheapest models of other channels
    void assign(const channel_counts & counts, metered_vector<uint8_t> & models) const {
        run_tasks(executor_, n_channel_tasks(counts.n_channels), [&](uint64_t task) {
            const uint64_t begin = task * channels_a_task;
            choose_for(counts, begin, std::min(counts.n_channels, begin + channels_a_task), models);
        });
    }

  private:
    static constexpr uint32_t models_a_step = 16; // that registers have sums for
    static constexpr uint64_t max_parts     = 32; // of the channels; each has sums of its own

    uint64_t begin_of(uint64_t part) const { return counts_.n_channels * part / n_parts_; }

    void add_up(uint64_t part) {
        uint64_t * const sums = &sums_[part * n_models_ * n_counts_];
        std::fill(sums, sums + n_models_ * n_counts_, 0);
        for (uint64_t c = begin_of(part); c < begin_of(part + 1); c++) {
            uint64_t * const       sum   = sums + models_[c] * n_counts_;
            const uint32_t * const count = &counts_.counts[c * n_counts_];
            for (size_t i = 0; i < n_counts_; i++) {
                sum[i] += count[i];
            }
        }
    }

    void make_costs() {
        metered_vector<double> sum(n_counts_);
        for (uint32_t m = 0; m < n_models_; m++) {
            for (size_t i = 0; i < n_counts_; i++) {
                uint64_t n = 0;
                for (uint64_t part = 0; part < n_parts_; part++) {
                    n += sums_[(part * n_models_ + m) * n_counts_ + i];
                }
                sum[i] = 0.5 + static_cast<double>(n);
            }
            for (size_t half = 0; half < n_counts_; half += counts_.n_symbols) {
                const auto   begin = sum.begin() + static_cast<int64_t>(half);
                const double total = std::accumulate(begin, begin + counts_.n_symbols, 0.0);
                for (size_t i = half; i < half + counts_.n_symbols; i++) {
                    costs_[i * stride_ + m] = static_cast<float>(std::log2(total / sum[i]));
                }
            }
        }
    }

    bool choose(uint64_t part) { return choose_for(counts_, begin_of(part), begin_of(part + 1), models_); }

    // the cheapest model of channels [begin, end). True: one has another than before.
    bool choose_for(const channel_counts & counts, uint64_t begin, uint64_t end,
                    metered_vector<uint8_t> & models) const {
        bool has_changed = false;
        for (uint64_t c = begin; c < end; c++) {
            const uint32_t * const count = &counts.counts[c * n_counts_];
            float                  least = INFINITY;
            uint32_t               best  = 0;
            for (uint32_t first = 0; first < n_models_; first += models_a_step) {
                float bits[models_a_step] = {};
                for (size_t i = 0; i < n_counts_; i++) {
                    if (count[i] == 0) {
                        continue;
                    }
                    const auto          n    = static_cast<float>(count[i]);
                    const float * const cost = &costs_[i * stride_ + first];
                    for (uint32_t m = 0; m < models_a_step; m++) {
                        bits[m] += n * cost[m];
                    }
                }
                for (uint32_t m = 0; m < std::min(models_a_step, n_models_ - first); m++) {
                    if (bits[m] < least) {
                        least = bits[m];
                        best  = first + m;
                    }
                }
            }
            if (best != models[c]) {
                models[c]   = static_cast<uint8_t>(best);
                has_changed = true;
            }
        }
        return has_changed;
    }

    const channel_counts &    counts_;
    const size_t              n_counts_; // of a channel: symbols, then distances
    const uint32_t            n_models_;
    const cachegen_executor * executor_;
    metered_vector<uint8_t> & models_; // of each channel
    const size_t              stride_; // of costs, in models
    const uint64_t            n_parts_;
    metered_vector<uint64_t>  sums_;  // [part][model][count]
    metered_vector<float>     costs_; // [count][model]: bits a symbol or distance
};

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
    n_models                  = static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(n_models, n_channels)));

    const uint64_t         step     = std::max<uint64_t>(1, n_channels / channels_of_search);
    const channel_counts   some     = step > 1 ? thinned(counts, step) : channel_counts(0, counts.n_symbols);
    const channel_counts & searched = step > 1 ? some : counts;

    metered_vector<uint8_t> models(searched.n_channels);
    const auto              order =
        start_order(searched, std::max(1u, static_cast<uint32_t>(std::sqrt(double(n_models)))), executor);
    for (uint64_t i = 0; i < models.size(); i++) {
        models[order[i]] = static_cast<uint8_t>(i * n_models / models.size());
    }

    model_choice choice{ n_models, metered_vector<uint8_t>(step > 1 ? n_channels : 0) };
    if (n_models > 1) {
        model_search search(searched, n_models, executor, models);
        search.start();
        for (uint32_t iteration = 0; iteration < n_iterations && search.improve(); iteration++) {
        }
        if (step > 1) {
            search.assign(counts, choice.model_of_channel);
        }
    }
    if (step == 1) {
        choice.model_of_channel = std::move(models);
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
