/// Which type a tensor travels in. Pure: the same on every rank.
#pragma once

#include <hora/compression.h>
#include <hora/types.h>

namespace hora {

/// `type` is a floating-point type.
DataType wire_type(Compression compression, DataType type) noexcept;

}  // namespace hora
