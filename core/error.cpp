#include <hora/error.h>

#include <utility>

namespace hora {

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
  }
  return "unknown error";
}

Error::Error(ErrorCode code, const std::string& what, int rank, std::string tensor)
    : std::runtime_error(what), code_(code), rank_(rank), tensor_(std::move(tensor)) {}

}  // namespace hora
