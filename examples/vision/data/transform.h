/// From an encoded image to a network's input: crops, sizes, flips and normalisation.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/decoder.h"
#include "examples/vision/data/random.h"

namespace vision {

/// torchvision's RandomResizedCrop with its scale and ratio: a part of the image, of random area
/// and aspect ratio, resized to a square (Szegedy et al., Going deeper with convolutions, section
/// 6).
struct RandomResizedCrop {
  int size = 224;
};

/// torchvision's RandomCrop(size, padding): a part of the image in a border of black. Where image
/// and border are smaller than the crop, the image is put in its middle.
struct RandomCrop {
  ImageSize size;
  int padding = 0;
};

/// torchvision's Resize(shorter_side), then CenterCrop(size).
struct CentreCrop {
  int shorter_side = 256;
  int size = 224;
};

/// torchvision's Resize((height, width)): the whole image, its aspect ratio not kept.
struct Resize {
  ImageSize size;
};

using Geometry = std::variant<RandomResizedCrop, RandomCrop, CentreCrop, Resize>;

/// The output's size, which is the same for all images.
ImageSize output_size(const Geometry& geometry);

/// The image's `crop` is resized to `resized`; the output is `window` of that, black where the
/// window reaches beyond it, and mirrored at last.
struct Placement {
  Box crop;
  ImageSize resized;
  Box window;
  bool flip = false;

  bool operator==(const Placement&) const = default;
};

/// Draws what is random from `random`; `flip`: mirrored with chance 1/2.
Placement place(const Geometry& geometry, bool flip, ImageSize image, Random& random);

/// The largest of 8, 4, 2 and 1 by which the image can be divided while the crop keeps at least 1.5
/// times the resized size in both directions.
int largest_denominator(const Placement& placement);

/// Moments of pixel values divided by 255, for each channel.
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
  Normalisation normalisation = {};
  Layout layout = Layout::channels_first;
};

/// For each wanted output pixel of one axis, which source pixels it is made of, and their weights,
/// which sum to 1: a triangle of half-width max(1, scale) around the output pixel's centre, which
/// is what Pillow's Image.resize(BILINEAR) takes.
struct AxisWeights {
  struct Taps {
    int first;  ///< source pixel
    int count;  ///< at least 1
    std::size_t weights;
  };
  std::vector<Taps> taps;
  std::vector<float> weights;
};

/// Writes (value / 255 - mean) / deviation. Pixels are torchvision's on PIL images: the same crop
/// and antialiased bilinear resize, in 8 bits. A large JPEG is decoded to a half, a quarter or an
/// eighth of its size where largest_denominator() allows: pixels of photographs then differ by less
/// than 2/255 on average from those of the whole image.
///
/// Thread rule: one thread at a time; each worker has its own.
class Transform {
 public:
  explicit Transform(const TransformOptions& options);

  ImageSize output_size() const { return output_; }
  /// Size of one image, in floats.
  std::size_t output_floats() const { return image_bytes(output_); }

  /// Decodes `image` and writes output_floats() floats. Throws BadImage, beginning with `where`;
  /// `out` is then undefined.
  void apply(const EncodedImage& image, std::string where, Random random, float* out);

  /// The same from pixels that are decoded already: `source` is 1/`denominator` of the image that
  /// `placement` speaks of.
  void apply(const Image& source, int denominator, const Placement& placement, float* out);

 private:
  void resample(const Image& source, int denominator, const Placement& placement);
  void normalise(bool flip, float* out) const;

  TransformOptions options_;
  ImageSize output_;
  Decoder decoder_;
  Image decoded_;
  AxisWeights columns_;
  AxisWeights rows_;
  std::vector<float> line_;           // a source row, and the sums of an output row
  std::vector<std::uint8_t> wide_;    // source rows after the horizontal pass
  std::vector<std::uint8_t> placed_;  // the output in 8 bits
};

}  // namespace vision
