#include "examples/vision/logs/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace vision {
namespace {

constexpr std::size_t most_collected = 64 << 10;

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw std::system_error(errno, std::generic_category(), what + " " + path.string());
}

}  // namespace

double seconds_of(std::chrono::system_clock::time_point time) {
  // A double does not hold the nanoseconds of half a century.
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  return static_cast<double>(whole.time_since_epoch().count()) +
         std::chrono::duration<double>(time - whole).count();
}

LogFile::LogFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)),
      number_(
          open(path_.c_str(),
               O_WRONLY | O_CREAT | O_CLOEXEC | (existing == Existing::replaced ? O_TRUNC : O_EXCL),
               0666)) {
  if (number_ < 0) {
    fail("Cannot open", path_);
  }
}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      number_(std::exchange(other.number_, -1)),
      collected_(std::exchange(other.collected_, {})) {}

LogFile::~LogFile() {
  if (number_ < 0) {
    return;
  }
  try {
    flush();
  } catch (const std::system_error&) {
    // A destructor has no one to tell.
  }
  close(number_);
}

void LogFile::append(std::string_view bytes) {
  collected_ += bytes;
  if (collected_.size() >= most_collected) {
    flush();
  }
}

void LogFile::flush() {
  while (!collected_.empty()) {
    const ssize_t written = write(number_, collected_.data(), collected_.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail("Cannot write to", path_);
    }
    collected_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace vision
