#include "examples/vision/train/option_values.h"

#include <array>
#include <cmath>

namespace vision {

bool Interval::contains(double value) const {
  return std::isfinite(value) && (without_low ? value > low : value >= low) &&
         (without_high ? value < high : value <= high);
}

std::string Interval::text() const {
  const std::string from = (without_low ? "above " : "from ") + to_text(low);
  if (std::isinf(high)) return without_low ? from : "of at least " + to_text(low);
  return from + (without_high ? " to below " : " to ") + to_text(high);
}

std::string WholeNumbers::text() const {
  if (high != std::numeric_limits<std::uint64_t>::max()) {
    return "from " + std::to_string(low) + " to " + std::to_string(high);
  }
  return low == 0 ? "from 0 to 2^64 - 1" : "of at least " + std::to_string(low);
}

std::string to_text(double value) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

CLI::Option* OptionGroup::add(const std::string& names, const std::string& type,
                              const std::string& default_text, const std::string& expected,
                              const std::string& description,
                              std::function<bool(const std::string&)> take) const {
  const auto store = [expected, take = std::move(take)](const std::string& word) {
    return take(word) ? std::string() : "'" + word + "' is not " + expected;
  };
  CLI::Option* const option = app_.add_option_function<std::string>(
      names, [](const std::string&) {}, description);
  option->check(CLI::Validator(store, ""));
  return option->type_name(type)->default_str(default_text)->group(title_);
}

CLI::Option* OptionGroup::text(const std::string& names, const char* type, std::string& value,
                               const std::string& description) const {
  return app_.add_option(names, value, description)
      ->type_name(type)
      ->default_str(value.empty() ? "none" : value)
      ->group(title_);
}

CLI::Option* OptionGroup::flag(const std::string& names, bool& value,
                               const std::string& description) const {
  return app_.add_flag(names, value, description)->group(title_);
}

CLI::Option* OptionGroup::number(const std::string& names, double& value, const Interval& interval,
                                 const std::string& description) const {
  return add(names, "X", to_text(value), "a number " + interval.text(), description,
             [&value, interval](const std::string& text) {
               const auto number = parse_number<double>(text);
               if (!number || !interval.contains(*number)) return false;
               value = *number;
               return true;
             });
}

CLI::Option* OptionGroup::number(const std::string& names, std::optional<double>& value,
                                 const Interval& interval, const std::string& unset,
                                 const std::string& description) const {
  return add(names, "X", value ? to_text(*value) : unset,
             "a number " + interval.text() + ", or " + unset, description,
             [&value, interval, unset](const std::string& text) {
               const auto number = parse_number<double>(text);
               if (text != unset && (!number || !interval.contains(*number))) return false;
               value = number;
               return true;
             });
}

}  // namespace vision
