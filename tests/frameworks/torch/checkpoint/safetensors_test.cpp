#include "frameworks/torch/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

std::string problem_of(const std::string& file) {
  const auto parsed = parse_safetensors(bytes_in(file));
  return parsed ? "" : parsed.error();
}

std::string python_file() {
  std::ifstream file(HORA_TEST_FOLDER "/python.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Safetensors, ReadsAndLaysOutWhatPythonWrites) {
  const std::string file = python_file();
  const auto parsed = parse_safetensors(bytes_in(file));
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_THAT(parsed->metadata, testing::ElementsAre(testing::Pair("format", "pt")));
  ASSERT_EQ(parsed->tensors.size(), 9u);
  EXPECT_EQ(parsed->tensors[0].name, "bn1.num_batches_tracked");
  EXPECT_THAT(parsed->tensors[0].shape, IsEmpty());
  EXPECT_EQ(parsed->tensors[2].name, "conv1.weight");
  EXPECT_THAT(parsed->tensors[2].shape, testing::ElementsAre(2, 3, 2, 2));
  EXPECT_EQ(parsed->tensors[2].bytes, 96u);

  auto tensors = parsed->tensors;
  std::ranges::reverse(tensors);
  const auto layout = lay_out_safetensors(tensors, parsed->metadata);
  ASSERT_TRUE(layout) << layout.error();
  EXPECT_EQ(layout->header, file.substr(0, layout->header.size()));
  EXPECT_EQ(layout->bytes, file.size());
  EXPECT_EQ(layout->tensors, parsed->tensors);
}

TEST(Safetensors, RefusesWhatIsNoHeader) {
  EXPECT_THAT(problem_of(""), HasSubstr("fewer than the 8"));
  EXPECT_THAT(problem_of(std::string(8, '\0')), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(problem_of("PK\3\4 as torch.save() begins"), HasSubstr("no safetensors file"));
  EXPECT_THAT(problem_of(file_of(" {}")), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(problem_of(file_of("{")), HasSubstr("no JSON"));
  EXPECT_THAT(problem_of(file_of("{}x")), HasSubstr("no JSON"));
  EXPECT_EQ(problem_of(file_of("{}  ")), "");
  EXPECT_THAT(problem_of(file_of("{}", 1)), HasSubstr("ends at byte 0 of the data, which has 1"));
}

TEST(Safetensors, RefusesWhatDoesNotBelongIntoAHeader) {
  const auto tensor = [](const std::string& inside) {
    return file_of("{\"a\":" + inside + "}", 8);
  };
  const std::string offsets = R"("data_offsets":[0,8])";
  const std::string shape = R"("shape":[2])";
  const std::string type = R"("dtype":"F32")";
  EXPECT_EQ(problem_of(tensor("{" + offsets + "," + shape + "," + type + "}")), "");
  EXPECT_THAT(problem_of(tensor("{" + offsets + "," + shape + "}")), HasSubstr("lacks dtype"));
  EXPECT_THAT(problem_of(tensor("7")), HasSubstr("a number where none is expected"));
  EXPECT_THAT(problem_of(tensor("[1]")), HasSubstr("a list where none is expected"));
  EXPECT_THAT(problem_of(tensor("{" + offsets + "," + shape + R"(,"dtype":"F31"})")),
              HasSubstr(R"(tensor "a": its dtype "F31" is unknown)"));
  EXPECT_THAT(problem_of(tensor("{" + offsets + "," + type + R"(,"shape":[-2]})")),
              HasSubstr("a negative number"));
  EXPECT_THAT(problem_of(tensor("{" + offsets + "," + type + R"(,"shape":[[2]]})")),
              HasSubstr("a list where none"));
  EXPECT_THAT(problem_of(tensor("{" + offsets + "," + type + "," + type + "," + shape + "}")),
              HasSubstr("there twice"));
  const std::string one = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_THAT(problem_of(file_of("{" + one + "," + one + "}", 8)), HasSubstr("there twice"));
  EXPECT_THAT(problem_of(file_of(R"({"__metadata__":{"a":1}})")), HasSubstr("a number"));
}

std::string of_two(const std::string& first, const std::string& second) {
  return file_of(R"({"a":{"dtype":"U8",)" + first + R"(},"b":{"dtype":"I64",)" + second + "}}", 12);
}

TEST(Safetensors, EachByteIsInOneTensor) {
  const std::string b = R"("shape":[1],"data_offsets":[4,12])";
  EXPECT_EQ(problem_of(of_two(R"("shape":[4],"data_offsets":[0,4])", b)), "");
  EXPECT_THAT(problem_of(of_two(R"("shape":[5],"data_offsets":[0,5])", b)),
              HasSubstr("begins at byte 4 of the data, the one before ends at 5"));
  EXPECT_THAT(problem_of(of_two(R"("shape":[3],"data_offsets":[0,3])", b)),
              HasSubstr("begins at byte 4"));
  EXPECT_THAT(problem_of(of_two(R"("shape":[4],"data_offsets":[4,0])", b)),
              HasSubstr("not a begin and an end"));
  EXPECT_THAT(problem_of(of_two(R"("shape":[2],"data_offsets":[0,4])", b)),
              HasSubstr("span 4 bytes, its shape and dtype 2"));
  EXPECT_THAT(problem_of(of_two(R"("shape":[4],"data_offsets":[0,4])",
                                R"("shape":[2],"data_offsets":[4,20])")),
              HasSubstr("ends at byte 20 of the data, which has 12"));
}

TEST(Safetensors, LengthsThatCannotBeCountedAreRefused) {
  EXPECT_THAT(problem_of(of_two(R"("shape":[4294967296,4294967296],"data_offsets":[0,4])",
                                R"("shape":[1],"data_offsets":[4,12])")),
              HasSubstr("too large"));
  EXPECT_THAT(problem_of(of_two(R"("shape":[18446744073709551615],"data_offsets":[0,4])",
                                R"("shape":[1],"data_offsets":[4,12])")),
              HasSubstr("its shape is none"));
  EXPECT_THAT(problem_of(of_two(
                  R"("shape":[4],"data_offsets":[0,4])",
                  R"("shape":[1],"data_offsets":[18446744073709551608,18446744073709551615])")),
              HasSubstr("span 7 bytes"));
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
    const auto parsed = parse_safetensors(bytes_in(file));
    if (!parsed) continue;
    for (const TensorEntry& tensor : parsed->tensors) {
      EXPECT_LE(tensor.offset + tensor.bytes, file.size());
    }
  }
}

TEST(Safetensors, LaysOutNoNameTwiceAndNoneThatIsNotUtf8) {
  const auto problem = [](std::vector<TensorEntry> tensors) {
    const auto layout = lay_out_safetensors(std::move(tensors), {});
    return layout ? std::string() : layout.error();
  };
  const TensorEntry a{"a", DataType::float32, {2}};
  EXPECT_EQ(problem({a}), "");
  EXPECT_THAT(problem({a, a}), HasSubstr("is taken"));
  EXPECT_THAT(problem({{"__metadata__", DataType::float32, {2}}}), HasSubstr("is taken"));
  EXPECT_THAT(problem({{"\xff", DataType::float32, {2}}}), HasSubstr("no UTF-8"));
}

}  // namespace
}  // namespace hora::internal::test
