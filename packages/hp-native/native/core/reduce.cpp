// SPDX-License-Identifier: Apache-2.0
#include "reduce.h"

#include "kernels.h"

namespace hpn {

std::size_t size_of(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::u8:
        case Dtype::i8:
        case Dtype::boolean: return 1;
        case Dtype::i16:
        case Dtype::f16:
        case Dtype::bf16: return 2;
        case Dtype::i32:
        case Dtype::f32: return 4;
        case Dtype::i64:
        case Dtype::f64: return 8;
    }
    return 0;
}

ReduceFn reduce_fn(Dtype dtype, Op op) noexcept {
    const int row = static_cast<int>(dtype);
    const int column = static_cast<int>(op);
    // The values come through the C ABI: a wrong one is answered, not read out of the table's bounds.
    if (row >= num_dtypes || column >= num_ops) return nullptr;
    return kernels().reduce[row][column];
}

}  // namespace hpn
