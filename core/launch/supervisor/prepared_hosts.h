/// The hosts of a job before its start: what they have answered, and what follows from it; and what
/// a user is told of one on which no agent could be started. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/launch/control/messages.h"

namespace hora::launch {

struct PreparedHost {
  std::string name;
  int ranks = 0;
  std::string version;       ///< of hora
  std::string architecture;  ///< as uname() has it
  Prepared answer;
  /// When the question was sent and the answer came, since any time that is the same for all hosts.
  std::chrono::milliseconds asked{0};
  std::chrono::milliseconds answered{0};
};

/// What each rank takes before it has done anything, in bytes.
struct RankNeeds {
  std::uint64_t shared_memory = 0;  ///< in /dev/shm
  std::uint64_t memory = 0;
};

/// What keeps the job from starting, one line each, which begins with the host: what its agent has
/// found, another version of hora than this, another architecture than the first host's, too little
/// memory or shared memory. Each says
/// what was found, what is needed, and what to do.
std::vector<std::string> problems_of(std::span<const PreparedHost> hosts, const RankNeeds& needs);

/// A warning where clocks certainly differ by more than a second: a host has read its clock
/// at some time between the question and the answer, so differences are known to within half of
/// that.
std::optional<std::string> clock_warning(std::span<const PreparedHost> hosts);

/// One line: which cores the ranks get, hosts of which the same is to be said together.
std::string cores_line(std::span<const PreparedHost> hosts);

/// How an agent was lost, as far as that is known.
struct LostAgent {
  std::string how = {};            ///< "ssh ended with exit status 255: Permission denied"
  std::optional<int> status = {};  ///< of the command that was to start it, as waitpid() gives it
};

/// "; tried: " and the command that was to start it, as a shell reads it; nothing where it was not
/// started by one.
std::string tried_text(std::span<const std::string> command);

/// tried_text(), and what to do: by how the command ended, as ssh tells its own failure (255) from
/// the remote shell's (126, 127; POSIX, Exit Status for Commands).
std::string start_advice(const LostAgent& lost, std::span<const std::string> command);

}  // namespace hora::launch
