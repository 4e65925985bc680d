/// Tensors that wait too long or run out of time: what a leader knows about them, when it reports
/// them, and in which words; and the texts of disagreements.
#pragma once

#include <hora/collectives.h>

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

/// One sentence naming the tensor, what differs, each value with its ranks (the first eight
/// values), and what to do.
std::string mismatch_text(const Report& report);

/// A tensor that some ranks have submitted and others have not. Ranks are ascending.
struct OverdueTensor {
  std::string name;
  std::vector<int> ready;
  std::vector<int> missing;  ///< known not to be ready
  std::vector<int> silent;   ///< of nodes that have said nothing about it
  /// Ranks that are not ready and wait under this name on another process set.
  std::map<ProcessSet, std::vector<int>> elsewhere = {};
};

/// One sentence about all of them: tensors that wait for the same ranks are named together (the
/// first few), and what can be done is said once; after it what is known of the ranks that lack
/// them (`remarks`, by rank; the first few).
std::string overdue_text(ProcessSet set, std::span<const OverdueTensor> tensors,
                         const std::map<int, std::string>& remarks = {});

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
  template <class Take>
  void take_each(const Seen& seen, const Take& take);
  void note_remarks(const Presence& presence);

  bool at_root_;
  ProcessSet set_;
  Duration warning_interval_;
  std::map<std::string, Heard> names_;
  std::map<int, std::string> remarks_;  ///< by rank; until the next report
  Duration report_at_{};                ///< where there are names
  Duration quiet_until_{};              ///< the root's: no warning before
  std::deque<std::string> to_ask_;      ///< the root's
};

/// A tensor that has run out of time on a rank, and what the root knows of all ranks.
struct Expired {
  Expiring expiring;
  Presence presence;
};

/// The root's: ranks report their limits to it a little before these end, so that the answers of
/// all nodes are there when it reports for the whole job. Pure. Thread rule: one thread at a time.
class ExpiringNames {
 public:
  /// The rank that runs out of time first stands for a name. True for a name that is new here: all
  /// leaders are to be asked about it.
  bool note(const Expiring& expiring, Duration now);
  /// A leader reports about its node; the last word holds. Ignored for other names.
  void note_presence(const Presence& presence);
  /// The name waits for no rank.
  void settle(const std::string& name) { names_.erase(name); }

  /// When the first one runs out of time.
  std::optional<Duration> deadline() const;
  /// Names that have run out of time by now, and their ranks; forgotten here. `own`: by the
  /// leader's own records.
  std::vector<Expired> take(Duration now, const OverdueNames::Seen& own);
  /// `own`, with what has been heard of the ranks that it does not name.
  Presence completed(Presence own) const;

 private:
  struct Heard {
    Expiring expiring;
    Duration at{};
    std::map<int, bool> ready = {};  ///< by rank
    std::map<int, std::string> remarks = {};
  };
  static Presence completed(Presence own, const Heard& heard);

  std::map<std::string, Heard> names_;
};

}  // namespace hora::internal
