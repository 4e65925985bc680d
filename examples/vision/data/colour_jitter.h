/// Random changes of brightness, contrast, saturation and hue.
#pragma once

#include <array>

#include "examples/vision/data/image.h"
#include "examples/vision/data/random.h"

namespace vision {

/// torchvision's ColorJitter: factors are drawn from [max(0, 1 - x), 1 + x], the hue's move from
/// [-hue, hue] turns of the colour wheel.
struct ColourJitter {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;  ///< at most 0.5

  bool enabled() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

enum class ColourChange { brightness, contrast, saturation, hue };

/// What one image gets, in the order in which it is applied.
struct ColourChanges {
  std::array<ColourChange, 4> order{ColourChange::brightness, ColourChange::contrast,
                                    ColourChange::saturation, ColourChange::hue};
  double brightness = 1;
  double contrast = 1;
  double saturation = 1;
  double hue = 0;
};

/// Throws std::invalid_argument, naming the value, for a negative one and for a hue above 0.5.
void check(const ColourJitter& jitter);

ColourChanges draw(const ColourJitter& jitter, Random& random);

/// Changes all pixels, with Pillow's arithmetic on 8-bit values: ImageEnhance's Brightness,
/// Contrast and Color (a blend with black, with the mean grey, with each pixel's grey; grey is
/// ITU-R 601-2 luma), and a move of H in 8-bit HSV.
void apply(const ColourChanges& changes, Image& image);

}  // namespace vision
