#include "examples/vision/data/digits.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "examples/vision/data/random.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t fields = digit_side * digit_side + 1;
constexpr int side = cifar_size.width;  // of a record's image
constexpr std::size_t plane_bytes = std::size_t{side} * side;
constexpr std::size_t longest_line = 1024;   // several times what 65 numbers take
constexpr std::size_t most_digits = 100000;  // many times what the source holds

[[noreturn]] void refuse(std::size_t line, const std::string& what) {
  throw std::runtime_error("Digits, line " + std::to_string(line) + ": " + what +
                           "; expected 64 pixel values of 0 to 16 and a label of 0 to 9, "
                           "separated by commas");
}

Digit parse_line(std::string_view text, std::size_t line) {
  Digit digit{};
  std::size_t field = 0;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view token = text.substr(0, comma);
    int value = -1;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    const bool is_label = field + 1 == fields;
    const int maximum = is_label ? cifar10_layout.classes - 1 : digit_maximum;
    if (error != std::errc() || end != token.data() + token.size() || value < 0 ||
        value > maximum || field >= fields) {
      refuse(line, "field " + std::to_string(field + 1) + " is '" + std::string(token) + "'");
    }
    (is_label ? digit.label : digit.pixels[field]) = static_cast<std::uint8_t>(value);
    ++field;
    if (comma == text.size()) {
      break;
    }
    text.remove_prefix(comma + 1);
  }
  if (field != fields) {
    refuse(line, std::to_string(field) + " fields");
  }
  return digit;
}

// Where an output pixel's centre lies among the input's, and how much of the next one it takes.
struct Tap {
  int first;
  int second;
  float weight_of_second;
};

Tap tap(int position) {
  constexpr float scale = static_cast<float>(digit_side) / side;
  const float centre = (static_cast<float>(position) + 0.5F) * scale - 0.5F;
  const float clamped = std::clamp(centre, 0.0F, static_cast<float>(digit_side - 1));
  const int first = static_cast<int>(clamped);
  return {first, std::min(first + 1, digit_side - 1), clamped - static_cast<float>(first)};
}

// 0 to count - 1, by Fisher and Yates: std::shuffle may differ from one library to the next.
std::vector<std::size_t> draw_order(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Random random{seed, 0};
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

void write_file(const fs::path& path, std::span<const Digit> digits,
                std::span<const std::size_t> order) {
  std::ofstream file(path, std::ios::binary);
  for (const std::size_t index : order) {
    const auto record = to_record(digits[index]);
    file.write(reinterpret_cast<const char*>(record.data()),
               static_cast<std::streamsize>(record.size()));
  }
  if (!file.flush()) {
    throw std::runtime_error("Cannot write " +
                             std::to_string(order.size() * cifar10_layout.bytes()) + " bytes to " +
                             path.string());
  }
}

}  // namespace

std::vector<Digit> parse_digits(std::istream& csv) {
  std::vector<Digit> digits;
  std::array<char, longest_line + 2> line{};  // and '\n', for which a zero byte is written
  while (csv.getline(line.data(), line.size())) {
    const std::size_t number = digits.size() + 1;
    if (number > most_digits) {
      refuse(number, "there are no more than " + std::to_string(most_digits) + " digits");
    }
    digits.push_back(parse_line(line.data(), number));
  }
  if (!csv.eof()) {
    refuse(digits.size() + 1, "more than " + std::to_string(longest_line) + " characters");
  }
  return digits;
}

std::array<std::uint8_t, cifar10_layout.bytes()> to_record(const Digit& digit) {
  std::array<std::uint8_t, cifar10_layout.bytes()> record{};
  record[0] = digit.label;
  for (int row = 0; row < side; ++row) {
    const Tap y = tap(row);
    for (int column = 0; column < side; ++column) {
      const Tap x = tap(column);
      const auto along_row = [&](int from_row) {
        const std::uint8_t* pixels = &digit.pixels[static_cast<std::size_t>(from_row * digit_side)];
        return std::lerp(static_cast<float>(pixels[x.first]), static_cast<float>(pixels[x.second]),
                         x.weight_of_second);
      };
      const float ink = std::lerp(along_row(y.first), along_row(y.second), y.weight_of_second);
      const auto value = static_cast<std::uint8_t>(std::lround(ink * 255.0F / digit_maximum));
      const auto place = static_cast<std::size_t>(row * side + column);
      for (std::size_t channel = 0; channel < image_channels; ++channel) {
        record[1 + channel * plane_bytes + place] = value;
      }
    }
  }
  return record;
}

void write_digits(const std::vector<Digit>& digits, std::uint64_t split_seed,
                  const fs::path& folder) {
  const RecordSet& set = digits_records();
  const RecordFile& training = set.training.front();
  const RecordFile& validation = set.validation.front();
  if (digits.size() != training.records + validation.records) {
    throw std::runtime_error("Found " + std::to_string(digits.size()) + " digits; expected " +
                             std::to_string(training.records + validation.records));
  }
  if (fs::exists(folder)) {
    throw std::runtime_error(folder.string() + " exists already; remove it to write it again");
  }
  const fs::path parent = fs::absolute(folder).parent_path();
  fs::create_directories(parent);
  const fs::path draft =
      parent / (folder.filename().string() + "." + std::to_string(getpid()) + ".part");
  fs::create_directory(draft);
  try {
    const std::vector<std::size_t> order = draw_order(digits.size(), split_seed);
    const std::span<const std::size_t> all(order);
    write_file(draft / training.name, digits, all.first(training.records));
    write_file(draft / validation.name, digits, all.subspan(training.records));
    std::ofstream names(draft / class_names_file);
    for (const std::string& name : set.classes) {
      names << name << '\n';
    }
    if (!names.flush()) {
      throw std::runtime_error("Cannot write " + (draft / class_names_file).string());
    }
    fs::rename(draft, folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(draft, ignored);
    throw;
  }
}

}  // namespace vision
