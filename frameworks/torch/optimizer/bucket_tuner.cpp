#include "frameworks/torch/optimizer/bucket_tuner.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {

BucketTuner::BucketTuner(const std::vector<BucketForm>& forms) {
  take(forms);
}

void BucketTuner::try_instead(const std::vector<BucketForm>& forms) {
  candidates_.clear();
  take(forms);
}

void BucketTuner::take(const std::vector<BucketForm>& forms) {
  for (const BucketForm& form : forms) candidates_.push_back({form, {}, {}, false});
  order_ = order_of_round();
  if (candidates_.size() == 1) done_ = true;
}

std::vector<BucketForm> BucketTuner::forms() const {
  std::vector<BucketForm> forms;
  for (const Candidate& candidate : candidates_) forms.push_back(candidate.form);
  return forms;
}

std::vector<std::size_t> BucketTuner::order_of_round() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (!candidates_[i].out) order.push_back(i);
  }
  if (round_ % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

const BucketForm& BucketTuner::form() const {
  const std::size_t candidate = done_ ? choice_ : warm_ ? order_[block_] : 0;
  return candidates_[candidate].form;
}

void BucketTuner::note(double seconds) {
  steps_ += 1;
  step_ += 1;
  if (!warm_) {
    warm_ = step_ == warm_up_steps;
    if (warm_) step_ = 0;
    return;
  }
  if (step_ > 1) candidates_[order_[block_]].steps.push_back(seconds);
  if (step_ == block_steps) end_block();
}

void BucketTuner::end_block() {
  Candidate& candidate = candidates_[order_[block_]];
  candidate.blocks.push_back(*std::min_element(
      candidate.steps.end() - static_cast<std::ptrdiff_t>(block_steps - 1), candidate.steps.end()));
  step_ = 0;
  block_ += 1;
  if (block_ == order_.size()) end_round();
}

void BucketTuner::end_round() {
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (candidate.out) continue;
    const auto of_rounds = gains(candidate);
    const auto lost = std::ranges::count_if(of_rounds, [](double gain) { return gain <= 0; });
    candidate.out = 2 * lost > std::ssize(of_rounds);
  }
  if (round_ == 0) keep_the_best();
  round_ += 1;
  block_ = 0;
  order_ = order_of_round();
  if (order_.size() == 1 || steps_ + block_steps * order_.size() > most_steps) choose();
}

/// Those that are left take turns in all other rounds.
void BucketTuner::keep_the_best() {
  std::vector<std::size_t> left;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (!candidates_[i].out) left.push_back(i);
  }
  std::ranges::sort(left, {}, [this](std::size_t i) { return candidates_[i].blocks.back(); });
  const std::size_t forms = (most_steps - steps_) / (block_steps * (least_rounds - 1));
  for (std::size_t i = forms - 1; i < left.size(); ++i) candidates_[left[i]].out = true;
}

std::vector<double> BucketTuner::gains(const Candidate& candidate) const {
  std::vector<double> gains;
  for (std::size_t round = 0; round < candidate.blocks.size(); ++round) {
    gains.push_back(1 - candidate.blocks[round] / candidates_.front().blocks[round]);
  }
  return gains;
}

bool BucketTuner::is_clear(const Candidate& candidate) const {
  const std::vector<double>& usual = candidates_.front().steps;
  std::ptrdiff_t shorter = 0;
  for (const double step : candidate.steps) {
    shorter += std::ranges::count_if(usual, [&](double other) { return step < other; });
  }
  const auto pairs = static_cast<double>(candidate.steps.size() * usual.size());
  return static_cast<double>(shorter) >= clear_share * pairs;
}

void BucketTuner::choose() {
  done_ = true;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    if (candidate.out || !is_clear(candidate)) continue;
    const double gain = median(gains(candidate));
    if (gain < least_gain || gain <= gain_) continue;
    choice_ = i;
    gain_ = gain;
  }
}

void BucketTuner::give_up() {
  done_ = true;
  choice_ = 0;
  gain_ = 0;
}

std::vector<BucketForm> bucket_forms_to_try(const BucketForm& usual) {
  std::vector<BucketForm> forms{usual,
                                {std::max<std::size_t>(usual.bytes / 4, 1), usual.compressed},
                                {usual.bytes * 4, usual.compressed}};
  if (usual.compressed) forms.push_back({usual.bytes, false});
  return forms;
}

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "hora_tuning";
constexpr const char* kSizes = "bucket_sizes";
constexpr const char* kCompressed = "compressed";

Json parsed(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool is_size(const Json& value) {
  return value.is_number_unsigned() && value.get<std::size_t>() > 0;
}

/// The value of the member `name`, an object, under `key`; discarded where it has none.
tl::expected<Json, std::string> found_in(const Json& file, const char* name,
                                         const std::string& key) {
  const Json member = file.value(name, Json::object());
  if (!member.is_object()) return tl::unexpected("\"" + std::string(name) + "\" is no object");
  const auto found = member.find(key);
  return found == member.end() ? Json(Json::value_t::discarded) : *found;
}

}  // namespace

tl::expected<std::optional<BucketForm>, std::string> tuned_form(std::string_view text,
                                                                const std::string& key) {
  const Json file = parsed(text);
  if (!file.is_object()) return tl::unexpected<std::string>("it is no JSON object");
  if (file.value(kFormat, Json()) != 1) {
    return tl::unexpected("it has no member \"" + std::string(kFormat) + "\" that is 1");
  }
  const auto size = found_in(file, kSizes, key);
  if (!size) return tl::unexpected(size.error());
  const auto compressed = found_in(file, kCompressed, key);
  if (!compressed) return tl::unexpected(compressed.error());
  if (size->is_discarded()) return std::nullopt;
  if (!is_size(*size)) {
    return tl::unexpected("the size of \"" + key + "\" is " + size->dump() +
                          "; expected a whole number above 0");
  }
  if (!compressed->is_discarded() && !compressed->is_boolean()) {
    return tl::unexpected("whether \"" + key + "\" is compressed is " + compressed->dump() +
                          "; expected true or false");
  }
  return BucketForm{size->get<std::size_t>(),
                    compressed->is_discarded() || compressed->get<bool>()};
}

std::string with_tuned_form(std::string_view text, const std::string& key, const BucketForm& form) {
  Json file = text.empty() ? Json{{kFormat, 1}} : parsed(text);
  file[kSizes][key] = form.bytes;
  file[kCompressed][key] = form.compressed;
  return file.dump(2) + "\n";
}

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
