/// Sizes of buckets that an optimizer's first steps try (HORA_TUNING): the usual one, a quarter of
/// it and four times it; what makes steps clearly shorter is kept, for later runs in a file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A form of an optimizer's buckets, to be tried.
struct BucketForm {
  std::size_t bytes = 0;
  bool compressed = false;  ///< as the program has chosen it; else not at all
  bool operator==(const BucketForm&) const = default;
};

/// The usual form first; where it is compressed, as many bytes uncompressed, too.
std::vector<BucketForm> bucket_forms_to_try(const BucketForm& usual);

/// After the first steps, which are slow, the forms take turns in rounds of short blocks of steps;
/// every other round goes backwards, so that a drift of the machine's speed meets all alike. A
/// block's first step, in which buckets are made anew, does not count. In the end the form with the
/// shortest median step is taken, where it gains at least least_gain, and clearly: a step is
/// shorter than a usual one in clear_share of all pairs of steps, the statistic of Mann and
/// Whitney, Ann. Math. Statist. 18 (1947) 50-60; of six steps each, chance alone gives that share
/// one time in twenty. Else the usual one stays. Pure. Thread rule: one thread at a time.
class BucketTuner {
 public:
  static constexpr std::size_t warm_up_steps = 3;
  static constexpr std::size_t block_steps = 3;
  static constexpr std::size_t most_steps = 30;
  static constexpr double least_gain = 0.01;
  static constexpr double clear_share = 0.8;

  /// `forms`: the usual one first; a single one is the choice.
  explicit BucketTuner(std::vector<BucketForm> forms);

  /// For the next step; once done, the choice.
  const BucketForm& form() const { return forms_[tried()]; }
  bool done() const { return steps_ >= planned_; }
  /// A step with form() has taken so long: the same number on all ranks. Not once done.
  void note(double seconds);
  /// Once done: by what share a step is shorter than usual; 0 where the usual form stays.
  double gain() const { return gain_; }
  std::size_t steps() const { return steps_; }  ///< noted
  const std::vector<BucketForm>& forms() const { return forms_; }

 private:
  std::size_t tried() const;
  void choose();

  std::vector<BucketForm> forms_;
  std::vector<std::vector<double>> seconds_;  ///< of steps that count, by form
  std::size_t planned_ = 0;
  std::size_t steps_ = 0;
  std::size_t choice_ = 0;
  double gain_ = 0;
};

/// The form under `key` in the text of a file that HORA_TUNING names; nothing where there is none.
/// JSON: {"hora_tuning": 1, "bucket_sizes": {"<key>": <bytes>, ...}, "compressed": {"<key>": <true
/// or false>, ...}}, compressed where nothing says so. The error says what is wrong with the text.
tl::expected<std::optional<BucketForm>, std::string> tuned_form(std::string_view text,
                                                                const std::string& key);
/// The text with this form under `key`, and whatever else it holds. An empty text is a new file.
std::string with_tuned_form(std::string_view text, const std::string& key, const BucketForm& form);

struct TuningOptions {
  std::string name;       ///< the optimizer's
  BucketForm usual;       ///< without tuning
  std::string file = {};  ///< on the first rank's host; empty: none
  std::string holds_for;  ///< the key in the file: what a choice depends on
};
/// The form in the first rank's file alone, else those to try. Collective. Throws
/// Error(invalid_argument), the same on every rank, for a file that is none of hora's.
BucketTuner make_tuner(const Peers& peers, const TuningOptions& options);
/// Once done, on the first rank: logs what was found, and puts it into the file, or warns.
void report(const BucketTuner& tuner, const TuningOptions& options);

}  // namespace hora::internal
