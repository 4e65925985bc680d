#include "examples/vision/data/transform.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace vision {
namespace {

// Of one direction: what part of a scaled image becomes which part of the output.
Axis axis(int crop_start, int crop_length, int denominator, int source_length, int resized,
          int window_start, int window_length) {
  const double from = static_cast<double>(crop_start) / denominator;
  const double to = static_cast<double>(crop_start + crop_length) / denominator;
  return narrowed({.from = from,
                   .to = to,
                   .low = static_cast<int>(std::floor(from)),
                   .high = std::min(source_length, static_cast<int>(std::ceil(to))),
                   .size = resized,
                   .begin = std::clamp(window_start, 0, resized),
                   .end = std::clamp(window_start + window_length, 0, resized)});
}

struct Axes {
  Axis horizontal;
  Axis vertical;
};

// `source`: of the image that is decoded to 1/`denominator`.
Axes axes(const Placement& placement, int denominator, ImageSize source) {
  const auto& [crop, resized, window, flip] = placement;
  return {axis(crop.left, crop.width, denominator, source.width, resized.width, window.left,
               window.width),
          axis(crop.top, crop.height, denominator, source.height, resized.height, window.top,
               window.height)};
}

// What is read of the image. A window beside the image needs nothing of it.
Box box(const Axes& axes) {
  const auto& [horizontal, vertical] = axes;
  return {horizontal.low, vertical.low, std::max(1, horizontal.high - horizontal.low),
          std::max(1, vertical.high - vertical.low)};
}

}  // namespace

Transform::Transform(const TransformOptions& options)
    : options_(options), output_(vision::output_size(options.geometry)) {
  check(options.jitter);
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    const float deviation = options.normalisation.deviation[channel];
    if (!(deviation > 0)) {
      throw std::invalid_argument("The normalisation's deviation of channel " +
                                  std::to_string(channel) + " is " + std::to_string(deviation) +
                                  "; expected a number above 0");
    }
    scale_[channel] = 1.0F / (255.0F * deviation);
    shift_[channel] = -options.normalisation.mean[channel] / deviation;
  }
}

void Transform::apply(const EncodedImage& image, std::string where, Random random, float* out) {
  const ImageSize size = decoder_.open(image, std::move(where));
  const Placement placement = place(options_.geometry, options_.flip, size, random);
  ColourChanges changes;
  if (options_.jitter.enabled()) {
    changes = draw(options_.jitter, random);
  }
  const int denominator =
      decoder_.supported(options_.scaled_decoding ? largest_denominator(placement) : 1);
  decoder_.decode(denominator, box(axes(placement, denominator, scaled_size(size, denominator))),
                  decoded_);
  apply(decoded_, denominator, placement, changes, out);
}

void Transform::apply(const Image& source, int denominator, const Placement& placement,
                      const ColourChanges& changes, float* out) {
  const auto& [crop, resized, window, flip] = placement;
  const auto [horizontal, vertical] = axes(placement, denominator, source.size);
  resampler_.start(source, horizontal, vertical);

  // Of the window, what lies on the image.
  const int left = horizontal.begin - window.left;
  const int top = vertical.begin - window.top;
  const int bottom = vertical.end - window.top;
  const bool jitter = options_.jitter.enabled();
  const std::size_t row_bytes = image_channels * static_cast<std::size_t>(output_.width);
  placed_.size = {output_.width, jitter ? output_.height : 1};
  placed_.pixels.resize(image_bytes(placed_.size));
  for (int row = 0; row < output_.height; ++row) {
    std::uint8_t* pixels =
        placed_.pixels.data() + (jitter ? static_cast<std::size_t>(row) * row_bytes : 0);
    if (row < top || row >= bottom || horizontal.begin >= horizontal.end) {
      std::memset(pixels, 0, row_bytes);
    } else {
      if (horizontal.end - horizontal.begin < output_.width) {
        std::memset(pixels, 0, row_bytes);
      }
      resampler_.next_row(pixels + image_channels * static_cast<std::size_t>(left));
    }
    if (!jitter) {
      write_row(pixels, flip, row, out);
    }
  }
  if (jitter) {
    vision::apply(changes, placed_);
    for (int row = 0; row < output_.height; ++row) {
      write_row(&placed_.pixels[static_cast<std::size_t>(row) * row_bytes], flip, row, out);
    }
  }
}

void Transform::write_row(const std::uint8_t* pixels, bool flip, int row, float* out) const {
  const auto width = static_cast<std::size_t>(output_.width);
  const std::size_t plane = width * static_cast<std::size_t>(output_.height);
  const bool planes = options_.layout == Layout::channels_first;
  const std::size_t row_start = static_cast<std::size_t>(row) * width;
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    const float scale = scale_[channel];
    const float shift = shift_[channel];
    float* to =
        planes ? out + channel * plane + row_start : out + image_channels * row_start + channel;
    const std::size_t step = planes ? 1 : image_channels;
    const std::uint8_t* from = pixels + channel;
    if (flip) {
      for (std::size_t column = 0; column < width; ++column) {
        to[column * step] =
            static_cast<float>(from[image_channels * (width - 1 - column)]) * scale + shift;
      }
    } else {
      for (std::size_t column = 0; column < width; ++column) {
        to[column * step] = static_cast<float>(from[image_channels * column]) * scale + shift;
      }
    }
  }
}

}  // namespace vision
