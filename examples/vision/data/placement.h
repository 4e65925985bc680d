/// Where an output's pixels come from: crops, sizes and flips, as values.
#pragma once

#include <array>
#include <variant>

#include "examples/vision/data/image.h"
#include "examples/vision/data/random.h"
#include "examples/vision/data/resample.h"

namespace vision {

/// torchvision's RandomResizedCrop: a part of the image, of random area and aspect ratio, resized
/// to a square (Szegedy et al., Going deeper with convolutions, section 6).
struct RandomResizedCrop {
  int size = 224;
  std::array<double, 2> scale{0.08, 1};               ///< of the image's area
  std::array<double, 2> ratio{3.0 / 4.0, 4.0 / 3.0};  ///< width / height
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

/// The image's `crop` is resized to `resized`; the output is `window` of that, black where the
/// window reaches beyond it, and mirrored at last.
struct Placement {
  Box crop;
  ImageSize resized;
  Box window;
  bool flip = false;

  bool operator==(const Placement&) const = default;
};

/// The output's size, which is the same for all images. Throws std::invalid_argument, naming the
/// value, for a size below 1, an empty interval and the like.
ImageSize output_size(const Geometry& geometry);

/// Draws what is random from `random`; `flip`: mirrored with chance 1/2.
Placement place(const Geometry& geometry, bool flip, ImageSize image, Random& random);

/// The largest of 8, 4, 2 and 1 by which the image can be divided while the crop keeps at least 1.5
/// times the resized size in both directions.
int largest_denominator(const Placement& placement);

}  // namespace vision
