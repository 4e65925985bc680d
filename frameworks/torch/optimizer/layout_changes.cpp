#include "frameworks/torch/optimizer/layout_changes.h"

#include <algorithm>
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

BucketArrangement::BucketArrangement(const Peers& peers, std::string name, std::size_t gradients,
                                     bool fixed)
    : peers_(peers),
      name_(std::move(name) + ".order"),
      fixed_(fixed),
      arrived_(gradients, false),
      left_out_(gradients, false) {}

void BucketArrangement::note(std::size_t gradient) {
  if (learned_ || arrived_[gradient]) return;
  arrived_[gradient] = true;
  arrivals_.push_back(gradient);
}

void BucketArrangement::begin() {
  if (learned_) return;
  // The former round's, where that has failed: the name must be free.
  if (handle_.valid()) handle_.wait();
  message_.assign(arrivals_.begin(), arrivals_.end());
  for (std::size_t gradient = 0; gradient < arrived_.size(); ++gradient) {
    if (!arrived_[gradient]) message_.push_back(static_cast<std::int64_t>(gradient));
  }
  if (peers_.size == 1) return;
  // An allreduce, which ranks that have joined do not block. Of the others the first one's
  // numbers are the largest.
  const auto count = static_cast<std::int64_t>(message_.size());
  for (std::int64_t& gradient : message_) gradient += (peers_.size - peers_.rank_in_set) * count;
  handle_ = allreduce_async(peers_.context, view(message_.data(), count),
                            {.name = name_, .op = ReduceOp::max, .process_set = peers_.set});
}

void BucketArrangement::wait() {
  if (handle_.valid()) handle_.wait();
}

void BucketArrangement::learn(const std::vector<bool>& present) {
  if (learned_) return;
  std::vector<std::size_t> latest;
  std::vector<std::size_t> came;
  for (auto gradient = message_.rbegin(); gradient != message_.rend(); ++gradient) {
    const std::size_t index = static_cast<std::size_t>(*gradient) % message_.size();
    (present[index] ? came : latest).push_back(index);
  }
  std::vector<std::size_t> order;
  if (!fixed_) order = std::move(latest);
  order.insert(order.end(), came.begin(), came.end());
  adopt(std::move(order));
}

void BucketArrangement::adopt(std::vector<std::size_t> order) {
  order_ = std::move(order);
  left_out_.assign(left_out_.size(), true);
  for (const std::size_t gradient : order_) left_out_[gradient] = false;
  learned_ = true;
  arrivals_ = {};
  message_ = {};
}

void BucketArrangement::take(int root) {
  std::vector<std::int64_t> message(left_out_.size() + 1, -1);  // a length, or -1: not learned
  if (learned_) {
    message.front() = static_cast<std::int64_t>(order_.size());
    std::copy(order_.begin(), order_.end(), message.begin() + 1);
  }
  broadcast(peers_.context, view(message.data(), static_cast<std::int64_t>(message.size())),
            {.name = name_ + ".learned", .root = root, .process_set = peers_.set});
  if (learned_ || message.front() < 0) return;
  adopt({message.begin() + 1, message.begin() + 1 + message.front()});
}

}  // namespace hora::internal
