/// Turns the handwritten digits of scikit-learn, its digits.csv on standard input, into CIFAR-10's
/// binary layout: in an order drawn at random, the same every time, 80 % of them for training.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/vision/command_line.h"
#include "examples/vision/data/random.h"
#include "examples/vision/data/record_sets.h"

namespace vision {
namespace {

namespace fs = std::filesystem;

constexpr int digit_side = 8;  // pixels
constexpr std::size_t digit_pixels = digit_side * digit_side;
constexpr int digit_maximum = 16;       // value of a pixel full of ink
constexpr int side = cifar_size.width;  // of a record's image

using Digit = std::array<std::uint8_t, digit_pixels + 1>;  // pixels by rows, and the label

Digit parse_line(std::string_view text, std::size_t line) {
  Digit digit{};
  for (std::size_t field = 0;; ++field) {
    const std::string_view token = text.substr(0, text.find(','));
    int value = -1;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    const bool is_last = token.size() == text.size();
    if (error != std::errc() || end != token.data() + token.size() || value < 0 ||
        value > (field == digit_pixels ? 9 : digit_maximum) || is_last != (field == digit_pixels)) {
      throw std::runtime_error(fmt::format(
          "Digits, line {}: field {} is '{}'; expected 64 pixel values of 0 to 16 and a "
          "label of 0 to 9, separated by commas",
          line, field + 1, token));
    }
    digit[field] = static_cast<std::uint8_t>(value);
    if (is_last) return digit;
    text.remove_prefix(token.size() + 1);
  }
}

// Appends the label, and the digit scaled to 32x32 (bilinear, pixel centres aligned), 0 .. 16 to
// 0 .. 255, alike in all three planes.
void append_record(const Digit& digit, std::string& records) {
  // Where an output pixel's centre lies among the input's, in eighths of a pixel.
  const auto eighths = [](int position) {
    return std::clamp(2 * position - 3, 0, 8 * (digit_side - 1));
  };
  std::string plane;
  for (int row = 0; row < side; ++row) {
    for (int column = 0; column < side; ++column) {
      const auto between = [](int eighth, int first, int second) {
        return (8 - eighth) * first + eighth * second;
      };
      const int x = eighths(column);
      const int y = eighths(row);
      const auto along_row = [&](int from_row) {
        const auto at = [&](int from_column) {
          return digit[static_cast<std::size_t>(from_row * digit_side + from_column)];
        };
        return between(x % 8, at(x / 8), at(std::min(x / 8 + 1, digit_side - 1)));
      };
      const int ink =
          between(y % 8, along_row(y / 8), along_row(std::min(y / 8 + 1, digit_side - 1)));
      plane += static_cast<char>((ink * 255 + 512) / (64 * digit_maximum));
    }
  }
  records += static_cast<char>(digit.back());
  records += plane + plane + plane;
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
    throw std::runtime_error(
        fmt::format("Cannot write {} bytes to {}", bytes.size(), path.string()));
  }
}

// The folder appears with all its files or not at all.
void write_digits(std::vector<Digit> digits, const fs::path& folder) {
  const RecordSet& set = digits_records();
  const std::size_t training = set.training.front().records;
  if (digits.size() != training + set.validation.front().records) {
    throw std::runtime_error(fmt::format("Found {} digits; expected {}", digits.size(),
                                         training + set.validation.front().records));
  }
  if (fs::exists(folder)) {
    throw std::runtime_error(folder.string() + " exists already; remove it to write it again");
  }
  // By Fisher and Yates: std::shuffle may differ from one library to the next.
  Random random{1, 0};
  for (std::size_t left = digits.size(); left > 1; --left) {
    std::swap(digits[left - 1], digits[random.below(left)]);
  }
  const auto records = [](std::span<const Digit> part) {
    std::string bytes;
    for (const Digit& digit : part) append_record(digit, bytes);
    return bytes;
  };
  const fs::path draft = fmt::format("{}.{}.part", fs::absolute(folder).string(), getpid());
  fs::create_directories(draft);
  write_file(draft / set.training.front().name, records(std::span(digits).first(training)));
  write_file(draft / set.validation.front().name, records(std::span(digits).subspan(training)));
  write_file(draft / class_names_file, fmt::format("{}\n", fmt::join(set.classes, "\n")));
  fs::rename(draft, folder);
}

}  // namespace
}  // namespace vision

int main(int argc, char** argv) {
  std::string folder;
  CLI::App app("gzip -dc digits.csv.gz | prepare_digits --output FOLDER");
  app.add_option("--output", folder, "folder to make; must not exist")->required();
  try {
    vision::parse_words(app, argc, argv);
    std::vector<vision::Digit> digits;
    for (std::string line; std::getline(std::cin, line);) {
      digits.push_back(vision::parse_line(line, digits.size() + 1));
    }
    vision::write_digits(digits, folder);
    std::cout << "Wrote " << digits.size() << " handwritten digits to " << folder << '\n';
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::cerr << "prepare_digits: " << error.what() << '\n';
    return 1;
  }
}
