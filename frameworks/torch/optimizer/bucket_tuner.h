/// Which size of buckets makes a step shortest, found by trying. Pure: values in, values out.
#pragma once

#include <cstddef>
#include <vector>

namespace hora::internal {

/// After the first steps, which are slow, the sizes take turns in rounds of short blocks of steps;
/// every other round goes backwards, so that a drift of the machine's speed meets all sizes alike.
/// The first step of a block, in which buckets are made anew, does not count. A size is out as soon
/// as its block was no faster than the default's of the same round. In the end the one with the
/// best gain is taken, where that is at least least_gain and more than the default's own blocks
/// differ by; else the default stays. Steps are at most warm_up_steps + rounds * block_steps *
/// sizes: 30 of three sizes.
class BucketTuner {
 public:
  static constexpr std::size_t warm_up_steps = 3;
  static constexpr std::size_t block_steps = 3;
  static constexpr std::size_t rounds = 3;
  static constexpr double least_gain = 0.01;

  /// `sizes`: the default first; not empty.
  explicit BucketTuner(std::vector<std::size_t> sizes);

  /// For the next step; once done, the choice.
  std::size_t size() const;
  /// Whether a choice was made.
  bool done() const { return done_; }
  /// A step with size() has taken so long: the same number on all ranks. Not once done.
  void note(double seconds);
  /// The default stays, whatever was found.
  void give_up();

  /// Once done: by what share a step is shorter than with the default; 0 where that stays.
  double gain() const { return gain_; }
  std::size_t steps() const { return steps_; }  ///< noted

 private:
  struct Candidate {
    std::size_t size = 0;
    std::vector<double> blocks;  ///< mean seconds of a step, by round
    bool out = false;
  };
  std::vector<std::size_t> order_of_round() const;
  void end_block();
  void end_round();
  void choose();

  std::vector<Candidate> candidates_;
  std::vector<std::size_t> order_;  ///< of this round: indices of candidates
  std::size_t round_ = 0;
  std::size_t block_ = 0;  ///< in this round
  std::size_t step_ = 0;   ///< in this block, or of the warm-up
  double block_seconds_ = 0;
  bool warm_ = false;
  bool done_ = false;
  std::size_t choice_ = 0;
  double gain_ = 0;
  std::size_t steps_ = 0;
};

/// The sizes to try: `usual`, a quarter of it and four times as much.
std::vector<std::size_t> bucket_sizes_to_try(std::size_t usual);

}  // namespace hora::internal
