/// From an encoded image to RGB pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/image.h"

namespace vision {

/// Decodes one image after the other and uses its memory again. Transparency is dropped, as
/// Pillow's convert("RGB") does; 16-bit samples keep their upper 8 bits.
///
/// Thread rule: one thread at a time; each worker has its own.
class Decoder {
 public:
  /// An image of more pixels is refused before memory is taken for it: what 178 million take is
  /// half a gigabyte. The default is the limit at which Pillow refuses, twice its
  /// MAX_IMAGE_PIXELS.
  static constexpr std::uint64_t default_most_pixels = 178'956'970;

  explicit Decoder(std::uint64_t most_pixels = default_most_pixels);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  /// Reads the header and gives the whole image's size. `image.bytes` stay as they are until
  /// decode() has returned or another image is opened. Throws BadImage, which begins with `where`,
  /// for bytes that are no such image or an image of too many pixels.
  ImageSize open(const EncodedImage& image, std::string where);

  /// The denominator with which decode(denominator) will decode the open image: a JPEG's DCT can
  /// be scaled to a half, a quarter and an eighth; for other formats this is 1.
  int supported(int denominator) const;

  /// Decodes the open image, once, to scaled_size(size, supported(denominator)). `denominator` is
  /// 1, 2, 4 or 8, else std::invalid_argument. Throws BadImage for corrupt or truncated data;
  /// `into` then holds nothing of use.
  void decode(int denominator, Image& into);

 private:
  class Format;
  class Jpeg;
  class Png;
  class Planar;

  std::unique_ptr<Jpeg> jpeg_;
  std::unique_ptr<Png> png_;
  std::unique_ptr<Planar> planar_;
  Format* open_ = nullptr;  // one of the three
  std::string where_;
  std::uint64_t most_pixels_;
};

/// What is left of `size` after DCT scaling: each side divided by `denominator`, rounded up.
constexpr ImageSize scaled_size(ImageSize size, int denominator) {
  return {(size.width + denominator - 1) / denominator,
          (size.height + denominator - 1) / denominator};
}

}  // namespace vision
