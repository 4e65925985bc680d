/// What all ranks must agree on before a tensor may travel.
#pragma once

#include <hora/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hora {

/// The numbers are part of the wire format: append, never reorder.
enum class OperationKind : std::uint8_t { allreduce = 0, broadcast = 1, barrier = 2 };
std::string_view name_of(OperationKind kind) noexcept;

/// One rank's idea of a named operation.
struct Signature {
  OperationKind kind = OperationKind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind device = DeviceKind::cpu;
  std::int32_t root = 0;
  Shape shape = {};
  bool operator==(const Signature&) const = default;

  std::size_t bytes() const;
};

/// "allreduce float32 [3, 4] average on cpu", for errors and logs.
std::string to_string(const Signature& signature);

}  // namespace hora
