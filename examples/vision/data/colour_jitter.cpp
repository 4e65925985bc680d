#include "examples/vision/data/colour_jitter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace vision {
namespace {

int grey(const std::uint8_t* pixel) {
  return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
}

// Pillow's Image.blend of one value: cut off, not rounded.
std::uint8_t blend(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

template <class Change>
void for_each_pixel(Image& image, const Change& change) {
  for (std::size_t i = 0; i < image.pixels.size(); i += image_channels) {
    change(&image.pixels[i]);
  }
}

void change_brightness(Image& image, float factor) {
  for (std::uint8_t& value : image.pixels) {
    value = blend(0, value, factor);
  }
}

void change_contrast(Image& image, float factor) {
  std::uint64_t sum = 0;
  for_each_pixel(image, [&](const std::uint8_t* pixel) { sum += grey(pixel); });
  const std::uint64_t pixels = image.pixels.size() / image_channels;
  const int mean = static_cast<int>((2 * sum + pixels) / (2 * pixels));
  for (std::uint8_t& value : image.pixels) {
    value = blend(mean, value, factor);
  }
}

void change_saturation(Image& image, float factor) {
  for_each_pixel(image, [&](std::uint8_t* pixel) {
    const int own_grey = grey(pixel);
    for (std::size_t channel = 0; channel < image_channels; ++channel) {
      pixel[channel] = blend(own_grey, pixel[channel], factor);
    }
  });
}

struct Hsv {
  std::uint8_t hue;
  std::uint8_t saturation;
  std::uint8_t value;
};

// The well-known hexcone (A. R. Smith, Color gamut transform pairs, SIGGRAPH 1978), each of the
// three cut off to 8 bits as Pillow does.
Hsv to_hsv(const std::uint8_t* pixel) {
  const int red = pixel[0];
  const int green = pixel[1];
  const int blue = pixel[2];
  const int most = std::max({red, green, blue});
  const int least = std::min({red, green, blue});
  if (most == least) {
    return {0, 0, static_cast<std::uint8_t>(most)};
  }
  const auto range = static_cast<float>(most - least);
  const auto distance = [&](int value) { return static_cast<float>(most - value) / range; };
  float hue = 0;
  if (red == most) {
    hue = distance(blue) - distance(green);
  } else if (green == most) {
    hue = 2.0F + distance(red) - distance(blue);
  } else {
    hue = 4.0F + distance(green) - distance(red);
  }
  const auto turns = static_cast<float>(std::fmod(static_cast<double>(hue) / 6.0 + 1.0, 1.0));
  const float saturation = range / static_cast<float>(most);
  return {static_cast<std::uint8_t>(static_cast<double>(turns) * 255.0),
          static_cast<std::uint8_t>(static_cast<double>(saturation) * 255.0),
          static_cast<std::uint8_t>(most)};
}

void from_hsv(const Hsv& hsv, std::uint8_t* pixel) {
  const float value = hsv.value;
  const float saturation = static_cast<float>(hsv.saturation) / 255.0F;
  const float sixths = static_cast<float>(hsv.hue) * 6.0F / 255.0F;
  const int sector = static_cast<int>(sixths);
  const float part = sixths - static_cast<float>(sector);
  const auto level = [&](float less) {
    return static_cast<std::uint8_t>(std::clamp(std::round(value * (1.0F - less)), 0.0F, 255.0F));
  };
  const std::uint8_t low = level(saturation);
  const std::uint8_t falling = level(saturation * part);
  const std::uint8_t rising = level(saturation * (1.0F - part));
  const auto set = [&](std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
    pixel[0] = red;
    pixel[1] = green;
    pixel[2] = blue;
  };
  switch (sector % 6) {
    case 0:
      return set(hsv.value, rising, low);
    case 1:
      return set(falling, hsv.value, low);
    case 2:
      return set(low, hsv.value, rising);
    case 3:
      return set(low, falling, hsv.value);
    case 4:
      return set(rising, low, hsv.value);
    default:
      return set(hsv.value, low, falling);
  }
}

void move_hue(Image& image, double turns) {
  // Modulo 256, as the 8-bit addition below.
  const auto move = static_cast<std::uint8_t>(static_cast<int>(turns * 255));
  for_each_pixel(image, [&](std::uint8_t* pixel) {
    Hsv hsv = to_hsv(pixel);
    hsv.hue = static_cast<std::uint8_t>(hsv.hue + move);
    from_hsv(hsv, pixel);
  });
}

}  // namespace

void check(const ColourJitter& jitter) {
  const auto refuse = [](const char* what, double value, const char* expected) {
    throw std::invalid_argument(std::string("ColourJitter: ") + what + " is " +
                                std::to_string(value) + "; expected " + expected);
  };
  const auto check_factor = [&](const char* what, double value) {
    if (!(value >= 0 && value <= 100)) {
      refuse(what, value, "0 to 100");
    }
  };
  check_factor("brightness", jitter.brightness);
  check_factor("contrast", jitter.contrast);
  check_factor("saturation", jitter.saturation);
  if (!(jitter.hue >= 0 && jitter.hue <= 0.5)) {
    refuse("hue", jitter.hue, "0 to 0.5");
  }
}

ColourChanges draw(const ColourJitter& jitter, Random& random) {
  ColourChanges changes;
  for (std::size_t left = changes.order.size(); left > 1; --left) {
    std::swap(changes.order[left - 1], changes.order[random.below(left)]);
  }
  const auto factor = [&](double width) {
    return random.uniform(std::max(0.0, 1 - width), 1 + width);
  };
  changes.brightness = factor(jitter.brightness);
  changes.contrast = factor(jitter.contrast);
  changes.saturation = factor(jitter.saturation);
  changes.hue = random.uniform(-jitter.hue, jitter.hue);
  return changes;
}

void apply(const ColourChanges& changes, Image& image) {
  for (const ColourChange change : changes.order) {
    if (change == ColourChange::brightness && changes.brightness != 1) {
      change_brightness(image, static_cast<float>(changes.brightness));
    } else if (change == ColourChange::contrast && changes.contrast != 1) {
      change_contrast(image, static_cast<float>(changes.contrast));
    } else if (change == ColourChange::saturation && changes.saturation != 1) {
      change_saturation(image, static_cast<float>(changes.saturation));
    } else if (change == ColourChange::hue && changes.hue != 0) {
      move_hue(image, changes.hue);
    }
  }
}

}  // namespace vision
