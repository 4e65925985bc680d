/// A collective under way.
///
///     hora::Handle handle = hora::allreduce_async(world, hora::view(gradients));
///     compute_something_else();
///     handle.wait();                                             // now `gradients` are averages
#pragma once

#include <hora/export.h>

#include <chrono>
#include <memory>
#include <optional>

namespace hora::internal {
class Engine;
struct Access;
struct Operation;
/// Whether a stream's later work finds the result, or the host.
enum class Until { ordered, there };
}  // namespace hora::internal

namespace HORA_EXPORT hora {

template <class Single>
class BasicGroupHandle;

/// Until wait() returns the operation's memory is hora's: neither read nor write it, and keep it
/// alive. Dropped, a handle waits, and leaves an error to shutdown(). While an exception unwinds,
/// it waits only for messages that use its memory: the context then ends the job, or, where the
/// exception is caught in its scope, the collective goes on and gives nothing; what follows needs
/// other names. Move-only. Thread rule: one thread at a time.
class Handle {
 public:
  Handle() noexcept = default;
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  bool ready() const;
  /// Blocks until done. Throws the operation's Error, the same on every rank where ranks disagree,
  /// and Error(invalid_use) when there is nothing to wait for. On a device it orders the stream of
  /// the tensor's view (or `stream`) after the result, and does not wait for the device.
  void wait() { finish({}, internal::Until::ordered); }
  void wait(void* stream) { finish(stream, internal::Until::ordered); }
  /// wait(), then blocks until the device is done. Throws where the job fails meanwhile; the
  /// device's work was aborted then, and the result is undefined.
  void synchronize() { finish({}, internal::Until::there); }
  /// Blocks until done or for this long; true where wait() would not block. Notices the end up to
  /// an eighth of the time waited later, 1 ms at most. Makes progress without an engine thread.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  bool valid() const noexcept { return operation_ != nullptr; }

 private:
  friend struct internal::Access;
  friend class ResultHandle;
  friend class BasicGroupHandle<Handle>;
  Handle(std::shared_ptr<internal::Engine> engine,
         std::shared_ptr<internal::Operation> operation) noexcept;
  void finish(std::optional<void*> stream, internal::Until until);

  std::shared_ptr<internal::Engine> engine_;
  std::shared_ptr<internal::Operation> operation_;
};

}  // namespace hora
