/// STL-10's binary version (https://cs.stanford.edu/~acoates/stl10).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/vision/data/data_sets.h"
#include "examples/vision/data/input_file.h"

namespace vision {

inline constexpr ImageSize stl10_size{96, 96};
inline constexpr std::size_t stl10_training_images = 5000;
inline constexpr std::size_t stl10_validation_images = 8000;

/// One part: train_X.bin and train_y.bin, or test_X.bin and test_y.bin. A label's byte is 1 for the
/// first class; an image is the red, green and blue plane, each column by column. Images are read
/// when they are wanted, so that ranks of one host share them in the page cache.
class Stl10 final : public Dataset {
 public:
  struct Part {
    std::string name;    ///< "train" or "test"
    std::size_t images;  ///< of the published part; there may be fewer
  };
  /// Throws std::runtime_error naming the file: as InputFile and count_records() do, where the two
  /// hold different numbers, and for a label that is no class, with its number.
  Stl10(std::string title, std::vector<std::string> classes, const std::filesystem::path& folder,
        const Part& part);

  std::size_t size() const override { return labels_.size(); }
  int label(std::size_t index) const override { return labels_[index] - 1; }
  /// Transposed to rows.
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override;
  std::string where(std::size_t index) const override;

 private:
  std::filesystem::path path_;
  InputFile images_;
  std::vector<std::uint8_t> labels_;  // as in the file
};

/// The parts for training and test, with the names in class_names.txt. The folds and the unlabelled
/// images are not used. Throws std::runtime_error as Stl10 does, and where there are not 10 names.
DataSets open_stl10(const std::filesystem::path& folder);

}  // namespace vision
