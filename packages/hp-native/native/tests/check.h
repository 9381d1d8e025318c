// SPDX-License-Identifier: Apache-2.0
// The smallest test kit: CHECK and CHECK_EQ print what failed and count, report() is main's result.
#pragma once

#include <atomic>
#include <cstdio>
#include <sstream>
#include <string>

namespace hpn::check {

// Tests run "ranks" as threads, which all check.
inline std::atomic<long> num_checks{0};
inline std::atomic<long> num_failures{0};

template <class T>
std::string shown(const T& value) {
    std::ostringstream text;
    text << std::boolalpha;
    if constexpr (std::is_enum_v<T>) {
        text << static_cast<long long>(value);
    } else if constexpr (std::is_same_v<T, unsigned char> || std::is_same_v<T, signed char>) {
        text << static_cast<int>(value);
    } else if constexpr (std::is_same_v<T, std::nullptr_t>) {
        text << "nullptr";
    } else {
        text << value;
    }
    return text.str();
}

inline void failed(const char* file, int line, const std::string& what) {
    constexpr long max_printed = 50;  // a kernel that is wrong is wrong thousands of times
    if (num_failures.fetch_add(1) < max_printed) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

/// Prints the counts; the exit status: non-zero if a check failed or none was made.
inline int report() {
    std::printf("%ld checks, %ld failed\n", num_checks.load(), num_failures.load());
    return num_failures.load() == 0 && num_checks.load() > 0 ? 0 : 1;
}

}  // namespace hpn::check

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        hpn::check::num_checks.fetch_add(1, std::memory_order_relaxed);                                 \
        if (!(condition)) hpn::check::failed(__FILE__, __LINE__, "CHECK(" #condition ")");              \
    } while (false)

// As CHECK, with a text that is only made on failure.
#define CHECK_TOLD(condition, text)                                                                     \
    do {                                                                                                \
        hpn::check::num_checks.fetch_add(1, std::memory_order_relaxed);                                 \
        if (!(condition)) hpn::check::failed(__FILE__, __LINE__, "CHECK(" #condition "): " + (text));   \
    } while (false)

#define CHECK_EQ(left, right)                                                                           \
    do {                                                                                                \
        hpn::check::num_checks.fetch_add(1, std::memory_order_relaxed);                                 \
        const auto& check_left = (left);                                                                \
        const auto& check_right = (right);                                                              \
        if (!(check_left == check_right)) {                                                             \
            hpn::check::failed(__FILE__, __LINE__,                                                      \
                               "CHECK_EQ(" #left ", " #right "): " + hpn::check::shown(check_left) +    \
                                   " != " + hpn::check::shown(check_right));                            \
        }                                                                                               \
    } while (false)
