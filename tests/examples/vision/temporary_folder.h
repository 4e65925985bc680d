/// A folder for one test, and what its calls throw.
#pragma once

#include <exception>
#include <string>

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

}  // namespace vision::test
