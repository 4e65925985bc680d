/// From an encoded image to a network's input.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "examples/vision/data/colour_jitter.h"
#include "examples/vision/data/dataset.h"
#include "examples/vision/data/decoder.h"
#include "examples/vision/data/placement.h"
#include "examples/vision/data/random.h"

namespace vision {

/// Of pixel values divided by 255, for each channel.
struct Normalisation {
  std::array<float, image_channels> mean{0, 0, 0};
  std::array<float, image_channels> deviation{1, 1, 1};
};

/// ImageNet's, which torchvision's models expect.
inline constexpr Normalisation imagenet_normalisation{{0.485F, 0.456F, 0.406F},
                                                      {0.229F, 0.224F, 0.225F}};

enum class Layout {
  channels_first,  ///< the three planes one after the other (CHW)
  channels_last,   ///< the three values of a pixel side by side (HWC)
};

struct TransformOptions {
  Geometry geometry = {};
  bool flip = false;  ///< mirrored with chance 1/2
  ColourJitter jitter = {};
  Normalisation normalisation = {};
  Layout layout = Layout::channels_first;
  /// Large JPEGs are decoded to a half, a quarter or an eighth of their size where the resize that
  /// remains is still one to two thirds or less. Pixels of photographs then differ by less than
  /// 2/255 on average from those of the whole image.
  bool scaled_decoding = true;
};

/// Writes (value / 255 - mean) / deviation. Pixels are torchvision's on PIL images: the same crop,
/// antialiased bilinear resize and colour arithmetic, in 8 bits.
///
/// Thread rule: one thread at a time; each worker has its own.
class Transform {
 public:
  /// Throws std::invalid_argument, naming the value, for options out of their range.
  explicit Transform(const TransformOptions& options);

  ImageSize output_size() const { return output_; }
  /// Of one image, in floats.
  std::size_t output_floats() const { return image_bytes(output_); }

  /// Decodes `image` and writes output_floats() floats. Throws BadImage, beginning with `where`;
  /// `out` is then undefined.
  void apply(const EncodedImage& image, std::string where, Random random, float* out);

  /// The same from pixels that are decoded already: `source` is 1/`denominator` of the image that
  /// `placement` speaks of.
  void apply(const Image& source, int denominator, const Placement& placement,
             const ColourChanges& changes, float* out);

 private:
  void write_row(const std::uint8_t* pixels, bool flip, int row, float* out) const;

  TransformOptions options_;
  ImageSize output_;
  std::array<float, image_channels> scale_{};
  std::array<float, image_channels> shift_{};
  Decoder decoder_;
  Image decoded_;
  Resampler resampler_;
  Image placed_;  // one row, or all of it where the colours change
};

}  // namespace vision
