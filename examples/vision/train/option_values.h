/// Rows of a command line: options whose values are numbers within an interval, names from a list,
/// or text. Each refuses what it does not take, with the value and what was expected; CLI11's own
/// checks let NaN pass, take "-1" for an unsigned number, and list a choice's enumerators.
///
/// Thread rule: one thread.
#pragma once

#include <CLI/App.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace vision {

/// The whole text as a number in decimal notation; nothing for all else, and beyond T's range.
template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

/// Numbers from low to high. Never infinities or NaN.
struct Interval {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool without_low = false;
  bool without_high = false;

  bool contains(double value) const;
  /// "from 0 to below 1", "above 0".
  std::string text() const;
};

struct WholeNumbers {
  std::uint64_t low = 0;
  std::uint64_t high = std::numeric_limits<std::uint64_t>::max();

  /// "from 2 to 65536", "of at least 1".
  std::string text() const;
};

/// "0.1", "1e-05": the shortest text that gives the same value again.
std::string to_text(double value);

/// What the options print and store by; what is passed by reference must outlive `app`.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

  const std::string& title() const { return title_; }

  /// `names` as CLI11 wants them: "-b,--batch".
  CLI::Option* text(const std::string& names, const char* type, std::string& value,
                    const std::string& description) const;
  CLI::Option* flag(const std::string& names, bool& value, const std::string& description) const;
  CLI::Option* number(const std::string& names, double& value, const Interval& interval,
                      const std::string& description) const;
  /// Unset shows as `unset`; a value of that text unsets.
  CLI::Option* number(const std::string& names, std::optional<double>& value,
                      const Interval& interval, const std::string& unset,
                      const std::string& description) const;
  /// T: int, std::size_t, std::uint64_t.
  template <class T>
  CLI::Option* whole(const std::string& names, T& value, const WholeNumbers& numbers,
                     const std::string& description) const {
    return add(names, "N", std::to_string(value), "a whole number " + numbers.text(), description,
               [&value, numbers](const std::string& text) {
                 const auto number = parse_number<std::uint64_t>(text);
                 if (!number || *number < numbers.low || *number > numbers.high) return false;
                 value = static_cast<T>(*number);
                 return true;
               });
  }
  template <class T>
  using Choices = std::vector<std::pair<const char*, T>>;
  /// One of the names; shows them as its type. Of several names of a value the first is its own.
  template <class T>
  CLI::Option* choice(const std::string& names, T& value, const Choices<T>& choices,
                      const std::string& description) const {
    std::string shown;
    std::string listed;
    std::string current;
    for (const auto& [name, chosen] : choices) {
      shown += (shown.empty() ? "" : "|") + std::string(name);
      listed += (listed.empty() ? "one of " : ", ") + std::string(name);
      if (value == chosen && current.empty()) current = name;
    }
    return add(names, shown, current, listed, description,
               [&value, choices](const std::string& text) {
                 for (const auto& [name, chosen] : choices) {
                   if (text == name) {
                     value = chosen;
                     return true;
                   }
                 }
                 return false;
               });
  }

  /// An option whose value `take` stores, or refuses by false: "expected `expected`".
  CLI::Option* add(const std::string& names, const std::string& type,
                   const std::string& default_text, const std::string& expected,
                   const std::string& description,
                   std::function<bool(const std::string&)> take) const;

 private:
  CLI::App& app_;
  std::string title_;
};

}  // namespace vision
