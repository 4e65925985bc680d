/// The processes below one, as /proc has them.
/// Thread rule: any thread; what is read may be out of date at once.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hora::launch {

struct ProcessState {
  pid_t process = 0;
  pid_t parent = 0;
  char state = '?';  ///< as proc(5) names it: R, S, D, T (stopped), t (traced), Z (ended)
  std::string name = {};
};

/// Of /proc/PID/stat's text (proc(5)); none where it is not one.
std::optional<ProcessState> parse_process_state(std::string_view text);

/// All descendants, parents before their children; without those that have ended.
std::vector<ProcessState> descendants_of(pid_t ancestor);
/// The same, of a list of processes. Pure.
std::vector<ProcessState> descendants_of(pid_t ancestor, const std::vector<ProcessState>& all);

}  // namespace hora::launch
