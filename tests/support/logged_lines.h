/// hora's log, for tests: apart from spdlog's headers, which do not go together with every
/// LibTorch's.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace hora::internal::test {

/// From construction to destruction; the last 100 lines. They are printed all the same.
/// Thread rule: any thread.
class LoggedLines {
 public:
  LoggedLines();
  ~LoggedLines();
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  /// Those that have `text` in them.
  std::vector<std::string> with(const std::string& text) const;
  /// One of them has `text` in it.
  bool have(const std::string& text) const { return !with(text).empty(); }
  /// The same, now or within `patience`.
  bool await(const std::string& text,
             std::chrono::seconds patience = std::chrono::seconds(10)) const;

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace hora::internal::test
