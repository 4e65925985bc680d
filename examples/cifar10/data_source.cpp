#include "examples/cifar10/data_source.h"

#include <sstream>
#include <stdexcept>

#include "examples/cifar10/input_file.h"

namespace cifar10 {

namespace fs = std::filesystem;

const DataSource& cifar10_source() {
  static const DataSource source{
      .id = "cifar10",
      .title = "CIFAR-10",
      .training = {{"data_batch_1.bin", 10000},
                   {"data_batch_2.bin", 10000},
                   {"data_batch_3.bin", 10000},
                   {"data_batch_4.bin", 10000},
                   {"data_batch_5.bin", 10000}},
      .validation = {{"test_batch.bin", 10000}},
      .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
                      "ship", "truck"},
      .normalisation = {{0.4914F, 0.4822F, 0.4465F}, {0.2023F, 0.1994F, 0.2010F}},
      .crop_padding = 4,
      .flip = true,
  };
  return source;
}

const DataSource& digits_source() {
  // Mean and deviation are those of all 1,797 images after scaling. A digit fills its image, so
  // that a crop would cut it, and a mirrored one is another sign.
  static const DataSource source{
      .id = "digits",
      .title = "handwritten digits of scikit-learn (not CIFAR-10)",
      .training = {{"data_batch_1.bin", 1437}},
      .validation = {{"test_batch.bin", 360}},
      .class_names = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
      .normalisation = {{0.3052F, 0.3052F, 0.3052F}, {0.3236F, 0.3236F, 0.3236F}},
      .crop_padding = 0,
      .flip = false,
  };
  return source;
}

namespace {

bool names_match(const std::vector<std::string>& names, const DataSource& source) {
  return std::equal(names.begin(), names.end(), source.class_names.begin(),
                    source.class_names.end());
}

}  // namespace

const DataSource& identify(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw std::runtime_error("Data folder " + folder.string() +
                             (fs::exists(folder) ? " is not a folder" : " does not exist") +
                             "; expected one with CIFAR-10's binary files, such as " +
                             cifar10_source().training.front().name);
  }
  const fs::path path = folder / class_names_file;
  if (!fs::exists(path)) {
    return cifar10_source();
  }
  std::istringstream file(read_text(path, class_names_bytes));
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!line.empty()) {
      names.push_back(line);
    }
  }
  for (const DataSource* source : {&cifar10_source(), &digits_source()}) {
    if (names_match(names, *source)) {
      return *source;
    }
  }
  throw std::runtime_error(path.string() + " lists " + std::to_string(names.size()) +
                           " class names that are neither CIFAR-10's (airplane to truck) nor the "
                           "digits' (0 to 9), one a line; other data is not known here");
}

fs::path data_folder(const fs::path& folder) {
  const fs::path unpacked = folder / "cifar-10-batches-bin";
  const bool files_are_here = fs::exists(folder / cifar10_source().training.front().name);
  return !files_are_here && fs::is_directory(unpacked) ? unpacked : folder;
}

}  // namespace cifar10
