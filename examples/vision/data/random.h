/// Random numbers that are the same with every standard library and on every host, by counter: a
/// stream depends on its key alone, such as (seed, epoch, image).
#pragma once

#include <cstdint>
#include <initializer_list>

namespace vision {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014,
/// section 4). Small enough to start one for each image.
class Random {
 public:
  /// The stream named by `key`, such as {seed, epoch, image}.
  explicit Random(std::initializer_list<std::uint64_t> key);
  std::uint64_t next();
  /// Uniform in 0 .. bound-1; `bound` must not be 0.
  std::uint64_t below(std::uint64_t bound);
  /// Uniform in [from, to), or `from` where they are equal; takes 53 bits.
  double uniform(double from, double to);

 private:
  std::uint64_t state_ = 0;
};

}  // namespace vision
