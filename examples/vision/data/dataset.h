/// Labelled images, still encoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/vision/data/image.h"

namespace vision {

/// One image cannot be read or decoded. The text begins with where it lies: its path, or file and
/// record.
class BadImage : public std::runtime_error {
 public:
  BadImage(const std::string& where, const std::string& what)
      : std::runtime_error(where + ": " + what) {}
  /// `text` begins so already.
  explicit BadImage(const std::string& text) : std::runtime_error(text) {}
};

enum class ImageFormat {
  jpeg,
  png,
  planar_rgb,  ///< the red, then the green, then the blue plane, each by rows, a byte a pixel
};

struct EncodedImage {
  ImageFormat format = ImageFormat::planar_rgb;
  std::span<const std::uint8_t> bytes;
  ImageSize size;  ///< of planar_rgb; a file's stands in its header, and here is 0 x 0
};

/// Thread rule: any thread, all functions.
class Dataset {
 public:
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  /// For people, such as "CIFAR-10"; of fewer images than the published ones it says so.
  const std::string& title() const { return title_; }
  /// The classes' names in the order of their labels.
  const std::vector<std::string>& classes() const { return classes_; }

  virtual std::size_t size() const = 0;
  /// 0 to classes().size() - 1; `index` is below size(), here and below.
  virtual int label(std::size_t index) const = 0;
  /// The image as it is stored. Its bytes lie in the data set's own memory or were read into
  /// `memory`, which keeps its capacity from call to call; they stay valid until `memory` changes
  /// and while the data set lives. Throws BadImage where a file has vanished or cannot be read.
  virtual EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const = 0;
  /// Where the image lies: a path, or file and record.
  virtual std::string where(std::size_t index) const = 0;

 protected:
  Dataset(std::string title, std::vector<std::string> classes)
      : title_(std::move(title)), classes_(std::move(classes)) {}

 private:
  std::string title_;
  std::vector<std::string> classes_;
};

}  // namespace vision
