/// What is said of errors that no call can throw. Knows no fmt: some builds of LibTorch bring their
/// own.
#pragma once

#include <exception>
#include <string>

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

/// The text of the last Error made on this thread, as far as it fits, while that object lives:
/// while it unwinds the stack. Empty where there is none. Destructors cannot ask the language:
/// before a catch clause is entered, std::current_exception() is null.
std::string error_in_flight();

/// As log().warn() in log.h. Thread rule: any thread.
void log_warning(const std::string& text);

}  // namespace hora
