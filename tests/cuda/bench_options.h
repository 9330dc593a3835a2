// A benchmark's command line: words, then options as "--name value".
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct bench_options {
    std::vector<std::string>           words;
    std::map<std::string, std::string> named;

    // Throws std::runtime_error for an option that is none of the known ones, or has no value.
    bench_options(int argc, char ** argv, const std::vector<std::string> & known) {
        for (int i = 1; i < argc; i++) {
            const std::string word = argv[i];
            if (word.rfind("--", 0) != 0) {
                words.push_back(word);
                continue;
            }
            const std::string name = word.substr(2);
            if (std::find(known.begin(), known.end(), name) == known.end() || i + 1 == argc) {
                throw std::runtime_error(word + (i + 1 == argc ? " needs a value" : " is no option"));
            }
            named[name] = argv[++i];
        }
    }

    bool has(const std::string & name) const { return named.count(name) != 0; }

    std::string text(const std::string & name, const std::string & otherwise = "") const {
        const auto found = named.find(name);
        return found == named.end() ? otherwise : found->second;
    }

    // Throws std::runtime_error if it is no number of at least 1.
    int32_t number(const std::string & name, int32_t otherwise) const {
        if (!has(name)) {
            return otherwise;
        }
        const int n = atoi(named.at(name).c_str());
        if (n < 1) {
            throw std::runtime_error("--" + name + " " + named.at(name) + " is no number of 1 or more");
        }
        return n;
    }
};
