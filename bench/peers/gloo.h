/// Collectives of gloo (https://github.com/facebookincubator/gloo) as Debian packages it
/// (libgloo-dev), over TCP, its only transport there.
#pragma once

#include <cstddef>
#include <memory>

#include "bench/harness/ranks.h"

namespace bench {

/// Whether this build has gloo: where not, the others throw std::logic_error.
bool has_gloo();

/// The ranks, connected by gloo: on one host through its loopback interface. Thread rule: one
/// thread.
class GlooRanks {
 public:
  /// Collective.
  explicit GlooRanks(const Ranks& ranks);
  ~GlooRanks();
  GlooRanks(const GlooRanks&) = delete;
  GlooRanks& operator=(const GlooRanks&) = delete;

  // Collective; of float32, counts in elements.
  /// The sum, in place.
  void allreduce(float* data, std::size_t count);
  void broadcast(float* data, std::size_t count, int root);
  /// `count`: of one rank.
  void allgather(const float* input, float* output, std::size_t count);
  /// `count`: what goes to one rank.
  void alltoall(const float* input, float* output, std::size_t count);

 private:
  struct Connections;
  std::unique_ptr<Connections> connections_;
};

}  // namespace bench
