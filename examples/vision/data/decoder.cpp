#include "examples/vision/data/decoder.h"

#include <stdexcept>
#include <utility>

#include "examples/vision/data/jpeg_decoder.h"
#include "examples/vision/data/png_decoder.h"

namespace vision {
namespace {

std::string in_words(ImageSize size) {
  return std::to_string(size.width) + " x " + std::to_string(size.height);
}

ImageSize open_planar(const EncodedImage& image) {
  const ImageSize size = image.size;
  if (size.width < 1 || size.height < 1 || image.bytes.size() != image_bytes(size)) {
    throw std::runtime_error("found " + std::to_string(image.bytes.size()) +
                             " bytes, expected 3 for each of " + in_words(size) + " pixels");
  }
  return size;
}

void interleave(const EncodedImage& image, Image& into) {
  into.size = image.size;
  into.pixels.resize(image_bytes(image.size));
  const std::size_t plane = into.pixels.size() / image_channels;
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    const std::uint8_t* from = image.bytes.data() + channel * plane;
    std::uint8_t* to = into.pixels.data() + channel;
    for (std::size_t i = 0; i < plane; ++i) {
      to[i * image_channels] = from[i];
    }
  }
}

}  // namespace

Decoder::Decoder(std::uint64_t most_pixels)
    : jpeg_(std::make_unique<JpegDecoder>()),
      png_(std::make_unique<PngDecoder>()),
      most_pixels_(most_pixels) {}

Decoder::~Decoder() = default;

ImageSize Decoder::open(const EncodedImage& image, std::string where) {
  is_open_ = false;
  image_ = image;
  where_ = std::move(where);
  ImageSize size;
  try {
    switch (image.format) {
      case ImageFormat::jpeg:
        size = jpeg_->open(image.bytes);
        break;
      case ImageFormat::png:
        size = png_->open(image.bytes);
        break;
      case ImageFormat::planar_rgb:
        size = open_planar(image);
        break;
    }
  } catch (const std::runtime_error& error) {
    throw BadImage(where_, error.what());
  }
  const std::uint64_t pixels =
      static_cast<std::uint64_t>(size.width) * static_cast<std::uint64_t>(size.height);
  if (pixels > most_pixels_) {
    throw BadImage(where_, in_words(size) + " pixels are too many; expected at most " +
                               std::to_string(most_pixels_) + " in all");
  }
  is_open_ = true;
  size_ = size;
  return size;
}

int Decoder::supported(int denominator) const {
  return image_.format == ImageFormat::jpeg ? denominator : 1;
}

void Decoder::decode(int denominator, Image& into) {
  decode(denominator, whole(scaled_size(size_, supported(denominator))), into);
}

void Decoder::decode(int denominator, const Box& wanted, Image& into) {
  if (denominator != 1 && denominator != 2 && denominator != 4 && denominator != 8) {
    throw std::invalid_argument("Decoder::decode: denominator " + std::to_string(denominator) +
                                "; expected 1, 2, 4 or 8");
  }
  if (!std::exchange(is_open_, false)) {
    throw std::logic_error("Decoder::decode: no image is open; an image is decoded once");
  }
  const ImageSize decoded = scaled_size(size_, supported(denominator));
  if (wanted.left < 0 || wanted.top < 0 || wanted.width < 1 || wanted.height < 1 ||
      wanted.width > decoded.width - wanted.left || wanted.height > decoded.height - wanted.top) {
    throw std::invalid_argument("Decoder::decode: a part of " +
                                in_words({wanted.width, wanted.height}) + " pixels at " +
                                std::to_string(wanted.left) + ", " + std::to_string(wanted.top) +
                                " does not lie inside the image of " + in_words(decoded));
  }
  try {
    switch (image_.format) {
      case ImageFormat::jpeg:
        jpeg_->decode(denominator, wanted, into);
        break;
      case ImageFormat::png:
        png_->decode(into);
        break;
      case ImageFormat::planar_rgb:
        interleave(image_, into);
        break;
    }
  } catch (const std::runtime_error& error) {
    throw BadImage(where_, error.what());
  }
}

}  // namespace vision
