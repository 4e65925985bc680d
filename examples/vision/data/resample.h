/// Bilinear resampling with antialiasing, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "examples/vision/data/image.h"

namespace vision {

/// One axis of a resampling: the source's interval [from, to), in source pixels, becomes `size`
/// output pixels, of which [begin, end) are wanted. Source pixels outside of [low, high) are never
/// taken.
struct Axis {
  double from = 0;
  double to = 0;
  int low = 0;
  int high = 0;
  int size = 0;
  int begin = 0;
  int end = 0;

  bool operator==(const Axis&) const = default;
};

/// The same axis, of which no source pixel outside of [low, high) goes into a wanted output pixel
/// and, but for the ends, every one inside does. Unchanged where no output is wanted.
Axis narrowed(Axis axis);

/// For each wanted output pixel, which source pixels it is made of, and their weights, which sum
/// to 1: a triangle of half-width max(1, scale) around the output pixel's centre, which is what
/// Pillow's Image.resize(BILINEAR) takes.
class AxisWeights {
 public:
  struct Taps {
    int first;  ///< source pixel
    int count;  ///< at least 1
    const float* weights;
  };

  /// Keeps what it has where the axis is the one before.
  void prepare(const Axis& axis);
  /// `output` counts from axis.begin.
  Taps taps(int output) const {
    const Range& range = ranges_[static_cast<std::size_t>(output)];
    return {range.first, range.count, &weights_[range.weights]};
  }

 private:
  struct Range {
    int first;
    int count;
    std::size_t weights;
  };

  Axis axis_;
  std::vector<Range> ranges_;
  std::vector<float> weights_;
};

/// Resizes a part of an image. The horizontal pass comes first and is rounded to whole values, as
/// Pillow's is, so that the pixels are Pillow's but for ties in the last rounding. Only source rows
/// and columns that the wanted output needs are read, and a source row is read once.
///
/// Thread rule: one thread at a time; each worker has its own.
class Resampler {
 public:
  /// The output is horizontal's wanted pixels x vertical's. `source` stays as it is until the last
  /// row was taken.
  void start(const Image& source, const Axis& horizontal, const Axis& vertical);
  /// Writes the next output row, from the top: 3 bytes for each wanted pixel.
  void next_row(std::uint8_t* out);

 private:
  const float* resampled(int source_row);

  const Image* source_ = nullptr;
  Axis horizontal_;
  AxisWeights columns_;
  AxisWeights rows_;
  int next_ = 0;                // output row
  std::size_t row_floats_ = 0;  // of one resampled row
  std::vector<float> line_;     // a source row
  std::vector<float> ring_;     // resampled source rows, by row number modulo ring_rows_
  std::vector<int> ring_row_;   // which source row lies there
  int ring_rows_ = 0;
  std::vector<float> sums_;
};

}  // namespace vision
