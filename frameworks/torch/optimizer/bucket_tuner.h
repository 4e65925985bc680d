/// Which form of buckets makes a step shortest, found by trying. Pure: values in, values out.
#pragma once

#include <cstddef>
#include <vector>

namespace hora::internal {

/// A form of an optimizer's buckets, to be tried.
struct BucketForm {
  std::size_t bytes = 0;
  bool compressed = false;  ///< as the program has chosen it; else not at all
  bool operator==(const BucketForm&) const = default;
};

/// After the first steps, which are slow, the forms take turns in rounds of short blocks of steps;
/// every other round goes backwards, so that a drift of the machine's speed meets all forms alike.
/// The first step of a block, in which buckets are made anew, does not count, and of the others the
/// shortest does, as what else a machine does makes steps longer. A form is out as soon as its
/// block was no faster than the default's of the same round in most rounds; after the first round
/// the best stay, as many as least_rounds allow, and the rounds go on as long as most_steps allow.
/// In the end the one with the best gain is taken, where that is at least least_gain, and clear:
/// a step with it is shorter than one with the default in clear_share of all such pairs of steps,
/// the statistic of Mann and Whitney, Ann. Math. Statist. 18 (1947) 50-60; of six or eight steps
/// each, chance alone gives that share one time in twenty or fifty. Else the default stays.
class BucketTuner {
 public:
  static constexpr std::size_t warm_up_steps = 3;
  static constexpr std::size_t block_steps = 3;
  static constexpr std::size_t least_rounds = 3;
  static constexpr std::size_t most_steps = 30;
  /// So many that one can stay beside the default.
  static constexpr std::size_t most_forms =
      (most_steps - warm_up_steps) / block_steps - 2 * (least_rounds - 1);
  static constexpr double least_gain = 0.01;
  static constexpr double clear_share = 0.8;

  /// `forms`: the default first; not empty, at most most_forms.
  explicit BucketTuner(const std::vector<BucketForm>& forms);

  /// After the warm-up, before the next step: these are tried. The default first, as it was.
  void try_instead(const std::vector<BucketForm>& forms);
  /// The warm-up is over, and nothing else was noted.
  bool just_warm() const { return steps_ == warm_up_steps; }
  /// The forms that are tried; the default first.
  std::vector<BucketForm> forms() const;

  /// For the next step; once done, the choice.
  const BucketForm& form() const;
  /// Whether a choice was made.
  bool done() const { return done_; }
  /// A step with form() has taken so long: the same number on all ranks. Not once done.
  void note(double seconds);
  /// The default stays, whatever was found.
  void give_up();

  /// Once done: by what share a step is shorter than with the default; 0 where that stays.
  double gain() const { return gain_; }
  std::size_t steps() const { return steps_; }  ///< noted

 private:
  struct Candidate {
    BucketForm form;
    std::vector<double> blocks;  ///< seconds of the shortest step, by round
    std::vector<double> steps;   ///< seconds of all that count
    bool out = false;
  };
  void take(const std::vector<BucketForm>& forms);
  std::vector<std::size_t> order_of_round() const;
  /// By round.
  std::vector<double> gains(const Candidate& candidate) const;
  bool is_clear(const Candidate& candidate) const;
  void end_block();
  void end_round();
  void keep_the_best();
  void choose();

  std::vector<Candidate> candidates_;
  std::vector<std::size_t> order_;  ///< of this round: indices of candidates
  std::size_t round_ = 0;
  std::size_t block_ = 0;  ///< in this round
  std::size_t step_ = 0;   ///< in this block, or of the warm-up
  bool warm_ = false;
  bool done_ = false;
  std::size_t choice_ = 0;
  double gain_ = 0;
  std::size_t steps_ = 0;
};

/// The usual form, a quarter of its bytes and four times as many; where it is compressed, as many
/// uncompressed.
std::vector<BucketForm> bucket_forms_to_try(const BucketForm& usual);

}  // namespace hora::internal
