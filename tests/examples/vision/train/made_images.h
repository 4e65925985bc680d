/// Images for tests, whose classes a small network learns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/transform.h"

namespace vision::test {

/// Images of 8x8 pixels in six classes: noise, and a bright row whose number is the class.
class MadeImages : public Dataset {
 public:
  static constexpr int side = 8;
  static constexpr int class_count = 6;

  /// `bad`: an image that cannot be read.
  explicit MadeImages(std::size_t images, std::optional<std::size_t> bad = {})
      : Dataset("made images", {"a", "b", "c", "d", "e", "f"}),
        size_(images),
        bad_(bad),
        pixels_(images * image_bytes(image_size)) {
    Random random{1};
    for (std::size_t index = 0; index < images; ++index) {
      std::uint8_t* const image = pixels_.data() + index * image_bytes(image_size);
      for (std::size_t i = 0; i < image_bytes(image_size); ++i) {
        const bool bright = i / side % side == static_cast<std::size_t>(label(index));
        image[i] = static_cast<std::uint8_t>(random.below(128) + (bright ? 127 : 0));
      }
    }
  }

  std::size_t size() const override { return size_; }
  int label(std::size_t index) const override { return static_cast<int>(index % class_count); }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>&) const override {
    if (index == bad_) throw BadImage(where(index), "made to be bad");
    const std::size_t bytes = image_bytes(image_size);
    return {ImageFormat::planar_rgb, {pixels_.data() + index * bytes, bytes}, image_size};
  }
  std::string where(std::size_t index) const override { return "image " + std::to_string(index); }

  static TransformOptions transform() {
    return {.geometry = Resize{image_size}, .normalisation = {{.5F, .5F, .5F}, {.3F, .3F, .3F}}};
  }

 private:
  static constexpr ImageSize image_size{side, side};
  std::size_t size_;
  std::optional<std::size_t> bad_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace vision::test
