/// Where the table of `horarun --watch` is drawn, while ranks print.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "core/launch/live/live_job.h"

namespace hora::launch {

struct LiveOptions {
  std::chrono::seconds interval{1};  ///< between two tables, or lines
  bool on_terminal = false;          ///< a table, drawn anew in its place; else lines
  int descriptor = 2;
};

/// On a terminal the table is what stands lowest: it is erased before anything else is written, and
/// drawn again below that. Thread rule: one thread.
class LiveView {
 public:
  LiveView(const LiveOptions& options, const std::vector<JobHost>& hosts, Moment now);

  void on_message(std::size_t host, const Message& message, Moment now) {
    job_.on_message(host, message, now);
  }
  /// Before something else is written to the terminal, and at the end.
  void erase();
  /// Called about ten times a second. `in_line`: what was written last has no end of its line.
  void on_time(bool in_line, Moment now);

 private:
  void draw(bool in_line, Moment now);
  TableSize size() const;

  const LiveOptions options_;
  LiveJob job_;
  std::size_t drawn_lines_ = 0;  ///< that stand on the terminal
  Moment next_;
};

}  // namespace hora::launch
