#include "frameworks/torch/optimizer/tuner.h"

#include <hora/objects.h>
#include <hora/printable.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "frameworks/torch/checkpoint/store.h"

namespace hora::internal {

std::vector<BucketForm> bucket_forms_to_try(const BucketForm& usual) {
  std::vector<BucketForm> forms{usual,
                                {std::max<std::size_t>(usual.bytes / 4, 1), usual.compressed},
                                {usual.bytes * 4, usual.compressed}};
  if (usual.compressed) forms.push_back({usual.bytes, false});
  return forms;
}

BucketTuner::BucketTuner(std::vector<BucketForm> forms)
    : forms_(std::move(forms)), seconds_(forms_.size()) {
  if (forms_.size() == 1) return;
  const std::size_t round = block_steps * forms_.size();
  planned_ = warm_up_steps + (most_steps - warm_up_steps) / round * round;
}

std::size_t BucketTuner::tried() const {
  if (done() || steps_ < warm_up_steps) return choice_;
  const std::size_t block = (steps_ - warm_up_steps) / block_steps;
  const std::size_t place = block % forms_.size();
  return block / forms_.size() % 2 == 0 ? place : forms_.size() - 1 - place;
}

void BucketTuner::note(double seconds) {
  const bool counts = steps_ >= warm_up_steps && (steps_ - warm_up_steps) % block_steps != 0;
  if (counts) seconds_[tried()].push_back(seconds);
  steps_ += 1;
  if (done()) choose();
}

void BucketTuner::choose() {
  const std::vector<double>& usual = seconds_.front();
  for (std::size_t i = 1; i < forms_.size(); ++i) {
    std::ptrdiff_t shorter = 0;
    for (const double step : seconds_[i]) {
      shorter += std::ranges::count_if(usual, [&](double other) { return step < other; });
    }
    const auto pairs = static_cast<double>(seconds_[i].size() * usual.size());
    const double gain = 1 - median(seconds_[i]) / median(usual);
    if (static_cast<double>(shorter) < clear_share * pairs || gain < least_gain || gain <= gain_) {
      continue;
    }
    choice_ = i;
    gain_ = gain;
  }
}

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "hora_tuning";
constexpr const char* kSizes = "bucket_sizes";
constexpr const char* kCompressed = "compressed";

Json parsed(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// Empty where there is no such file.
std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

tl::expected<std::optional<BucketForm>, std::string> tuned_form(std::string_view text,
                                                                const std::string& key) {
  const Json file = parsed(text);
  if (!file.is_object()) return tl::unexpected<std::string>("it is no JSON object");
  if (file.value(kFormat, Json()) != 1) {
    return tl::unexpected("it has no member \"" + std::string(kFormat) + "\" that is 1");
  }
  const Json none = Json::object();
  for (const char* const name : {kSizes, kCompressed}) {
    if (!file.value(name, none).is_object()) {
      return tl::unexpected("\"" + std::string(name) + "\" is no object");
    }
  }
  if (!file.value(kSizes, none).contains(key)) return std::nullopt;
  const Json& size = file[kSizes][key];
  if (!size.is_number_unsigned() || size == 0) {
    return tl::unexpected("the size of \"" + key + "\" is " + size.dump() +
                          "; expected a whole number above 0");
  }
  const Json compressed = file.value(kCompressed, none).value(key, Json(true));
  if (!compressed.is_boolean()) {
    return tl::unexpected("whether \"" + key + "\" is compressed is " + compressed.dump() +
                          "; expected true or false");
  }
  return BucketForm{size.get<std::size_t>(), compressed.get<bool>()};
}

std::string with_tuned_form(std::string_view text, const std::string& key, const BucketForm& form) {
  Json file = text.empty() ? Json{{kFormat, 1}} : parsed(text);
  file[kSizes][key] = form.bytes;
  file[kCompressed][key] = form.compressed;
  return file.dump(2) + "\n";
}

BucketTuner make_tuner(const Peers& peers, const TuningOptions& options) {
  if (options.file.empty()) return BucketTuner(bucket_forms_to_try(options.usual));
  // Text of a file that holds it alone, nothing, or what is wrong, which is no such text.
  std::string answer;
  const std::string text = peers.rank_in_set == 0 ? text_of(options.file) : "";
  if (!text.empty()) {
    const auto found = tuned_form(text, options.holds_for);
    if (!found) answer = found.error();
    if (found && *found) answer = with_tuned_form("", options.holds_for, **found);
  }
  answer = broadcast_object(
      peers.context, answer,
      {.name = options.name + ".file", .root = peers.first, .process_set = peers.set});
  if (answer.empty()) return BucketTuner(bucket_forms_to_try(options.usual));
  if (const auto form = tuned_form(answer, options.holds_for)) return BucketTuner({**form});
  throw Error(ErrorCode::invalid_argument,
              "HORA_TUNING=" + in_quotes(options.file) + ": " + answer +
                  "; expected a file that hora has written, or none of that name",
              peers.first);
}

void report(const BucketTuner& tuner, const TuningOptions& options) {
  const BucketForm& found = tuner.form();
  const BucketForm& usual = options.usual;
  std::ostringstream text;
  text << "HORA_TUNING: " << options.name << ": buckets of " << found.bytes << " bytes"
       << (found.compressed != usual.compressed ? ", not compressed" : "");
  if (tuner.gain() > 0) {
    text << ": steps are " << 100 * tuner.gain() << " % shorter than as usual, with " << usual.bytes
         << (usual.compressed ? " compressed" : "");
  } else {
    text << ", as usual: no other form made steps clearly shorter";
  }
  text << " (" << tuner.steps() << " steps; tried:";
  for (const BucketForm& form : tuner.forms()) {
    text << ' ' << form.bytes << (form.compressed == usual.compressed ? "" : " uncompressed");
  }
  text << ")";
  log_info(text.str());
  if (options.file.empty()) return;
  try {
    const std::string stored = with_tuned_form(text_of(options.file), options.holds_for, found);
    replace_durably(options.file, std::as_bytes(std::span(stored)));
  } catch (const Error& error) {
    log_warning("HORA_TUNING: what was found is not stored: " + std::string(error.what()));
  }
}

}  // namespace hora::internal
