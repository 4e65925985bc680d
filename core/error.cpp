#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/diagnostics.h"

namespace hora {
using namespace internal;
namespace {

/// The last Error made on this thread. Without destructors: errors are made at a thread's end, too.
/// The address is compared, never followed: another thread may have destroyed the object.
struct LastError {
  const Error* made = nullptr;
  std::size_t length = 0;
  std::array<char, 1000> text;
};
thread_local LastError last_error;

}  // namespace

std::string_view name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::duplicate_name:
      return "duplicate_name";
    case ErrorCode::invalid_setting:
      return "invalid_setting";
    case ErrorCode::shut_down:
      return "shut_down";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::transport:
      return "transport";
    case ErrorCode::invalid_use:
      return "invalid_use";
    case ErrorCode::timeout:
      return "timeout";
  }
  return "unknown error";
}

Error::Error(ErrorCode code, const std::string& what, int rank, std::string tensor)
    : std::runtime_error(printable(what)), code_(code), rank_(rank), tensor_(std::move(tensor)) {
  const std::string_view said = this->what();
  last_error.made = this;
  last_error.length = said.copy(last_error.text.data(), last_error.text.size());
}

Error::~Error() {
  if (last_error.made == this) last_error.made = nullptr;
}

std::string internal::error_in_flight() {
  return last_error.made ? std::string(last_error.text.data(), last_error.length) : std::string();
}

}  // namespace hora
