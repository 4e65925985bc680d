/// From an encoded image to RGB pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/image.h"

namespace vision {

class JpegDecoder;
class PngDecoder;

/// Decodes one image after the other and uses its memory again. Transparency is dropped, as
/// Pillow's convert("RGB") does; 16-bit samples keep their upper 8 bits.
///
/// Thread rule: one thread at a time; each worker has its own.
class Decoder {
 public:
  /// Of more pixels an image is refused before memory is taken for it. The default is where Pillow
  /// refuses, at twice its MAX_IMAGE_PIXELS: half a gigabyte.
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
  /// 1, 2, 4 or 8, else std::invalid_argument. std::logic_error where none is open. Throws BadImage
  /// for corrupt or truncated data; `into` then holds nothing of use.
  void decode(int denominator, Image& into);
  /// The same, but pixels outside of `wanted`, which is not empty and lies inside the decoded
  /// image, may hold anything: a JPEG's are not computed. Damage outside of it is found all the
  /// same. std::invalid_argument for another box.
  void decode(int denominator, const Box& wanted, Image& into);

 private:
  std::unique_ptr<JpegDecoder> jpeg_;
  std::unique_ptr<PngDecoder> png_;
  std::uint64_t most_pixels_;
  EncodedImage image_;  // the last that was opened
  std::string where_;
  ImageSize size_;
  bool is_open_ = false;
};

/// What is left of `size` after DCT scaling: each side divided by `denominator`, rounded up.
constexpr ImageSize scaled_size(ImageSize size, int denominator) {
  return {(size.width + denominator - 1) / denominator,
          (size.height + denominator - 1) / denominator};
}

}  // namespace vision
