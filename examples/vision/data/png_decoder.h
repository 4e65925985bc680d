/// PNG by libpng.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "examples/vision/data/image.h"

namespace vision {

/// Grey, colour and palette, 1 to 16 bits a sample, interlaced or not. Alpha is dropped; of 16 bits
/// the upper 8 are taken; a gamma is not applied. All as Pillow's convert("RGB"), but for 16-bit
/// grey, which Pillow clips instead.
///
/// Errors are std::runtime_error that do not name the image. After one, open() starts afresh.
///
/// Thread rule: one thread at a time.
class PngDecoder {
 public:
  PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder();

  /// Reads the header. `bytes` stay until decode() has returned.
  ImageSize open(std::span<const std::uint8_t> bytes);
  /// The open image, once.
  void decode(Image& into);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vision
