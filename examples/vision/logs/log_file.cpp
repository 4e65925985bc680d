#include "examples/vision/logs/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace vision {
namespace {

constexpr std::size_t most_collected = 64 << 10;

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw std::system_error(errno, std::generic_category(), what + " " + path.string());
}

int flags_for(LogFile::Existing existing) {
  switch (existing) {
    case LogFile::Existing::replaced:
      return O_WRONLY | O_TRUNC;
    case LogFile::Existing::refused:
      return O_WRONLY | O_EXCL;
    case LogFile::Existing::continued:
      break;
  }
  return O_RDWR;
}

/// A new file takes the place of an old one: what has that as a link stays.
int open_file(const std::filesystem::path& path, LogFile::Existing existing) {
  std::error_code ignored;
  if (existing == LogFile::Existing::replaced &&
      std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored))) {
    std::filesystem::remove(path, ignored);
  }
  // O_NONBLOCK: a FIFO without a reader is not waited for.
  constexpr int all = O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  return open(path.c_str(), flags_for(existing) | all, 0666);
}

// Bytes up to the end of the last line; 0 where the file has none.
off_t end_of_lines(int file, const std::filesystem::path& path) {
  std::array<char, 4096> bytes{};
  off_t end = lseek(file, 0, SEEK_END);
  while (end > 0) {
    const auto wanted = std::min(end, static_cast<off_t>(bytes.size()));
    const ssize_t found = pread(file, bytes.data(), static_cast<std::size_t>(wanted), end - wanted);
    if (found < 0 && errno == EINTR) continue;
    if (found < wanted) fail("Cannot read", path);
    const std::string_view piece(bytes.data(), static_cast<std::size_t>(found));
    const std::size_t newline = piece.rfind('\n');
    if (newline != std::string_view::npos) {
      return end - wanted + static_cast<off_t>(newline) + 1;
    }
    end -= wanted;
  }
  return 0;
}

void cut_behind_lines(int file, const std::filesystem::path& path) {
  const off_t end = end_of_lines(file, path);
  if (ftruncate(file, end) < 0 || lseek(file, end, SEEK_SET) < 0) {
    fail("Cannot go on with", path);
  }
}

}  // namespace

double seconds_of(std::chrono::system_clock::time_point time) {
  // A double does not hold the nanoseconds of half a century.
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  return static_cast<double>(whole.time_since_epoch().count()) +
         std::chrono::duration<double>(time - whole).count();
}

LogFile::LogFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)), number_(open_file(path_, existing)) {
  if (number_ < 0) {
    fail(errno == ELOOP ? "Links are not followed: cannot open" : "Cannot open", path_);
  }
  if (existing != Existing::continued) return;
  try {
    cut_behind_lines(number_, path_);
  } catch (const std::system_error&) {
    close(number_);
    throw;
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
