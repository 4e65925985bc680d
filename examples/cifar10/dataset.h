/// Labelled images in memory, read from files in CIFAR-10's binary layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "examples/cifar10/data_source.h"

namespace cifar10 {

/// Thread rule: reading from any thread.
class Dataset {
 public:
  /// The first `limit` records of these files; 0 means all. A file may hold fewer whole records
  /// than the data set's own (is_subset). Every file's size is checked, also where the limit ends
  /// before it. Throws std::runtime_error: with path, bytes found and bytes expected for a file
  /// that is missing, empty, cut within a record, too long or not a regular file; with path and
  /// record number for a label above 9.
  Dataset(const std::filesystem::path& folder, std::span<const DataFile> files, std::size_t limit);

  /// A file holds fewer records than the data set's.
  bool is_subset() const { return is_subset_; }
  std::size_t size() const { return records_.size() / record_bytes; }
  std::uint8_t label(std::size_t image) const { return records_[image * record_bytes]; }
  std::span<const std::uint8_t, image_bytes> pixels(std::size_t image) const {
    return std::span<const std::uint8_t, image_bytes>(&records_[image * record_bytes + 1],
                                                      image_bytes);
  }

 private:
  std::vector<std::uint8_t> records_;
  bool is_subset_ = false;
};

struct Data {
  const DataSource& source;
  Dataset training;
  Dataset validation;

  /// The source's, or where files hold fewer records words that say so.
  std::string id() const;
  std::string title() const;
};

/// Reads what identify() finds in the folder, at most `limit` images each (0: all). Throws
/// std::runtime_error as identify() and Dataset do.
Data load_data(const std::filesystem::path& folder, std::size_t limit);

}  // namespace cifar10
