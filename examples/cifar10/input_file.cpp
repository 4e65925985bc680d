#include "examples/cifar10/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace cifar10 {

namespace fs = std::filesystem;

namespace {

int open_regular(const fs::path& path, std::uint64_t& size) {
  const int number = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (number < 0) {
    throw std::runtime_error("Cannot open " + path.string() + ": " + std::strerror(errno));
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

void InputFile::read(std::span<std::uint8_t> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::span<std::uint8_t> rest = bytes.subspan(done);
    const ssize_t count = pread(number_, rest.data(), rest.size(), static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw std::runtime_error(path_.string() + ": read " + std::to_string(done) +
                               " bytes, expected " + std::to_string(bytes.size()) +
                               (count < 0 ? std::string(": ") + std::strerror(errno) : ""));
    }
    done += static_cast<std::size_t>(count);
  }
}

std::string read_text(const fs::path& path, std::size_t most) {
  const InputFile file(path);
  if (file.size() > most) {
    throw std::runtime_error(path.string() + " is too long: found " + std::to_string(file.size()) +
                             " bytes, expected at most " + std::to_string(most));
  }
  std::string text(file.size(), '\0');
  file.read(std::span(reinterpret_cast<std::uint8_t*>(text.data()), text.size()));
  return text;
}

}  // namespace cifar10
