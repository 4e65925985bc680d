/// The one exception type of hora.
///
///     try {
///       hora::allreduce(world, hora::view(values), {.name = "values"});
///     } catch (const hora::Error& error) {
///       if (error.code() != hora::ErrorCode::mismatch) throw;
///       std::fprintf(stderr, "%s\n", error.what());           // the same on every rank
///     }
///
/// Thread rule: any thread; a copy shares its texts with the original, which may be read at once.
#pragma once

#include <hora/export.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace HORA_EXPORT hora {

enum class ErrorCode : std::uint8_t {
  invalid_argument = 0,  ///< a value that can never be right; nothing was sent to other ranks
  mismatch = 1,          ///< ranks disagree about a tensor; the same error on every rank
  duplicate_name = 2,    ///< a tensor of this name is in flight on this rank
  invalid_setting = 3,   ///< a HORA_* variable, or a field of InitOptions::settings
  shut_down = 4,         ///< this rank or a peer has called shutdown()
  out_of_memory = 5,     ///< shared memory wanted is more than this machine or cgroup has left
  transport = 6,         ///< a call into MPI, CUDA, NCCL or the OS failed; the context is aborted
  invalid_use = 7,       ///< calls in an order that has no meaning, such as wait() twice
  timeout = 8,           ///< a collective has taken longer than allowed; the context is aborted
};
std::string_view name_of(ErrorCode code) noexcept;

/// what() says what happened, where, what was expected and what to do, fit to be printed
/// (printable.h).
class Error : public std::runtime_error {
 public:
  /// `rank`: the world rank on which it happened, -1 where unknown. `tensor`: its name, empty where
  /// there is none.
  Error(ErrorCode code, const std::string& what, int rank = -1, std::string tensor = {});
  Error(const Error&) = default;
  Error(Error&&) = default;
  Error& operator=(const Error&) = default;
  Error& operator=(Error&&) = default;
  ~Error() override;

  ErrorCode code() const noexcept { return code_; }
  int rank() const noexcept { return rank_; }
  const std::string& tensor() const noexcept { return tensor_; }

 private:
  ErrorCode code_;
  int rank_;
  std::string tensor_;
};

}  // namespace hora
