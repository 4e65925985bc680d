/// Images for tests, whose classes a small network learns, of which some are bad.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <stdexcept>
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

  explicit MadeImages(std::size_t images)
      : Dataset("made images", {"a", "b", "c", "d", "e", "f"}),
        size_(images),
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
    if (bad.contains(index)) throw BadImage(where(index), "made to be bad");
    if (index == failing) throw std::logic_error("made to fail");
    ++reads;
    const std::size_t bytes = image_bytes(image_size);
    return {ImageFormat::planar_rgb, {pixels_.data() + index * bytes, bytes}, image_size};
  }
  std::string where(std::size_t index) const override { return "image " + std::to_string(index); }

  std::set<std::size_t> bad;       ///< cannot be read
  std::size_t failing = SIZE_MAX;  ///< ends the program's reading otherwise
  mutable std::atomic<int> reads{0};

  static TransformOptions transform() {
    return {.geometry = Resize{image_size}, .normalisation = {{.5F, .5F, .5F}, {.3F, .3F, .3F}}};
  }

 private:
  static constexpr ImageSize image_size{side, side};
  std::size_t size_;
  std::vector<std::uint8_t> pixels_;
};

inline std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> samples(count);
  std::iota(samples.begin(), samples.end(), std::size_t{0});
  return samples;
}

}  // namespace vision::test
