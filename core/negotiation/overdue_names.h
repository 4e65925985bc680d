/// Tensors that wait too long: what a leader knows about them, and when it reports them.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/messages/messages.h"

namespace hora::internal {

/// Time since any fixed moment; the caller's clock.
using Duration = std::chrono::nanoseconds;

/// A rank notices at the latest this long after its deadline that a tensor waits for others.
inline constexpr Duration kOverdueTick = std::chrono::milliseconds(500);

/// Overdue names until the next report about them: to the parent at once, by the root in a warning
/// for the log once the others may have said what they know. Pure. Thread rule: one thread at a
/// time.
class OverdueNames {
 public:
  /// Which ranks are ready for a name, and which local ranks are not, by the leader's own records.
  using Seen = std::function<Presence(const std::string& name)>;

  /// `set`: whose names these are. `warning_interval`: between two warnings.
  OverdueNames(bool at_root, ProcessSet set, Duration warning_interval)
      : at_root_(at_root), set_(set), warning_interval_(warning_interval) {}

  /// A rank has waited too long for this name.
  void note(const std::string& name, Duration now);
  /// A child reports that, and what it knows; an answer is ignored for names that are not overdue.
  void note_presence(const Presence& presence, Duration now);
  /// On the root: about an overdue name; ignored for others.
  void note_elsewhere(const Elsewhere& elsewhere);
  /// The name waits for no rank, or its subtree is complete.
  void settle(const std::string& name) { names_.erase(name); }

  /// When there is something to report.
  std::optional<Duration> deadline() const;
  /// A leader's report, at the deadline. Forgets the names.
  std::vector<Presence> take_presence(const Seen& seen);
  /// The root's, at the deadline, where a name still waits. `ranks`: all, ascending. Forgets the
  /// names.
  std::optional<std::string> take_warning(Duration now, std::span<const int> ranks,
                                          const Seen& seen);
  /// The root's: this name is to be asked about once more.
  void ask_about(const std::string& name) { to_ask_.push_back(name); }
  /// The root's: names, of about `bytes` bytes, to ask all ranks about.
  std::vector<std::string> take_questions(std::size_t bytes);

 private:
  struct Heard {
    std::set<int> ready = {};
    std::set<int> missing = {};
    std::map<ProcessSet, std::set<int>> elsewhere = {};  ///< ranks that wait there under this name
  };
  static Presence merged(Presence seen, const Heard& heard);

  bool at_root_;
  ProcessSet set_;
  Duration warning_interval_;
  void note_remarks(const Presence& presence);
  std::map<std::string, Heard> names_;
  std::map<int, std::string> remarks_;  ///< by rank; until the next report
  Duration report_at_{};                ///< where there are names
  Duration quiet_until_{};              ///< the root's: no warning before
  std::deque<std::string> to_ask_;      ///< the root's
};

}  // namespace hora::internal
