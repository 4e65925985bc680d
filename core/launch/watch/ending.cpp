#include "core/launch/watch/ending.h"

#include <hora/printable.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <tuple>
#include <vector>

#include "core/base/text.h"
#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

constexpr int kTemporaryFailure = 75;  // sysexits.h

/// 0 is the likeliest first cause. MPI ends ranks by SIGTERM, or by the end of what has started
/// their guards, but no guard. SIGPIPE comes from writing to a peer that has gone.
int order_of(const RankEnded& ended) {
  if (ended.peer_failed) return 2;
  const bool failed_before = !ended.cause.empty() && ended.cause_ns < ended.asked_ns;
  if (ended.asked_ns != 0) return failed_before ? 1 : 3;
  if (ended.guard_killed) return 0;
  if (!ended.failure.empty()) return ended.pid == 0 ? 0 : 2;
  if (WIFSIGNALED(ended.status)) return WTERMSIG(ended.status) == SIGPIPE ? 2 : 0;
  return 1;
}

/// Since 1970, in nanoseconds: when it first knew of the failure.
std::int64_t time_of(const RankEnded& ended) {
  return ended.cause_ns != 0 ? std::min(ended.cause_ns, ended.ended_ns) : ended.ended_ns;
}

std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char character : text) {
    if (character == '\n') {
      line += " | ";
    } else if (static_cast<unsigned char>(character) >= ' ' || character == '\t') {
      line += character;
    }
  }
  return line;
}

std::string seconds_text(std::uint64_t milliseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(milliseconds) / 1000);
  return text;
}

std::string when_text(const RankEnded& ended) {
  return ", " + seconds_text(ended.lived_ms) + " after its start" +
         (ended.phase.empty() ? "" : ", in " + in_one_line(ended.phase));
}

}  // namespace

bool ended_well(const RankEnded& ended) {
  return ended.failure.empty() && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0 &&
         (!ended.initialized || ended.shut_down);
}

int exit_status(const RankEnded& ended) {
  const int status = shell_status(ended.status);
  return status == 0 && !ended_well(ended) ? 1 : status;
}

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) +
         (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
}

std::string status_text(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_text(WTERMSIG(status));
  const int number = WEXITSTATUS(status);
  return "ended with exit status " + std::to_string(number) +
         (number == kTemporaryFailure ? " (EX_TEMPFAIL: it can be started again)" : "");
}

std::string ending_text(const RankEnded& ended, const std::string& host, const std::string& where) {
  std::string text = "rank " + std::to_string(ended.rank) + " (host " + host;
  if (ended.pid == 0) return text + ") could not be started: " + ended.failure;
  text += ", pid " + std::to_string(ended.pid) + ") ";
  text += ended.failure.empty() ? status_text(ended.status) : "was ended: " + ended.failure;
  text += when_text(ended);
  if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0 && !ended_well(ended)) {
    text += ended.cause.empty() ? ", without hora::shutdown, in which ranks wait for each other"
                                : ", after hora had failed";
  }
  text += where;
  if (ended.out_of_memory) {
    text +=
        "; the kernel has killed it for lack of memory (oom_kill of its cgroup has grown): start "
        "fewer ranks on this host, or raise the limit (docker run --memory, sbatch --mem)";
  }
  if (ended.cause.empty()) {
    if (!ended.last_words.empty()) text += "; last words: " + in_one_line(ended.last_words);
    return text;
  }
  text += "; its first error: " + in_one_line(ended.cause);
  // main() may have said more of an exception that it caught.
  const std::string last = ended.last_words.substr(ended.last_words.rfind('\n') + 1);
  const bool is_new = WIFEXITED(ended.status) && ended.cause.find(last) == ended.cause.npos &&
                      last.find(ended.cause) == last.npos;
  return is_new ? text + "; last words: " + in_one_line(last) : text;
}

std::string first_cause_text(std::span<const RankEnded> ended, const RankEnded& first,
                             const std::string& host, const std::string& where) {
  if (!first.peer_failed) return ending_text(first, host, where);
  std::set<int> ranks{first.rank};
  for (const RankEnded& each : ended) {
    if (each.peer_failed && each.asked_ns == 0) ranks.insert(each.rank);
  }
  return in_one_line(first.cause) + "; " +
         internal::named_ranks(std::vector<int>(ranks.begin(), ranks.end())) + " ended the job" +
         when_text(first);
}

bool is_likely_consequence(const RankEnded& ended) {
  return order_of(ended) >= 2;
}

int rank_that_left_before_init(std::string_view output) {
  constexpr std::string_view kStart = "due to process rank ";
  const auto start = output.find(kStart);
  if (start == output.npos || output.find("exiting improperly") == output.npos) return -1;
  const std::string_view rest = output.substr(start + kStart.size());
  int rank = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), rank);
  return rank;
}

std::string failed_mpi_init(std::string_view output) {
  if (output.find("MPI_INIT failed") == output.npos) return {};
  const auto line_after = [&](std::string_view name) {
    const auto start = std::min(output.find(name), output.size() - name.size()) + name.size();
    return printable(output.substr(start, output.find('\n', start) - start));
  };
  const std::string text = "; MPI did not start: ";
  if (output.find("\nComponent: ") == output.npos) return text + "--verbose shows why";
  return text + "it has no component \"" + line_after("\nComponent: ") + "\" (--mca " +
         line_after("\nFramework: ") + ")";
}

std::optional<std::size_t> first_cause(std::span<const RankEnded> ended) {
  std::optional<std::size_t> first;
  const auto key = [&](std::size_t i) { return std::tuple(order_of(ended[i]), time_of(ended[i])); };
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (!ended_well(ended[i]) && (!first || key(i) < key(*first))) first = i;
  }
  return first;
}

}  // namespace hora::launch
