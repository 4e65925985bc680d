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

class Gloo final : public GlooRanks {
 public:
  explicit Gloo(const Ranks& ranks)
      : device_(gloo::transport::tcp::CreateDevice(ranks.on_one_host() ? "127.0.0.1" : "")),
        context_(std::make_shared<gloo::rendezvous::Context>(ranks.rank(), ranks.size())) {
    MpiStore store(ranks);
    context_->connectFullMesh(store, device_);
  }

  void allreduce(float* data, std::size_t count) override {
    gloo::AllreduceOptions options(context_);
    options.setOutput(data, count);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(gloo::sum<float>));
    gloo::allreduce(options);
  }

  void broadcast(float* data, std::size_t count, int root) override {
    gloo::BroadcastOptions options(context_);
    options.setOutput(data, count);
    options.setRoot(root);
    gloo::broadcast(options);
  }

  void allgather(const float* input, float* output, std::size_t count) override {
    gloo::AllgatherOptions options(context_);
    options.setInput(const_cast<float*>(input), count);
    options.setOutput(output, count * static_cast<std::size_t>(context_->size));
    gloo::allgather(options);
  }

  void alltoall(const float* input, float* output, std::size_t count) override {
    gloo::AlltoallOptions options(context_);
    const std::size_t all = count * static_cast<std::size_t>(context_->size);
    options.setInput(const_cast<float*>(input), all);
    options.setOutput(output, all);
    gloo::alltoall(options);
  }

 private:
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

bool has_gloo() {
  return true;
}

std::unique_ptr<GlooRanks> connect_gloo(const Ranks& ranks) {
  return std::make_unique<Gloo>(ranks);
}

}  // namespace bench
