// LARS and LAMB: beside the papers' algorithms in Python, saved and loaded, and on several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/vision/optim/lamb.h"
#include "examples/vision/optim/lars.h"
#include "examples/vision/optim/optimizers.h"
#include "tests/frameworks/torch/optimizer/training.h"

namespace vision {
namespace {

namespace test = hora::internal::test;
using testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

const nlohmann::json& reference() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(OPTIMIZER_REFERENCE));
  return json;
}

Tensors tensors_of(const nlohmann::json& values) {
  Tensors tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensors.push_back(torch::tensor(values[i].get<std::vector<double>>(), torch::kDouble)
                          .reshape(reference()["shapes"][i].get<std::vector<std::int64_t>>()));
  }
  return tensors;
}

/// The reference's weights, and an optimizer with those that it does not adapt in a group of their
/// own.
struct Layers {
  Tensors weights = tensors_of(reference()["weights"]);
  Optimizer optimizer;

  template <class Kind, class Options>
  static Layers with(const Options& options) {
    Layers layers;
    Tensors adapted;
    Tensors others;
    for (std::size_t i = 0; i < layers.weights.size(); ++i) {
      layers.weights[i].requires_grad_();
      (reference()["adapt"][i].get<bool>() ? adapted : others).push_back(layers.weights[i]);
    }
    auto of_others = std::make_unique<Options>(options);
    of_others->adapt(false).weight_decay(0);
    layers.optimizer = std::make_unique<Kind>(
        std::vector<torch::optim::OptimizerParamGroup>{
            {adapted, std::make_unique<Options>(options)}, {others, std::move(of_others)}},
        options);
    return layers;
  }

  void step(const nlohmann::json& gradients) {
    const Tensors values = tensors_of(gradients);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = values[i];
    optimizer->step();
  }
};

Layers lars_layers() {
  const auto& options = reference()["lars"]["options"];
  return Layers::with<LARS>(LARSOptions(options["rate"].get<double>())
                                .momentum(options["momentum"].get<double>())
                                .weight_decay(options["decay"].get<double>())
                                .trust_coefficient(options["trust"].get<double>()));
}

Layers lamb_layers() {
  const auto& options = reference()["lamb"]["options"];
  return Layers::with<LAMB>(LAMBOptions(options["rate"].get<double>())
                                .beta1(options["beta1"].get<double>())
                                .beta2(options["beta2"].get<double>())
                                .eps(options["eps"].get<double>())
                                .weight_decay(options["decay"].get<double>()));
}

struct Kind {
  std::string name;
  Layers (*layers)();
};
void PrintTo(const Kind& kind, std::ostream* stream) {
  *stream << kind.name;
}

class LayerRates : public testing::TestWithParam<Kind> {};

TEST_P(LayerRates, StepsAsThePapersAlgorithm) {
  Layers layers = GetParam().layers();
  for (const auto& of_step : reference()["gradients"]) layers.step(of_step);
  const Tensors expected = tensors_of(reference()[GetParam().name]["weights"]);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(layers.weights[i], expected[i], 1e-12, 1e-14))
        << "layer " << i << ": " << (layers.weights[i] - expected[i]).abs().max();
  }
}

TEST_P(LayerRates, SavedAndLoadedItGoesOnWithTheSameBits) {
  Layers through = GetParam().layers();
  for (int step = 0; step < 2; ++step) through.step(reference()["gradients"][step]);
  torch::serialize::OutputArchive saved;
  through.optimizer->save(saved);
  std::stringstream bytes;
  saved.save_to(bytes);

  Layers again = GetParam().layers();
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  again.optimizer->load(archive);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < again.weights.size(); ++i) {
      again.weights[i].copy_(through.weights[i]);
    }
  }
  for (int step = 2; step < 5; ++step) {
    through.step(reference()["gradients"][step]);
    again.step(reference()["gradients"][step]);
  }
  test::expect_same_bits(again.weights, through.weights);
}

TEST_P(LayerRates, LeavesParametersWithoutGradientsAlone) {
  Layers layers = GetParam().layers();
  layers.step(reference()["gradients"][0]);
  const Tensors before = test::copies_of(layers.weights);
  for (auto& weight : layers.weights) weight.mutable_grad() = torch::Tensor();
  layers.weights[1].mutable_grad() = torch::ones_like(layers.weights[1]);
  layers.optimizer->step();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(torch::equal(layers.weights[i], before[i]), i != 1) << i;
  }
}

