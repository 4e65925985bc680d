/// From an encoded image to RGB pixels, by libjpeg-turbo and libpng.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "examples/vision/data/dataset.h"

namespace vision {

/// Decodes one image after the other and uses its memory again. Pixels are those of Pillow's
/// convert("RGB"): transparency is dropped; but 16-bit samples keep their upper 8 bits.
///
/// Thread rule: one thread at a time; each worker has its own.
class Decoder {
 public:
  /// Twice Pillow's MAX_IMAGE_PIXELS, where Pillow refuses: half a gigabyte.
  static constexpr std::uint64_t default_most_pixels = 178'956'970;

  /// Refuses an image of more pixels before memory is taken for it.
  explicit Decoder(std::uint64_t most_pixels = default_most_pixels);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  /// Reads the header and returns the whole image's size. `image.bytes` stay as they are until
  /// decode() has returned. Throws BadImage, which begins with `where`, for bytes that are no such
  /// image or an image of too many pixels.
  ImageSize open(const EncodedImage& image, std::string where);

  /// The denominator with which decode(denominator) will decode the open image: a JPEG's DCT can be
  /// scaled to a half, a quarter and an eighth; for other formats this is 1.
  int supported(int denominator) const;

  /// Decodes the open image, once, to scaled_size(size, supported(denominator)). Throws BadImage
  /// for corrupt or truncated data, also where libjpeg only warns of them.
  void decode(int denominator, Image& into);

 private:
  struct Libraries;

  template <class Call>
  void named(const Call& call) const;

  std::unique_ptr<Libraries> libraries_;
  std::uint64_t most_pixels_;
  EncodedImage image_;  // the last that was opened
  std::string where_;
  ImageSize size_;
};

/// `size` after DCT scaling: each side divided by `denominator`, rounded up.
constexpr ImageSize scaled_size(ImageSize size, int denominator) {
  return {(size.width + denominator - 1) / denominator,
          (size.height + denominator - 1) / denominator};
}

}  // namespace vision
