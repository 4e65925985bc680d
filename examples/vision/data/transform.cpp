#include "examples/vision/data/transform.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace vision {
namespace {

int uniform_int(Random& random, int bound) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(bound)));
}

// To the nearest even, as Python's round().
int rounded(double value) {
  return static_cast<int>(std::nearbyint(value));
}

// get_params of torchvision's RandomResizedCrop.
Box random_part(ImageSize image, Random& random) {
  constexpr double narrowest = 3.0 / 4.0;  // width / height
  constexpr double widest = 4.0 / 3.0;
  const double area = static_cast<double>(image.width) * image.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * random.uniform(0.08, 1);
    const double ratio = std::exp(random.uniform(std::log(narrowest), std::log(widest)));
    const int width = rounded(std::sqrt(part * ratio));
    const int height = rounded(std::sqrt(part / ratio));
    if (width > 0 && width <= image.width && height > 0 && height <= image.height) {
      const int top = uniform_int(random, image.height - height + 1);
      const int left = uniform_int(random, image.width - width + 1);
      return {left, top, width, height};
    }
  }
  // The largest part in the middle whose ratio is allowed.
  Box part = whole(image);
  const double ratio = static_cast<double>(image.width) / image.height;
  if (ratio < narrowest) {
    part.height = rounded(image.width / narrowest);
  } else if (ratio > widest) {
    part.width = rounded(image.height * widest);
  }
  part.width = std::max(1, part.width);
  part.height = std::max(1, part.height);
  part.left = (image.width - part.width) / 2;
  part.top = (image.height - part.height) / 2;
  return part;
}

Placement placed(const RandomResizedCrop& geometry, ImageSize image, Random& random) {
  const ImageSize size{geometry.size, geometry.size};
  return {.crop = random_part(image, random), .resized = size, .window = whole(size)};
}

Placement placed(const RandomCrop& geometry, ImageSize image, Random& random) {
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
Placement placed(const CentreCrop& geometry, ImageSize image, Random& /*random*/) {
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
                                : rounded((side - geometry.size) / 2.0);
  };
  return {.crop = whole(image),
          .resized = resized,
          .window = {start(resized.width), start(resized.height), geometry.size, geometry.size}};
}

Placement placed(const Resize& geometry, ImageSize image, Random& /*random*/) {
  return {.crop = whole(image), .resized = geometry.size, .window = whole(geometry.size)};
}

// The source's interval [from, to), in source pixels, of which there are `source`, becomes `size`
// output pixels, of which [begin, end) are wanted. The formula of Pillow's precompute_coeffs
// (libImaging/Resample.c) for its bilinear filter.
void prepare(AxisWeights& axis, double from, double to, int source, int size, int begin, int end) {
  axis.taps.clear();
  axis.weights.clear();
  const double scale = (to - from) / size;
  const double half_width = std::max(1.0, scale);
  const int low = static_cast<int>(std::floor(from));
  const int high = std::min(source, static_cast<int>(std::ceil(to)));
  for (int output = begin; output < end; ++output) {
    const double centre = from + (output + 0.5) * scale;
    const int first = std::max(low, static_cast<int>(std::floor(centre - half_width + 0.5)));
    const int last = std::min(high, static_cast<int>(std::floor(centre + half_width + 0.5)));
    const auto weight = [&](int pixel) {
      return std::max(0.0, 1.0 - std::abs(pixel - centre + 0.5) / half_width);
    };
    double sum = 0;
    for (int pixel = first; pixel < last; ++pixel) sum += weight(pixel);
    axis.taps.push_back({first, last - first, axis.weights.size()});
    for (int pixel = first; pixel < last; ++pixel) {
      axis.weights.push_back(static_cast<float>(weight(pixel) / sum));
    }
  }
}

// Red, green, blue and one more value, which counts for nothing.
using FourFloats = float __attribute__((vector_size(16)));

FourFloats load(const float* from) {
  FourFloats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

std::size_t floats(int pixels) {
  return image_channels * static_cast<std::size_t>(pixels);
}

}  // namespace

ImageSize output_size(const Geometry& geometry) {
  return std::visit(
      [](const auto& of) {
        if constexpr (std::is_same_v<decltype(of.size), int>) {
          return ImageSize{of.size, of.size};
        } else {
          return of.size;
        }
      },
      geometry);
}

