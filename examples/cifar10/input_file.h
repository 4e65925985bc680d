/// Files that are read up to a known size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace cifar10 {

/// A regular file, open for reading. Opening never blocks: a FIFO, a device or a folder in its
/// place is refused. All errors are std::runtime_error with the path.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  /// Bytes, when it was opened.
  std::uint64_t size() const { return size_; }
  /// The file's first bytes; throws where it holds fewer.
  void read(std::span<std::uint8_t> bytes) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  int number_;  // last: opening it sets the size
};

/// The whole file; throws, before it reads, where that is more than `most` bytes.
std::string read_text(const std::filesystem::path& path, std::size_t most);

}  // namespace cifar10
