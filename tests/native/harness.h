// The smallest test harness that says what was compared: no dependency, one process a file.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace harness {

// ends the current test; the others still run
struct failure : std::exception {
    const char * what() const noexcept override { return "check failed"; }
};

struct test {
    const char * name;
    void (*body)();
};

inline std::vector<test> & tests() {
    static std::vector<test> all;
    return all;
}

inline uint64_t & n_checks() {
    static uint64_t n = 0;
    return n;
}

// what the current test is working on, printed with a failed check
inline std::vector<std::string> & scopes() {
    static std::vector<std::string> all;
    return all;
}

struct scope {
    explicit scope(std::string what) { scopes().push_back(std::move(what)); }

    ~scope() { scopes().pop_back(); }

    scope(const scope &)             = delete;
    scope & operator=(const scope &) = delete;
};

struct registrar {
    registrar(const char * name, void (*body)()) { tests().push_back({ name, body }); }
};

[[noreturn]] inline void fail(const char * file, int line, const std::string & what) {
    printf("%s:%d: %s\n", file, line, what.c_str());
    for (const auto & scope : scopes()) {
        printf("    while: %s\n", scope.c_str());
    }
    fflush(stdout);
    throw failure();
}

template <typename T> std::string show(const T & value) {
    std::ostringstream out;
    out.precision(9);
    if constexpr (std::is_enum_v<T>) {
        out << static_cast<int64_t>(value);
    } else {
        out << +value;
    }
    return out.str();
}

inline std::string show(const std::string & value) {
    return "\"" + value + "\"";
}

inline std::string show(const char * value) {
    return value ? show(std::string(value)) : "NULL";
}

inline std::string show(const void * value) {
    std::ostringstream out;
    out << value;
    return out.str();
}

inline std::string show(std::nullptr_t) {
    return "NULL";
}

template <typename A, typename B>
void check_eq(const A & a, const B & b, const char * a_text, const char * b_text, const char * file, int line) {
    n_checks()++;
    if (!(a == b)) {
        fail(file, line, std::string(a_text) + " == " + b_text + "\n    left:  " + show(a) + "\n    right: " + show(b));
    }
}

// elements are compared bit by bit: NaN equals the same NaN, 0 differs from -0
template <typename T> void check_same_bits(const std::vector<T> & a, const std::vector<T> & b, const char * a_text,
                                           const char * b_text, const char * file, int line) {
    static_assert(std::is_trivially_copyable_v<T>);
    n_checks()++;
    if (a.size() != b.size()) {
        fail(file, line,
             std::string(a_text) + " and " + b_text + " have " + show(a.size()) + " and " + show(b.size()) +
                 " elements");
    }
    size_t n_different = 0;
    size_t first       = 0;
    for (size_t i = a.size(); i-- > 0;) {
        if (memcmp(&a[i], &b[i], sizeof(T)) != 0) {
            n_different++;
            first = i;
        }
    }
    if (n_different) {
        fail(file, line,
             std::string(a_text) + " and " + b_text + " differ in " + show(n_different) + " of " + show(a.size()) +
                 " elements, first at " + show(first) + "\n    left:  " + show(a[first]) +
                 "\n    right: " + show(b[first]));
    }
}

// of a word: the test of that name; if there is none, all whose names contain it
inline bool is_chosen(const test & test, const char * word) {
    for (const auto & other : tests()) {
        if (strcmp(other.name, word) == 0) {
            return strcmp(test.name, word) == 0;
        }
    }
    return strstr(test.name, word) != nullptr;
}

// run every test, or those that the words of the command line choose
inline int run(int argc, char ** argv) {
    size_t n_passed = 0;
    size_t n_failed = 0;
    for (const auto & test : tests()) {
        bool is_wanted = argc < 2;
        for (int i = 1; i < argc; i++) {
            is_wanted = is_wanted || is_chosen(test, argv[i]);
        }
        if (!is_wanted) {
            continue;
        }
        const uint64_t n_before = n_checks();
        bool           ok       = false;
        try {
            test.body();
            ok = true;
        } catch (const failure &) {
        } catch (const std::exception & err) {
            printf("%s: unexpected exception: %s\n", test.name, err.what());
        }
        printf("%-6s %-48s %8" PRIu64 " checks\n", ok ? "ok" : "FAILED", test.name, n_checks() - n_before);
        fflush(stdout);
        (ok ? n_passed : n_failed)++;
    }
    if (n_failed) {
        printf("%zu tests failed, %zu passed\n", n_failed, n_passed);
        return 1;
    }
    if (n_passed == 0) {
        printf("no test has such a name\n");
        return 1;
    }
    printf("%zu tests passed\n", n_passed);
    return 0;
}

} // namespace harness

#define TEST(name)                                                                                                     \
    static void                     test_##name();                                                                     \
    static const harness::registrar register_##name(#name, test_##name);                                               \
    static void                     test_##name()

#define SCOPE_JOIN2(a, b) a##b
#define SCOPE_JOIN(a, b) SCOPE_JOIN2(a, b)
#define SCOPE(what) const harness::scope SCOPE_JOIN(scope_, __LINE__)(what)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        harness::n_checks()++;                                                                                         \
        if (!(condition)) {                                                                                            \
            harness::fail(__FILE__, __LINE__, #condition);                                                             \
        }                                                                                                              \
    } while (0)

#define CHECK_EQ(a, b) harness::check_eq((a), (b), #a, #b, __FILE__, __LINE__)
#define CHECK_SAME_BITS(a, b) harness::check_same_bits((a), (b), #a, #b, __FILE__, __LINE__)
