/// How often the host reads a tensor's value, as by item(): on a GPU each time waits for it.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string_view>

namespace hora::internal::test {

/// Counts those of the constructing thread, since then. One at a time on a thread.
class HostReads {
 public:
  HostReads()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}))) {
    count_ = 0;
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::_local_scalar_dense") ++count_;
    return nullptr;
  }

  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace hora::internal::test
