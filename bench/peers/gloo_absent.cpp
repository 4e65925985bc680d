// Where CMakeLists.txt finds no gloo.
#include <stdexcept>

#include "bench/peers/gloo.h"

namespace bench {
namespace {

[[noreturn]] void refuse() {
  throw std::logic_error("this build has no gloo (libgloo-dev)");
}

}  // namespace

struct GlooRanks::Connections {};

bool has_gloo() {
  return false;
}

GlooRanks::GlooRanks(const Ranks& /*ranks*/) {
  refuse();
}
GlooRanks::~GlooRanks() = default;
void GlooRanks::allreduce(float* /*data*/, std::size_t /*count*/) {
  refuse();
}
void GlooRanks::broadcast(float* /*data*/, std::size_t /*count*/, int /*root*/) {
  refuse();
}
void GlooRanks::allgather(const float* /*input*/, float* /*output*/, std::size_t /*count*/) {
  refuse();
}
void GlooRanks::alltoall(const float* /*input*/, float* /*output*/, std::size_t /*count*/) {
  refuse();
}

}  // namespace bench
