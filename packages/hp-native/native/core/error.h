// SPDX-License-Identifier: Apache-2.0
// What can go wrong, as the C ABI numbers it.
#pragma once

#include <stdexcept>
#include <string>

namespace hpn {

enum class Code : int { invalid = -1, mismatch = -2, peer_gone = -3, aborted = -4, no_memory = -5, system = -6 };

class Error : public std::runtime_error {
public:
    Error(Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
    Code code() const { return code_; }

private:
    Code code_;
};

}  // namespace hpn
