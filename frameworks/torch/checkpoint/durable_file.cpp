#include "frameworks/torch/checkpoint/durable_file.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace hora::internal {
namespace {

std::string system_text(int number) {
  return std::generic_category().message(number) + " (errno " + std::to_string(number) + ")";
}

[[noreturn]] void fail(const std::string& path, const std::string& what, int number) {
  throw Error(ErrorCode::invalid_argument,
              in_quotes(path) + " cannot be " + what + ": " + system_text(number));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  /// Returns close()'s result, for file systems that write then.
  int close() { return ::close(std::exchange(number_, -1)); }

 private:
  int number_;
};

constexpr std::size_t kLongestWrite = std::size_t{64} << 20;

/// `descriptor`: a new file, or what open() says where it cannot be made.
void write_durably(const std::string& path, int descriptor, std::span<const std::byte> bytes) {
  Descriptor file(descriptor);
  if (file.get() < 0) fail(path, "made", errno);
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(file.get(), bytes.data(), std::min(bytes.size(), kLongestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) fail(path, "written to the disk", errno);
  if (file.close() != 0) fail(path, "closed", errno);
}

/// A file's temporary names before the random part.
constexpr std::string_view kTemporary = ".new-";

/// Temporary files that no live writer has changed for so long were left by a killed one.
constexpr std::chrono::hours kLeftOver(1);

void remove_leftovers(const std::filesystem::path& folder, const std::string& begin) {
  const auto oldest = std::filesystem::file_time_type::clock::now() - kLeftOver;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().native().starts_with(begin)) continue;
    if (entry.last_write_time(ignored) < oldest) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace

void write_durably(const std::string& path, std::span<const std::byte> bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  write_durably(path, ::open(path.c_str(), kFlags, S_IRUSR | S_IWUSR), bytes);
}

void replace_durably(const std::string& path, std::span<const std::byte> bytes) {
  const std::filesystem::path whole(path);
  const std::string folder = whole.has_parent_path() ? whole.parent_path().string() : ".";
  const std::string begin = path + std::string(kTemporary);
  remove_leftovers(folder, std::filesystem::path(begin).filename());
  std::string temporary = begin + "XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  try {
    write_durably(path, descriptor, bytes);
    rename_folder(temporary, path);
  } catch (...) {
    if (descriptor >= 0) ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

void make_folders(const std::string& folder) {
  const std::filesystem::path path(folder);
  if (std::filesystem::is_directory(path)) return;
  const std::string above = path.parent_path();
  if (!above.empty()) make_folders(above);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail(folder, "made", errno);
  if (!std::filesystem::is_directory(path)) fail(folder, "made", ENOTDIR);
  sync_folder(above.empty() ? "." : above);
}

void sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail(folder, "opened", errno);
  // Some file systems have no such call for folders.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail(folder, "written to the disk", errno);
  }
}

void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "renamed to " + in_quotes(to), errno);
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) fail(folder, "removed", error.value());
}

bool exists(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0;
}

bool is_folder(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

tl::expected<std::vector<std::byte>, std::string> read_file(const std::string& path,
                                                            std::uint64_t most) {
  // O_NONBLOCK: a FIFO is not waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return tl::unexpected("it cannot be opened: " + system_text(errno));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return tl::unexpected(system_text(errno));
  if (!S_ISREG(facts.st_mode)) return tl::unexpected(std::string("it is no regular file"));
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (size > most) {
    return tl::unexpected("it has " + std::to_string(size) + " bytes, more than the " +
                          std::to_string(most) + " that it can have");
  }
  std::vector<std::byte> bytes(size);
  std::span<std::byte> rest(bytes);
  while (!rest.empty()) {
    const ssize_t read = ::read(file.get(), rest.data(), std::min(rest.size(), kLongestWrite));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return tl::unexpected("it cannot be read: " + system_text(errno));
    if (read == 0) return tl::unexpected(std::string("it has become shorter while it was read"));
    rest = rest.subspan(static_cast<std::size_t>(read));
  }
  return bytes;
}

tl::expected<std::uint64_t, std::string> size_of_file(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return tl::unexpected(system_text(errno));
  if (!S_ISREG(facts.st_mode)) return tl::unexpected(std::string("it is no regular file"));
  return static_cast<std::uint64_t>(facts.st_size);
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor_ < 0) fail(path, "opened", errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(std::exchange(descriptor_, -1));
  throw Error(ErrorCode::invalid_argument,
              in_quotes(folder) +
                  " has another writer of checkpoints: a second job, or another node that sees the "
                  "same folder; give each a folder of its own (without per_node rank 0 writes for "
                  "all)");
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace hora::internal
