// SPDX-License-Identifier: Apache-2.0
// Every dtype and op against a scalar reference written from the definitions, on every instruction set there is.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../core/kernels.h"
#include "../core/reduce.h"
#include "check.h"
#include "reduce_reference.h"

namespace {

using namespace hpn::reference;
using hpn::Dtype;
using hpn::Op;

constexpr std::size_t max_count = 4099;
constexpr unsigned char canary = 0xa5;

// --- memory whose surroundings are watched ---------------------------------------------------------------------------

// `bytes` at a given distance from a cache line's start. The address sanitizer sees reads past the end of it (there is
// no slack), canaries show writes before and, where asked for, behind it.
class Memory {
public:
    Memory(std::size_t offset, std::size_t bytes, std::size_t behind)
        : offset_(offset), bytes_(bytes), behind_(behind) {
        void* raw = nullptr;
        if (posix_memalign(&raw, 64, std::max<std::size_t>(offset + bytes + behind, 1)) != 0) std::abort();
        raw_.reset(static_cast<unsigned char*>(raw));
        std::memset(raw, canary, offset + bytes + behind);
    }
    unsigned char* data() const { return raw_.get() + offset_; }
    bool surroundings_intact() const {
        const auto untouched = [](unsigned char byte) { return byte == canary; };
        return std::all_of(raw_.get(), data(), untouched) &&
               std::all_of(data() + bytes_, data() + bytes_ + behind_, untouched);
    }

private:
    struct Free {
        void operator()(unsigned char* raw) const { std::free(raw); }
    };
    std::unique_ptr<unsigned char, Free> raw_;
    std::size_t offset_, bytes_, behind_;
};

std::vector<const hpn::Kernels*> all_kernels(std::vector<std::string>& names) {
    std::vector<const hpn::Kernels*> found;
    for (int i = 0; i < hpn::num_isas; ++i) {
        if (const hpn::Kernels* kernels = hpn::kernels_of(static_cast<hpn::Isa>(i))) {
            found.push_back(kernels);
            names.emplace_back(hpn::name_of(static_cast<hpn::Isa>(i)));
        }
    }
    return found;
}

struct Case {
    std::string isa;
    Dtype dtype;
    Op op;
    std::size_t num_sources, count, offset;
    int alias, alias2;  // the source that dst and dst2 are, or -1: their own memory; -2: there is no dst2
    hpn::Stream stream;

