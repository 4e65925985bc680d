/// The two data sets of a training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "examples/vision/data/dataset.h"

namespace vision {

enum class DataKind { cifar10, cifar100, digits, stl10, image_folder };

struct DataSets {
  DataKind kind = DataKind::image_folder;
  bool is_subset = false;  ///< one of the two has fewer images than the published one
  std::unique_ptr<const Dataset> training;
  std::unique_ptr<const Dataset> validation;
  std::vector<std::string> notes = {};  ///< for people: files that are left out

  /// For programs to read: "cifar10", "cifar100", "digits", "stl10" or "image-folder", of a subset
  /// with "-subset" behind it.
  std::string id() const;
};

/// A data set's title: "a subset of TITLE" where it is one.
std::string subset_title(const std::string& title, bool is_subset);

/// The first `limit` images of each; 0: all.
void keep_first(DataSets& data, std::size_t limit);

}  // namespace vision
