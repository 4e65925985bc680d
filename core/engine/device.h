/// The engine's interface to a device: how its work is ordered with the callers' streams.
#pragma once

#include <hora/error.h>
#include <hora/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// What a device's library says of a collective may follow from what has happened on a peer, which
/// hora hears of on its own ways a little later: its cause then holds instead. Error(transport).
class PeerFailure final : public Error {
 public:
  using Error::Error;
};

/// One submission's memory on a device. Streams are the device's own (cudaStream_t), passed as
/// plain pointers. Nothing but synchronize() blocks the host for the device's work.
/// Thread rule: wait_done and synchronize by any thread after record_done; the others by the thread
/// that holds the engine's lock.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  /// What `stream` is given from now on begins after the caller's data is there.
  virtual void wait_ready(void* stream) = 0;
  /// The result is there when `stream` has done what it was given so far.
  virtual void record_done(void* stream) = 0;
  /// What `stream` is given from now on begins after the result is there.
  virtual void wait_done(void* stream) = 0;
  /// Blocks the host until the result is there.
  virtual void synchronize() = 0;
};

/// Memory for results, whose life and copies are ordered by streams. No stream (nullopt): the
/// device's own, on which collectives run. Thread rule: any thread.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  /// For what `stream` is given from now on. 256-byte aligned. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes, std::optional<void*> stream) = 0;
  /// Freed when `stream` has done what it was given so far.
  virtual void release(std::byte* data, std::optional<void*> stream) noexcept = 0;
  /// After what `stream` holds; both block the host until the copy is there. Throw
  /// Error(transport).
  virtual void to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) = 0;
  virtual void to_device(std::byte* data, const std::byte* host, std::size_t bytes,
                         void* stream) = 0;
  /// Called where memory is lacking, before allocate() tries once more: gives back to the device
  /// what the framework keeps for later. Null: nobody does. By any thread.
  virtual void set_cache_release(void (*give_back)()) noexcept = 0;
};

/// Memory that frees itself, in the order of the device's own stream. The heap outlives it.
inline std::shared_ptr<std::byte> allocate_owned(DeviceHeap& heap, std::size_t bytes,
                                                 std::optional<void*> stream = std::nullopt) {
  return {heap.allocate(bytes, stream),
          [&heap](std::byte* data) { heap.release(data, std::nullopt); }};
}

/// Runs a step with the engine's lock held; false, and it is not run, where the engine has failed.
using WithEngineLock = std::function<bool(const std::function<void()>&)>;

/// A submission's memory on a device, as it begins.
struct BegunOnDevice {
  std::shared_ptr<DeviceWork> work;
  /// For the ranks of the node, which see it beside their own (BoundUnit::places).
  Location place = {};
};

/// This process's device. Thread rule: begin() and release() by any thread, the others by the one
/// that holds the engine's lock.
class DevicePort {
 public:
  virtual ~DevicePort() = default;
  /// Memory is ready when `stream` has done what it was given so far, and `output_stream`, of a
  /// result that the caller has on another one, likewise. `data`: of a tensor of the world that is
  /// worked on in place; null: without a place.
  virtual BegunOnDevice begin(const std::byte* data, void* stream,
                              std::optional<void*> output_stream) = 0;
  /// For buffers, 256-byte aligned. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Waits for all that the device holds, as cudaFree() does, without the engine's lock: what is
  /// waited for may need progress. Where the engine or the device has failed the memory is not
  /// freed: peers may still write to it.
  virtual void release(std::byte* data, const WithEngineLock& locked) noexcept = 0;
  /// True while collectives are under way on the device. Throws Error(transport) where they have
  /// failed, or make no progress for too long.
  virtual bool check() = 0;
  /// Ends what is under way on the device, so that no thread waits for it any longer.
  virtual void abort() noexcept = 0;
};

}  // namespace hora::internal
