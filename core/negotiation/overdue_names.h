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
#include <span>
#include <string>
#include <vector>

#include "core/messages/messages.h"

namespace hora::internal {

/// One sentence naming the tensor, what differs, each value with its ranks (the first eight
/// values), and what to do.
std::string mismatch_text(const Report& report);

/// "REMARK; REMARK; and 3 more ranks".
std::string remarks_text(std::span<const std::string> remarks);

/// One sentence about all of them, of a set with these ranks (ascending): tensors that wait for the
/// same ranks are named together (the first few), and what can be done is said once; after it what
/// is known of the ranks that lack them (the first few).
std::string overdue_text(ProcessSet set, std::span<const Presence> tensors,
                         std::span<const int> ranks);

/// Time since any fixed moment; the caller's clock.
using Duration = std::chrono::nanoseconds;

/// A rank notices at the latest this long after its deadline that a tensor waits for others.
inline constexpr Duration kOverdueTick = std::chrono::milliseconds(500);

/// A tensor that has run out of time on a rank, and what the root knows of all ranks.
struct Expired {
  Expiring expiring;
  Presence presence;
};

/// Names that wait too long, until the next report about them: to the parent at once, by the root
/// in a warning for the log once the others may have said what they know. The root's besides: names
/// that run out of time; ranks report their limits to it a little before these end, so that the
/// answers of all nodes are there when it reports for the whole job. Pure. Thread rule: one thread
/// at a time.
class OverdueNames {
 public:
  /// Which ranks are ready for a name, and which local ranks are not, by the leader's own records.
  using Seen = std::function<Presence(const std::string& name)>;

  /// `set`: whose names these are. `warning_interval`: between two warnings.
  OverdueNames(bool at_root, ProcessSet set, Duration warning_interval)
      : at_root_(at_root), set_(set), warning_interval_(warning_interval) {}

  /// A rank has waited too long for this name.
  void note(const std::string& name, Duration now);
  /// The root's. The rank that runs out of time first stands for a name.
  void note_expiring(const Expiring& expiring, Duration now);
  /// A leader reports that, and what it knows, whose last word holds; an answer is ignored for
  /// names that are neither overdue nor expire.
  void note_presence(const Presence& presence, Duration now);
  /// The name waits for no rank, or its subtree is complete.
  void settle(const std::string& name) { names_.erase(name); }

  /// When there is something to report, or a name runs out of time.
  std::optional<Duration> deadline() const;
  /// All that is seen and heard of overdue names, at the deadline: a leader's report. Forgets them.
  std::vector<Presence> take_presence(const Seen& seen);
  /// The root's, at the deadline, where a name still waits. `ranks`: all, ascending. Forgets the
  /// overdue names.
  std::optional<std::string> take_warning(Duration now, std::span<const int> ranks,
                                          const Seen& seen);
  /// The root's: names that have run out of time by now, and their ranks; forgotten here.
  std::vector<Expired> take_expired(Duration now, const Seen& seen);
  /// The root's: names, of about `bytes` bytes, to ask all ranks about.
  std::vector<std::string> take_questions(std::size_t bytes);
  /// `own`; of a name that expires with what has been heard of the ranks that it does not name.
  Presence completed(Presence own) const;

 private:
  struct Heard {
    void add(const Presence& presence);
    /// With what is seen besides.
    Presence with(const Presence& seen) const;

    bool is_overdue = false;
    std::optional<Expiring> expiring = {};
    Duration expires_at{};
    std::map<int, bool> ready = {};  ///< by rank
    std::map<int, std::string> remarks = {};
  };
  void forget_told();

  bool at_root_;
  ProcessSet set_;
  Duration warning_interval_;
  std::map<std::string, Heard> names_;
  Duration report_at_{};            ///< where there are overdue names
  Duration quiet_until_{};          ///< the root's: no warning before
  std::deque<std::string> to_ask_;  ///< the root's
};

}  // namespace hora::internal
