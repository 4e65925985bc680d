/// The data sets the example knows, and how to tell them apart.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace cifar10 {

inline constexpr int classes = 10;
inline constexpr int channels = 3;
inline constexpr int side = 32;  ///< pixels
inline constexpr std::size_t plane_bytes = std::size_t{side} * side;
inline constexpr std::size_t image_bytes = channels * plane_bytes;
/// One record of CIFAR-10's binary version: a label, then the red, green and blue planes by rows.
inline constexpr std::size_t record_bytes = 1 + image_bytes;

/// Of pixel values divided by 255, for each channel.
struct Normalisation {
  std::array<float, channels> mean;
  std::array<float, channels> deviation;
};

struct DataFile {
  std::string name;
  std::size_t records;  ///< of the whole data set; a subset's file holds fewer
};

struct DataSource {
  std::string id;     ///< as in the report: "cifar10", "digits"
  std::string title;  ///< for people
  std::vector<DataFile> training;
  std::vector<DataFile> validation;
  std::array<std::string, classes> class_names;
  Normalisation normalisation;
  int crop_padding;  ///< pixels of black around a training image before its random crop
  bool flip;         ///< whether a mirrored image is still of its class
};

/// CIFAR-10's binary version: five files of 10,000 records and a test file.
const DataSource& cifar10_source();
/// The 1,797 handwritten digits of scikit-learn, as prepare_digits writes them.
const DataSource& digits_source();

/// In CIFAR-10's binary version, the names of the classes, one a line.
inline constexpr const char* class_names_file = "batches.meta.txt";
inline constexpr std::size_t class_names_bytes = 4096;  ///< more than that is no such file

/// What lies in `folder`, told by its class names; CIFAR-10 where that file is missing. Throws
/// std::runtime_error where the names are neither's, their file is too long or not a regular one,
/// or the folder is missing.
const DataSource& identify(const std::filesystem::path& folder);

/// `folder`, or the folder cifar-10-batches-bin in it where CIFAR-10's archive was unpacked.
std::filesystem::path data_folder(const std::filesystem::path& folder);

}  // namespace cifar10
