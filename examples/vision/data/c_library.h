/// Calls into C libraries that report an error by a function which must not return (libjpeg,
/// libpng).
#pragma once

#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>

namespace vision {

/// The way out of such a library. No exception passes through the library's own frames.
///
/// Thread rule: one thread at a time.
class ErrorExit {
 public:
  /// Calls `call` and says whether it came to its end; false where leave() was called in it, with
  /// text() for the reason. What `call` declares is not destroyed then: it holds trivial objects
  /// only, and so do all functions between it and leave().
  template <class Call>
  bool completes(const Call& call) {
    if (setjmp(jump_) != 0) {
      return false;
    }
    call();
    return true;
  }

  /// Ends the running completes(). Longer text is cut.
  [[noreturn]] void leave(const char* text) {
    std::snprintf(text_.data(), text_.size(), "%s", text);
    std::longjmp(jump_, 1);
  }

  const char* text() const { return text_.data(); }

 private:
  std::jmp_buf jump_;
  std::array<char, 256> text_{};
};

}  // namespace vision
