/// The cross group of slices that stay in GPU memory, with what it is made of.
#pragma once

#include "ops/cross/cross_group.h"
#include "ops/nccl/device_space.h"
#include "ops/nccl/nccl_group.h"

namespace hora {

/// Takes all its memory when it is made. Thread rule: as CrossGroup.
class DeviceCross {
 public:
  /// `local`: the options of the NcclGroup beside it. References outlive it; `link` takes memory of
  /// the GPU.
  DeviceCross(const CudaFunctions& cuda, EventPool& events, const NcclGroupOptions& local,
              PointToPoint& link, const CrossOptions& options)
      : space_(cuda, local.device, events),
        link_(cuda, local.device, link),
        group_(link_, options, space_) {
    group_.reserve(local.slots, local.slice_bytes());
  }

  CrossGroup& group() { return group_; }

 private:
  DeviceSpace space_;
  DeviceLink link_;
  MessageCrossGroup group_;
};

}  // namespace hora
