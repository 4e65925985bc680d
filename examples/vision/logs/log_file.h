/// A file that grows while the program runs.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

namespace vision {

/// Seconds since 1970.
double seconds_of(std::chrono::system_clock::time_point time);

/// Bytes are collected, and written in whole pieces: a reader sees what was appended up to some
/// flush. Thread rule: one thread.
class LogFile {
 public:
  enum class Existing {
    replaced,
    refused,
    continued,  ///< behind the last whole line; what is behind that is cut off
  };

  /// Errors are std::system_error with the path: no folder, no permission, and with `refused` (code
  /// std::errc::file_exists) a file of that name. Links are not followed.
  LogFile(std::filesystem::path path, Existing existing);
  /// Writes what is left where that can be done; flush(), called before, throws where it cannot.
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;

  /// Flushes where 64 KiB have been collected.
  void append(std::string_view bytes);
  /// Everything appended is with the operating system then. std::system_error with the path where
  /// it cannot be written, as on a full disk; the bytes stay collected, and the next flush goes on
  /// where this one ended.
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int number_;  ///< -1: moved from
  std::string collected_;
};

}  // namespace vision
