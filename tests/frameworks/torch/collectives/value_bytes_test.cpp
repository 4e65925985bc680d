#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "frameworks/torch/collectives/objects.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr BytesOrigin kOrigin{"a value", 1};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string written(const c10::IValue& value) {
  ByteWriter writer;
  write_value(writer, value, "x");
  return std::move(writer).take();
}

c10::IValue read_back(const std::string& bytes) {
  BoundedReader reader(bytes_of(bytes), kOrigin);
  c10::IValue value = read_value(reader);
  reader.expect_end();
  return value;
}

std::string refusal(const std::string& bytes) {
  try {
    read_back(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::transport);
    EXPECT_EQ(error.rank(), 1);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// A tensor's bytes, but with this shape.
std::string hostile_tensor(const std::vector<std::int64_t>& shape, std::int8_t type = 6) {
  ByteWriter writer;
  writer.put(std::uint8_t{1});
  writer.put(type);
  writer.put(std::uint64_t{shape.size()});
  for (const std::int64_t extent : shape) writer.put(extent);
  writer.put(1.0F);
  return std::move(writer).take();
}

TEST(ValueBytes, TensorsComeBackAsTheyWere) {
  for (const auto type : {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
                          torch::kHalf, torch::kFloat, torch::kDouble, torch::kComplexFloat,
                          torch::kComplexDouble, torch::kBool, torch::kBFloat16}) {
    for (const torch::Tensor& tensor :
         {torch::ones({3, 2}, type), torch::zeros({}, type), torch::ones({0, 7}, type),
          torch::ones({4, 5}, type).t().slice(0, 1)}) {
      const torch::Tensor back = read_back(written(tensor)).toTensor();
      EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
      EXPECT_TRUE(torch::equal(back, tensor));
    }
  }
  const auto conjugated = torch::full({2}, c10::complex<float>(1, 2)).conj();
  EXPECT_TRUE(torch::equal(read_back(written(conjugated)).toTensor(), conjugated.resolve_conj()));
  EXPECT_FALSE(read_back(written(torch::Tensor())).toTensor().defined());
}

TEST(ValueBytes, OtherValuesComeBackAsTheyWere) {
  EXPECT_TRUE(read_back(written({})).isNone());
  EXPECT_EQ(read_back(written(std::int64_t{-5})).toInt(), -5);
  EXPECT_EQ(read_back(written(0.1)).toDouble(), 0.1);
  EXPECT_EQ(read_back(written(true)).toBool(), true);
  EXPECT_EQ(read_back(written(std::string("a\0b", 3))).toStringRef(), std::string("a\0b", 3));
  EXPECT_EQ(read_back(written(std::vector<std::int64_t>{1, 2})).toIntVector(),
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(read_back(written(std::vector<double>{})).toDoubleVector().size(), 0u);
  EXPECT_EQ(read_back(written(c10::List<bool>({true, false}))).toBoolList().vec(),
            (std::vector<bool>{true, false}));
  const auto tensors = read_back(written(std::vector<torch::Tensor>{torch::ones(2)}));
  EXPECT_TRUE(torch::equal(tensors.toTensorVector().at(0), torch::ones(2)));
  const auto tuple = read_back(written(std::tuple<double, double>(0.9, 0.999)));
  EXPECT_EQ((tuple.to<std::tuple<double, double>>()), (std::tuple<double, double>(0.9, 0.999)));
}

TEST(ValueBytes, WhatIsNoPlainValueIsRefusedByTheSender) {
  EXPECT_THROW(written(torch::ones({2, 2}).to_sparse()), Error);
  EXPECT_THROW(written(torch::quantize_per_tensor(torch::ones(2), 1, 0, torch::kQInt8)), Error);
  EXPECT_THROW(written(c10::Device("cpu")), Error);
}

TEST(ValueBytes, LengthsThatCannotBeAreAnError) {
  EXPECT_NO_THROW(read_back(hostile_tensor({1})));
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{2},
                                              {-1},
                                              {-1, -1},
                                              {most},
                                              {std::int64_t{1} << 62, 4},
                                              {std::int64_t{1} << 31, std::int64_t{1} << 31, 4},
                                              {0, most},
                                              {most, most, 0}}) {
    refusal(hostile_tensor(shape));
  }
  EXPECT_THAT(refusal(hostile_tensor({1}, 12)), HasSubstr("unknown type"));
  EXPECT_THAT(refusal(hostile_tensor({1}, -3)), HasSubstr("unknown type"));
  EXPECT_THAT(refusal(hostile_tensor(std::vector<std::int64_t>(65, 1))), HasSubstr("dimensions"));
  EXPECT_THAT(refusal("\x2a"), HasSubstr("unknown kind"));
  refusal("");
  std::string nested;
  for (int depth = 0; depth < 100000; ++depth) nested += std::string("\x0b\x01\0\0\0\0\0\0\0", 9);
  EXPECT_THAT(refusal(nested), HasSubstr("nested"));
}

/// An Adam's state and options after a step.
std::string adam_bytes() {
  const auto parameter = torch::ones({2, 3}).set_requires_grad(true);
  torch::optim::Adam adam({parameter}, torch::optim::AdamOptions(0.1));
  parameter.square().sum().backward();
  adam.step();
  OutputArchive archive;
  OutputArchive state(archive.compilation_unit());
  adam.save(state);
  archive.write("optimizer", state);
  return archive_bytes(archive, "x");
}

TEST(ArchiveBytes, ComeBackAsTheyWere) {
  InputArchive archive = archive_of(bytes_of(adam_bytes()), kOrigin, torch::kCPU);
  InputArchive state;
  archive.read("optimizer", state);
  const auto parameter = torch::zeros({2, 3}).set_requires_grad(true);
  torch::optim::Adam other({parameter}, torch::optim::AdamOptions(0.7));
  other.load(state);
  ASSERT_EQ(other.state().size(), 1u);
  const auto& loaded =
      static_cast<const torch::optim::AdamParamState&>(*other.state().begin()->second);
  EXPECT_EQ(loaded.step(), 1);
  EXPECT_EQ(loaded.exp_avg().sizes(), parameter.sizes());
}

// LibTorch would read it as a part of its script.
TEST(ArchiveBytes, AKeyIsNoScript) {
  for (const std::string wrong : {"par\"ms/0", "par\\ms/0", "par\nms/0"}) {
    std::string damaged = adam_bytes();
    for (std::size_t at = 0; (at = damaged.find("params/0", at)) != std::string::npos; ++at) {
      damaged.replace(at, wrong.size(), wrong);
    }
    EXPECT_THROW(archive_of(bytes_of(damaged), kOrigin, torch::kCPU), Error) << wrong;
  }
}

TEST(ArchiveBytes, DamageIsAnErrorOrAnotherArchive) {
  const std::string whole = adam_bytes();
  auto random = generator();
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    try {
      archive_of(bytes_of(damaged), kOrigin, torch::kCPU);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::transport);
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
}

}  // namespace
}  // namespace hora::internal::test
