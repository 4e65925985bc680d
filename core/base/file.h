/// Creation of the files that hora writes.
#pragma once

#include <string>

namespace hora::internal {

/// A new regular file for this user alone (mode 0600): one of that name is removed first. What else
/// has the name (a link, a folder, a FIFO, a device) stays, and is an error: nothing is followed,
/// written into, or waited for. Move-only owner of its descriptor; the file stays.
class NewFile {
 public:
  /// Throws Error(invalid_argument) that names the path and what is wrong with it.
  explicit NewFile(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  int descriptor() const noexcept { return descriptor_; }
  /// A name for streams that take names: of this very file, whatever its path names by now.
  std::string descriptor_path() const;

 private:
  int descriptor_ = -1;
};

}  // namespace hora::internal
