#include "row.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr int n_greedy = 64;
static_assert(n_greedy < max_steps);

// logarithms of the probabilities
std::vector<double> log_softmax(const std::vector<float> & logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double       sum     = 0;
    for (const float logit : logits) {
        sum += std::exp(logit - largest);
    }
    std::vector<double> result;
    result.reserve(logits.size());
    for (const float logit : logits) {
        result.push_back(logit - largest - std::log(sum));
    }
    return result;
}

double kl(const std::vector<float> & from, const std::vector<float> & to) {
    const auto p   = log_softmax(from);
    const auto q   = log_softmax(to);
    double     sum = 0;
    for (size_t i = 0; i < p.size(); i++) {
        sum += std::exp(p[i]) * (p[i] - q[i]);
    }
    return sum;
}

} // namespace

greedy_run run_greedily(const row_setup & row, const std::vector<llama_token> * fed) {
    greedy_run  run;
    llama_token token = row.next_token();
    for (int i = 0; i < n_greedy; i++) {
        run.logits.push_back(decode(row.ctx.get(), &token, 1, row.n_tokens() + i));
        run.tokens.push_back(most_likely(run.logits.back()));
        token = fed != nullptr ? (*fed)[static_cast<size_t>(i)] : run.tokens.back();
    }
    row.forget(row.n_tokens());
    return run;
}

agreement measure_agreement(const row_setup & row, const row_files & files, const greedy_run & original) {
    restore(row, method::archive, files.archive.path);
    const greedy_run freely = run_greedily(row, nullptr);
    const greedy_run forced = run_greedily(row, &original.tokens);
    agreement        result;
    result.n_tokens = n_greedy;
    for (size_t i = 0; i < original.tokens.size(); i++) {
        const double here = kl(original.logits[i], forced.logits[i]);
        result.mean_kl += here / n_greedy;
        result.largest_kl = std::max(result.largest_kl, here);
        result.n_same_top += forced.tokens[i] == original.tokens[i];
        result.n_before += result.n_equal == static_cast<int>(i) && freely.tokens[i] == original.tokens[i];
        result.n_equal += freely.tokens[i] == original.tokens[i];
    }
    return result;
}
