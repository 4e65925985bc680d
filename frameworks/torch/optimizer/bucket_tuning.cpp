#include "frameworks/torch/optimizer/bucket_tuning.h"

#include <hora/objects.h>
#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "frameworks/torch/checkpoint/store.h"
#include "frameworks/torch/optimizer/collective_timing.h"
#include "frameworks/torch/optimizer/tuning_file.h"

namespace hora::internal {
namespace {

/// Empty where there is no such file.
std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The form in the first rank's file, on every rank; nothing where it has none.
std::optional<BucketForm> form_in_file(const Peers& peers, const BucketTuning::Options& options) {
  if (options.file.empty()) return std::nullopt;
  std::string
      answer;  // a file's text of it alone, nothing, or what is wrong, which is no such text
  if (peers.rank_in_set == 0) {
    const std::string text = text_of(options.file);
    const auto found = tuned_form(text, options.holds_for);
    if (!text.empty() && !found) answer = found.error();
    if (!text.empty() && found && *found) answer = with_tuned_form("", options.holds_for, **found);
  }
  answer = broadcast_object(
      peers.context, answer,
      {.name = options.name + ".file", .root = peers.first, .process_set = peers.set});
  if (answer.empty()) return std::nullopt;
  if (const auto form = tuned_form(answer, options.holds_for)) return *form;
  throw Error(ErrorCode::invalid_argument,
              "HORA_TUNING=" + in_quotes(options.file) + ": " + answer +
                  "; expected a file that hora has written, or none of that name",
              peers.first);
}

std::vector<BucketForm> forms_to_try(const Peers& peers, const BucketTuning::Options& options) {
  const auto found = form_in_file(peers, options);
  return found ? std::vector<BucketForm>{*found} : bucket_forms_to_try(options.usual);
}

}  // namespace

BucketTuning::BucketTuning(const Peers& peers, Options options, std::size_t gradients)
    : peers_(peers),
      options_(std::move(options)),
      name_(options_.name + ".step_time"),
      gradients_(gradients),
      tuner_(forms_to_try(peers_, options_)) {
  if (options_.forecast && !tuner_.done()) {
    cost_ = timed_collectives(peers_, options_.name + ".cost");
  }
  if (cost_) arrivals_.resize(gradients_);
}

void BucketTuning::note(std::size_t gradient, Clock::time_point now) {
  if (!arrivals_.empty()) arrivals_[gradient] = now;
}

std::vector<double> BucketTuning::leads(Clock::time_point now) const {
  std::vector<double> leads;
  for (const auto& arrival : arrivals_) {
    leads.push_back(arrival ? std::chrono::duration<double>(now - *arrival).count() : 0.0);
  }
  return leads;
}

void BucketTuning::begin(std::chrono::steady_clock::time_point now) {
  if (tuner_.done()) return;
  // The former round's, where that has failed: the name must be free.
  if (handle_.valid()) handle_.wait();
  const bool is_step = std::exchange(begun_, true);
  message_ = {is_step ? std::chrono::duration<double>(now - before_).count() : 0.0, 1.0};
  before_ = now;
  if (cost_) {
    leads_.push_back(leads(now));
    std::ranges::fill(arrivals_, std::nullopt);
    if (tuner_.steps() + 1 == BucketTuner::warm_up_steps) {
      for (std::size_t gradient = 0; gradient < gradients_; ++gradient) {
        std::vector<double> of_steps;
        for (const auto& step : leads_) of_steps.push_back(step[gradient]);
        message_.push_back(median(std::move(of_steps)));
      }
    }
  }
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context, view(message_.data(), std::ssize(message_)),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

void BucketTuning::wait() {
  if (handle_.valid()) handle_.wait();
}

void BucketTuning::count_step(const LayoutsOf& layouts_of) {
  if (tuner_.done()) return;
  if (message_[1] < peers_.size) {
    tuner_.give_up();
    return;
  }
  const double seconds = message_[0] / message_[1];
  tuner_.note(seconds);
  if (cost_ && tuner_.just_warm()) {
    ForecastInput input{*cost_, {message_.begin() + 2, message_.end()}, seconds};
    for (double& lead : input.leads) lead /= message_[1];
    tuner_.try_instead(forms_that_promise(options_.usual, layouts_of, input));
    cost_.reset();
    arrivals_.clear();
  }
  if (tuner_.done() && peers_.rank_in_set == 0) report();
}

void BucketTuning::end(int root) {
  const BucketForm own = tuner_.done() ? tuner_.form() : options_.usual;
  std::array<std::int64_t, 2> form{static_cast<std::int64_t>(own.bytes), own.compressed ? 1 : 0};
  broadcast(peers_.context, view(form.data(), std::ssize(form)),
            {.name = name_ + ".end", .root = root, .process_set = peers_.set});
  tuner_ = BucketTuner({{static_cast<std::size_t>(form[0]), form[1] != 0}});
}

void BucketTuning::report() const {
  std::ostringstream text;
  const BucketForm& found = tuner_.form();
  text << "HORA_TUNING: " << options_.name << ": buckets of " << found.bytes << " bytes";
  if (found.compressed != options_.usual.compressed) text << ", not compressed";
  if (tuner_.gain() > 0) {
    text << ": steps are " << 100 * tuner_.gain() << " % shorter than as usual, with "
         << options_.usual.bytes << (options_.usual.compressed ? " compressed" : "");
  } else {
    text << ", as usual: no other form made steps clearly shorter";
  }
  text << " (" << tuner_.steps() << " steps; tried:";
  for (const BucketForm& form : tuner_.forms()) {
    text << ' ' << form.bytes
         << (form.compressed == options_.usual.compressed ? "" : " uncompressed");
  }
  text << ")";
  log_info(text.str());
  if (options_.file.empty()) return;
  try {
    const std::string stored =
        with_tuned_form(text_of(options_.file), options_.holds_for, tuner_.form());
    replace_durably(options_.file, std::as_bytes(std::span(stored)));
  } catch (const Error& error) {
    log_warning("HORA_TUNING: what was found is not stored: " + std::string(error.what()));
  }
}

}  // namespace hora::internal
