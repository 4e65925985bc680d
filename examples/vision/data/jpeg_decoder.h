/// JPEG by libjpeg-turbo.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "examples/vision/data/image.h"

namespace vision {

/// Baseline and progressive, in grey, YCbCr, RGB, CMYK and YCCK. The last two are taken for
/// inverted, as Adobe's programs write them and as Pillow reads them: red is C * K / 255 of the
/// stored values. Damage that libjpeg only warns of (data that end or lose their code) is an error;
/// superfluous bytes are none.
///
/// Errors are std::runtime_error that do not name the image. After one, open() starts afresh.
///
/// Thread rule: one thread at a time.
class JpegDecoder {
 public:
  JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder();

  /// Reads the header. `bytes` stay until decode() has returned.
  ImageSize open(std::span<const std::uint8_t> bytes);
  /// The open image, once, each side divided by `denominator` (1, 2, 4 or 8) and rounded up. Of its
  /// pixels only those of `wanted` are sure to be computed, but all data are read.
  void decode(int denominator, const Box& wanted, Image& into);

 private:
  struct State;  // libjpeg's, which points into itself
  struct Part;   // of the columns or rows
  static Part with_margin(int begin, int length, int whole);
  // Inside of ErrorExit::completes(): nothing that needs a destructor.
  void read(bool four, Part columns, Part rows, Image& into);
  void skip_to(unsigned row);

  std::unique_ptr<State> state_;
};

}  // namespace vision
