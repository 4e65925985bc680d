/// A collective under way.
#pragma once

#include <memory>
#include <optional>

namespace hora {

class Runtime;
struct Submission;

/// From submission until wait() returns the operation's memory belongs to hora: neither read nor
/// write it. Move-only. Dropping a handle waits, and leaves an error to shutdown(); while an
/// exception unwinds the stack it does not wait: the context then ends the job.
/// Thread rule: one thread at a time.
class Handle {
 public:
  Handle() noexcept = default;
  Handle(std::shared_ptr<Runtime> runtime, std::shared_ptr<Submission> submission) noexcept;
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
  /// wait(), and blocks until the device has done the work, too.
  void synchronize();
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return submission_ != nullptr; }

 private:
  std::shared_ptr<Submission> finish(std::optional<void*> stream);

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Submission> submission_;
};

}  // namespace hora
