#include "core/launch/guard/hydra.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>

namespace hora::launch {
namespace {

constexpr char kHydrasVariable[] = "PMI_FD";

[[noreturn]] void stand_in_for(pid_t guard) {
  ::prctl(PR_SET_NAME, kStandInName);
  // hydra takes the end of the connection for the end of the rank.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  int status = 0;
  while (::waitpid(guard, &status, 0) < 0 && errno == EINTR) {
  }
  ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

}  // namespace

void leave_stand_in_to_hydra() {
  if (std::getenv(kHydrasVariable) == nullptr) return;
  const pid_t guard = ::fork();
  if (guard > 0) stand_in_for(guard);
  if (guard == 0) ::setpgid(0, 0);
}

std::optional<int> status_of_abort(std::string_view last_words) {
  constexpr std::string_view kStart = "Abort(";
  const auto said = last_words.find("): application called MPI_Abort(");
  const auto start = last_words.substr(0, said).rfind(kStart);
  if (said == last_words.npos || start == last_words.npos) return std::nullopt;
  const std::string_view number = last_words.substr(start + kStart.size());
  int status = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), status);
  if (error != std::errc()) return std::nullopt;
  return (status & 0xff) == 0 ? 1 : status & 0xff;
}

}  // namespace hora::launch
