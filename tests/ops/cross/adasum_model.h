/// Adasum over members, computed serially in double and written independently of it.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <vector>

namespace hora::test {

using Numbers = std::vector<double>;

/// Of a floating-point type's elements, and back, rounded.
Numbers to_numbers(DataType type, const std::vector<std::byte>& bytes);
std::vector<std::byte> to_bytes(DataType type, const Numbers& numbers);

/// Half of the distance from 1 to the next number of the type.
double unit_of(DataType type);

/// Of the vectors of one tensor, one a member.
Numbers adasum_of(std::vector<Numbers> members);

}  // namespace hora::test