Placement place(const Geometry& geometry, bool flip, ImageSize image, Random& random) {
  Placement placement =
      std::visit([&](const auto& of) { return placed(of, image, random); }, geometry);
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

Transform::Transform(const TransformOptions& options)
    : options_(options), output_(vision::output_size(options.geometry)) {}

void Transform::apply(const EncodedImage& image, std::string where, Random random, float* out) {
  const ImageSize size = decoder_.open(image, std::move(where));
  const Placement placement = place(options_.geometry, options_.flip, size, random);
  const int denominator = decoder_.supported(largest_denominator(placement));
  decoder_.decode(denominator, decoded_);
  apply(decoded_, denominator, placement, out);
}

void Transform::apply(const Image& source, int denominator, const Placement& placement,
                      float* out) {
  resample(source, denominator, placement);
  normalise(placement.flip, out);
}

// The horizontal pass comes first and is rounded to whole values, as Pillow's is, so that the
// pixels are Pillow's but for ties in the last rounding.
void Transform::resample(const Image& source, int denominator, const Placement& placement) {
  const auto& [crop, resized, window, flip] = placement;
  const auto scaled = [&](int edge) { return static_cast<double>(edge) / denominator; };
  // The part of the window that lies on the image.
  const int left = std::clamp(window.left, 0, resized.width);
  const int top = std::clamp(window.top, 0, resized.height);
  prepare(columns_, scaled(crop.left), scaled(crop.left + crop.width), source.size.width,
          resized.width, left, std::clamp(window.left + window.width, 0, resized.width));
  prepare(rows_, scaled(crop.top), scaled(crop.top + crop.height), source.size.height,
          resized.height, top, std::clamp(window.top + window.height, 0, resized.height));
  placed_.assign(image_bytes(output_), 0);
  if (columns_.taps.empty() || rows_.taps.empty()) return;

  const int first_column = columns_.taps.front().first;
  const int first_row = rows_.taps.front().first;
  const int end_row = rows_.taps.back().first + rows_.taps.back().count;
  const std::size_t source_values =
      floats(columns_.taps.back().first + columns_.taps.back().count - first_column);
  const std::size_t row_values = image_channels * columns_.taps.size();
  wide_.resize(row_values * static_cast<std::size_t>(end_row - first_row));
  line_.resize(std::max(source_values + 1, row_values));
  std::uint8_t* wide = wide_.data();
  for (int row = first_row; row < end_row; ++row) {
    const std::uint8_t* pixels =
        source.pixels.data() + image_bytes({source.size.width, row}) + floats(first_column);
    std::copy_n(pixels, source_values, line_.begin());
    for (const AxisWeights::Taps& taps : columns_.taps) {
      const float* from = &line_[floats(taps.first - first_column)];
      const float* weights = &columns_.weights[taps.weights];
      FourFloats sum = weights[0] * load(from);
      for (int tap = 1; tap < taps.count; ++tap) sum += weights[tap] * load(from + floats(tap));
      for (std::size_t channel = 0; channel < image_channels; ++channel) {
        *wide++ = static_cast<std::uint8_t>(static_cast<int>(sum[channel] + 0.5F));
      }
    }
  }
  std::uint8_t* out =
      placed_.data() + image_bytes({output_.width, top - window.top}) + floats(left - window.left);
  float* const sums = line_.data();
  for (const AxisWeights::Taps& taps : rows_.taps) {
    std::fill_n(sums, row_values, 0.5F);
    for (int tap = 0; tap < taps.count; ++tap) {
      const std::uint8_t* row =
          &wide_[row_values * static_cast<std::size_t>(taps.first + tap - first_row)];
      const float weight = rows_.weights[taps.weights + static_cast<std::size_t>(tap)];
      for (std::size_t i = 0; i < row_values; ++i) {
        sums[i] += weight * static_cast<float>(row[i]);
      }
    }
    for (std::size_t i = 0; i < row_values; ++i) {
      out[i] = static_cast<std::uint8_t>(static_cast<int>(sums[i]));
    }
    out += floats(output_.width);
  }
}

void Transform::normalise(bool flip, float* out) const {
  const auto width = static_cast<std::size_t>(output_.width);
  const auto height = static_cast<std::size_t>(output_.height);
  const bool planes = options_.layout == Layout::channels_first;
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    const float deviation = options_.normalisation.deviation[channel];
    const float scale = 1.0F / (255.0F * deviation);
    const float shift = -options_.normalisation.mean[channel] / deviation;
    float* to = planes ? out + channel * width * height : out + channel;
    const std::size_t step = planes ? 1 : image_channels;
    for (std::size_t row = 0; row < height; ++row) {
      const std::uint8_t* from = &placed_[row * floats(output_.width) + channel];
      for (std::size_t column = 0; column < width; ++column) {
        const std::size_t place = flip ? width - 1 - column : column;
        *to = static_cast<float>(from[image_channels * place]) * scale + shift;
        to += step;
      }
    }
  }
}

}  // namespace vision
