/// From stored pixels to the network's input: random crop, flip, normalisation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "examples/cifar10/data_source.h"

namespace cifar10 {

/// How one image is placed. The default leaves it as it is.
struct Placement {
  int down = 0;   ///< rows by which the image moves; what it leaves is black
  int right = 0;  ///< columns
  bool flip = false;
  bool operator==(const Placement&) const = default;
};

/// A random crop of the image in its padding, that is a move by -crop_padding .. crop_padding in
/// both directions, and a flip with chance 1/2 where the source may be flipped. Depends on (seed,
/// epoch, image) alone: not on the rank that draws.
Placement draw_placement(const DataSource& source, std::uint64_t seed, std::uint64_t epoch,
                         std::size_t image);

/// Writes the image's planes as (value / 255 - mean) / deviation, image_bytes floats. Black, where
/// the image has moved away, is the value 0, normalised like the rest.
void write_image(std::span<const std::uint8_t, image_bytes> pixels, const Placement& placement,
                 const Normalisation& normalisation, float* out);

}  // namespace cifar10
