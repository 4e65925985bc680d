// DistributedDataParallel without its Python part: what torch/nn/parallel/distributed.py of 1.13
// does around a step, with its default options.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>

#include "bench/training_step/contender.h"

namespace bench {
namespace {

constexpr std::size_t host_name_size = 256;

std::string own_host_name() {
  std::array<char, host_name_size> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

/// Collective. Rank 0 listens on a free port.
c10::intrusive_ptr<c10d::Store> make_store(const Ranks& ranks, const std::string& rank_0) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = ranks.rank() == 0;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (options.isServer) store = c10::make_intrusive<c10d::TCPStore>(rank_0, options);
  const auto port = ranks.broadcast({store ? store->getPort() : 0});
  if (store) return store;
  options.port = static_cast<std::uint16_t>(port.front());
  return c10::make_intrusive<c10d::TCPStore>(rank_0, options);
}

/// Collective.
std::string host_of_rank_0(const Ranks& ranks) {
  const std::string own = own_host_name();
  const auto characters = ranks.broadcast({own.begin(), own.end()});
  std::string name;
  for (const auto character : characters) name.push_back(static_cast<char>(character));
  return name;
}

/// Collective. On one host through the loopback interface, which is gloo's fastest there.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const Ranks& ranks) {
  const bool one_host = ranks.on_one_host();
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(one_host ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                      : c10d::ProcessGroupGloo::createDefaultDevice());
  const std::string rank_0 = host_of_rank_0(ranks);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      make_store(ranks, one_host ? "127.0.0.1" : rank_0), ranks.rank(), ranks.size(), options);
}

class C10dGloo final : public Contender {
 public:
  C10dGloo(const Ranks& ranks, Network& network)
      : parameters_(network.module->parameters()), sgd_(parameters_, sgd_options()) {
    const std::vector<bool> dense(parameters_.size(), false);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters_, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap}, dense);
    // Gradients come in about the reverse order of the parameters.
    std::reverse(buckets.begin(), buckets.end());
    std::reverse(limits.begin(), limits.end());
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& item : network.module->named_parameters()) {
      names.emplace(names.size(), item.key());
    }
    reducer_ = std::make_unique<c10d::Reducer>(
        parameters_, buckets, limits, make_group(ranks), dense, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, names,
        c10d::kDefaultFirstBucketBytes);
  }

  void begin() override {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();  // once, after the first step
    reducer_->prepare_for_backward({});
  }
  void step() override { sgd_.step(); }

 private:
  std::vector<torch::Tensor> parameters_;
  torch::optim::SGD sgd_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::function<std::unique_ptr<Contender>(const Surroundings&, Network&)> c10d_gloo() {
  return [](const Surroundings& surroundings, Network& network) {
    return std::make_unique<C10dGloo>(surroundings.ranks, network);
  };
}

}  // namespace bench
