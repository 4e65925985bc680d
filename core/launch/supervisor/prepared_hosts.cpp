#include "core/launch/supervisor/prepared_hosts.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/launch/command/command.h"

namespace hora::launch {
namespace {

constexpr double kClockLimit = 1;        // seconds
constexpr double kClockMentioned = 0.5;  // seconds: of two that differ by the limit, one has this
constexpr std::size_t kMostNamed = 8;

std::string in_mib(std::uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

std::string in_seconds(double seconds, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f s", digits, seconds);
  return text.data();
}

std::string joined(const std::vector<std::string>& texts, const char* between) {
  std::string result;
  for (const std::string& text : texts) result += (result.empty() ? "" : between) + text;
  return result;
}

/// The first names, and how many more there are.
std::string names_of(std::vector<std::string> names) {
  if (names.size() > kMostNamed) {
    const std::string more = std::to_string(names.size() - kMostNamed) + " more";
    names.resize(kMostNamed);
    names.push_back(more);
  }
  return joined(names, ", ");
}

/// "its 4 ranks need 32 MiB".
std::string need_of(const PreparedHost& host, std::uint64_t bytes) {
  return host.ranks == 1 ? "its rank needs " + in_mib(bytes)
                         : "its " + std::to_string(host.ranks) + " ranks need " + in_mib(bytes);
}

/// A host's clock less the launcher's, in seconds; the latter from any beginning.
struct ClockOffset {
  const PreparedHost* host;
  double offset;
  double error;  ///< known to within this

  double least() const { return offset - error; }
  double most() const { return offset + error; }
};

std::vector<ClockOffset> clock_offsets(std::span<const PreparedHost> hosts) {
  // Differences of times in nanoseconds since 1970 are exact, the times as `double` are not.
  const std::int64_t begin = hosts.empty() ? 0 : hosts.front().answer.clock_ns;
  std::vector<ClockOffset> offsets;
  for (const PreparedHost& host : hosts) {
    const double clock = static_cast<double>(host.answer.clock_ns - begin) * 1e-9;
    const double asked = std::chrono::duration<double>(host.asked).count();
    const double answered = std::chrono::duration<double>(host.answered).count();
    offsets.push_back({&host, clock - (asked + answered) / 2, (answered - asked) / 2});
  }
  return offsets;
}

}  // namespace

std::vector<std::string> problems_of(std::span<const PreparedHost> hosts, const RankNeeds& needs) {
  std::vector<std::string> problems;
  for (const PreparedHost& host : hosts) {
    const auto add = [&](const std::string& text) {
      problems.push_back("host " + host.name + ": " + text);
    };
    if (host.version != HORA_VERSION) {
      add("it has hora " + host.version + ", this host has " + HORA_VERSION +
          "; install the same version on all hosts");
      continue;  // what it has answered may mean something else
    }
    for (const std::string& problem : host.answer.problems) add(problem);
    if (host.architecture != hosts.front().architecture) {
      add("its processors are " + host.architecture + ", those of host " + hosts.front().name +
          " are " + hosts.front().architecture + "; all hosts of a job have the same");
    }
    const auto ranks = static_cast<std::uint64_t>(host.ranks);
    if (host.answer.shared_memory < ranks * needs.shared_memory) {
      add("/dev/shm has " + in_mib(host.answer.shared_memory) + " left, " +
          need_of(host, ranks * needs.shared_memory) +
          "; remove what lies there, or make it larger (mount -o remount,size=1G /dev/shm; docker "
          "run --shm-size=1g)");
    }
    if (host.answer.memory != 0 && host.answer.memory < ranks * needs.memory) {
      add(in_mib(host.answer.memory) + " of memory are available, " +
          need_of(host, ranks * needs.memory) +
          "; end what else runs there, start fewer ranks on it, or raise its limit (docker run "
          "--memory, sbatch --mem)");
    }
  }
  return problems;
}

std::optional<std::string> clock_warning(std::span<const PreparedHost> hosts) {
  std::vector<ClockOffset> offsets = clock_offsets(hosts);
  if (offsets.empty()) return std::nullopt;
  const ClockOffset first = offsets.front();
  const double least = std::ranges::min_element(offsets, {}, &ClockOffset::most)->most();
  const double most = std::ranges::max_element(offsets, {}, &ClockOffset::least)->least();
  if (most - least <= kClockLimit) return std::nullopt;
  std::ranges::stable_sort(offsets, std::ranges::greater(), [&](const ClockOffset& each) {
    return std::abs(each.offset - first.offset);
  });
  std::vector<std::string> differences;
  double error = first.error;
  for (const ClockOffset& each : offsets) {
    const double ahead = each.offset - first.offset;
    if (std::abs(ahead) < kClockMentioned) break;
    error = std::max(error, first.error + each.error);
    differences.push_back("that of host " + each.host->name + " is " +
                          in_seconds(std::abs(ahead), 1) + (ahead > 0 ? " ahead" : " behind"));
  }
  return "the hosts' clocks differ by more than 1 s: compared with host " + first.host->name +
         ", " + names_of(std::move(differences)) + " (known to within " + in_seconds(error, 2) +
         "); which of several ranks failed first may be said wrongly; let NTP set the clocks "
         "(chrony, systemd-timesyncd)";
}

std::string cores_line(std::span<const PreparedHost> hosts) {
  struct Group {
    std::string cores;
    std::vector<std::string> names = {};
  };
  std::vector<Group> groups;
  for (const PreparedHost& host : hosts) {
    if (host.ranks == 0) continue;
    auto group = std::ranges::find(groups, host.answer.cores, &Group::cores);
    if (group == groups.end()) group = groups.insert(group, {.cores = host.answer.cores});
    group->names.push_back(host.name);
  }
  if (groups.size() == 1) {
    const std::size_t count = groups.front().names.size();
    const std::string where = count == 1 ? "" : "on each of " + std::to_string(count) + " hosts ";
    return "cores: " + where + groups.front().cores;
  }
  std::vector<std::string> texts;
  for (Group& group : groups)
    texts.push_back(names_of(std::move(group.names)) + ": " + group.cores);
  return "cores: " + joined(texts, "; ");
}

namespace {

constexpr int kFailureOfSsh = 255;
constexpr int kCannotExecute = 126, kNotFound = 127;

/// A command that begins with this path is the agent itself, on this host.
bool is_local(std::span<const std::string> command) {
  return command.size() == 2;
}

std::string what_to_do(const LostAgent& lost, std::span<const std::string> command) {
  const std::string& program = command.front();
  if (is_local(command)) return {};
  if (!lost.status) return "install " + program + " on this host";
  const int status = WIFEXITED(*lost.status) ? WEXITSTATUS(*lost.status) : -1;
  if (status == kNotFound || status == kCannotExecute) {
    return "horarun must be there under this very path, with its libraries: install hora on that "
           "host, too, or in a folder that all hosts share";
  }
  if (program == "srun") return "is the node up (sinfo), and is this job's allocation still there?";
  if (status == kFailureOfSsh) {
    return "ssh must log in there without a question: is the name right, the host up, its sshd "
           "reachable, this user's key there? --ssh-port and --ssh-identity-file name others";
  }
  return "this command must go through: with --version in place of --agent it prints horarun's "
         "version";
}

}  // namespace

std::string tried_text(std::span<const std::string> command) {
  if (command.empty()) return {};
  return "; tried: " + as_shell_line({{command.begin(), command.end()}, {}});
}

std::string start_advice(const LostAgent& lost, std::span<const std::string> command) {
  if (command.empty()) return {};
  const std::string advice = what_to_do(lost, command);
  return tried_text(command) + (advice.empty() ? "" : "; " + advice);
}

}  // namespace hora::launch
