/// A job that runs, as `horarun --watch` shows it: what guards tell of their ranks, in words.
/// Thread rule: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/control/messages.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {

/// Of a terminal, in characters.
struct TableSize {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

class LiveJob {
 public:
  LiveJob(const std::vector<JobHost>& hosts, Moment now);

  /// What an agent has passed on. Ranks that the job does not have are ignored.
  void on_message(std::size_t host, const Message& message, Moment now);

  /// A line on the job, one of headings, and one for each rank; where that is more than the rows of
  /// the terminal but one, the ranks that came last most often, and how many others there are. No
  /// line is longer than the terminal is wide; each ends with \n.
  std::string table(TableSize size, Moment now) const;
  /// One line without \n: how far it is, who came last most often, and which ranks do not run.
  std::string line(Moment now) const;

 private:
  struct Rank {
    std::string host;
    bool started = false, stopped = false, ended = false;
    std::optional<RankSeen> seen = {};
  };
  void on(std::size_t host, const RankStarted& started, Moment);
  void on(std::size_t host, const RankSeen& seen, Moment);
  void on(std::size_t host, const RankStopped& stopped, Moment);
  void on(std::size_t host, const RankEnded& ended, Moment);
  void on(std::size_t host, const ArrivalsSeen& seen, Moment now);
  template <class Other>
  void on(std::size_t, const Other&, Moment) {}

  Rank* rank(int number);
  static std::string state_of(const Rank& rank);
  const wire::ArrivalsRow* arrivals_of(std::size_t rank) const;
  std::string phase_of(const wire::ArrivalsRow& row) const;
  std::string share_of(const wire::ArrivalsRow& row) const;
  std::string progress(Moment now) const;
  std::string most_often_last() const;
  std::vector<std::string> cells_of(std::size_t rank) const;
  std::vector<std::size_t> shown(std::size_t most) const;

  std::vector<std::string> host_names_;
  std::vector<Rank> ranks_;
  Moment start_;
  ArrivalsSeen arrivals_;
  Moment arrivals_at_{0};
  double steps_a_second_ = 0;  ///< between the last two messages
};

}  // namespace hora::launch
