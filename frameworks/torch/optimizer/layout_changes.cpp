#include "frameworks/torch/optimizer/layout_changes.h"

#include <cstdint>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {

LayoutChanges::LayoutChanges(const Peers& peers, const BucketOptions& options,
                             std::size_t gradients, bool fixed,
                             const std::optional<BucketTuning::Options>& tuning)
    : peers_(peers), options_(options) {
  const AveragingOptions& averaging = options.averaging;
  const bool tied = averaging.sharded || averaging.hook || !options.groups.empty();
  if (tied && !fixed) return;
  arrangement_.emplace(peers, options.name, gradients, fixed);
  if (tuning && !tied) tuning_.emplace(peers, *tuning, gradients);
}

BucketOptions LayoutChanges::first() const {
  return options();
}

BucketOptions LayoutChanges::options() const {
  return tuning_ ? options_of(tuning_->form()) : options_;
}

BucketOptions LayoutChanges::options_of(const BucketForm& form) const {
  BucketOptions options = options_;
  options.bucket_bytes = form.bytes;
  if (!form.compressed) options.compression = Compression::none;
  return options;
}

void LayoutChanges::note(std::size_t gradient, std::chrono::steady_clock::time_point now) {
  if (arrangement_) arrangement_->note(gradient);
  if (tuning_) tuning_->note(gradient, now);
}

void LayoutChanges::begin(std::chrono::steady_clock::time_point now) {
  if (arrangement_) arrangement_->begin();
  if (tuning_) tuning_->begin(now);
}

std::vector<std::string> LayoutChanges::awaited() const {
  std::vector<std::string> names;
  if (arrangement_ && !arrangement_->ready()) names.push_back(arrangement_->name());
  if (tuning_ && !tuning_->ready()) names.push_back(tuning_->name());
  return names;
}

void LayoutChanges::wait() {
  if (arrangement_) arrangement_->wait();
  if (tuning_) tuning_->wait();
}

void LayoutChanges::end_round(const std::vector<bool>& present, const GradientBuckets& buckets) {
  if (arrangement_ && !arrangement_->learned()) {
    arrangement_->learn(present);
    pending_ = true;
  }
  if (!tuning_) return;
  const BucketForm before = tuning_->form();
  tuning_->count_step([&](const BucketForm& form) {
    return buckets.laid_out(arrangement_->order(), options_of(form));
  });
  if (tuning_->form() != before) pending_ = true;
}

void LayoutChanges::take(int root) {
  if (!arrangement_) return;
  arrangement_->take(root);
  if (tuning_) tuning_->end(root);
  // Ranks that were not there have fewer layouts behind them, and other names.
  auto layouts = static_cast<std::int64_t>(layouts_);
  broadcast(peers_.context, view(&layouts, 1),
            {.name = options_.name + ".layouts", .root = root, .process_set = peers_.set});
  layouts_ = static_cast<std::size_t>(layouts);
  joined_ = pending_ = arrangement_->learned();
}

std::optional<LayoutChanges::Layout> LayoutChanges::next(const GradientBuckets& buckets) {
  if (!std::exchange(pending_, false)) return std::nullopt;
  const bool joined = std::exchange(joined_, false);
  Layout layout{options(), arrangement_->order()};
  if (!joined && buckets.laid_out_as(layout.order, layout.options)) return std::nullopt;
  layout.options.name.append(".").append(kLayoutName).append(std::to_string(layouts_++));
  return layout;
}

}  // namespace hora::internal
