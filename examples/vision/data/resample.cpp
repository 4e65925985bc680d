#include "examples/vision/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vision {
namespace {

// Red, green, blue and one more value, which counts for nothing.
using FourFloats = float __attribute__((vector_size(16)));

FourFloats load(const float* from) {
  FourFloats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

void store(FourFloats values, float* to) {
  std::memcpy(to, &values, sizeof values);
}

// The formula of Pillow's precompute_coeffs (libImaging/Resample.c) for its bilinear filter.
struct Triangle {
  explicit Triangle(const Axis& axis, int output)
      : half_width(std::max(1.0, scale_of(axis))),
        centre(axis.from + (output + 0.5) * scale_of(axis)),
        first(std::max(axis.low, static_cast<int>(std::floor(centre - half_width + 0.5)))),
        end(std::min(axis.high, static_cast<int>(std::floor(centre + half_width + 0.5)))) {}

  static double scale_of(const Axis& axis) { return (axis.to - axis.from) / axis.size; }
  double weight(int pixel) const {
    return std::max(0.0, 1.0 - std::abs(pixel - centre + 0.5) / half_width);
  }

  double half_width;
  double centre;
  int first;  // source pixel
  int end;
};

}  // namespace

Axis narrowed(Axis axis) {
  if (axis.begin < axis.end) {
    const int low = Triangle(axis, axis.begin).first;
    axis.high = Triangle(axis, axis.end - 1).end;
    axis.low = low;
  }
  return axis;
}

void AxisWeights::prepare(const Axis& axis) {
  if (axis == axis_) {
    return;
  }
  axis_ = axis;
  ranges_.clear();
  weights_.clear();
  for (int output = axis.begin; output < axis.end; ++output) {
    const Triangle triangle(axis, output);
    double sum = 0;
    for (int pixel = triangle.first; pixel < triangle.end; ++pixel) {
      sum += triangle.weight(pixel);
    }
    Range range{triangle.first, 0, weights_.size()};
    for (int pixel = triangle.first; pixel < triangle.end; ++pixel) {
      const double weight = triangle.weight(pixel);
      if (weight > 0) {
        weights_.push_back(static_cast<float>(weight / sum));
        ++range.count;
      } else if (range.count == 0) {
        ++range.first;
      }
    }
    ranges_.push_back(range);
  }
}

void Resampler::start(const Image& source, const Axis& horizontal, const Axis& vertical) {
  source_ = &source;
  horizontal_ = horizontal;
  columns_.prepare(horizontal);
  rows_.prepare(vertical);
  next_ = 0;
  row_floats_ = image_channels * static_cast<std::size_t>(horizontal.end - horizontal.begin);
  line_.resize(image_channels * static_cast<std::size_t>(horizontal.high - horizontal.low) + 1);
  ring_rows_ = 1;
  for (int row = 0; row < vertical.end - vertical.begin; ++row) {
    ring_rows_ = std::max(ring_rows_, rows_.taps(row).count);
  }
  ring_.resize((row_floats_ + 1) * static_cast<std::size_t>(ring_rows_));
  ring_row_.assign(static_cast<std::size_t>(ring_rows_), -1);
  sums_.resize(row_floats_);
}

const float* Resampler::resampled(int source_row) {
  const auto slot = static_cast<std::size_t>(source_row % ring_rows_);
  float* row = &ring_[slot * (row_floats_ + 1)];
  if (ring_row_[slot] == source_row) {
    return row;
  }
  ring_row_[slot] = source_row;
  const std::uint8_t* pixels =
      source_->pixels.data() + image_channels * (static_cast<std::size_t>(source_row) *
                                                     static_cast<std::size_t>(source_->size.width) +
                                                 static_cast<std::size_t>(horizontal_.low));
  for (std::size_t i = 0; i + 1 < line_.size(); ++i) {
    line_[i] = static_cast<float>(pixels[i]);
  }
  const int outputs = horizontal_.end - horizontal_.begin;
  for (int output = 0; output < outputs; ++output) {
    const AxisWeights::Taps taps = columns_.taps(output);
    const float* from =
        &line_[image_channels * static_cast<std::size_t>(taps.first - horizontal_.low)];
    FourFloats sum = taps.weights[0] * load(from);
    for (int tap = 1; tap < taps.count; ++tap) {
      sum += taps.weights[tap] * load(from + image_channels * static_cast<std::size_t>(tap));
    }
    store(sum, row + image_channels * static_cast<std::size_t>(output));
  }
  for (std::size_t i = 0; i < row_floats_; ++i) {
    row[i] = static_cast<float>(static_cast<int>(row[i] + 0.5F));
  }
  return row;
}

void Resampler::next_row(std::uint8_t* out) {
  const AxisWeights::Taps taps = rows_.taps(next_++);
  float* sums = sums_.data();
  for (int tap = 0; tap < taps.count; ++tap) {
    const float* row = resampled(taps.first + tap);
    const float weight = taps.weights[tap];
    if (tap == 0) {
      for (std::size_t i = 0; i < row_floats_; ++i) {
        sums[i] = 0.5F + weight * row[i];
      }
    } else {
      for (std::size_t i = 0; i < row_floats_; ++i) {
        sums[i] += weight * row[i];
      }
    }
  }
  for (std::size_t i = 0; i < row_floats_; ++i) {
    out[i] = static_cast<std::uint8_t>(static_cast<int>(sums[i]));
  }
}

}  // namespace vision
