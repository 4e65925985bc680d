// Safetensors files, and weights in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/checkpoint.h>
#include <torch/torch.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "frameworks/torch/checkpoint/named_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Bytes bytes_in(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

std::string python_file() {
  return read_file(HORA_TEST_FOLDER "/python.safetensors");
}

TEST(Safetensors, WritesByteByByteWhatPythonWrites) {
  const std::string file = python_file();
  const auto contents = contents_of(bytes_in(file));
  ASSERT_TRUE(contents) << contents.error();
  EXPECT_THAT(contents->metadata, testing::ElementsAre(testing::Pair("format", "pt")));
  NamedTensors reversed;
  auto items = contents->tensors.items();
  std::ranges::reverse(items);
  for (const auto& item : items) reversed.insert(item.key(), item.value());
  Bytes image;
  fill_image(image, reversed, contents->metadata);
  EXPECT_EQ(image, bytes_in(file));
}

std::string with_tensor(const std::string& inside) {
  return file_of("{\"a\":" + inside + "}", 8);
}

std::string of_two(const std::string& first, const std::string& second) {
  return file_of(R"({"a":{"dtype":"U8",)" + first + R"(},"b":{"dtype":"I64",)" + second + "}}", 12);
}

TEST(Safetensors, RefusesOtherFiles) {
  const std::string offsets = R"("data_offsets":[0,8])";
  const std::string shape = R"("shape":[2])";
  const std::string type = R"("dtype":"F32")";
  const std::string one = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string a = R"("shape":[4],"data_offsets":[0,4])";
  const std::string b = R"("shape":[1],"data_offsets":[4,12])";
  const std::string files[] = {
      "",
      std::string(8, '\0'),
      "PK\3\4 as torch.save() begins",
      file_of(" {}"),
      file_of("{"),
      file_of("{}x"),
      file_of("{}  "),
      file_of("{}", 1),
      with_tensor("{" + offsets + "," + shape + "," + type + "}"),
      with_tensor("{" + offsets + "," + shape + "}"),
      with_tensor("{" + offsets + "," + shape + "," + type + R"(,"x":1})"),
      with_tensor("7"),
      with_tensor("[1]"),
      with_tensor("{" + offsets + "," + shape + R"(,"dtype":"F31"})"),
      with_tensor("{" + offsets + "," + type + R"(,"shape":[-2]})"),
      with_tensor("{" + offsets + "," + type + R"(,"shape":[[2]]})"),
      with_tensor("{" + offsets + "," + type + "," + type + "," + shape + "}"),
      file_of("{" + one + "," + one + "}", 8),
      file_of(R"({"__metadata__":{"a":1}})"),
      of_two(a, b),
      of_two(R"("shape":[5],"data_offsets":[0,5])", b),
      of_two(R"("shape":[3],"data_offsets":[0,3])", b),
      of_two(R"("shape":[4],"data_offsets":[4,0])", b),
      of_two(R"("shape":[2],"data_offsets":[0,4])", b),
      of_two(a, R"("shape":[2],"data_offsets":[4,20])"),
      of_two(R"("shape":[4294967296,4294967296],"data_offsets":[0,4])", b),
      of_two(R"("shape":[18446744073709551615],"data_offsets":[0,4])", b),
      of_two(a, R"("shape":[1],"data_offsets":[18446744073709551608,18446744073709551615])"),
  };
  std::string problems;
  for (const std::string& file : files) {
    const auto contents = contents_of(bytes_in(file));
    const std::string problem = contents ? "none" : contents.error();
    problems += problem.substr(0, problem.find(": [json")) + "\n";  // the library's own words
  }
  expect_golden("frameworks/torch/checkpoint/texts.txt", "safetensors", problems);
}

TEST(Safetensors, DamagedHeadersAreParsedInBounds) {
  const std::string intact = python_file();
  auto random = generator();
  for (int i = 0; i < 2000; ++i) {
    std::string file = intact;
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      file[random() % 640] ^= static_cast<char>(1 << random() % 8);
    }
    if (random() % 4 == 0) file.resize(random() % file.size());
    const auto contents = contents_of(bytes_in(file));
    if (!contents) continue;
    for (const auto& item : contents->tensors) item.value().to(torch::kDouble);  // reads all of it
  }
}

TEST(Safetensors, NamesAreUtf8AndTensorsAreNumbers) {
  const std::tuple<std::string, torch::Tensor, const char*> cases[] = {
      {"__metadata__", torch::ones({2}), "another name than __metadata__"},
      {"\xff", torch::ones({2}), "no UTF-8"},
      {"complex", torch::ones({1}, torch::kComplexFloat), "tensor \"complex\""}};
  for (const auto& [name, tensor, problem] : cases) {
    Bytes image;
    expect_error(ErrorCode::invalid_argument, HasSubstr(problem),
                 [&, &name = name, &tensor = tensor] {
                   fill_image(image, {{name, tensor}});
                 });
  }
}

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
  const auto refused = [&](const std::string& why, const std::function<void(Tensors&)>& change) {
    Tensors weights;
    for (const auto& item : weights_of(*block())) weights.insert(item.key(), item.value());
    change(weights);
    expect_error(ErrorCode::invalid_argument, HasSubstr(why),
                 [&] { load_weights(*module, weights); });
    EXPECT_TRUE(torch::equal(module->parameters()[0], before));
  };
  refused("\"1.running_var\" is in the module, but not in the weights",
          [](Tensors& weights) { weights.erase("1.running_var"); });
  refused("\"2.bias\" is in the weights, but not in the module",
          [](Tensors& weights) { weights.insert("2.bias", torch::ones({1})); });
  refused("\"1.bias\" has the shape [5]",
          [](Tensors& weights) { weights["1.bias"] = torch::ones({5}); });
}

}  // namespace
}  // namespace hora::internal::test
