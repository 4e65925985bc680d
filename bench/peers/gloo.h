/// Collectives of gloo (https://github.com/facebookincubator/gloo) as Debian packages it
/// (libgloo-dev), over TCP, its only transport there.
#pragma once

#include <cstddef>
#include <memory>

#include "bench/harness/ranks.h"

namespace bench {

/// The ranks, connected by gloo. Every function is collective, of float32, with counts in elements.
/// Thread rule: one thread.
class GlooRanks {
 public:
  virtual ~GlooRanks() = default;
  /// The sum, in place.
  virtual void allreduce(float* data, std::size_t count) = 0;
  virtual void broadcast(float* data, std::size_t count, int root) = 0;
  /// `count`: of one rank.
  virtual void allgather(const float* input, float* output, std::size_t count) = 0;
  /// `count`: what goes to one rank.
  virtual void alltoall(const float* input, float* output, std::size_t count) = 0;
};

/// Whether this build has gloo.
bool has_gloo();
/// Collective. On one host through its loopback interface. Null where this build has no gloo.
std::unique_ptr<GlooRanks> connect_gloo(const Ranks& ranks);

}  // namespace bench
