/// The result of a collective whose output has its own size.
///
///     hora::Result all = hora::allgather(world, hora::view(values));
///     for (float value : all.values<float>()) use(value);          // rank 0's, then rank 1's, ...
///     hora::ResultHandle handle = hora::allgather_async(world, hora::view(values));
///     hora::Result later = handle.wait();
#pragma once

#include <hora/export.h>
#include <hora/handle.h>
#include <hora/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace hora::internal {
class ResultMemory;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// A dense row-major tensor in hora's memory, 64-byte aligned, on the device of the input. Copies
/// share the memory, which is freed with the last one. Of calls that end in `_into` the memory is
/// the caller's, and stays so.
///
/// On a GPU it is complete, and stays, in the order of a stream, view().stream, which outlives it:
/// the input's, or of calls that end in `_into` the output's. Work given to that stream before the
/// last copy was destroyed still finds the memory. Another stream must wait for that one first, and
/// that one for it before the end.
///
/// Members of an empty Result (default-constructed or moved from) throw Error(invalid_use).
/// Thread rule: as a plain pointer.
class Result {
 public:
  Result() noexcept = default;

  /// Null where there are no elements.
  std::byte* data() const;
  DataType type() const;
  const Shape& shape() const;
  /// Rows that came from each rank of the set; of a reduce-scatter one number, this rank's.
  const std::vector<std::int64_t>& rows() const;
  /// All of it, as an argument of the next collective.
  TensorView view() const;
  /// The elements, which on a GPU the host cannot read. Throws Error(invalid_argument) for another
  /// type than type().
  template <class T>
  std::span<T> values() const {
    check_type(data_type_of<T>);
    return {reinterpret_cast<T*>(data()), static_cast<std::size_t>(view().elements())};
  }

 private:
  friend struct internal::Access;
  explicit Result(std::shared_ptr<internal::ResultMemory> memory) noexcept;
  void check_type(DataType asked) const;
  std::shared_ptr<internal::ResultMemory> memory_;
};

/// As Handle, for collectives that give a Result: move-only, waits where it is dropped, and wait()
/// gives the result once. Thread rule: one thread at a time.
class ResultHandle {
 public:
  ResultHandle() noexcept = default;

  /// True when wait() would not block.
  bool ready() const { return handle_.ready(); }
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return handle_.valid(); }
  /// Blocks until done; throws as Handle::wait().
  Result wait();
  /// On a device: the result is for this stream in place of the views', as Result says.
  Result wait(void* stream);
  /// wait(), and blocks until the device has done the work, too.
  Result synchronize();
  /// As Handle::wait_for().
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const {
    return handle_.wait_for(timeout);
  }

 private:
  friend struct internal::Access;
  ResultHandle(Handle handle, std::shared_ptr<internal::ResultMemory> memory) noexcept;
  Result collect();

  std::shared_ptr<internal::ResultMemory> memory_;
  Handle handle_;
};

}  // namespace hora
