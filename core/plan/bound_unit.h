/// A unit together with the memory of its tensors on every rank of my node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/plan/plan.h"

namespace hora {

class DeviceWork;

struct BoundUnit {
  /// 1, 2, ... in the order of start; 0: not known.
  std::uint64_t number = 0;
  Unit unit;
  double scale = 1.0;  ///< applied once to the complete sum
  int root_node = 0;   ///< of broadcasts
  int root_local = 0;  ///< of broadcasts: the root's local rank in its node
  int local_size = 1;
  /// [position in unit.tensors * local_size + local rank]; on a device my own alone are set.
  std::vector<std::byte*> memory;
  std::vector<std::shared_ptr<DeviceWork>> work;  ///< by position; on a device only

  std::byte* tensor(std::size_t position, int local_rank) const {
    return memory[position * static_cast<std::size_t>(local_size) +
                  static_cast<std::size_t>(local_rank)];
  }
};

}  // namespace hora
