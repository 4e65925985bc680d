/// hora's element types and LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>
#include <hora/types.h>

#include <optional>

namespace hora {

/// Nothing where hora has no such type (bool, complex, quantised, ...).
std::optional<DataType> to_data_type(c10::ScalarType type) noexcept;
c10::ScalarType to_scalar_type(DataType type) noexcept;

}  // namespace hora
