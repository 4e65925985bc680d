#include <algorithm>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Broadcast = Conformance;

TEST_F(Broadcast, InPlaceInABuffer) {
  const Buffer buffer(context(), 1024, where());
  const TensorView whole{buffer.data(), DataType::uint8, {1024}, where()};
  for (int root = 0; root < size(); ++root) {
    const auto own = static_cast<std::uint8_t>(rank() + 1);
    here().write(whole, Elements<std::uint8_t>(1024, own));
    broadcast(world(), {buffer.data() + 3, DataType::uint8, {17, 17}, where()},
              {.name = "inside", .root = root});
    const auto bytes = here().read<std::uint8_t>(whole);
    EXPECT_EQ(std::count(bytes.begin() + 3, bytes.begin() + 3 + 289, root + 1), 289);
    EXPECT_EQ(bytes[2], own);
    EXPECT_EQ(bytes[3 + 289], own);
  }
}

TEST_F(Broadcast, BitsThatAreNoNumbersArrive) {
  std::vector<std::uint32_t> bits = {0x7fc12345U, 0xffc00001U, 0x80000000U, 0x00000001U};
  if (rank() != 0) bits.assign(4, 0);
  broadcast(world(), placed(reinterpret_cast<float*>(bits.data()), 4), {.name = "nan"});
  EXPECT_EQ(bits, (std::vector<std::uint32_t>{0x7fc12345U, 0xffc00001U, 0x80000000U, 1U}));
}

TEST_F(Broadcast, RootsThatDifferAreTheSameErrorOnEveryRank) {
  std::vector<float> floats(12);
  const auto from = [&](const std::string& name, int root) {
    broadcast(world(), placed(floats), {.name = name, .root = root});
  };
  expect_disagreement({{"root", "from rank 0", "from rank 1"},
                       [&](const std::string& name, bool odd) { from(name, odd ? 1 : 0); }},
                      [&](const std::string& name) { from(name, 0); });
}

TEST_F(Broadcast, ARootThatDoesNotExistIsRefusedAtOnce) {
  float value = 1.0F;
  for (const int root : {-1, size()}) {
    expect_error(ErrorCode::invalid_argument,
                 [&] { broadcast(world(), placed(&value, 1), {.name = "x", .root = root}); });
  }
  const ProcessSet set = add_even_and_odd();
  for (int root = 1 - rank() % 2; root < size(); root += 2) {  // of the other set
    expect_error(ErrorCode::invalid_argument, [&] {
      broadcast(world(), placed(&value, 1), {.name = "x", .root = root, .process_set = set});
    });
  }
  value = static_cast<float>(rank());
  broadcast(world(), placed(&value, 1), {.name = "x"});
  EXPECT_EQ(value, 0.0F);
}

}  // namespace
}  // namespace hora::internal::test
