#include "examples/vision/train/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace vision {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw std::system_error(errno, std::generic_category(), what + " " + path.string());
}

class File {
 public:
  File(const fs::path& path, int flags) : path_(path), number_(open(path.c_str(), flags, 0600)) {
    if (number_ < 0) {
      fail("Cannot open", path_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(number_); }

  void write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = write(number_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) {
        fail("Cannot write to", path_);
      }
      bytes.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
    }
  }
  void sync() const {
    if (fsync(number_) != 0) {
      fail("Cannot fsync", path_);
    }
  }

 private:
  fs::path path_;
  int number_;
};

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void check_folder(const fs::path& folder) {
  if (access(folder.c_str(), W_OK | X_OK) != 0) fail("Cannot write to folder", folder);
}

}  // namespace

void check_writable(const fs::path& path) {
  const fs::path folder = folder_of(path);
  if (!fs::is_directory(folder)) {
    throw std::runtime_error("Cannot write " + path.string() + ": there is no folder " +
                             folder.string() + "; make it first");
  }
  check_folder(folder);
  if (fs::exists(path) && !fs::is_regular_file(path)) {
    throw std::runtime_error("Cannot write " + path.string() + ": it is not a regular file");
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw std::system_error(error, "Cannot make folder " + folder.string());
  check_folder(folder);
}

void write_file(const fs::path& path, std::string_view bytes) {
  fs::path draft = path;
  draft += "." + std::to_string(getpid()) + ".part";
  try {
    const File file(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
    file.write_all(bytes);
    file.sync();
    fs::rename(draft, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(draft, ignored);
    throw;
  }
  File(folder_of(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC).sync();
}

}  // namespace vision
