#include <gtest/gtest.h>
#include <hora/torch/optim.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;
using Tensors = std::vector<torch::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(Tensors)>;

/// An optimizer of LibTorch's, and hora's in its place.
struct Kind {
  std::string name;
  Make libtorch;
  Make hora;
  bool takes_roots;
};

template <class LibTorch, class Hora, class Options>
Kind kind(const std::string& name, const Options& options, bool takes_roots = true) {
  return {name,
          [options](Tensors parameters) {
            return std::make_unique<LibTorch>(std::move(parameters), options);
          },
          [options](Tensors parameters) {
            return std::make_unique<Hora>(std::move(parameters), options);
          },
          takes_roots};
}
Kind sgd(const std::string& name, const SGDOptions& options) {
  return kind<torch::optim::SGD, optim::SGD>(name, options, false);
}
Kind adam(const std::string& name, const AdamOptions& options) {
  return kind<torch::optim::Adam, optim::Adam>(name, options);
}
Kind adamw(const std::string& name, const AdamWOptions& options) {
  return kind<torch::optim::AdamW, optim::AdamW>(name, options);
}

const Kind kKinds[] = {
    sgd("Sgd", SGDOptions(0.1)),
    sgd("SgdDecay", SGDOptions(0.1).weight_decay(0.013)),
    sgd("SgdMomentum", SGDOptions(0.07).momentum(0.9)),
    sgd("SgdMomentumOfOne", SGDOptions(0.07).momentum(1)),
    sgd("SgdDampening", SGDOptions(0.07).momentum(0.9).dampening(0.3).weight_decay(0.01)),
    sgd("SgdNesterov", SGDOptions(0.07).momentum(0.9).nesterov(true)),
    sgd("SgdNesterovDecay", SGDOptions(0.07).momentum(0.83).nesterov(true).weight_decay(5e-4)),
    adam("Adam", AdamOptions(0.01)),
    adam("AdamDecay", AdamOptions(0.01).weight_decay(0.02).betas({0.87, 0.98}).eps(1e-5)),
    adam("AdamAmsgrad", AdamOptions(0.01).amsgrad(true).weight_decay(0.02)),
    adamw("AdamW", AdamWOptions(0.01)),
    adamw("AdamWWithoutDecay", AdamWOptions(0.01).weight_decay(0)),
    adamw("AdamWAmsgrad", AdamWOptions(0.013).amsgrad(true).weight_decay(0.3)),
};

/// All that one pass takes: types, orders in memory, lengths around the vector registers'; then
/// what LibTorch steps.
Tensors parameters() {
  torch::manual_seed(seed());
  Tensors all;
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const std::int64_t count : {0, 1, 7, 16, 67, 100003}) {
      all.push_back(torch::randn({count}, type));
    }
    all.push_back(torch::randn({}, type));
    all.push_back(torch::randn({5, 3, 3, 2}, type).contiguous(torch::MemoryFormat::ChannelsLast));
    all.push_back(torch::randn({6, 11}, type).t());
  }
  all.push_back(torch::randn({33}).narrow(0, 3, 20));  // not aligned to vectors
  all.push_back(torch::randn({8, 9}).select(1, 2));    // not dense
  all.push_back(torch::randn({40}).to(torch::kBFloat16));
  for (auto& parameter : all) parameter = parameter.detach().requires_grad_();
  return all;
}

Tensors copies(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) {
    auto copy = torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    all.push_back(copy.copy_(tensor.detach()).detach().requires_grad_());
  }
  return all;
}

/// The same in both, of magnitudes far apart; now and then none, and one in another memory order.
void give_gradients(const Tensors& a, const Tensors& b, int step) {
  torch::manual_seed(seed() + 1 + static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto scale = torch::randn_like(a[i].detach(), torch::MemoryFormat::Contiguous).mul(4);
    auto gradient = torch::randn_like(a[i].detach()) * scale.exp();
    if (step == 2 && a[i].dim() == 4) gradient = gradient.contiguous();
    const bool absent = (static_cast<std::size_t>(step) + i) % 5 == 1;
    a[i].mutable_grad() = absent ? torch::Tensor() : gradient;
    b[i].mutable_grad() = absent ? torch::Tensor() : gradient.clone();
  }
}

/// MKL's are not, with which LibTorch can be built.
bool square_roots_are_right() {
  const auto check = [](const torch::Tensor& values, auto zero) {
    const auto roots = values.sqrt();
    using Value = decltype(zero);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const auto at = [i](const torch::Tensor& all) { return all.data_ptr<Value>()[i]; };
      if (at(roots) != std::sqrt(at(values))) return false;
    }
    return true;
  };
  static const bool right =
      check(torch::rand({4096}), 0.0F) && check(torch::rand({4096}, torch::kDouble), 0.0);
  return right;
}

