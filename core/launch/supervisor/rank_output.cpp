#include "core/launch/supervisor/rank_output.h"

#include <fcntl.h>
#include <hora/error.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace hora::launch {
namespace {

constexpr std::chrono::milliseconds kLongestWait{200};

[[noreturn]] void refuse(const std::string& path) {
  throw Error(ErrorCode::invalid_argument, "--output-filename: " + path + ": " +
                                               std::strerror(errno) +
                                               "; name a folder that can be made or written");
}

}  // namespace

RankOutputWriter::RankOutputWriter(RankOutputOptions options) : options_(std::move(options)) {
  if (options_.folder.empty()) return;
  const std::filesystem::path folder(options_.folder);
  std::error_code error;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse(options_.folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(options_.folder);
}

void RankOutputWriter::write(int rank, const std::string& host, bool error,
                             std::string_view bytes) {
  if (!options_.folder.empty()) write_all(file_of(rank), path_of(rank), bytes);
  if (!options_.shown.empty() && !options_.shown.contains(rank)) return;
  Stream& stream = streams_[{rank, error}];
  stream.host = host;
  stream.waits_since.reset();
  const std::string prefix = options_.prefix ? host + ":" + std::to_string(rank) + ": " : "";
  std::string lines;
  for (const char character : bytes) {
    stream.line += character;
    if (character != '\n' && character != '\r') continue;
    lines += prefix + stream.line;
    stream.line.clear();
  }
  show(error, lines);
}

void RankOutputWriter::on_time(std::chrono::steady_clock::time_point now) {
  if (options_.prefix) return;
  for (auto& [key, stream] : streams_) {
    if (stream.line.empty()) continue;
    if (!stream.waits_since) stream.waits_since = now;
    if (now - *stream.waits_since < kLongestWait) continue;
    show(key.second, stream.line);
    stream.line.clear();
    stream.waits_since.reset();
  }
}

void RankOutputWriter::finish() {
  for (auto& [key, stream] : streams_) {
    if (stream.line.empty()) continue;
    const auto& [rank, error] = key;
    show(error, options_.prefix
                    ? stream.host + ":" + std::to_string(rank) + ": " + stream.line + "\n"
                    : stream.line);
    stream.line.clear();
  }
}

void RankOutputWriter::show(bool error, std::string_view bytes) {
  if (bytes.empty()) return;
  if (options_.before_output) options_.before_output();
  in_line_ = bytes.back() != '\n';
  write_all(error ? options_.error : options_.output, error ? "standard error" : "standard output",
            bytes);
}

void RankOutputWriter::write_all(int descriptor, const std::string& name, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // another process has made a terminal or a pipe non-blocking
      pollfd entry{descriptor, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      const bool reader_is_gone = errno == EPIPE;
      if (!reader_is_gone && failure_.empty()) failure_ = name + ": " + std::strerror(errno);
      return;
    }
  }
}

int RankOutputWriter::file_of(int rank) {
  UniqueFd& file = files_[rank];
  if (!file) {
    const std::string path = path_of(rank);
    file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) refuse(path);
  }
  return file.get();
}

}  // namespace hora::launch
