/// CIFAR-10 and CIFAR-100 in their binary versions, and the handwritten digits, which are kept in
/// CIFAR-10's layout (https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "examples/vision/data/data_sets.h"
#include "examples/vision/data/planar_images.h"
#include "examples/vision/data/record_files.h"

namespace vision {

inline constexpr ImageSize cifar_size{32, 32};
/// A label, then the red, green and blue planes by rows. CIFAR-100 has two labels: of 20
/// superclasses, which is not used, and of 100 classes.
inline constexpr RecordLayout cifar10_layout{cifar_size, 1, 10};
inline constexpr RecordLayout cifar100_layout{cifar_size, 2, 100};

/// What a data set in such files consists of when it is whole.
struct RecordSet {
  DataKind kind;
  std::string title;
  RecordLayout layout;
  std::vector<RecordFile> training;
  std::vector<RecordFile> validation;
  std::vector<std::string> classes;  ///< CIFAR-100: empty, its files list them
};

const RecordSet& cifar10_records();
const RecordSet& cifar100_records();
/// The 1,797 handwritten digits of scikit-learn, as prepare_digits writes them.
const RecordSet& digits_records();

/// In a folder of CIFAR-10's files the names of the classes, one a line; the digits have it, too,
/// and are known by it. CIFAR-10 where it is missing.
inline constexpr const char* class_names_file = "batches.meta.txt";
inline constexpr const char* cifar100_class_names_file = "fine_label_names.txt";
inline constexpr std::size_t class_names_bytes = 4096;  ///< more than that is no such file

/// Reads the files of CIFAR-10, CIFAR-100 (where there is a file train.bin) or the digits in this
/// folder. Throws std::runtime_error as read_records() does, and where class names are none of
/// these three's.
DataSets open_cifar(const std::filesystem::path& folder);

/// From the records of both parts. `training` and `validation` are of `set`'s files.
DataSets make_data_sets(const RecordSet& set, std::vector<std::string> classes,
                        PlanarRecords training, PlanarRecords validation);

}  // namespace vision
