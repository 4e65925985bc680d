#include "bench/peers/gloo.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <map>
#include <string>
#include <vector>

namespace bench {
namespace {

/// gloo's meeting place, on MPI: all ranks set values equally often, each before it gets the
/// others', so set() is collective.
class MpiStore final : public gloo::rendezvous::Store {
 public:
  explicit MpiStore(const Ranks& ranks) : ranks_(ranks) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const auto keys = ranks_.allgather({key.begin(), key.end()});
    const auto values = ranks_.allgather({data.begin(), data.end()});
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      values_[{keys[rank].begin(), keys[rank].end()}] = {values[rank].begin(), values[rank].end()};
    }
  }
  std::vector<char> get(const std::string& key) override { return values_.at(key); }
  void wait(const std::vector<std::string>& /*keys*/) override {}

 private:
  const Ranks& ranks_;
  std::map<std::string, std::vector<char>> values_;
};

}  // namespace

struct GlooRanks::Connections {
  explicit Connections(const Ranks& ranks)
      : device(gloo::transport::tcp::CreateDevice(ranks.on_one_host() ? "127.0.0.1" : "")),
        context(std::make_shared<gloo::rendezvous::Context>(ranks.rank(), ranks.size())) {
    MpiStore store(ranks);
    context->connectFullMesh(store, device);
  }

  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::rendezvous::Context> context;
};

bool has_gloo() {
  return true;
}

GlooRanks::GlooRanks(const Ranks& ranks) : connections_(std::make_unique<Connections>(ranks)) {}
GlooRanks::~GlooRanks() = default;

void GlooRanks::allreduce(float* data, std::size_t count) {
  gloo::AllreduceOptions options(connections_->context);
  options.setOutput(data, count);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(gloo::sum<float>));
  gloo::allreduce(options);
}

void GlooRanks::broadcast(float* data, std::size_t count, int root) {
  gloo::BroadcastOptions options(connections_->context);
  options.setOutput(data, count);
  options.setRoot(root);
  gloo::broadcast(options);
}

void GlooRanks::allgather(const float* input, float* output, std::size_t count) {
  gloo::AllgatherOptions options(connections_->context);
  options.setInput(const_cast<float*>(input), count);
  options.setOutput(output, count * static_cast<std::size_t>(connections_->context->size));
  gloo::allgather(options);
}

void GlooRanks::alltoall(const float* input, float* output, std::size_t count) {
  gloo::AlltoallOptions options(connections_->context);
  const std::size_t all = count * static_cast<std::size_t>(connections_->context->size);
  options.setInput(const_cast<float*>(input), all);
  options.setOutput(output, all);
  gloo::alltoall(options);
}

}  // namespace bench
