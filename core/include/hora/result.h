/// Results whose size the collective decides.
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
#include <optional>
#include <span>
#include <vector>

namespace hora::internal {
class ResultMemory;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// A dense row-major tensor, 64-byte aligned, on the input's device, in hora's memory, which its
/// copies share; of calls that end in `_into` in the caller's.
///
/// On a GPU it is complete and valid in the order of view().stream, the input's (of `_into` the
/// output's), which must outlive it. Another stream must wait for that one first, and that one for
/// it before the last copy goes. Members of an empty Result throw Error(invalid_use). Thread rule:
/// as a plain pointer.
class Result {
 public:
  Result() noexcept = default;

  std::byte* data() const { return static_cast<std::byte*>(held().data); }
  DataType type() const { return held().type; }
  const Shape& shape() const { return held().shape; }
  /// The rows of each rank of the set; of a reduce-scatter this rank's number of rows.
  const std::vector<std::int64_t>& rows() const;
  TensorView view() const { return held(); }
  /// The elements, not for the host on a GPU. Throws Error(invalid_argument) for another type.
  template <class T>
  std::span<T> values() const {
    check_type(data_type_of<T>);
    return {reinterpret_cast<T*>(data()), static_cast<std::size_t>(held().elements())};
  }

 private:
  friend struct internal::Access;
  explicit Result(std::shared_ptr<internal::ResultMemory> memory) noexcept;
  const TensorView& held() const;
  void check_type(DataType asked) const;
  std::shared_ptr<internal::ResultMemory> memory_;
};

/// As Handle; wait() returns the result once.
class ResultHandle {
 public:
  ResultHandle() noexcept = default;

  bool ready() const { return handle_.ready(); }
  bool valid() const noexcept { return handle_.valid(); }
  Result wait() { return finish({}, internal::Until::ordered); }
  /// The result is for this stream in place of the view's.
  Result wait(void* stream) { return finish(stream, internal::Until::ordered); }
  Result synchronize() { return finish({}, internal::Until::there); }
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const {
    return handle_.wait_for(timeout);
  }

 private:
  friend struct internal::Access;
  friend class BasicGroupHandle<ResultHandle>;
  ResultHandle(Handle handle, std::shared_ptr<internal::ResultMemory> memory) noexcept;
  Result finish(std::optional<void*> stream, internal::Until until);

  std::shared_ptr<internal::ResultMemory> memory_;
  Handle handle_;
};

}  // namespace hora
