#include "bench/harness/flags.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace bench {
namespace {

std::optional<std::string> value_of(const std::string& argument, std::string_view flag) {
  std::string_view text = argument;
  if (!text.starts_with("--") || !text.substr(2).starts_with(flag)) return std::nullopt;
  text.remove_prefix(2 + flag.size());
  if (text.empty()) return "";
  if (text.front() != '=') return std::nullopt;
  return std::string(text.substr(1));
}

double parse_seconds(const std::string& value) {
  std::string_view digits = value;
  if (digits.ends_with('s')) digits.remove_suffix(1);
  double seconds = 0.0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(seconds) ||
      seconds <= 0.0) {
    throw std::invalid_argument("--benchmark_min_time is '" + value +
                                "'; expected a positive number of seconds, such as 0.5");
  }
  return seconds;
}

std::regex compile(const std::string& expression) {
  return std::regex(expression, std::regex::extended | std::regex::nosubs);
}

}  // namespace

bool matches(const std::string& filter, const std::string& name) {
  if (filter.empty() || filter == "all") return true;
  const bool negative = filter.front() == '-';
  return std::regex_search(name, compile(filter.substr(negative ? 1 : 0))) != negative;
}

Flags take_flags(const std::vector<std::string>& arguments) {
  Flags flags;
  for (const std::string& argument : arguments) {
    if (const auto filter = value_of(argument, "benchmark_filter")) {
      flags.filter = *filter;
    } else if (const auto list = value_of(argument, "benchmark_list_tests")) {
      flags.list = *list != "false" && *list != "0";
    } else if (const auto seconds = value_of(argument, "benchmark_min_time")) {
      flags.min_time = parse_seconds(*seconds);
    } else {
      flags.to_file = flags.to_file || value_of(argument, "benchmark_out").has_value();
      flags.has_format = flags.has_format || value_of(argument, "benchmark_format").has_value();
      const auto format = value_of(argument, "benchmark_out_format");
      if (format && *format != "json") {
        throw std::invalid_argument("--benchmark_out_format is '" + *format +
                                    "'; files are written as json only");
      }
      flags.rest.push_back(argument);
    }
  }
  try {
    matches(flags.filter, "");
  } catch (const std::regex_error& error) {
    throw std::invalid_argument("--benchmark_filter is '" + flags.filter +
                                "'; expected a POSIX extended regular expression: " + error.what());
  }
  return flags;
}

}  // namespace bench
