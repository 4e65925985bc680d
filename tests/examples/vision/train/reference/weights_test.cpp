// Weights in files of PyPI's safetensors, and in files for it.
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/vision/models/model.h"
#include "tests/examples/vision/models/formula.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using hora::internal::test::TemporaryFolder;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

torch::Tensor logits_of(Classifier& model, std::int64_t side) {
  const torch::NoGradGuard no_grad;
  model.eval();
  return model.forward(formula_images(side));
}

void expect_close(const torch::Tensor& logits, const torch::Tensor& expected) {
  EXPECT_LE((logits - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

// make_weights.py has written both.
TEST(PythonsWeights, GiveTorchvisionsLogits) {
  const auto model = make_model("resnet18", {.classes = 10, .base_width = 4});
  hora::load_weights(*model, hora::load_safetensors(REFERENCE "/narrow_resnet18.safetensors"));
  const nlohmann::json expected =
      nlohmann::json::parse(std::ifstream(REFERENCE "/narrow_resnet18.json"));
  const auto values = expected.at("logits").get<std::vector<float>>();
  expect_close(logits_of(*model, expected.at("side").get<std::int64_t>()),
               torch::tensor(values).reshape({4, 10}));
}

int exit_code_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class WeightsExchange : public testing::TestWithParam<const char*> {};

// exchange_weights.py loads what hora::Checkpoint has written, compares the logits, and writes
// weights of its own. TEST_PYTHON names another Python, such as cmake/python_readers.sh's.
TEST_P(WeightsExchange, WithTorchvisionKeepsTheLogits) {
  constexpr int without_modules = 77;
  const char* const python = std::getenv("TEST_PYTHON");
  const std::string program =
      std::string(python != nullptr ? python : PYTHON3) + " -B " REFERENCE "/exchange_weights.py ";
  if (exit_code_of(program + "--check") == without_modules) {
    GTEST_SKIP() << "NOT RUN: this Python lacks torchvision or PyPI's safetensors; "
                    "TEST_PYTHON=<python> names one that has them (cmake/python_readers.sh)";
  }
  constexpr std::int64_t side = 64;
  const hora::Context world = hora::init();
  const TemporaryFolder folder;
  const auto model = make_model(GetParam(), {.classes = 10});
  model->train();
  model->forward(2 * formula_images(side));  // running statistics that are not the first ones
  hora::Checkpoint checkpoint(world, {.folder = folder.path()});
  checkpoint.add_weights(*model);
  checkpoint.save({.step = 1});
  checkpoint.wait();
  hora::save_safetensors(folder.file("logits.safetensors"), {{"logits", logits_of(*model, side)}});

  ASSERT_EQ(exit_code_of(program + GetParam() + " '" + folder.path().string() + "'"), 0);

  const auto other = make_model(GetParam(), {.classes = 10});
  hora::load_weights(*other, hora::load_safetensors(folder.file("of_torchvision.safetensors")));
  const Tensors expected = hora::load_safetensors(folder.file("logits_of_torchvision.safetensors"));
  expect_close(logits_of(*other, side), expected["logits"]);
}

INSTANTIATE_TEST_SUITE_P(All, WeightsExchange, testing::Values("resnet18", "resnet50"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace vision