test::MakeOptimizer maker(const std::string& name) {
  return [name](const Tensors& parameters) {
    torch::OrderedDict<std::string, torch::Tensor> named;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      named.insert(std::to_string(i), parameters[i]);
    }
    return make_optimizer({.name = name, .learning_rate = name == "lars" ? 5.0 : 0.02}, named);
  };
}

// In float64: a single process on the whole batch, beside the ranks on their parts of it.
TEST_P(LayerRates, RanksTogetherStepAsOneProcess) {
  const hora::Context world = hora::init();
  const auto make = maker(GetParam().name);
  test::Training ranks(world, {}, make, torch::kDouble);
  auto network = test::small_network(test::seed(), torch::kDouble);
  const Tensors start = test::copies_of(network->parameters());
  const auto alone = make(network->parameters());
  for (int step = 0; step < 8; ++step) {
    ranks.step(test::my_batch(world, step, 3, torch::kDouble));
    network->zero_grad();
    const auto whole = test::whole_batch(test::seed() + 1000 * static_cast<std::uint64_t>(step),
                                         3 * world.size(), torch::kDouble);
    test::loss_of(network, whole).backward();
    alone->step();
  }
  test::expect_close(ranks.network->parameters(), network->parameters(), 1e-10);
  for (std::size_t i = 0; i < start.size(); ++i) {
    EXPECT_FALSE(torch::allclose(network->parameters()[i], start[i], 1e-3, 1e-3)) << i;
    EXPECT_TRUE(test::equals_root(world, ranks.network->parameters()[i]));
  }
}

TEST_P(LayerRates, ItsStateIsBroadcast) {
  const hora::Context world = hora::init();
  const auto make = maker(GetParam().name);
  auto network = test::small_network(test::seed(), torch::kDouble);
  const auto optimizer = make(network->parameters());
  const auto batch = test::my_batch(world, 0, 2, torch::kDouble);
  if (world.rank() == 0) {
    test::loss_of(network, batch).backward();
    optimizer->step();
  }
  hora::broadcast_parameters(world, *network);
  hora::broadcast_optimizer_state(world, *optimizer);
  network->zero_grad();
  test::loss_of(network, test::batch_of(world, 0, 1, 2, torch::kDouble)).backward();
  optimizer->step();
  for (const auto& parameter : network->parameters()) {
    EXPECT_TRUE(test::equals_root(world, parameter));
  }
}

TEST_P(LayerRates, RefusesPiecesOfLayers) {
  const hora::Context world = hora::init();
  test::Training sharded(world, {.shard_state = true}, maker(GetParam().name), torch::kDouble);
  sharded.optimizer.zero_grad();
  sharded.backward(test::my_batch(world, 0, 2, torch::kDouble));
  EXPECT_THAT([&] { sharded.optimizer.step(); },
              testing::ThrowsMessage<std::invalid_argument>(HasSubstr("without shard_state")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerRates,
                         testing::Values(Kind{"lars", lars_layers}, Kind{"lamb", lamb_layers}),
                         [](const auto& kind) { return kind.param.name; });

TEST(LayerRateOptions, AreRefusedOutOfRange) {
  const Tensors weights{torch::ones({2}).requires_grad_()};
  const auto expect_refused = [](const std::string& text, const auto& misuse) {
    EXPECT_THAT(misuse, testing::ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  };
  expect_refused("LARS: lr is -1", [&] { LARS(weights, LARSOptions(-1)); });
  expect_refused("momentum is -1", [&] { LARS(weights, LARSOptions(1).momentum(-1)); });
  expect_refused("weight_decay is -1", [&] { LARS(weights, LARSOptions(1).weight_decay(-1)); });
  expect_refused("trust_coefficient is 0",
                 [&] { LARS(weights, LARSOptions(1).trust_coefficient(0)); });
  expect_refused("LAMB: lr is -1", [&] { LAMB(weights, LAMBOptions(-1)); });
  expect_refused("beta1 is 1", [&] { LAMB(weights, LAMBOptions(1).beta1(1)); });
  expect_refused("beta2 is -1", [&] { LAMB(weights, LAMBOptions(1).beta2(-1)); });
  expect_refused("eps is 0", [&] { LAMB(weights, LAMBOptions(1).eps(0)); });
  expect_refused("weight_decay is nan",
                 [&] { LAMB(weights, LAMBOptions(1).weight_decay(std::nan(""))); });
}

}  // namespace
}  // namespace vision
