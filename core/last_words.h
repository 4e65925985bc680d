/// What is logged where a program ends by an exception that is not caught.
#pragma once

#include <exception>

namespace hora {

/// While it lives, std::terminate() first logs which rank ends the job, and the exception's type
/// and text; then the handler that was in force before does what it does. One at a time. Thread
/// rule: one thread.
class LastWords {
 public:
  explicit LastWords(int rank);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
};

}  // namespace hora
