#include "bench/harness/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace bench {

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const auto above = std::min(below + 1, values.size() - 1);
  const double weight = position - std::floor(position);
  return values[below] * (1.0 - weight) + values[above] * weight;
}

std::vector<double> flatten(const Blocks& blocks) {
  std::vector<double> values;
  for (const auto& block : blocks) values.insert(values.end(), block.begin(), block.end());
  return values;
}

std::vector<double> ratios_of_blocks(const Blocks& slow, const Blocks& fast) {
  std::vector<double> ratios;
  for (std::size_t block = 0; block < slow.size(); ++block) {
    ratios.push_back(quantile(slow[block], 0.5) / quantile(fast[block], 0.5));
  }
  return ratios;
}

double ratio_of_blocks(const Blocks& slow, const Blocks& fast) {
  return quantile(ratios_of_blocks(slow, fast), 0.5);
}

Interval median_interval(std::vector<double> values) {
  constexpr double allowed_outside = 0.025;  // on each side
  std::sort(values.begin(), values.end());
  const std::size_t count = values.size();
  // At most `below` of `count` values lie below the true median with the probability `outside`.
  std::size_t below = 0;
  double term = std::pow(0.5, static_cast<double>(count));
  double outside = term;
  while (below < count / 2 && outside <= allowed_outside) {
    term *= static_cast<double>(count - below) / static_cast<double>(below + 1);
    outside += term;
    below += 1;
  }
  // The smallest and the largest stay where not even they enclose it with 95 %.
  const std::size_t left_out = below > 0 ? below - 1 : 0;
  return {values[left_out], quantile(values, 0.5), values[count - 1 - left_out]};
}

namespace {

std::string column_of(const Bar& bar) {
  return bar.contender + " " + bar.key;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string right(std::string text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

/// Bars of one ratio stand in one column.
std::vector<std::vector<Bar>> columns_of(const std::vector<Bar>& bars) {
  std::vector<std::vector<Bar>> columns;
  for (const Bar& bar : bars) {
    const auto same = std::find_if(columns.begin(), columns.end(), [&](const auto& column) {
      return column_of(column.front()) == column_of(bar);
    });
    if (same == columns.end()) {
      columns.push_back({bar});
    } else {
      same->push_back(bar);
    }
  }
  return columns;
}

std::string text_of_factors(const std::vector<Bar>& bars) {
  std::string text;
  for (const Bar& bar : bars) {
    text += (text.empty() ? "(>= " : ", ") + format("%.2g", bar.factor);
  }
  return text + ")";
}

}  // namespace

Ratios ratios_of(const std::vector<Bar>& bars, const std::map<std::string, Blocks>& contenders) {
  Ratios ratios;
  for (const Bar& bar : bars) {
    const auto own = contenders.find(bar.contender);
    if (own == contenders.end()) continue;
    for (const std::string& peer : bar.peers) {
      const auto other = contenders.find(peer);
      if (other == contenders.end()) continue;
      const double ratio = ratio_of_blocks(other->second, own->second);
      const auto [found, is_new] = ratios.try_emplace(column_of(bar), ratio);
      if (!is_new) found->second = std::min(found->second, ratio);
    }
  }
  return ratios;
}

Ratios ratios_of_contender(const Ratios& ratios, const std::string& contender) {
  Ratios result;
  for (const auto& [column, ratio] : ratios) {
    const auto space = column.find(' ');
    if (column.substr(0, space) == contender) result[column.substr(space + 1)] = ratio;
  }
  return result;
}

std::string table_of_ratios(const std::string& operation, const std::vector<Bar>& bars,
                            const std::map<std::size_t, Ratios>& by_size, bool judge) {
  constexpr std::size_t width = 18;
  std::string text = "# " + operation + ": how many times faster; medians of neighbouring blocks";
  text += judge ? "; * is below the bar\n" : "; the bars are for other layouts\n";
  std::string contenders = "#           ";
  std::string keys = "#     size  ";
  std::string factors = "#       (B) ";
  const auto columns = columns_of(bars);
  for (const auto& of_column : columns) {
    contenders += right(of_column.front().contender, width);
    keys += right(of_column.front().key, width);
    factors += right(text_of_factors(of_column), width);
  }
  text += contenders + "\n" + keys + "\n" + factors + "\n";
  for (const auto& [bytes, ratios] : by_size) {
    text += right(std::to_string(bytes), 11) + " ";
    for (const auto& of_column : columns) {
      const auto found = ratios.find(column_of(of_column.front()));
      if (found == ratios.end()) {
        text += right("-", width);
        continue;
      }
      const bool missed =
          judge && std::any_of(of_column.begin(), of_column.end(), [&](const Bar& bar) {
            return bytes >= bar.from && bytes <= bar.to && found->second < bar.factor;
          });
      text += right((missed ? "*" : "") + format("%.2f", found->second), width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace bench
