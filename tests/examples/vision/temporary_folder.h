/// A folder for one test, and what its calls throw.
#pragma once

#include <exception>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace vision::test {

using hora::internal::test::TemporaryFolder;

/// what() of the exception that `call` throws; empty where it throws none.
template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// The text with `by` in each place of `part`.
inline std::string replaced(std::string text, const std::string& part, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size()) {
    text.replace(at, part.size(), by);
  }
  return text;
}

}  // namespace vision::test
