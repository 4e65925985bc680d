/// hora's element types and devices, and LibTorch's.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <hora/types.h>

#include <optional>

namespace hora {

/// Nothing where hora has no such type (complex, quantised, ...).
std::optional<DataType> to_data_type(c10::ScalarType type) noexcept;
c10::ScalarType to_scalar_type(DataType type) noexcept;

/// Throws Error(invalid_argument) for a device that is neither CPU nor CUDA.
Device to_device(const c10::Device& device);
c10::Device to_torch(const Device& device) noexcept;

}  // namespace hora
