/// What a user is told of a host on which no agent could be started. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace hora::launch {

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
