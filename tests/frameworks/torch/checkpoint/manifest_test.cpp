#include "frameworks/torch/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "frameworks/torch/checkpoint/checksum.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.save = "c0ffee";
  manifest.step = 12;
  manifest.epoch = 3;
  manifest.time = 1'700'000'000;
  manifest.ranks_of_nodes = {2, 1};
  manifest.shards = 3;
  manifest.shard = 1;
  manifest.files = {{"state.safetensors", 77, std::string(32, 'a')}, {"b", 0, ""}};
  return manifest;
}

TEST(Checksum, IsThatOfXxh128sum) {
  // printf '' | xxh128sum; printf 'hora' | xxh128sum
  EXPECT_EQ(checksum_of({}), "99aa06d3014798d86001c324468d497f");
  const std::string text = "hora";
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(text))), "83cdd6ff99123ee8d4811a98a794b9e8");
}

TEST(Manifest, ComesBack) {
  EXPECT_EQ(parse_manifest(to_text(example())).value(), example());
  EXPECT_EQ(number_of_ranks(example()), 3);
}

TEST(Manifest, AnyFlippedBitIsFound) {
  const std::string text = to_text(example());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(parse_manifest(damaged)) << "bit " << bit;
  }
}

TEST(Manifest, AnyCutIsFound) {
  const std::string text = to_text(example());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_manifest(text.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_manifest(text + "\n"));
}

std::string problem_of(const Manifest& manifest) {
  const auto parsed = parse_manifest(to_text(manifest));
  return parsed ? "" : parsed.error();
}

TEST(Manifest, FilesLieInItsFolder) {
  for (const char* name : {"", "../state", "/etc/passwd", ".", "..", "a/b", "a\\b"}) {
    Manifest manifest = example();
    manifest.files[0].name = name;
    EXPECT_THAT(problem_of(manifest), HasSubstr("not in its folder")) << name;
  }
}

TEST(Manifest, RanksAndShardsAreSome) {
  Manifest without = example();
  without.ranks_of_nodes.clear();
  EXPECT_THAT(problem_of(without), HasSubstr("ranks or shards"));
  Manifest beyond = example();
  beyond.shard = 3;
  EXPECT_THAT(problem_of(beyond), HasSubstr("ranks or shards"));
}

}  // namespace
}  // namespace hora::internal::test
