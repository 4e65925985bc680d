#include "core/base/file.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace hora::internal {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "the file " + in_quotes(path) + " cannot be made: " + why +
                  "; give the path of a file in a folder that exists and can be written to");
}

[[noreturn]] void refuse(const std::string& path, int error) {
  refuse(path, std::generic_category().message(error));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a link, which is not followed,";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void remove_regular(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    refuse(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, std::string(kind_of(status.st_mode)) + " has this name already");
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) refuse(path, errno);
}

/// O_EXCL: what has taken the name meanwhile is not opened, whatever it is.
int open_new(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int descriptor = ::open(path.c_str(), kFlags, S_IRUSR | S_IWUSR);
  if (descriptor < 0) refuse(path, errno);
  return descriptor;
}

}  // namespace

NewFile::NewFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) refuse(path, "its name holds a zero byte");
  remove_regular(path);
  descriptor_ = open_new(path);
}

NewFile::NewFile(NewFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string NewFile::descriptor_path() const {
  return "/proc/self/fd/" + std::to_string(descriptor_);
}

}  // namespace hora::internal
