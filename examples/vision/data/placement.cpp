#include "examples/vision/data/placement.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace vision {
namespace {

int uniform_int(Random& random, int bound) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(bound)));
}

// get_params of torchvision's RandomResizedCrop.
Box random_part(const RandomResizedCrop& geometry, ImageSize image, Random& random) {
  const double area = static_cast<double>(image.width) * image.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * random.uniform(geometry.scale[0], geometry.scale[1]);
    const double ratio =
        std::exp(random.uniform(std::log(geometry.ratio[0]), std::log(geometry.ratio[1])));
    const int width = static_cast<int>(std::nearbyint(std::sqrt(part * ratio)));
    const int height = static_cast<int>(std::nearbyint(std::sqrt(part / ratio)));
    if (width > 0 && width <= image.width && height > 0 && height <= image.height) {
      const int top = uniform_int(random, image.height - height + 1);
      const int left = uniform_int(random, image.width - width + 1);
      return {left, top, width, height};
    }
  }
  // The largest part in the middle whose ratio is allowed.
  Box part = whole(image);
  const double ratio = static_cast<double>(image.width) / image.height;
  if (ratio < geometry.ratio[0]) {
    part.height = static_cast<int>(std::nearbyint(image.width / geometry.ratio[0]));
  } else if (ratio > geometry.ratio[1]) {
    part.width = static_cast<int>(std::nearbyint(image.height * geometry.ratio[1]));
  }
  part.width = std::max(1, part.width);
  part.height = std::max(1, part.height);
  part.left = (image.width - part.width) / 2;
  part.top = (image.height - part.height) / 2;
  return part;
}

struct Placing {
  ImageSize image;
  Random& random;

  Placement operator()(const RandomResizedCrop& geometry) const {
    const ImageSize size{geometry.size, geometry.size};
    return {.crop = random_part(geometry, image, random), .resized = size, .window = whole(size)};
  }

  Placement operator()(const RandomCrop& geometry) const {
    const auto start = [&](int length, int wanted) {
      const int last = length + geometry.padding - wanted;
      const int places = last + geometry.padding + 1;
      return places < 1 ? (length - wanted) / 2 : last - uniform_int(random, places);
    };
    const int top = start(image.height, geometry.size.height);
    const int left = start(image.width, geometry.size.width);
    return {.crop = whole(image),
            .resized = image,
            .window = {left, top, geometry.size.width, geometry.size.height}};
  }

  // Rounding as in torchvision: the longer side down, the crop's place to the nearest even, and the
  // border, where the crop is larger, down.
  Placement operator()(const CentreCrop& geometry) const {
    const auto longer = [&](int side, int shortest) {
      // A strip one pixel wide would become longer than any image can be.
      constexpr std::int64_t longest = std::int64_t{1} << 28U;
      return static_cast<int>(
          std::min(longest, static_cast<std::int64_t>(geometry.shorter_side) * side / shortest));
    };
    const int shortest = std::min(image.width, image.height);
    const ImageSize resized{longer(image.width, shortest), longer(image.height, shortest)};
    const auto start = [&](int side) {
      return side < geometry.size ? -((geometry.size - side) / 2)
                                  : static_cast<int>(std::nearbyint((side - geometry.size) / 2.0));
    };
    return {.crop = whole(image),
            .resized = resized,
            .window = {start(resized.width), start(resized.height), geometry.size, geometry.size}};
  }

  Placement operator()(const Resize& geometry) const {
    return {.crop = whole(image), .resized = geometry.size, .window = whole(geometry.size)};
  }
};

void check_side(const char* what, int value) {
  if (value < 1) {
    throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) +
                                " pixels; expected at least 1");
  }
}

void check_interval(const char* what, const std::array<double, 2>& ends, double most) {
  if (!(ends[0] > 0 && ends[0] <= ends[1] && ends[1] <= most)) {
    throw std::invalid_argument(std::string("RandomResizedCrop: ") + what + " is " +
                                std::to_string(ends[0]) + " to " + std::to_string(ends[1]) +
                                "; expected two ascending numbers above 0 and up to " +
                                std::to_string(most));
  }
}

struct OutputSize {
  ImageSize operator()(const RandomResizedCrop& geometry) const {
    check_side("RandomResizedCrop: size", geometry.size);
    check_interval("scale", geometry.scale, 1);
    check_interval("ratio", geometry.ratio, 1000);
    return {geometry.size, geometry.size};
  }
  ImageSize operator()(const RandomCrop& geometry) const {
    check_side("RandomCrop: width", geometry.size.width);
    check_side("RandomCrop: height", geometry.size.height);
    if (geometry.padding < 0) {
      throw std::invalid_argument("RandomCrop: padding is " + std::to_string(geometry.padding) +
                                  "; expected 0 or more");
    }
    return geometry.size;
  }
  ImageSize operator()(const CentreCrop& geometry) const {
    check_side("CentreCrop: shorter_side", geometry.shorter_side);
    check_side("CentreCrop: size", geometry.size);
    return {geometry.size, geometry.size};
  }
  ImageSize operator()(const Resize& geometry) const {
    check_side("Resize: width", geometry.size.width);
    check_side("Resize: height", geometry.size.height);
    return geometry.size;
  }
};

}  // namespace

ImageSize output_size(const Geometry& geometry) {
  return std::visit(OutputSize{}, geometry);
}

Placement place(const Geometry& geometry, bool flip, ImageSize image, Random& random) {
  Placement placement = std::visit(Placing{image, random}, geometry);
  placement.flip = flip && random.below(2) == 1;
  return placement;
}

int largest_denominator(const Placement& placement) {
  const auto keeps = [](int crop, int resized, int denominator) {
    return 2 * std::int64_t{crop} >= 3 * std::int64_t{denominator} * resized;
  };
  int denominator = 8;
  while (denominator > 1 &&
         !(keeps(placement.crop.width, placement.resized.width, denominator) &&
           keeps(placement.crop.height, placement.resized.height, denominator))) {
    denominator /= 2;
  }
  return denominator;
}

}  // namespace vision
