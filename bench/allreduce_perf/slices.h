/// One rank's part of an allreduce in one memory.
#pragma once

#include <cstddef>
#include <span>

namespace bench {

/// Each element becomes the sum over all arrays, in all arrays: read once, written once.
void sum_into_all(std::span<float* const> arrays, std::size_t count);

}  // namespace bench
