/// A decoded image: what the decoder makes and the transforms take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vision {

/// In pixels; both are at least 1 in any image that was opened.
struct ImageSize {
  int width = 0;
  int height = 0;

  bool operator==(const ImageSize&) const = default;
};

/// In pixels of the image it belongs to; it may reach beyond that.
struct Box {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;

  bool operator==(const Box&) const = default;
};

constexpr Box whole(ImageSize size) {
  return {0, 0, size.width, size.height};
}

inline constexpr std::size_t image_channels = 3;  ///< red, green, blue

/// The number of bytes of an image of this size.
constexpr std::size_t image_bytes(ImageSize size) {
  return image_channels * static_cast<std::size_t>(size.width) *
         static_cast<std::size_t>(size.height);
}

/// Rows from the top, pixels from the left, 3 bytes each: red, green, blue. `pixels` holds
/// image_bytes(size) bytes; an image that is used again keeps its memory.
struct Image {
  ImageSize size;
  std::vector<std::uint8_t> pixels;
};

}  // namespace vision
