/// Access for hora's own sources to members of public classes that are not public.
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/handle.h>
#include <hora/result.h>
#include <hora/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace hora::internal {

/// A friend of these classes. Thread rule: as theirs.
struct Access {
  static Context context(std::shared_ptr<Runtime> runtime) { return Context(std::move(runtime)); }
  /// Throws Error(invalid_use) for a moved-from context.
  static const std::shared_ptr<Runtime>& runtime(const Context& context) {
    return context.runtime();
  }
  /// 0, 1, 2, ... in the order of calls for a process set: equal on all its ranks where they call
  /// in one order.
  HORA_EXPORT static std::uint32_t next_instance_number(const Context& context, ProcessSet set);
  /// See Runtime::at_shutdown().
  HORA_EXPORT static void at_shutdown(const Context& context, std::function<void()> action);
  /// A collective has failed such that peers may write to its memory from now on, at any time.
  HORA_EXPORT static bool has_failed(const Context& context);
  /// As DeviceHeap::set_cache_release(); nothing without a device.
  HORA_EXPORT static void set_device_cache_release(const Context& context, void (*give_back)());

  static Handle handle(std::shared_ptr<Runtime> runtime, std::shared_ptr<Submission> submission) {
    return {std::move(runtime), std::move(submission)};
  }
  static Result result(std::shared_ptr<ResultMemory> memory) { return Result(std::move(memory)); }
  static ResultHandle result_handle(Handle handle, std::shared_ptr<ResultMemory> memory) {
    return {std::move(handle), std::move(memory)};
  }
};

inline const std::shared_ptr<Runtime>& runtime_of(const Context& context) {
  return Access::runtime(context);
}

}  // namespace hora::internal
