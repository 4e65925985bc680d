#include "examples/vision/data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "examples/vision/data/input_file.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_unpacked = std::uint64_t{2} << 30U;

constexpr std::size_t block_bytes = std::size_t{1} << 16U;

/// A file through zlib, which checks gzip's checksum (libarchive 3.6 does not), or as it is where
/// it does not begin as gzip's files do (RFC 1952, section 2.3.1).
class Unpacked {
 public:
  explicit Unpacked(const fs::path& path) : path_(path), file_(path) {
    refill();
    is_packed_ = in_member_ = starts_member();
    // 15: the largest window, 16: a gzip header.
    if (is_packed_ && inflateInit2(&stream_, 15 + 16) != Z_OK) {
      fail("cannot be unpacked: zlib has no memory");
    }
  }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;
  ~Unpacked() { inflateEnd(&stream_); }

  /// The next bytes; at the end none. Negative: problem(). Throws nothing: libarchive calls it.
  ssize_t read(const void** bytes) {
    *bytes = unpacked_.data();
    ssize_t count = 0;
    try {
      count = is_packed_ ? unpack() : copy();
    } catch (const std::runtime_error& error) {
      return problem(std::string("cannot be read on: ") + error.what());
    }
    total_ += count > 0 ? static_cast<std::uint64_t>(count) : 0;
    if (total_ > most_unpacked) {
      return problem("unpacks to more than 2 GiB, which no archive of CIFAR-10 does");
    }
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
  ssize_t problem(const std::string& what) {
    problem_ = what;
    return -1;
  }
  // Where all that was read is used up, the file's next bytes.
  void refill() {
    if (stream_.avail_in > 0) {
      return;
    }
    const std::uint64_t count = std::min<std::uint64_t>(packed_.size(), file_.size() - offset_);
    file_.read(std::span(packed_).first(static_cast<std::size_t>(count)), offset_);
    offset_ += count;
    stream_.next_in = packed_.data();
    stream_.avail_in = static_cast<unsigned>(count);
  }
  bool starts_member() const {
    return stream_.avail_in >= 2 && stream_.next_in[0] == 0x1f && stream_.next_in[1] == 0x8b;
  }
  ssize_t copy() {
    refill();
    const unsigned count = std::exchange(stream_.avail_in, 0);
    std::copy_n(stream_.next_in, count, unpacked_.data());
    return count;
  }
  ssize_t unpack() {
    stream_.next_out = unpacked_.data();
    stream_.avail_out = static_cast<unsigned>(unpacked_.size());
    while (stream_.avail_out > 0) {
      refill();
      if (stream_.avail_in == 0 && in_member_) {
        return problem("ends too early, after " + std::to_string(offset_) + " bytes");
      }
      if (stream_.avail_in == 0) {
        break;
      }
      if (!in_member_) {  // several of them make one file
        inflateReset(&stream_);
        in_member_ = true;
      }
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        in_member_ = false;
      } else if (code != Z_OK) {
        return problem("is corrupt: " +
                       std::string(stream_.msg == nullptr ? "zlib refuses it" : stream_.msg));
      }
    }
    return static_cast<ssize_t>(unpacked_.size() - stream_.avail_out);
  }

  fs::path path_;
  InputFile file_;
  std::uint64_t offset_ = 0;  // of the file's bytes that were not read yet
  std::array<std::uint8_t, block_bytes> packed_{};
  std::array<std::uint8_t, block_bytes> unpacked_{};
  z_stream stream_{};
  bool is_packed_ = false;
  bool in_member_ = false;
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
