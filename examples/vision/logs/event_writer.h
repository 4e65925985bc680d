/// Scalars in a file that TensorBoard reads:
///
///     vision::EventWriter events("logs/run-7");
///     events.add("loss/training", step, loss, std::chrono::system_clock::now());
///
/// and `tensorboard --logdir logs` shows them while training goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "examples/vision/logs/log_file.h"

namespace vision {

/// Thread rule: one thread. Errors are std::system_error that name the file.
class EventWriter {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Makes `folder` with the folders above it, and in it
  /// events.out.tfevents.<seconds since 1970>.<host>.<process id>, with ".1" and so on behind it
  /// where that exists. What the file holds is never older than `flush_every` when something is
  /// added.
  explicit EventWriter(const std::filesystem::path& folder,
                       std::chrono::seconds flush_every = std::chrono::seconds(10),
                       Time now = std::chrono::system_clock::now());

  /// `tag` names the curve; before a "/" in it is the group of curves that TensorBoard shows side
  /// by side. The value is kept in float32. A reader takes steps that go back for a restart.
  void add(const std::string& tag, std::int64_t step, double value, Time now);
  /// To be called at the end; the destructor flushes, too, and is silent where it cannot.
  void flush() { file_.flush(); }

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  LogFile file_;
  std::chrono::seconds flush_every_;
  Time flushed_;
};

}  // namespace vision
