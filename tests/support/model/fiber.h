/// A thread of control that runs only when it is resumed.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace hora::internal::model {

/// Thread rule: one thread makes, resumes and destroys all fibers. A body must have returned when
/// its fiber is destroyed; no exception leaves it.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it yields or returns. Not from within a fiber.
  void resume();
  /// Suspends the running fiber, and returns to the one that resumed it.
  static void yield();

 private:
  static void enter();
  void switch_in();
  void switch_out(bool for_ever);

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t own_{};
  ucontext_t resumer_{};
  // What sanitizers want to know of a stack.
  void* own_fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  std::size_t resumer_stack_bytes_ = 0;
  void* own_thread_ = nullptr;
  void* resumer_thread_ = nullptr;
};

}  // namespace hora::internal::model
