#include "examples/vision/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace vision {

namespace fs = std::filesystem;

namespace {

int open_regular(const fs::path& path, std::uint64_t& size) {
  const int number = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (number < 0) {
    throw std::runtime_error(path.string() + ": cannot be opened: " + std::strerror(errno));
  }
  struct stat status {};
  if (fstat(number, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(number);
    throw std::runtime_error(path.string() + " is not a regular file");
  }
  size = static_cast<std::uint64_t>(status.st_size);
  return number;
}

}  // namespace

InputFile::InputFile(const fs::path& path) : path_(path), number_(open_regular(path, size_)) {}

InputFile::~InputFile() {
  close(number_);
}

void InputFile::read(std::span<std::uint8_t> bytes, std::uint64_t offset) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::span<std::uint8_t> rest = bytes.subspan(done);
    const ssize_t count =
        pread(number_, rest.data(), rest.size(), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw std::runtime_error(path_.string() + ": read " + std::to_string(done) +
                               " bytes from byte " + std::to_string(offset) + " on, expected " +
                               std::to_string(bytes.size()) +
                               (count < 0 ? std::string(": ") + std::strerror(errno) : ""));
    }
    done += static_cast<std::size_t>(count);
  }
}

void read_file(const fs::path& path, std::uint64_t most, std::vector<std::uint8_t>& into) {
  const InputFile file(path);
  if (file.size() > most) {
    throw std::runtime_error(path.string() + " is too long: found " + std::to_string(file.size()) +
                             " bytes, expected at most " + std::to_string(most));
  }
  into.resize(file.size());
  file.read(into);
}

std::vector<std::string> read_lines(const fs::path& path, std::uint64_t most) {
  std::vector<std::uint8_t> bytes;
  read_file(path, most, bytes);
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace vision
