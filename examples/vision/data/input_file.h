/// Files from outside: opened without waiting, and read up to a known size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace vision {

/// A regular file, open for reading. Opening never blocks: a FIFO, a device or a folder in its
/// place is refused. All errors are std::runtime_error that begin with the path.
///
/// Thread rule: any thread.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  /// Bytes, when it was opened.
  std::uint64_t size() const { return size_; }
  /// The file's bytes from `offset` on; throws where it holds fewer.
  void read(std::span<std::uint8_t> bytes, std::uint64_t offset = 0) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  int number_;  // last: opening it sets the size
};

/// The whole file, into memory that is used again. Throws, before it reads, where that is more than
/// `most` bytes.
void read_file(const std::filesystem::path& path, std::uint64_t most,
               std::vector<std::uint8_t>& into);

/// The lines of a text file of at most `most` bytes, without line ends; empty ones are left out.
std::vector<std::string> read_lines(const std::filesystem::path& path, std::uint64_t most);

}  // namespace vision
