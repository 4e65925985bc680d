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
class Runtime;
struct Access;
struct Submission;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// From submission until wait() returns the operation's memory belongs to hora: neither read nor
/// write it; it outlives the handle. Move-only. Dropping a handle waits, and leaves an error to
/// shutdown(); while an exception unwinds the stack it does not wait for other ranks to submit
/// theirs, only for messages that use its memory already: the context then ends the job. Where the
/// exception is caught in the context's scope, the collective goes on without the handle, and gives
/// nothing; its name, or unnamed slot, is free when all ranks have submitted it, on each at another
/// moment: what follows needs other names. Thread rule: one thread at a time.
class Handle {
 public:
  Handle() noexcept = default;
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  /// True when wait() would not block.
  bool ready() const;
  /// Blocks until done. Throws the operation's Error, the same on every rank where ranks disagree,
  /// and Error(invalid_use) when there is nothing to wait for (waited already, or moved from).
  ///
  /// On a device it does not wait for the device's work, but orders the stream of the tensor's view
  /// (or `stream`) after it: what that stream is given later finds the result.
  void wait();
  void wait(void* stream);
  /// wait(), and blocks until the device has done the work, too. Throws as well where the job fails
  /// meanwhile: the device's work was aborted then, and the result is undefined. After wait() alone
  /// it is the next call of hora that throws.
  void synchronize();
  /// Blocks until done, but not longer than this; true where it is done. The handle stays open:
  /// then wait() does not block, and gives the result or throws the error. Slower to notice the end
  /// than wait(), by up to an eighth of the time waited and 1 ms at most. Without an engine thread
  /// (InitOptions) it makes progress meanwhile, 0 a step.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return submission_ != nullptr; }

 private:
  friend struct internal::Access;
  Handle(std::shared_ptr<internal::Runtime> runtime,
         std::shared_ptr<internal::Submission> submission) noexcept;
  enum class Until { ordered, there };
  void finish(std::optional<void*> stream, Until until);

  std::shared_ptr<internal::Runtime> runtime_;
  std::shared_ptr<internal::Submission> submission_;
};

}  // namespace hora