    std::string text() const {
        return isa + " dtype " + std::to_string(int(dtype)) + " op " + std::to_string(int(op)) + " sources " +
               std::to_string(num_sources) + " count " + std::to_string(count) + " offset " + std::to_string(offset) +
               " dst " + std::to_string(alias) + " dst2 " + std::to_string(alias2) + " stream " + std::to_string(int(stream));
    }
};

std::string first_difference(const unsigned char* got, const Bytes& wanted, std::size_t element_bytes) {
    std::size_t at = 0;
    while (got[at] == wanted[at]) ++at;
    const std::size_t i = at / element_bytes;
    std::string text = ": element " + std::to_string(i) + " is 0x";
    char digits[3];
    for (const unsigned char* from : {got, wanted.data()}) {
        for (std::size_t b = element_bytes; b-- > 0;) {
            std::snprintf(digits, sizeof digits, "%02x", from[i * element_bytes + b]);
            text += digits;
        }
        if (from == got) text += ", wanted 0x";
    }
    return text;
}

// One call in one arrangement of memory. `wanted` is for max_count elements, of which the first `count` matter.
void run_case(const Case& c, hpn::ReduceFn function, const std::vector<Bytes>& values,
              const std::vector<Memory>& sources, const Memory& own, const Memory& own2, const Bytes& wanted) {
    const std::size_t bytes = c.count * hpn::size_of(c.dtype);
    std::vector<const void*> pointers;
    for (std::size_t k = 0; k < c.num_sources; ++k) {
        if (bytes > 0) std::memcpy(sources[k].data(), values[k].data(), bytes);
        pointers.push_back(sources[k].data());
    }
    const Memory& dst = c.alias >= 0 ? sources[static_cast<std::size_t>(c.alias)] : own;
    const Memory& dst2 = c.alias2 >= 0 ? sources[static_cast<std::size_t>(c.alias2)] : own2;
    function(dst.data(), c.alias2 == -2 ? nullptr : dst2.data(), pointers.data(), static_cast<int>(c.num_sources),
             c.count, c.stream);
    const bool same = bytes == 0 || std::memcmp(dst.data(), wanted.data(), bytes) == 0;
    CHECK_TOLD(same, c.text() + first_difference(dst.data(), wanted, hpn::size_of(c.dtype)));
    CHECK_TOLD(dst.surroundings_intact(), c.text());
    if (c.alias2 != -2) {
        const bool same2 = bytes == 0 || std::memcmp(dst2.data(), wanted.data(), bytes) == 0;
        CHECK_TOLD(same2, c.text() + first_difference(dst2.data(), wanted, hpn::size_of(c.dtype)));
        CHECK_TOLD(dst2.surroundings_intact(), c.text());
    }
    for (std::size_t k = 0; k < c.num_sources; ++k) {
        if (static_cast<int>(k) == c.alias || static_cast<int>(k) == c.alias2 || bytes == 0) continue;
        CHECK_TOLD(std::memcmp(sources[k].data(), values[k].data(), bytes) == 0, c.text());
    }
}

void test_arrangements(Dtype dtype, std::size_t num_sources) {
    std::vector<std::string> isas;
    const auto tables = all_kernels(isas);
    const std::size_t size = hpn::size_of(dtype);
    const auto values = many_operands(dtype, num_sources, max_count);
    const std::size_t offsets[] = {0, size, 3 * size, 64 - size};
    std::vector<Bytes> wanted(hpn::num_ops);
    for (int op = 0; op < hpn::num_ops; ++op) {
        if (defined(dtype, Op(op))) wanted[static_cast<std::size_t>(op)] = reference(dtype, Op(op), values);
    }
    for (const std::size_t count : {0, 1, 2, 7, 31, 64, 1000, 4099}) {
        for (std::size_t o = 0; o < std::size(offsets); ++o) {
            std::vector<Memory> sources;
            for (std::size_t k = 0; k < num_sources; ++k) {
                sources.emplace_back(offsets[(o + k + 1) % std::size(offsets)], count * size, 0);
            }
            const Memory own(offsets[o], count * size, 64);
            const Memory own2(offsets[(o + 2) % std::size(offsets)], count * size, 64);
            for (int op = 0; op < hpn::num_ops; ++op) {
                if (!defined(dtype, Op(op))) continue;
                for (std::size_t t = 0; t < tables.size(); ++t) {
                    const hpn::ReduceFn function = tables[t]->reduce[int(dtype)][op];
                    for (int alias = -1; alias < static_cast<int>(num_sources); ++alias) {
                        const int other = static_cast<int>((static_cast<std::size_t>(alias + 1)) % num_sources);
                        for (const int alias2 : {-2, -1, other == alias ? -1 : other}) {
                            for (const auto stream : {hpn::Stream::none, hpn::Stream::second, hpn::Stream::both}) {
                                const Case c{isas[t], dtype, Op(op), num_sources, count,
                                             offsets[o], alias, alias2, stream};
                                run_case(c, function, values, sources, own, own2, wanted[static_cast<std::size_t>(op)]);
                            }
                        }
                    }
                }
            }
        }
    }
}

// --- further properties ----------------------------------------------------------------------------------------------

void test_table() {
    for (int dtype = 0; dtype < hpn::num_dtypes; ++dtype) {
        for (int op = 0; op < hpn::num_ops; ++op) {
            CHECK_EQ(hpn::reduce_fn(Dtype(dtype), Op(op)) != nullptr, defined(Dtype(dtype), Op(op)));
            CHECK(hpn::reduce_fn(Dtype(dtype), Op(op)) == hpn::kernels().reduce[dtype][op]);
        }
        CHECK(hpn::reduce_fn(Dtype(dtype), Op(hpn::num_ops)) == nullptr);
    }
    CHECK(hpn::reduce_fn(Dtype(hpn::num_dtypes), Op::sum) == nullptr);
    CHECK(hpn::reduce_fn(Dtype(255), Op(255)) == nullptr);
    CHECK_EQ(hpn::size_of(Dtype::f64), 8U);
    CHECK_EQ(hpn::size_of(Dtype::bf16), 2U);
    CHECK_EQ(hpn::size_of(Dtype(200)), 0U);
}

// All 65536 patterns: unchanged by a sum over one source, except that NaNs become one.
void test_every_16_bit_pattern() {
    std::vector<std::string> isas;
    const auto tables = all_kernels(isas);
    Bytes all(2 * 65536);
    for (std::size_t i = 0; i < 65536; ++i) set_element(all, i, static_cast<std::uint16_t>(i));
    for (const auto& [dtype, format] : {std::pair{Dtype::f16, half}, std::pair{Dtype::bf16, brain}}) {
        for (std::size_t t = 0; t < tables.size(); ++t) {
            for (const Op op : {Op::sum, Op::avg, Op::min, Op::max, Op::product}) {
                Bytes out(all.size());
                const void* source = all.data();
                tables[t]->reduce[int(dtype)][int(op)](out.data(), nullptr, &source, 1, 65536, hpn::Stream::none);
                for (std::size_t i = 0; i < 65536; ++i) {
                    const auto code = static_cast<std::uint16_t>(i);
                    const bool nan = (code & 0x7fff) > format.infinity;
                    const auto wanted = nan ? format.encode(std::nan("")) : code;
                    CHECK_TOLD(element<std::uint16_t>(out, i) == wanted, isas[t] + " " + std::to_string(i));
                }
            }
        }
    }
}

// Many sources (more than there are registers), many values (rounding cases), cuts at any place.
void test_many_sources_and_any_chunking() {
    std::vector<std::string> isas;
    const auto tables = all_kernels(isas);
    for (int d = 0; d < hpn::num_dtypes; ++d) {
        const Dtype dtype = Dtype(d);
        const std::size_t size = hpn::size_of(dtype);
        for (const std::size_t num_sources : {2, 4, 17, 64}) {
            const std::size_t count = num_sources == 2 ? 200000 : 20000;
            const auto values = many_operands(dtype, num_sources, count);
            for (int op = 0; op < hpn::num_ops; ++op) {
                if (!defined(dtype, Op(op))) continue;
                const Bytes wanted = reference(dtype, Op(op), values);
                for (std::size_t t = 0; t < tables.size(); ++t) {
                    Bytes out(count * size);
                    std::vector<const void*> pointers(num_sources);
                    for (std::size_t begin = 0; begin < count;) {
                        const std::size_t length = std::min<std::size_t>(1 + engine() % 3000, count - begin);
                        for (std::size_t k = 0; k < num_sources; ++k) pointers[k] = values[k].data() + begin * size;
                        tables[t]->reduce[d][op](out.data() + begin * size, nullptr, pointers.data(),
                                                 static_cast<int>(num_sources), length,
                                                 engine() % 2 == 0 ? hpn::Stream::both : hpn::Stream::none);
                        begin += length;
                    }
                    CHECK_TOLD(out == wanted, isas[t] + " dtype " + std::to_string(d) + " op " + std::to_string(op) +
                                                  first_difference(out.data(), wanted, size));
                }
            }
        }
    }
}

// The choice is made once in a process, so each name is tried in a child.
std::string isa_when_forced(const char* name) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t child = fork();
    if (child == 0) {
        if (name != nullptr) setenv("HP_NATIVE_ISA", name, 1);
        if (name == nullptr) unsetenv("HP_NATIVE_ISA");
        const char* chosen = hpn::isa();
        const bool written = write(ends[1], chosen, std::strlen(chosen)) > 0;
        _exit(written ? 0 : 1);
    }
    close(ends[1]);
    char text[32] = {};
    const ssize_t length = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return length > 0 && status == 0 ? text : "child failed";
}

void test_choice_of_isa() {
    const std::string best = isa_when_forced(nullptr);
    for (int i = 0; i < hpn::num_isas; ++i) {
        const hpn::Isa isa = hpn::Isa(i);
        const std::string wanted = hpn::isa_supported(isa) ? hpn::name_of(isa) : best;
        CHECK_EQ(isa_when_forced(hpn::name_of(isa)), wanted);
        CHECK_EQ(hpn::kernels_of(isa) != nullptr, hpn::isa_supported(isa));
    }
    CHECK_EQ(isa_when_forced("no such one"), best);
    CHECK_EQ(isa_when_forced(""), best);
}

}  // namespace

int main() {
    test_choice_of_isa();  // first: nothing in this process has chosen yet
    test_table();
    test_every_16_bit_pattern();
    for (int dtype = 0; dtype < hpn::num_dtypes; ++dtype) {
        for (const std::size_t num_sources : {1, 2, 3, 5, 8}) test_arrangements(Dtype(dtype), num_sources);
    }
    test_many_sources_and_any_chunking();
    std::printf("chosen here: %s; ", hpn::isa());
    return hpn::check::report();
}
