/// Which collectives on a device's tensors run on the device. Pure: the same on every rank.
#pragma once

#include "core/negotiation/signature.h"

namespace hora {

/// False: through host memory, for NCCL has neither int16 nor Adasum nor exchanges between nodes.
/// `nodes`: of the process set.
constexpr bool runs_on_device(const Signature& signature, int nodes) {
  if (signature.device == DeviceKind::cpu) return false;
  const bool reduces =
      signature.kind == OperationKind::allreduce || signature.kind == OperationKind::reduce_scatter;
  if (reduces && (signature.type == DataType::int16 || signature.op == ReduceOp::adasum)) {
    return false;
  }
  return !is_exchange(signature.kind) || nodes == 1;
}

}  // namespace hora
