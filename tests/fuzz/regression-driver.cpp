// A main() for a fuzz target without libFuzzer: every file of the given folders, then the same mutations of them on
// every machine. What was running when a check or a sanitizer ended the process is left in the file failing-input.
#include "fuzz.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

// of a sanitizer's runtime, where there is one
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

// undefined behaviour ends in abort(), whose signal is seen below
extern "C" const char * __ubsan_default_options() {
    return "print_stacktrace=1:abort_on_error=1";
}

namespace {

using bytes = std::vector<uint8_t>;

std::string g_name;
bytes       g_current;

void tell() {
    fprintf(stderr, "while running %s, %zu bytes, kept as failing-input\n", g_name.c_str(), g_current.size());
    if (FILE * file = fopen("failing-input", "wb")) {
        fwrite(g_current.data(), 1, g_current.size(), file);
        fclose(file);
    }
}

void tell_and_die(int signal) {
    std::signal(signal, SIG_DFL);
    tell();
    std::raise(signal);
}

void run(const std::string & name, bytes input) {
    g_name    = name;
    g_current = std::move(input);
    // the sanitizer sees the first byte beside it
    const fuzz::buffer copy(g_current.data(), g_current.size());
    LLVMFuzzerTestOneInput(copy.data.get(), copy.n_bytes);
}

// splitmix64: the same numbers everywhere, unlike those of <random>'s distributions
struct random_source {
    uint64_t state;

    uint64_t below(uint64_t n) {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (z ^ (z >> 31)) % n;
    }
};

bytes mutate(const std::vector<bytes> & corpus, random_source & random) {
    static constexpr uint8_t edges[] = { 0, 1, 0x7f, 0x80, 0xfe, 0xff };

    bytes res = corpus[random.below(corpus.size())];
    for (uint64_t n = 1 + random.below(4); n > 0 && !res.empty(); n--) {
        const uint64_t at   = random.below(res.size());
        // half of the changes near the beginning, where the tables are
        uint8_t &      byte = res[random.below(2) ? at : at % std::min<size_t>(res.size(), 256)];
        switch (random.below(8)) {
            case 0:
            case 1: byte ^= static_cast<uint8_t>(1u << random.below(8)); break;
            case 2: byte = static_cast<uint8_t>(random.below(256)); break;
            case 3: byte = edges[random.below(std::size(edges))]; break;
            case 4: res[0] = static_cast<uint8_t>(random.below(256)); break; // the choices of the target
            case 5: res.resize(at); break;
            case 6: // a piece of another input, over this one's
            {
                const bytes & other = corpus[random.below(corpus.size())];
                if (!other.empty()) {
                    const uint64_t from = random.below(other.size());
                    const uint64_t n_to = random.below(std::min(other.size() - from, res.size() - at)) + 1;
                    std::copy_n(other.begin() + static_cast<int64_t>(from), n_to,
                                res.begin() + static_cast<int64_t>(at));
                }
                break;
            }
            default: // cut out or put in
                if (random.below(2)) {
                    const uint64_t end = std::min<uint64_t>(res.size(), at + 1 + random.below(32));
                    res.erase(res.begin() + static_cast<int64_t>(at), res.begin() + static_cast<int64_t>(end));
                } else {
                    res.insert(res.begin() + static_cast<int64_t>(at), 1 + random.below(32),
                               static_cast<uint8_t>(random.below(256)));
                }
        }
    }
    return res;
}

int usage(const char * program) {
    fprintf(stderr, "usage: %s [--mutate ROUNDS] [--seed NUMBER] FILE_OR_FOLDER...\n", program);
    return 2;
}

} // namespace

int main(int argc, char ** argv) {
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(tell);
        std::signal(SIGABRT, tell_and_die);
    } else {
        for (const int signal : { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL }) {
            std::signal(signal, tell_and_die);
        }
    }
    uint64_t                 n_rounds = 0;
    uint64_t                 seed     = 1;
    std::vector<std::string> names;
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        if (argument == "--mutate" || argument == "--seed") {
            if (++i == argc) {
                return usage(argv[0]);
            }
            (argument == "--seed" ? seed : n_rounds) = strtoull(argv[i], nullptr, 10);
        } else if (std::filesystem::is_directory(argument)) {
            for (const auto & entry : std::filesystem::recursive_directory_iterator(argument)) {
                if (entry.is_regular_file()) {
                    names.push_back(entry.path().string());
                }
            }
        } else {
            names.push_back(argument);
        }
    }
    std::sort(names.begin(), names.end());
    if (names.empty()) {
        return usage(argv[0]);
    }
    std::vector<bytes> corpus;
    for (const auto & name : names) {
        std::ifstream file(name, std::ios::binary);
        if (!file) {
            fprintf(stderr, "cannot read %s\n", name.c_str());
            return 1;
        }
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        run(name, corpus.back());
    }
    run("nothing", {});
    random_source random{ seed };
    for (uint64_t i = 0; i < n_rounds; i++) {
        run("mutation " + std::to_string(i) + " of seed " + std::to_string(seed), mutate(corpus, random));
    }
    printf("%zu inputs and %llu mutations of them\n", corpus.size(), static_cast<unsigned long long>(n_rounds));
    return 0;
}
