/// Data sets in files of records of one length: CIFAR-10 and CIFAR-100
/// (https://www.cs.toronto.edu/~kriz/cifar.html), the handwritten digits, which are kept in
/// CIFAR-10's layout, and STL-10 (https://cs.stanford.edu/~acoates/stl10), in binary versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "examples/vision/data/dataset.h"

namespace vision {

/// The whole of a regular file, into memory that is used again. Never waits, as for a FIFO. Throws
/// std::runtime_error beginning with the path, before it reads where that is more than `most`
/// bytes.
void read_file(const std::filesystem::path& path, std::uint64_t most,
               std::vector<std::uint8_t>& into);

struct RecordFile {
  std::string name;
  std::size_t records;  ///< of the published data set; a subset's file holds fewer
};

/// Labels, then the red, green and blue planes by rows.
struct RecordLayout {
  ImageSize size;
  std::size_t labels = 1;  ///< bytes before the pixels, of which the last is the label
  int classes = 10;

  constexpr std::size_t bytes() const { return labels + image_bytes(size); }
};

inline constexpr ImageSize cifar_size{32, 32};
inline constexpr RecordLayout cifar10_layout{cifar_size, 1, 10};
inline constexpr RecordLayout cifar100_layout{cifar_size, 2, 100};  // of superclass and class
inline constexpr ImageSize stl10_size{96, 96};

/// Images from several files, one behind the other.
struct PlanarRecords {
  std::vector<RecordFile> files;     ///< with their paths, and the records they hold
  std::vector<std::uint8_t> pixels;  ///< image_bytes(size) for each, planes by rows
  std::vector<std::uint8_t> labels;
};

/// Reads the files in order. Throws std::runtime_error with path, bytes found and bytes expected
/// for one that is missing or does not hold whole records, 1 to the published number of them; with
/// path and record for a label that is no class.
PlanarRecords read_records(const std::filesystem::path& folder, std::span<const RecordFile> files,
                           const RecordLayout& layout);

/// A data set that is held in memory.
class PlanarImages final : public Dataset {
 public:
  PlanarImages(std::string title, std::vector<std::string> classes, ImageSize size,
               PlanarRecords records);

  std::size_t size() const override { return records_.labels.size(); }
  int label(std::size_t index) const override { return records_.labels[index]; }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override;
  /// "<file>, record <number from 0>".
  std::string where(std::size_t index) const override;

 private:
  ImageSize size_;
  PlanarRecords records_;
};

/// The files of a whole data set.
struct RecordSet {
  DataKind kind;
  std::string title;
  RecordLayout layout;
  std::vector<RecordFile> training;
  std::vector<RecordFile> validation;
  std::vector<std::string> classes;  ///< CIFAR-100: unnamed
};

const RecordSet& cifar10_records();
const RecordSet& cifar100_records();
/// The 1,797 handwritten digits of scikit-learn, as prepare_digits writes them.
const RecordSet& digits_records();

/// Class names, one a line. The digits are known by theirs; a folder without it is CIFAR-10.
inline constexpr const char* class_names_file = "batches.meta.txt";

/// Reads the files of CIFAR-10, CIFAR-100 (where there is a file train.bin) or the digits in this
/// folder. Throws as read_records() does, and where class names are none of these three's.
DataSets open_cifar(const std::filesystem::path& folder);

/// STL-10's parts for training and test; the folds and the unlabelled images are not used. Images
/// are read when they are wanted, so that ranks of one host share them in the page cache.
DataSets open_stl10(const std::filesystem::path& folder);

}  // namespace vision
