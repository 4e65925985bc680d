// Objects of bytes, text and JSON on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <hora/objects_json.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

std::vector<std::byte> bytes_of(int rank, std::size_t count) {
  auto random = generator(static_cast<std::uint64_t>(rank));
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(BroadcastObject, GivesEveryoneTheRootsBytes) {
  const Context world = init();
  for (const std::size_t count : {0UL, 1UL, 65537UL, 3000001UL}) {
    for (int root = 0; root < world.size(); ++root) {
      const auto own = bytes_of(world.rank(), world.rank() == root ? count : 5);
      EXPECT_EQ(broadcast_object(world, own, {.name = "object", .root = root}),
                bytes_of(root, count))
          << count << " bytes from " << root;
    }
  }
}

TEST(BroadcastObject, TheSameErrorOnEveryRankWhereRootsDiffer) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  const int last = world.size() - 1;
  expect_error(ErrorCode::mismatch,
               HasSubstr("tensor \"own.length\": ranks disagree about its root: "), [&] {
                 broadcast_object(world, bytes_of(world.rank(), 100000),
                                  {.name = "own", .root = world.rank() == last ? last : 0});
               });
  EXPECT_EQ(broadcast_object(world, "next", {.name = "own"}), "next");
}

TEST(AllgatherObject, GivesEveryoneEverybodysBytes) {
  const Context world = init();
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    all.push_back(bytes_of(rank, static_cast<std::size_t>(rank) * 70000));
  }
  EXPECT_EQ(allgather_object(world, all[static_cast<std::size_t>(world.rank())]), all);
}

TEST(AllgatherObject, TextInAProcessSet) {
  const Context world = init();
  const int last = world.size() - 1;
  const ProcessSet ends = add_process_set(world, last == 0 ? std::vector{0} : std::vector{0, last});
  if (rank_in(world, ends) >= 0) {
    const std::string own = std::to_string(world.rank());
    const auto all = allgather_object(world, own, {.name = "text", .process_set = ends});
    EXPECT_EQ(all.front(), "0");
    EXPECT_EQ(all.back(), std::to_string(last));
    EXPECT_EQ(broadcast_object(world, own, {.name = "text", .root = last, .process_set = ends}),
              std::to_string(last));
  }
  barrier(world);  // a rank that shut down would end the set's collectives
}

TEST(ObjectsJson, ArriveAsTheyWere) {
  const Context world = init();
  const auto of_rank = [](int rank) {
    return nlohmann::json{{"rank", rank},
                          {"third", 1.0 / 3.0},
                          {"large", std::numeric_limits<std::uint64_t>::max()},
                          {"bytes", "not utf-8: \xff"},
                          {"list", {1, nullptr, true, nlohmann::json::object()}}};
  };
  const int root = world.size() - 1;
  const nlohmann::json nothing;
  EXPECT_EQ(broadcast_object(world, world.rank() == root ? of_rank(root) : nothing, {.root = root}),
            of_rank(root));
  std::vector<nlohmann::json> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(of_rank(rank));
  EXPECT_EQ(allgather_object(world, of_rank(world.rank())), all);
}

nlohmann::json nested(int levels) {
  nlohmann::json value = 1;
  for (int i = 0; i < levels; ++i) value = nlohmann::json::array({std::move(value)});
  return value;
}

TEST(ObjectsJson, AsDeepAsTheStackIsSureToHold) {
  const Context world = init();
  EXPECT_EQ(broadcast_object(world, nested(kJsonDepth)), nested(kJsonDepth));
  expect_error(ErrorCode::invalid_argument, HasSubstr("deeper than 1000 levels"),
               [&] { allgather_object(world, nested(kJsonDepth + 1)); });
  // A peer's bytes: 100 million arrays in one another would end the process in from_cbor().
  const std::string deep(world.rank() == 0 ? 100'000'000 : 0, '\x81');
  const std::string cut = world.rank() == 0 ? std::string("\x9b\x7f\xff", 3) : "";
  for (const auto& [bytes, what] :
       {std::pair(deep, "deeper than 1000 levels"), std::pair(cut, "unexpected end of input")}) {
    const auto sent = broadcast_object(world, bytes, {.name = "bytes"});
    const Error error =
        expect_error(ErrorCode::transport, HasSubstr(what), [&] { detail::json_of(sent, 0); });
    EXPECT_EQ(error.rank(), 0);
  }
}

}  // namespace
}  // namespace hora::internal::test
