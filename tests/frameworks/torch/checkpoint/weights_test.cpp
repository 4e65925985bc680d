// Weights in safetensors files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/safetensors.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

void expect_equal(const Tensors& a, const Tensors& b) {
  EXPECT_EQ(a.size(), b.size());
  for (const auto& item : a) {
    ASSERT_TRUE(b.contains(item.key())) << item.key();
    EXPECT_EQ(item.value().scalar_type(), b[item.key()].scalar_type()) << item.key();
    EXPECT_TRUE(torch::equal(item.value(), b[item.key()])) << item.key();
  }
}

TEST(SafetensorsFile, OfPythonIsRead) {
  const Tensors expected{
      {"conv1.weight", torch::arange(24, torch::kFloat).reshape({2, 3, 2, 2}) / 8},
      {"bn1.num_batches_tracked", torch::tensor(7, torch::kLong)},
      {"bn1.running_mean", torch::tensor({0.5, -2.0}, torch::kDouble)},
      {"half", torch::tensor({1.5, -0.25}, torch::kHalf)},
      {"bfloat", torch::tensor({1.5, -3.0, 65536.0}, torch::kBFloat16)},
      {"bytes", torch::tensor({0, 255, 7}, torch::kByte)},
      {"flags", torch::tensor({1, 0}, torch::kBool).reshape({2, 1})},
      {"empty", torch::zeros({0, 3})},
      {"Gr\u00f6sse", torch::tensor({-5, 6}, torch::kInt)}};
  expect_equal(load_safetensors(HORA_TEST_FOLDER "/python.safetensors"), expected);
}

TEST(SafetensorsFile, ComesBack) {
  const TemporaryFolder folder;
  torch::manual_seed(seed());
  const auto image = torch::randn({2, 3, 4, 5});
  const Tensors tensors{{"channels_last", image.contiguous(torch::MemoryFormat::ChannelsLast)},
                        {"transposed", image.transpose(0, 3)},
                        {"number", torch::tensor(1e-300, torch::kDouble)},
                        {"short", torch::tensor({-1, 300}, torch::kShort)},
                        {"char", torch::tensor({-1, 127}, torch::kChar)},
                        {"", torch::zeros({0})},
                        {"with \"quotes\"\n", torch::ones({1})}};
  save_safetensors(folder.file("a.safetensors"), tensors);
  expect_equal(load_safetensors(folder.file("a.safetensors")), tensors);
}

// A forgotten `if (world.rank() == 0)`.
TEST(SafetensorsFile, IsWholeWhileSeveralSaveItUnderOnePath) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const auto save = [&](double value) {
    for (int i = 0; i < 50; ++i) save_safetensors(path, {{"a", torch::full({20'000}, value)}});
  };
  save_safetensors(path, {{"a", torch::full({20'000}, 1.0)}});
  auto one = std::async(std::launch::async, save, 1.0);
  auto two = std::async(std::launch::async, save, 2.0);
  while (one.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    const torch::Tensor saved = load_safetensors(path)["a"];
    EXPECT_TRUE(saved.eq(saved[0]).all().item<bool>());
  }
  EXPECT_NO_THROW(one.get());
  EXPECT_NO_THROW(two.get());
}

TEST(SafetensorsFile, LeavesNoTemporaryFileAndRemovesThoseOfKilledWriters) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  for (const char* name : {"a.new-killed", "a.new-writes", "b.new-killed"}) {
    std::ofstream(folder.file(name)) << "half";
  }
  for (const char* name : {"a.new-killed", "b.new-killed"}) {
    fs::last_write_time(folder.file(name),
                        fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  save_safetensors(folder.file("a"), {{"a", torch::ones({1})}});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("a", "a.new-writes", "b.new-killed"));
}

TEST(SafetensorsFile, ThatCannotBeWrittenOrReadIsNamed) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("none/a\" cannot be made"), HasSubstr("No such file")), [&] {
                 save_safetensors(folder.file("none/a"), {{"a", torch::ones({1})}});
               });
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("/a\": it cannot be opened"), HasSubstr("No such file")),
               [&] { load_safetensors(folder.file("a")); });
  std::ofstream(folder.file("b")) << "abcdefghijkl";
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("/b\": "), HasSubstr("it is no safetensors file")),
               [&] { load_safetensors(folder.file("b")); });
  expect_error(ErrorCode::invalid_argument, HasSubstr("tensor \"complex\""), [&] {
    save_safetensors(folder.file("c"), {{"complex", torch::ones({1}, torch::kComplexFloat)}});
  });
}

torch::nn::Sequential block() {
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4));
}

TEST(Weights, HaveTheNamesOfParametersAndBuffers) {
  auto module = block();
  std::vector<std::string> names;
  for (const auto& item : weights_of(*module)) names.push_back(item.key());
  EXPECT_THAT(names, testing::UnorderedElementsAre("0.weight", "0.bias", "1.weight", "1.bias",
                                                   "1.running_mean", "1.running_var",
                                                   "1.num_batches_tracked"));
}

TEST(Weights, AreCopiedIntoAModuleThatKeepsItsMemory) {
  auto from = block();
  from->forward(torch::randn({2, 3, 8, 8}));
  auto into = block();
  into->to(torch::kDouble);
  const torch::Tensor weight = into->parameters()[0];
  load_weights(*into, weights_of(*from));
  EXPECT_TRUE(torch::equal(weight, from->parameters()[0].to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(into->buffers()[0], from->buffers()[0].to(torch::kDouble)));
  EXPECT_TRUE(weight.requires_grad());
}

TEST(Weights, ThatDoNotFitChangeNothing) {
  auto module = block();
  const auto before = module->parameters()[0].detach().clone();
  const auto changed = [&](const std::function<void(Tensors&)>& change) {
    Tensors weights;
    for (const auto& item : weights_of(*block())) weights.insert(item.key(), item.value());
    change(weights);
    return weights;
  };
  const auto refused = [&](const std::string& why, const Tensors& weights) {
    const Error error = expect_error(ErrorCode::invalid_argument, HasSubstr(why),
                                     [&] { load_weights(*module, weights); });
    EXPECT_TRUE(torch::equal(module->parameters()[0], before));
    return error;
  };
  refused("\"1.running_var\" is in the module, but not in the weights",
          changed([](Tensors& weights) { weights.erase("1.running_var"); }));
  refused("\"2.bias\" is in the weights, but not in the module",
          changed([](Tensors& weights) { weights.insert("2.bias", torch::ones({1})); }));
  refused("\"1.bias\" has the shape [5]",
          changed([](Tensors& weights) { weights["1.bias"] = torch::ones({5}); }));
}

}  // namespace
}  // namespace hora::internal::test
