#include "examples/vision/data/cifar.h"

#include <stdexcept>
#include <utility>

#include "examples/vision/data/input_file.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

const RecordSet& identify(const fs::path& folder) {
  if (fs::exists(folder / cifar100_records().training.front().name)) {
    return cifar100_records();
  }
  const fs::path path = folder / class_names_file;
  if (!fs::exists(path)) {
    return cifar10_records();
  }
  const std::vector<std::string> names = read_lines(path, class_names_bytes);
  for (const RecordSet* set : {&cifar10_records(), &digits_records()}) {
    if (names == set->classes) {
      return *set;
    }
  }
  throw std::runtime_error(path.string() + " lists " + std::to_string(names.size()) +
                           " class names that are neither CIFAR-10's (airplane to truck) nor the "
                           "digits' (0 to 9), one a line; other data is not known here");
}

std::vector<std::string> read_classes(const fs::path& folder, const RecordSet& set) {
  if (!set.classes.empty()) {
    return set.classes;
  }
  const fs::path path = folder / cifar100_class_names_file;
  std::vector<std::string> names = read_lines(path, class_names_bytes);
  if (names.size() != static_cast<std::size_t>(set.layout.classes)) {
    throw std::runtime_error(path.string() + " lists " + std::to_string(names.size()) +
                             " class names; expected " + std::to_string(set.layout.classes) +
                             ", one a line");
  }
  return names;
}

}  // namespace

const RecordSet& cifar10_records() {
  static const RecordSet set{
      .kind = DataKind::cifar10,
      .title = "CIFAR-10",
      .layout = cifar10_layout,
      .training = {{"data_batch_1.bin", 10000},
                   {"data_batch_2.bin", 10000},
                   {"data_batch_3.bin", 10000},
                   {"data_batch_4.bin", 10000},
                   {"data_batch_5.bin", 10000}},
      .validation = {{"test_batch.bin", 10000}},
      .classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                  "truck"},
  };
  return set;
}

const RecordSet& cifar100_records() {
  static const RecordSet set{
      .kind = DataKind::cifar100,
      .title = "CIFAR-100",
      .layout = cifar100_layout,
      .training = {{"train.bin", 50000}},
      .validation = {{"test.bin", 10000}},
      .classes = {},
  };
  return set;
}

const RecordSet& digits_records() {
  static const RecordSet set{
      .kind = DataKind::digits,
      .title = "handwritten digits of scikit-learn (not CIFAR-10)",
      .layout = cifar10_layout,
      .training = {{"data_batch_1.bin", 1437}},
      .validation = {{"test_batch.bin", 360}},
      .classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
  };
  return set;
}

DataSets open_cifar(const fs::path& folder) {
  const RecordSet& set = identify(folder);
  std::vector<std::string> classes = read_classes(folder, set);
  PlanarRecords training = read_records(folder, set.training, set.layout);
  PlanarRecords validation = read_records(folder, set.validation, set.layout);
  return make_data_sets(set, std::move(classes), std::move(training), std::move(validation));
}

DataSets make_data_sets(const RecordSet& set, std::vector<std::string> classes,
                        PlanarRecords training, PlanarRecords validation) {
  const bool subset = is_subset(training, set.training) || is_subset(validation, set.validation);
  const std::string title = subset_title(set.title, subset);
  DataSets data{.kind = set.kind, .is_subset = subset, .training = {}, .validation = {}};
  data.training =
      std::make_unique<PlanarImages>(title, classes, set.layout.size, std::move(training));
  data.validation = std::make_unique<PlanarImages>(title, std::move(classes), set.layout.size,
                                                   std::move(validation));
  return data;
}

}  // namespace vision
