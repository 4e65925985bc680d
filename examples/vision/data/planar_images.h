/// Images of one size in memory, as planes of red, green and blue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/vision/data/dataset.h"

namespace vision {

/// Images from several files, one behind the other.
struct PlanarRecords {
  struct File {
    std::string name;  ///< as errors show it
    std::size_t records;
  };
  std::vector<File> files;
  std::vector<std::uint8_t> pixels;  ///< image_bytes(size) for each, planes by rows
  std::vector<std::uint8_t> labels;
};

/// A data set that is held in memory.
class PlanarImages final : public Dataset {
 public:
  /// std::logic_error where the counts of files, labels and pixels differ.
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

}  // namespace vision
