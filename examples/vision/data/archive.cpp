#include "examples/vision/data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <memory>
#include <stdexcept>

#include "examples/vision/data/input_file.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_unpacked = std::uint64_t{2} << 30U;

/// A file through zlib, which checks gzip's checksum (libarchive 3.6 does not), and passes on what
/// is not packed.
class Unpacked {
 public:
  explicit Unpacked(const fs::path& path) : path_(path) {
    const InputFile regular(path);  // or else an error
    file_ = gzopen(path.c_str(), "rb");
    if (file_ == nullptr) {
      throw std::runtime_error(path.string() + ": cannot be opened");
    }
    gzbuffer(file_, 1U << 17U);
  }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;
  ~Unpacked() { gzclose(file_); }

  /// The next bytes; at the end none. Negative: problem().
  ssize_t read(const void** bytes) {
    const int count = gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      problem_ = "is corrupt or ends too early: " + std::string(text);
      return -1;
    }
    total_ += static_cast<std::uint64_t>(count);
    if (total_ > most_unpacked) {
      problem_ = "unpacks to more than 2 GiB, which no archive of CIFAR-10 does";
      return -1;
    }
    *bytes = buffer_.data();
    return count;
  }

  /// What is behind the archive's end, too, for the checksum.
  void read_to_end() {
    const void* bytes = nullptr;
    ssize_t count = 0;
    while ((count = read(&bytes)) > 0) {
    }
    if (count < 0) {
      fail(problem_);
    }
  }

  const std::string& problem() const { return problem_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(path_.string() + " " + what);
  }

 private:
  fs::path path_;
  gzFile file_ = nullptr;
  std::array<std::uint8_t, 1U << 16U> buffer_{};
  std::uint64_t total_ = 0;
  std::string problem_;
};

la_ssize_t read_block(struct archive* archive, void* from, const void** bytes) {
  auto& unpacked = *static_cast<Unpacked*>(from);
  const ssize_t count = unpacked.read(bytes);
  if (count < 0) {
    archive_set_error(archive, EIO, "%s", unpacked.problem().c_str());
  }
  return count;
}

std::vector<std::uint8_t> read_entry(struct archive* archive, const Unpacked& unpacked,
                                     const std::string& name, std::int64_t size) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const la_ssize_t count = archive_read_data(archive, bytes.data() + done, bytes.size() - done);
    if (count < 0) {
      unpacked.fail(std::string(": ") + archive_error_string(archive));
    }
    if (count == 0) {
      unpacked.fail("ends within " + name);
    }
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

}  // namespace

std::map<std::string, std::vector<std::uint8_t>> read_archive(const fs::path& path,
                                                              const std::set<std::string>& wanted,
                                                              std::uint64_t most_bytes_each) {
  Unpacked unpacked(path);
  const std::unique_ptr<struct archive, int (*)(struct archive*)> archive(archive_read_new(),
                                                                          archive_read_free);
  archive_read_support_format_tar(archive.get());
  int status = archive_read_open(archive.get(), &unpacked, nullptr, read_block, nullptr);
  std::map<std::string, std::vector<std::uint8_t>> found;
  struct archive_entry* entry = nullptr;
  while (status == ARCHIVE_OK &&
         (status = archive_read_next_header(archive.get(), &entry)) == ARCHIVE_OK) {
    const char* entry_name = archive_entry_pathname(entry);
    const std::string name = entry_name == nullptr ? "" : entry_name;
    if (!wanted.contains(name)) {
      continue;
    }
    const std::int64_t size = archive_entry_size(entry);
    if (archive_entry_filetype(entry) != AE_IFREG || size < 0 ||
        static_cast<std::uint64_t>(size) > most_bytes_each) {
      unpacked.fail("holds " + name + " of " + std::to_string(size) +
                    " bytes; expected a regular file of at most " +
                    std::to_string(most_bytes_each));
    }
    const bool is_new = found.emplace(name, read_entry(archive.get(), unpacked, name, size)).second;
    if (!is_new) {
      unpacked.fail("holds " + name + " twice");
    }
  }
  if (status != ARCHIVE_EOF) {
    const std::string& problem = unpacked.problem();
    unpacked.fail(problem.empty() ? std::string("is no tar archive, or a corrupt one: ") +
                                        archive_error_string(archive.get())
                                  : problem);
  }
  unpacked.read_to_end();
  return found;
}

}  // namespace vision
