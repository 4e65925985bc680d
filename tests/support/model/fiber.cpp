#include "tests/support/model/fiber.h"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace hora::internal::model {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  ::makecontext(&own_, &Fiber::enter, 0);
#if defined(__SANITIZE_THREAD__)
  own_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own_thread_);
#endif
}

void Fiber::resume() {
  running = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack_.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  resumer_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_thread_, 0);
#endif
  ::swapcontext(&resumer_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::yield() {
  running->switch_out(/*for_ever=*/false);
}

void Fiber::enter() {
  Fiber& self = *running;
  self.switch_in();
  self.body_();
  self.switch_out(/*for_ever=*/true);
}

void Fiber::switch_in() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

void Fiber::switch_out([[maybe_unused]] bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &own_fake_stack_, resumer_stack_,
                                 resumer_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(resumer_thread_, 0);
#endif
  ::swapcontext(&own_, &resumer_);
  switch_in();
}

}  // namespace hora::internal::model
