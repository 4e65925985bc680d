/// The handwritten digits of scikit-learn in CIFAR-10's binary layout.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <vector>

#include "examples/vision/data/cifar.h"

namespace vision {

inline constexpr int digit_side = 8;      ///< pixels
inline constexpr int digit_maximum = 16;  ///< value of a pixel full of ink

struct Digit {
  std::array<std::uint8_t, digit_side * digit_side> pixels;  ///< 0 .. 16, by rows
  std::uint8_t label;
};

/// Lines of 64 pixel values and a label, separated by commas, as in digits.csv. Throws
/// std::runtime_error naming the line for anything else, and for more of it than could be right.
std::vector<Digit> parse_digits(std::istream& csv);

/// One record: the digit scaled to 32x32 (bilinear, pixel centres aligned), 0 .. 16 to 0 .. 255,
/// alike in all three planes.
std::array<std::uint8_t, cifar10_layout.bytes()> to_record(const Digit& digit);

/// Writes digits_records()'s files: the digits in an order drawn from `split_seed`, the first 80 %
/// for training, the rest for validation. The folder appears at once with all its files, or not at
/// all. Throws std::runtime_error where the folder exists, the number of digits is not the
/// published one, or a file cannot be written.
void write_digits(const std::vector<Digit>& digits, std::uint64_t split_seed,
                  const std::filesystem::path& folder);

}  // namespace vision
