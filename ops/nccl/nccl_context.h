/// This process's GPU: what all its process sets have in common.
#pragma once

#include "core/engine/submission.h"
#include "ops/cuda/event.h"
#include "ops/cuda/stream.h"
#include "ops/cuda/stream_heap.h"
#include "ops/nccl/communicators.h"
#include "ops/nccl/device.h"
#include "ops/nccl/identity_elements.h"

namespace hora {

/// Collectives of all sets run on one stream, so that a GPU does them in the order in which it got
/// them. Thread rules: the parts'.
struct NcclContext {
  /// `events`: that many are made at once; `timeout`: see DeviceWatch. The tables outlive it.
  NcclContext(const CudaFunctions& cuda_functions, const NcclFunctions& nccl_functions, int index,
              std::size_t event_count, DeviceWatch::Time timeout)
      : cuda(cuda_functions),
        nccl(nccl_functions),
        device(index),
        events(cuda, event_count),
        stream(cuda, kUrgentPriority),
        watch(cuda, device, communicators, events, timeout, now),
        port(cuda, nccl, device, communicators, events, watch),
        heap(cuda, device, events, stream.get()),
        identity(cuda, stream, heap) {}

  const CudaFunctions& cuda;
  const NcclFunctions& nccl;
  int device;
  NcclCommunicators communicators;
  EventPool events;
  CudaStream stream;
  DeviceWatch watch;
  NcclDevice port;
  StreamHeap heap;
  IdentityElements identity;
};

}  // namespace hora
