/// `horarun --watch`: a job that runs, in words, and where its table is drawn while ranks print.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {

/// Rows and columns of a terminal, in characters.
struct TableSize {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

struct LiveOptions {
  std::chrono::seconds interval{1};  ///< between two tables, or lines
  bool on_terminal = false;          ///< a table, drawn anew in its place; else lines
  int descriptor = 2;
};

/// Says what guards tell of their ranks. On a terminal the table is what stands lowest: it is
/// erased before anything else is written, and drawn again below that. Thread rule: one thread.
class LiveView {
 public:
  LiveView(const LiveOptions& options, const std::vector<JobHost>& hosts, Moment now);

  /// Takes what an agent has passed on. Ranks that the job does not have are ignored.
  void on_message(std::size_t host, const Message& message, Moment now);
  /// Called about ten times a second. `in_line`: what was written last has no end of its line.
  void on_time(bool in_line, Moment now);
  /// Before something else is written to the terminal, and at the end.
  void erase();

  /// A line on the job, one of headings, and one for each rank; where that is more than the rows of
  /// the terminal but one, the ranks that came last most often, and how many others there are. No
  /// line is longer than the terminal is wide; each ends with \n.
  std::string table(TableSize size, Moment now) const;
  /// One line without \n: how far it is, who came last most often, and which ranks do not run.
  std::string line(Moment now) const;

 private:
  /// How often and how late a rank came last to collectives.
  struct Lateness {
    std::uint32_t last = 0;
    std::string share = {}, median = {}, p99 = {};
    std::string phase = {};  ///< in which it has held up the others most
  };
  struct Rank {
    std::string host;
    bool started = false, stopped = false, ended = false;
    std::optional<RankSeen> seen = {};
    std::optional<Lateness> late = {};
  };
  Rank* rank(int number);
  static std::string state_of(const Rank& rank);
  void note(const ArrivalsSeen& seen, Moment now);
  std::string progress(Moment now) const;
  std::vector<std::string> cells_of(std::size_t rank) const;
  std::vector<std::size_t> shown(std::size_t most) const;

  const LiveOptions options_;
  std::vector<std::string> host_names_;
  std::vector<Rank> ranks_;
  Moment start_, next_;
  std::uint64_t steps_ = 0, decisions_ = 0;
  double steps_a_second_ = 0;               ///< between the last two messages
  std::optional<Moment> arrivals_at_ = {};  ///< of the last message
  const Rank* most_often_last_ = nullptr;   ///< of them
  std::size_t drawn_lines_ = 0;             ///< that stand on the terminal
};

}  // namespace hora::launch