/// For a few steps by a rate of .02 at most, whose updates are at most some 10 times that.
void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, int step) {
  const bool single = expected.scalar_type() == torch::kFloat;
  const double epsilon = single ? 0x1p-23 : 0x1p-52;
  EXPECT_TRUE(torch::allclose(actual, expected, 8 * epsilon, 16 * epsilon)) << "step " << step;
}

void expect_same_bits(const Tensors& actual, const Tensors& expected, int step, bool takes_roots) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].strides(), expected[i].strides());
    if (takes_roots && !square_roots_are_right()) {
      expect_close(actual[i], expected[i], step);
      continue;
    }
    EXPECT_TRUE(torch::equal(actual[i], expected[i]))
        << "step " << step << ", parameter " << i << " of " << expected[i].sizes() << " "
        << expected[i].scalar_type();
  }
}

class FusedOptimizer : public testing::TestWithParam<Kind> {
 protected:
  /// Makes steps [begin, end) by LibTorch and by hora, of the same bits.
  void step_both(Optimizer& libtorch, Optimizer& fused, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      give_gradients(expected_, actual_, step);
      libtorch.step();
      fused.step();
      expect_same_bits(actual_, expected_, step, GetParam().takes_roots);
    }
  }

  const Tensors expected_ = parameters();
  const Tensors actual_ = copies(expected_);
};

std::vector<std::int64_t> versions(const Tensors& tensors) {
  std::vector<std::int64_t> all;
  for (const auto& tensor : tensors) all.push_back(tensor._version());
  return all;
}

/// Two groups, the second of which has a learning rate of its own.
std::unique_ptr<Optimizer> in_halves(const Tensors& all, const Make& make) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  auto optimizer = make({all.begin(), middle});
  auto options = optimizer->defaults().clone();
  options->set_lr(0.02);
  optimizer->add_param_group({Tensors(middle, all.end()), std::move(options)});
  return optimizer;
}

TEST_P(FusedOptimizer, GivesTheBitsOfLibTorchForEachGroupAndTellsAutograd) {
  const auto libtorch = in_halves(expected_, GetParam().libtorch);
  const auto fused = in_halves(actual_, GetParam().hora);
  for (int step = 0; step < 6; ++step) {
    const auto before_expected = versions(expected_);
    const auto before = versions(actual_);
    step_both(*libtorch, *fused, step, step + 1);
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      EXPECT_EQ(actual_[i]._version() != before[i], expected_[i]._version() != before_expected[i])
          << "parameter " << i;
    }
    if (step != 3) continue;
    for (auto* optimizer : {libtorch.get(), fused.get()}) {
      optimizer->param_groups()[0].options().set_lr(0.0123);
    }
  }
}

/// torch::save() of `saved`, read by `loaded`.
void hand_over(Optimizer& saved, Optimizer& loaded) {
  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  saved.save(out);
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  loaded.load(in);
}

TEST_P(FusedOptimizer, SharesArchivesWithLibTorch) {
  const auto libtorch = GetParam().libtorch(expected_);
  const auto fused = GetParam().hora(actual_);
  step_both(*libtorch, *fused, 0, 3);
  // Crosswise: LibTorch goes on from hora's state, and hora from LibTorch's.
  const auto libtorch_again = GetParam().libtorch(expected_);
  const auto fused_again = GetParam().hora(actual_);
  hand_over(*fused, *libtorch_again);
  hand_over(*libtorch, *fused_again);
  step_both(*libtorch_again, *fused_again, 3, 6);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FusedOptimizer, testing::ValuesIn(kKinds),
                         [](const auto& of) { return of.param.name; });

TEST(FusedOptimizerClosure, IsCalledWithGradients) {
  auto parameter = torch::ones({3}, torch::requires_grad());
  optim::SGD sgd(std::vector<torch::Tensor>{parameter}, SGDOptions(0.5));
  const auto loss = sgd.step([&] {
    sgd.zero_grad();
    auto value = parameter.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 3.0F);
  EXPECT_TRUE(torch::equal(parameter, torch::zeros({3})));
}

TEST(FusedOptimizerOptions, AreCheckedByLibTorch) {
  EXPECT_THROW(optim::SGD(std::vector<torch::Tensor>{torch::ones({1})}, SGDOptions(-1)),
               c10::Error);
}

}  // namespace
}  // namespace hora::internal::test
