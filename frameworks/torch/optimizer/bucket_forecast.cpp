#include "frameworks/torch/optimizer/bucket_forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hora::internal {
namespace {

/// Powers of two up to the first that takes all gradients.
std::vector<std::size_t> sizes_to_forecast(std::span<const BucketLayout> layouts) {
  std::size_t all = 0;
  for (const BucketLayout& layout : layouts) all += layout.bytes;
  std::vector<std::size_t> sizes{least_forecast_bytes};
  while (sizes.back() < all) sizes.push_back(2 * sizes.back());
  return sizes;
}

class Forecast {
 public:
  Forecast(const BucketForm& usual, const LayoutsOf& layouts_of, const ForecastInput& input)
      : usual_(usual),
        layouts_of_(layouts_of),
        input_(input),
        measurable_(BucketTuner::least_gain * input.step_seconds),
        of_usual_(of(layouts_of(usual))) {}

  /// The usual size where none promises more.
  std::size_t best() const {
    std::vector<std::pair<std::size_t, double>> forecasts;
    double least = std::numeric_limits<double>::infinity();
    for (const std::size_t bytes : sizes_to_forecast(layouts_of_(usual_))) {
      forecasts.emplace_back(bytes, of(layouts_of_({bytes, usual_.compressed})));
      least = std::min(least, forecasts.back().second);
    }
    if (of_usual_ - least <= measurable_) return usual_.bytes;
    std::erase_if(forecasts, [&](const auto& one) { return one.second > least + measurable_; });
    return forecasts[forecasts.size() / 2].first;
  }

  bool is_slower(std::span<const BucketLayout> layouts) const {
    return of(layouts) > of_usual_ + measurable_;
  }

 private:
  double of(std::span<const BucketLayout> layouts) const {
    return exposed_seconds(layouts, input_.leads, input_.cost);
  }

  const BucketForm usual_;
  const LayoutsOf& layouts_of_;
  const ForecastInput& input_;
  const double measurable_;
  const double of_usual_;
};

std::vector<std::size_t> sizes_to_try(std::size_t usual, std::size_t best) {
  if (best < usual) return {best, std::min(4 * best, usual)};
  if (best > usual) return {best, std::max(best / 4, usual)};
  return {std::max<std::size_t>(usual / 4, 1), 4 * usual};
}

}  // namespace

double exposed_seconds(std::span<const BucketLayout> layouts, std::span<const double> leads,
                       const CollectiveCost& cost) {
  std::vector<std::pair<double, double>>
      buckets;  // when it is complete, before 0; how long it takes
  for (const BucketLayout& layout : layouts) {
    double lead = std::numeric_limits<double>::infinity();
    for (const GradientPlace& place : layout.places) lead = std::min(lead, leads[place.gradient]);
    buckets.emplace_back(-lead, cost.seconds(layout.bytes));
  }
  std::ranges::stable_sort(buckets, {}, [](const auto& bucket) { return bucket.first; });
  double end = -std::numeric_limits<double>::infinity();
  for (const auto& [complete, seconds] : buckets) end = std::max(end, complete) + seconds;
  return std::max(end, 0.0);
}

std::vector<BucketForm> forms_that_promise(const BucketForm& usual, const LayoutsOf& layouts_of,
                                           const ForecastInput& input) {
  const Forecast forecast(usual, layouts_of, input);
  const std::size_t best = forecast.best();
  std::vector<BucketForm> forms{usual};
  std::vector<std::vector<BucketLayout>> tried{layouts_of(usual)};
  for (const std::size_t bytes : sizes_to_try(usual.bytes, best)) {
    const BucketForm form{bytes, usual.compressed};
    auto layouts = layouts_of(form);
    const bool again = std::ranges::any_of(
        tried, [&](const auto& others) { return hold_the_same(others, layouts); });
    if (again || forecast.is_slower(layouts)) continue;
    forms.push_back(form);
    tried.push_back(std::move(layouts));
  }
  if (usual.compressed) forms.push_back({best, false});
  return forms;
}

}  // namespace hora::internal
